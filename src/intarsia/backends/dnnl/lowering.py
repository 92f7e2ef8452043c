# SPDX-License-Identifier: Apache-2.0
"""Words that the lowering of every operator shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from intarsia.arrays import Array
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import ReasonCode
from intarsia.graph.graph import Value


class Ids(Protocol):
    """From the id of a value to the tensor of the program that it is."""

    def __call__(self, value_id: int) -> int:
        """Return the tensor of a value."""

    def constant(self, name: str, array: Array) -> int:
        """Return the tensor of a constant made when compiling."""


Problem: TypeAlias = tuple[ReasonCode, str]
"""Why a node is not taken."""


def unsupported(what: str) -> Problem:
    """Return that an operator is not taken in some form."""
    return ReasonCode.UNSUPPORTED_OP, f"oneDNN does not compute this: {what}"


def aligned(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return a shape with ones before it, as broadcasting reads it."""
    return (1,) * (rank - len(shape)) + shape


@dataclass(frozen=True, eq=False)
class Selected(Operation):
    """An operation seen through some of its inputs: operands without scales and zero points.

    Attributes:
        positions: Where in the node the operands are.
    """

    positions: tuple[int, ...] = ()

    def value(self, position: int) -> Value | None:
        """Return an operand, or None if it is absent."""
        if position >= len(self.positions):
            return None
        return Operation.value(self, self.positions[position])

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The operands that are there."""
        found = (self.value(position) for position in range(len(self.positions)))
        return tuple(value for value in found if value is not None)
