# SPDX-License-Identifier: Apache-2.0
"""Transposes squares of lanes in registers, and numbers lanes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue, Type

_PART_BYTES = 16
"""Shuffles inside parts of so many bytes are the cheapest on every vector unit."""


def transpose_lanes(builder: Builder, rows: Sequence[IrValue]) -> list[IrValue]:
    """Return the columns of a square of as many vectors as a vector has lanes.

    First the rows are interleaved inside parts of 16 bytes, then whole parts change places: each
    step is one shuffle instruction of x86 and of Arm.

    Args:
        builder: Of the kernel.
        rows: A power of two.
    """
    lanes = len(rows)
    if lanes == 1:
        return list(rows)
    # unpcklps and its kin of x86 work inside 16 bytes; shuffles across these take 3 cycles instead
    # of 1 (Fog, "Instruction tables").
    inside = min(lanes, max(1, _PART_BYTES // np.dtype(rows[0].type.dtype).itemsize))
    parts = lanes // inside
    groups = [
        _interleave(builder, list(rows[part * inside : (part + 1) * inside]), inside)
        for part in range(parts)
    ]
    columns: list[IrValue | None] = [None] * lanes
    for number in range(inside):
        spread = _spread(builder, [group[number] for group in groups], inside)
        for part, column in enumerate(spread):
            columns[part * inside + number] = column
    return [column for column in columns if column is not None]


def _interleave(builder: Builder, rows: list[IrValue], inside: int) -> list[IrValue]:
    """Transpose `inside` rows inside every part of `inside` lanes."""
    lanes = rows[0].type.lanes
    half = inside // 2
    low = _interleaved(lanes, inside, 0)
    high = _interleaved(lanes, inside, half)
    for _ in range(inside.bit_length() - 1):
        pairs = [(rows[number], rows[number + half]) for number in range(half)]
        rows = [builder.shuffle(*pair, mask) for pair in pairs for mask in (low, high)]
    return rows


def _interleaved(lanes: int, inside: int, first: int) -> list[int]:
    mask = []
    for part in range(0, lanes, inside):
        for number in range(inside // 2):
            mask += [part + first + number, lanes + part + first + number]
    return mask


def _spread(builder: Builder, rows: list[IrValue], inside: int) -> list[IrValue]:
    """Transpose rows whose entries are parts of `inside` lanes."""
    count = len(rows)
    lanes = rows[0].type.lanes

    def parts(first: int) -> list[int]:
        starts = range(first * inside, 2 * lanes, 2 * inside)
        return [lane for start in starts for lane in range(start, start + inside)]

    even, odd = parts(0), parts(1)
    for _ in range(count.bit_length() - 1):
        pairs = [(rows[2 * number], rows[2 * number + 1]) for number in range(count // 2)]
        rows = [builder.shuffle(*pair, mask) for mask in (even, odd) for pair in pairs]
    return rows


def lane_numbers(builder: Builder, type_: Type) -> IrValue:
    """Return 0, 1, 2, ... by lane, as integers of a type whose lanes are a power of two."""
    numbers = builder.constant(0, type_)
    # The IR has no constants that differ by lane: these grow by one bit of the lane at a time.
    step = 1
    while step < type_.lanes:
        mask = [lane + type_.lanes * bool(lane & step) for lane in range(type_.lanes)]
        numbers = builder.shuffle(numbers, builder.add(numbers, step), mask)
        step *= 2
    return numbers
