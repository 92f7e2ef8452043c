# SPDX-License-Identifier: Apache-2.0
"""Words that the lowering of every operator shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from intarsia.arrays import Array
from intarsia.backends.dnnl.program import Post, PrimitiveCall
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import ReasonCode
from intarsia.graph.graph import Value


class Ids(Protocol):
    """Maps the id of a value to its tensor in the program."""

    def __call__(self, value_id: int) -> int:
        """Return the tensor of a value."""

    def constant(self, name: str, array: Array, /) -> int:
        """Return the tensor of a constant made when compiling."""


Problem: TypeAlias = tuple[ReasonCode, str]
"""A reason code and a sentence: why a node is not taken."""


def node_call(
    kind: str,
    operation: Operation,
    ids: Ids,
    algorithm: int = 0,
    *,
    inputs: Sequence[int] | None = None,
    lists: dict[str, tuple[int, ...]] | None = None,
    numbers: dict[str, float] | None = None,
    posts: tuple[Post, ...] = (),
) -> PrimitiveCall:
    """Return the primitive that computes a node.

    Args:
        kind: Of the primitive.
        operation: The node.
        ids: Tensors of values.
        algorithm: Where the kind has several.
        inputs: Tensors that it reads; those of all inputs of the node if nothing is given.
        lists: As those of `PrimitiveCall`.
        numbers: Likewise.
        posts: What is done to the result.
    """
    if inputs is None:
        inputs = [ids(value.id) for value in operation.inputs]
    return PrimitiveCall(
        kind,
        tuple(inputs),
        ids(operation.output.id),
        algorithm,
        lists or {},
        numbers or {},
        posts,
        (operation.node.name,),
    )


def first_input(operation: Operation, ids: Ids) -> tuple[int]:
    """Return the tensor of a node's first input, where the others are shapes and axes."""
    return (ids(operation.inputs[0].id),)


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
        operands = (self.value(position) for position in range(len(self.positions)))
        return tuple(value for value in operands if value is not None)
