# SPDX-License-Identifier: Apache-2.0
"""Convolution of plain NCHW for any groups and channels: vectors go along the last dimension.

The fallback where blocks of channels would be mostly empty. The register tile is some output
channels, each a scalar weight in every lane, times vectors of positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia.codegen.body import NOTHING, Epilogue, Fused, Layout, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, Type, Value
from intarsia.codegen.kernels.conv_window import Split, Window, normalise, over_taps, unravel
from intarsia.codegen.tile import mma_step, tile_rows
from intarsia.codegen.unit import AVX512, VectorUnit

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices of a plain convolution.

    Attributes:
        channels: Output channels of a register tile, at most.
        vectors: Vectors of positions of a register tile, at most.
    """

    channels: int
    vectors: int


@dataclass(frozen=True, slots=True)
class PlainConv:
    """A convolution of float32, input and output by channels.

    Attributes:
        batch: Images.
        groups: Of channels.
        in_channels: Of all groups.
        out_channels: Of all groups.
        window: The spatial dimensions.
        x: Over (batch, in_channels, *spatial with padding).
        y: Over (batch, out_channels, *window.out).
        bias: Whether there is one.
        epilogue: Over the domain of y.
        unit: What it is shaped for.
        schedule: How; None leaves it to `choose_schedule`.
    """

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    window: Window
    x: Layout
    y: Layout
    bias: bool = False
    epilogue: Fused = NOTHING
    unit: VectorUnit = AVX512
    schedule: Schedule | None = None

    @property
    def group_inputs(self) -> int:
        """Input channels of a group."""
        return self.in_channels // self.groups

    @property
    def plan(self) -> Schedule:
        """The schedule that `build` and `pack_weights` follow."""
        if self.schedule:
            return self.schedule
        window, *_ = normalise(self.window, self.x, self.y, self.epilogue)
        return choose_schedule(window.out[-1], self.out_channels // self.groups, self.unit)

    @property
    def tiles(self) -> Split:
        """A group's output channels, cut into register tiles."""
        return Split.of(self.out_channels // self.groups, self.plan.channels)


def flops(spec: PlainConv) -> int:
    """Return the additions and multiplications of a convolution."""
    window = spec.window
    positions = spec.batch * math.prod(window.out)
    return 2 * positions * spec.out_channels * spec.group_inputs * window.taps


def choose_schedule(width: int, channels: int, unit: VectorUnit) -> Schedule:
    """Return the schedule of a plain convolution.

    Args:
        width: Positions along the last dimension.
        channels: Output channels of a group.
        unit: What it is shaped for.
    """
    needed = -(-width // _lanes(width, unit))

    def cost(vectors: int) -> float:
        rows = min(tile_rows(vectors, unit), max(1, channels))
        steps = -(-needed // vectors) * -(-channels // rows)
        return steps * (max(rows * vectors, rows + vectors, 8) + 1)

    vectors = min(range(1, min(needed, 8) + 1), key=cost, default=1)
    return Schedule(tile_rows(vectors, unit), vectors)


def _lanes(width: int, unit: VectorUnit) -> int:
    """Return the lanes of a vector: no more than hold a row of so many positions."""
    return min(unit.lanes(), 1 << max(0, width - 1).bit_length())


def pack_weights(spec: PlainConv, weights: Array) -> Array:
    """Return weights (out_channels, in_channels / groups, *kernel) as `build` reads them.

    In order: groups, tiles of output channels, input channels, taps, channels of the tile.
    """
    outputs, terms = spec.out_channels // spec.groups, spec.group_inputs * spec.window.taps
    grouped = weights.astype(np.float32).reshape(spec.groups, outputs, terms)
    tiles = spec.tiles
    parts = [
        group[begin : begin + run.size].T.reshape(-1)
        for group in grouped
        for run in tiles.runs
        for begin in run.begins
    ]
    return np.concatenate([*parts, np.zeros(0, np.float32)])


def build(spec: PlainConv) -> Function:
    """Return the kernel; its arguments are x, packed weights, bias if any, y, fused operands."""
    return _Plain(spec).function()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a register tile lies; `first` and `channels` count output channels of the group."""

    image: Index
    group: Index
    first: Index
    channels: int
    outer: list[Index]


class _Plain:
    """Makes one kernel."""

    def __init__(self, spec: PlainConv) -> None:
        self.plan = spec.plan
        self.tiles = spec.tiles
        window, x, y, epilogue = normalise(spec.window, spec.x, spec.y, spec.epilogue)
        self.spec = spec = replace(spec, window=window, x=x, y=y, epilogue=epilogue)
        self.lanes = _lanes(window.out[-1], spec.unit)
        self.b = Builder("conv_plain")
        self.x = x.declare(self.b, "x", (spec.batch, spec.in_channels, *window.reach))
        size = spec.out_channels * spec.group_inputs * window.taps
        self.w = self.b.argument("w", "float32", (size,))
        self.bias: Buffer | None = None
        if spec.bias:
            self.bias = self.b.argument("bias", "float32", (spec.out_channels,))
        domain = (spec.batch, spec.out_channels, *window.out)
        self.y = y.declare(self.b, "y", domain, is_written=True)
        self.epilogue: Epilogue = epilogue.bind(self.b, domain)

    def function(self) -> Function:
        spec, out = self.spec, self.spec.window.out
        self.b.note(f"{out} positions, {spec.window.kernel} taps, {spec.groups} groups")
        self.b.note(f"{self.plan}")
        shape = (spec.batch, spec.groups, self.tiles.count, *out[:-1])
        with self.b.parallel(math.prod(shape)) as turn:
            image, group, tile, *outer = unravel(self.b, turn, shape)
            for run, first in self.tiles.at(self.b, tile):
                self._row(_Place(image, group, first, run.size, outer))
        return self.b.finish()

    def _row(self, place: _Place) -> None:
        """Compute a row of positions: whole tiles, then what is left.

        The last vector ends with the row, so it may compute again what the one before did.
        """
        width, lanes = self.spec.window.out[-1], self.lanes
        wide = self.plan.vectors * lanes
        whole = width // wide * wide
        with self.b.serial(0, whole, wide) as column:
            self._tile(place, [column + v for v in range(0, wide, lanes)])
        if whole < width:
            begins = [min(v, max(0, width - lanes)) for v in range(whole, width, lanes)]
            self._tile(place, [Index(begin) for begin in begins])

    def _tile(self, place: _Place, columns: list[Index]) -> None:
        b, spec, lanes = self.b, self.spec, self.lanes
        outputs = spec.out_channels // spec.groups
        channel = place.group * outputs + place.first
        count = min(lanes, spec.window.out[-1])
        start: list[Value] = []
        for r in range(place.channels):
            if self.bias is None:
                first = b.constant(0, Type("float32", lanes))
            else:
                first = b.splat(b.load(self.bias, channel + r), lanes)
            start += [first] * len(columns)
        extents = [(0, extent, 1) for extent in (spec.group_inputs, *spec.window.kernel)]

        def step(at: list[Index], sums: Sequence[Value]) -> list[Value]:
            flat = at[0]
            for index, extent in zip(at[1:], spec.window.kernel, strict=True):
                flat = flat * extent + index
            weights = channel * (spec.group_inputs * spec.window.taps) + flat * place.channels
            plane = place.group * spec.group_inputs + at[0]
            entries = [spec.window.at((*place.outer, column), at[1:]) for column in columns]
            return mma_step(
                b,
                sums,
                place.channels,
                len(columns),
                lambda r: b.load(self.w, weights + r),
                lambda v: self._entries((place.image, plane, *entries[v]), count),
            )

        sums = iter(over_taps(b, extents, start, step))
        for r in range(place.channels):
            for column in columns:
                at = (place.image, channel + r, *place.outer, column)
                store_lanes(b, self.epilogue(next(sums), at, count), self.y, at, count)

    def _entries(self, at: tuple[Index, ...], count: int) -> Value:
        """Read what a vector of positions meets below one tap, a stride of the window apart."""
        b, lanes = self.b, self.lanes
        *where, entry = at
        stride, step = self.spec.window.strides[-1], self.x.strides[-1]
        if stride == 1 or count < lanes or step != 1 or stride > _MOST_LOADS:
            return b.load(self.x, (*where, entry), lanes, stride=stride * step, count=count)
        result = b.load(self.x, (*where, entry), lanes)
        places = list(range(0, lanes, stride))  # of the first lanes, in `result`
        while len(places) < lanes:
            begin = min(len(places) * stride, (lanes - 1) * (stride - 1))  # not beyond the last
            more = range(len(places) * stride - begin, lanes, stride)[: lanes - len(places)]
            mask = [*places, *(lanes + place for place in more)]
            item = b.load(self.x, (*where, entry + begin), lanes)
            result = b.shuffle(result, item, mask + [0] * (lanes - len(mask)))
            places = list(range(len(mask)))
        return result


_MOST_LOADS = 4
"""Strides up to which whole vectors are read and lanes picked; beyond, lanes are read singly."""
