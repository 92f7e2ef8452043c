# SPDX-License-Identifier: Apache-2.0
"""Words that the lowering of every operator shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from intarsia.backends.api import ReasonCode

Ids: TypeAlias = Callable[[int], int]
"""From the id of a value to the tensor of the program that it is."""

Problem: TypeAlias = tuple[ReasonCode, str]
"""Why a node is not taken."""


def unsupported(what: str) -> Problem:
    """Return that an operator is not taken in some form."""
    return ReasonCode.UNSUPPORTED_OP, f"oneDNN does not compute this: {what}"


def aligned(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return a shape with ones before it, as broadcasting reads it."""
    return (1,) * (rank - len(shape)) + shape
