# SPDX-License-Identifier: Apache-2.0
"""Convolution of plain NCHW for any groups and channels: vectors go along the last dimension.

The fallback where blocks of channels would be mostly empty. The register tile is some output
channels, each a scalar weight in every lane, times vectors of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index, IrValue, Type
from intarsia.codegen.kernels.conv_plain.schedules import channel_tiles, row_lanes, schedule
from intarsia.codegen.kernels.conv_plain.spec import PlainConv
from intarsia.codegen.kernels.convolution import ConvArguments
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.window import normalise, over_taps
from intarsia.codegen.tile import mma_step


def pack(spec: PlainConv, weights: Array) -> Array:
    """Return weights (out_channels, in_channels / groups, *kernel) as `build` reads them.

    In order: groups, tiles of output channels, input channels, taps, channels of the tile.
    """
    outputs, terms = spec.out_channels // spec.groups, spec.group_inputs * spec.window.taps
    grouped = weights.astype(np.float32).reshape(spec.groups, outputs, terms)
    tiles = channel_tiles(spec)
    parts = [
        group[begin : begin + run.size].T.reshape(-1)
        for group in grouped
        for run in tiles.runs
        for begin in run.begins
    ]
    return np.concatenate([*parts, np.zeros(0, np.float32)])


def packing(spec: PlainConv) -> str:
    """Name the order of packed weights."""
    return f"plain{spec.groups}{schedule(spec)}"


def build(spec: PlainConv) -> Function:
    """Return the kernel; its arguments are x, packed weights, bias if any, y, fused operands."""
    return _PlainConvKernel(spec).function()


@dataclass(frozen=True, slots=True)
class _PlainTurn:
    """Where a register tile lies; `first` and `channels` count output channels of the group."""

    image: Index
    group: Index
    first: Index
    channels: int
    outer: list[Index]


class _PlainConvKernel:
    """Makes one kernel."""

    def __init__(self, spec: PlainConv) -> None:
        self.plan = schedule(spec)
        self.tiles = channel_tiles(spec)
        window, x, y, epilogue = normalise(spec.window, spec.x, spec.y, spec.epilogue)
        self.spec = spec = replace(spec, window=window, x=x, y=y, epilogue=epilogue)
        self.lanes = row_lanes(window.out[-1], spec.unit)
        self.b = Builder("conv_plain")
        tensors = ConvArguments.declare(
            self.b,
            spec,
            x=(spec.batch, spec.in_channels, *window.reach),
            w=(spec.out_channels * spec.group_inputs * window.taps,),
            channels=spec.out_channels,
            y=(spec.batch, spec.out_channels, *window.out),
            # Weights are read one by one, biases too.
            align=None,
        )
        self.x, self.w, self.bias, self.y = tensors.x, tensors.w, tensors.bias, tensors.y
        self.epilogue = tensors.epilogue

    def function(self) -> Function:
        spec, out = self.spec, self.spec.window.out
        self.b.note(f"{out} positions, {spec.window.kernel} taps, {spec.groups} groups")
        self.b.note(f"{self.plan}")
        shape = (spec.batch, spec.groups, self.tiles.count, *out[:-1])
        for image, group, tile, *outer in each_turn(self.b, shape):
            for run, first in self.tiles.at(self.b, tile):
                self._row(_PlainTurn(image, group, first, run.size, outer))
        return self.b.finish()

    def _row(self, place: _PlainTurn) -> None:
        """Compute a row of positions: whole tiles, then what is left.

        The last vector ends with the row, so it may compute again what the one before did.
        """
        width, lanes = self.spec.window.out[-1], self.lanes
        wide = self.plan.vectors * lanes
        whole = width // wide * wide
        with self.b.serial(0, whole, wide) as column:
            self._tile(place, [column + v for v in range(0, wide, lanes)])
        if whole < width:
            # No vector is cut short, so that nothing is masked: a row of 55 with 16 lanes ends at
            # 39 + 16.
            begins = [min(v, max(0, width - lanes)) for v in range(whole, width, lanes)]
            self._tile(place, [Index(begin) for begin in begins])

    def _tile(self, place: _PlainTurn, columns: list[Index]) -> None:
        b, spec, lanes = self.b, self.spec, self.lanes
        outputs = spec.out_channels // spec.groups
        channel = place.group * outputs + place.first
        count = min(lanes, spec.window.out[-1])
        start: list[IrValue] = []
        for r in range(place.channels):
            if self.bias is None:
                first = b.constant(0, Type("float32", lanes))
            else:
                first = b.splat(b.load(self.bias, channel + r), lanes)
            start += [first] * len(columns)
        extents = [(0, extent, 1) for extent in (spec.group_inputs, *spec.window.kernel)]

        def step(at: list[Index], sums: Sequence[IrValue]) -> list[IrValue]:
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

    def _entries(self, at: tuple[Index, ...], count: int) -> IrValue:
        """Read what a vector of positions meets below one tap, a stride of the window apart."""
        b, lanes = self.b, self.lanes
        *where, entry = at
        stride, step = self.spec.window.strides[-1], self.x.strides[-1]
        if stride == 1 or count < lanes or step != 1 or stride > _MOST_LOADS:
            return b.load(self.x, (*where, entry), lanes, stride=stride * step, count=count)
        result = b.load(self.x, (*where, entry), lanes)
        places = list(range(0, lanes, stride))  # of the first lanes, in `result`
        while len(places) < lanes:
            # The last read is moved back so that it ends with the last lane's entry: what lies
            # behind the input may not be ours.
            begin = min(len(places) * stride, (lanes - 1) * (stride - 1))  # not beyond the last
            more = range(len(places) * stride - begin, lanes, stride)[: lanes - len(places)]
            mask = [*places, *(lanes + place for place in more)]
            item = b.load(self.x, (*where, entry + begin), lanes)
            result = b.shuffle(result, item, mask + [0] * (lanes - len(mask)))
            places = list(range(len(mask)))
        return result


_MOST_LOADS = 4
"""Strides up to which whole vectors are read and lanes picked; beyond, lanes are read singly."""
