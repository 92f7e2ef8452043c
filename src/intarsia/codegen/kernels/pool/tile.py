# SPDX-License-Identifier: Apache-2.0
"""How neighbouring results of a pooled row are made together: what is read, what is combined."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.kernels.window import Window

Read: TypeAlias = tuple[int, int]
"""How far after the first entry of a tile, and how many lanes."""


@dataclass(frozen=True, slots=True)
class PoolTile:
    """Neighbouring results in the interior of a row.

    Attributes:
        count: Lanes of each that count.
        reads: For each accumulator, what is combined into it for one row of taps.
        parts: For each result the accumulators that it combines; None picks the lanes of its taps
            out of all accumulators.
        step: Entries from one lane to the next, where vectors go along the row.
    """

    count: int
    reads: tuple[tuple[Read, ...], ...]
    parts: tuple[tuple[int, ...] | None, ...]
    step: int


def entries(window: Window, count: int) -> list[int]:
    """Return what neighbouring positions read in the last dimension, each entry once."""
    pairs = itertools.product(range(count), range(window.kernel[-1]))
    stride, dilation = window.strides[-1], window.dilations[-1]
    return sorted({position * stride + tap * dilation for position, tap in pairs})


def shared_tile(window: Window, size: int, lanes: int) -> PoolTile:
    """Return positions that read each entry once: one accumulator for each entry."""
    read = entries(window, size)
    numbers = {entry: number for number, entry in enumerate(read)}
    stride, dilation = window.strides[-1], window.dilations[-1]
    parts = [
        tuple(numbers[position * stride + tap * dilation] for tap in range(window.kernel[-1]))
        for position in range(size)
    ]
    return PoolTile(lanes, tuple(((entry, lanes),) for entry in read), tuple(parts), stride)


def separate_tile(window: Window, size: int, count: int, span: int) -> PoolTile:
    """Return vectors of `span` positions, each with an accumulator that reads all taps."""
    step = window.strides[-1] * span
    taps = [tap * window.dilations[-1] for tap in range(window.kernel[-1])]
    reads = tuple(tuple((number * step + tap, count) for tap in taps) for number in range(size))
    return PoolTile(count, reads, tuple((number,) for number in range(size)), window.strides[-1])


def interleaved_tile(window: Window, count: int, lanes: int) -> PoolTile:
    """Return one vector of positions that lie apart: all entries are read, then lanes picked."""
    stride, reach = window.strides[-1], (window.kernel[-1] - 1) * window.dilations[-1]
    end = (count - 1) * stride + reach + 1
    firsts = range(0, end, lanes)
    return PoolTile(
        count, tuple(((first, min(lanes, end - first)),) for first in firsts), (None,), 1
    )


def pick_taps(
    builder: Builder, window: Window, vectors: Sequence[IrValue], count: int
) -> list[IrValue]:
    """Return for each tap the entries that positions meet, out of the vectors of a row."""
    lanes = vectors[0].type.lanes
    picked = []
    for tap in range(window.kernel[-1]):
        first = tap * window.dilations[-1]
        wanted = [min(lane, count - 1) * window.strides[-1] + first for lane in range(lanes)]
        value = vectors[0]
        for number, vector in enumerate(vectors):
            mask = [
                lanes + entry % lanes if entry // lanes == number else lane
                for lane, entry in enumerate(wanted)
            ]
            if max(mask) >= lanes:
                value = builder.shuffle(value, vector, mask)
        picked.append(value)
    return picked
