# SPDX-License-Identifier: Apache-2.0
"""Convolution of plain NCHW for any groups and channels: vectors go along the last dimension.

The fallback where blocks of channels would be mostly empty. The register tile is some output
channels, each a scalar weight in every lane, times vectors of positions. Where a CPU has products
of bytes, what is in every lane are weights of four input channels, and each position has four bytes
side by side.

Weights that are known only at run time are read where they lie. That is slower than packed weights,
of which a register tile reads one after the other, and than the kernels for blocks of channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import store_lanes
from intarsia.codegen.ir import DOT_GROUPS, Function, Index, IrValue, Type
from intarsia.codegen.kernels import convolution
from intarsia.codegen.kernels.convolution import ConvKernel, Convolution, of_codes
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.window import Split, over_taps, window_key
from intarsia.codegen.tile import fitting_widths, mma_step, step_cost, tile_rows
from intarsia.codegen.unit import CpuModel


@dataclass(frozen=True, slots=True)
class PlainConvSchedule:
    """The choices of a plain convolution.

    Attributes:
        channels: Output channels of a register tile, at most.
        vectors: Vectors of positions of a register tile, at most.
    """

    channels: int
    vectors: int


@dataclass(frozen=True, slots=True)
class PlainConv(Convolution):
    """A convolution of any groups and channels, input and output by channels.

    Attributes:
        x: Over (batch, in_channels, *spatial with padding), or over (batch, in_channels / x_block,
            *spatial with padding, x_block), a row of positions without gaps.
        y: Over (batch, out_channels, *window.out).
        schedule: How; None leaves it to the heuristic.
        weights: Strides, none of them negative, of weights that are read as they are, over
            (groups, out_channels / groups, in_channels / groups, *window.kernel); None for packed
            ones.
        is_turned: Whether weights that are read as they are have their taps in reverse, in every
            spatial dimension.
        x_block: Channels in a block of the input: 1, or as many as a dot product sums.
    """

    schedule: PlainConvSchedule | None = None
    weights: tuple[int, ...] | None = None
    is_turned: bool = False
    x_block: int = 1

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        if self.x_block > 1:
            assert self.x_block == DOT_GROUPS[self.x.dtype], "a block is what a dot product sums"
            assert self.group_inputs % self.x_block == 0, "a group begins inside an input block"
            assert self.x.strides[-2:] == (self.x_block, 1), "there are gaps between positions"
            assert self.window.strides[-1] <= MOST_LOADS, "positions are not read singly"
            assert self.weights is None, "weights of narrow numbers are packed"

    @property
    def group(self) -> int:
        """Input channels of one product: in no blocks, narrow numbers are widened as read."""
        return self.x_block

    @property
    def sum_dtype(self) -> str:
        """What products are summed in."""
        return self.weight_dtype if self.weight_dtype.startswith("float") else "int32"


def key(spec: PlainConv) -> str:
    """Say in words what decides which schedules a convolution can have, and which are fast."""
    extents = (spec.batch, spec.in_channels, spec.out_channels)
    return window_key(
        "plain conv",
        extents,
        spec.window,
        f"{spec.groups} groups, x{spec.x_block}{of_codes(spec)}",
        spec.y.dtype,
    )


SPECS = (PlainConv,)
flops = convolution.flops


# How it is cut: picked from shapes and the vector unit, never from the host


def schedule(spec: PlainConv) -> PlainConvSchedule:
    """Return the schedule that a convolution has, or that is picked for it."""
    if spec.schedule:
        return spec.schedule
    width, unit = spec.normalised().window.out[-1], spec.unit
    channels = spec.out_channels // spec.groups
    needed = -(-width // row_lanes(width, unit))
    # Bytes become integers, and these floats, on the pipes that multiply: half a cycle each.
    widening = 0 if spec.x_block > 1 or spec.x.dtype == spec.sum_dtype else 2

    def cost(vectors: int) -> float:
        # Rows that the group has no channels for are not computed.
        rows = min(tile_rows(vectors, unit), max(1, channels))
        steps = -(-needed // vectors) * -(-channels // rows)
        return steps * (step_cost(rows, vectors) + widening * vectors)

    vectors = min(range(1, min(needed, 8) + 1), key=cost, default=1)
    return PlainConvSchedule(tile_rows(vectors, unit), vectors)


def channel_tiles(spec: PlainConv) -> Split:
    """Return a group's output channels, cut into register tiles."""
    return Split.of(spec.out_channels // spec.groups, schedule(spec).channels)


def row_lanes(width: int, unit: CpuModel) -> int:
    """Return the lanes of a vector: no more than hold a row of so many positions."""
    return min(unit.lanes(), 1 << max(0, width - 1).bit_length())


def candidates(spec: PlainConv) -> Iterator[PlainConvSchedule]:
    """Yield schedules to compare."""
    heuristic = schedule(spec)
    for vectors in fitting_widths(spec.unit, heuristic.vectors + 1):
        yield replace(heuristic, vectors=vectors, channels=tile_rows(vectors, spec.unit))


# The kernel


def pack(spec: PlainConv, weights: Array) -> Array:
    """Return weights (out_channels, in_channels / groups, *kernel) as `build` reads them.

    In order: groups, tiles of output channels, blocks of input channels, taps, channels of the
    tile, input channels of the block.
    """
    outputs, block = spec.out_channels // spec.groups, spec.x_block
    dtype = spec.weight_dtype
    shape = (spec.groups, outputs, spec.group_inputs // block, block, spec.window.taps)
    grouped = weights.astype(dtype).reshape(shape)
    tiles = channel_tiles(spec)
    parts = [
        group[begin : begin + run.size].transpose(1, 3, 0, 2).reshape(-1)
        for group in grouped
        for run in tiles.runs
        for begin in run.begins
    ]
    return np.concatenate([*parts, np.zeros(0, dtype)])


def packing(spec: PlainConv) -> str:
    """Name the order of packed weights."""
    dtype = "" if spec.weight_dtype == "float32" else spec.weight_dtype
    return f"plain{dtype}{spec.groups}x{spec.x_block}{schedule(spec)}"


def build(spec: PlainConv) -> Function:
    """Return the kernel; its arguments are x, weights, bias if any, y, fused operands."""
    return _PlainConvKernel(spec).function()


@dataclass(frozen=True, slots=True)
class _PlainTurn:
    """Where a register tile lies; `first` and `channels` count output channels of the group."""

    image: Index
    group: Index
    first: Index
    channels: int
    outer: list[Index]


class _PlainConvKernel(ConvKernel):
    """Makes one kernel."""

    def __init__(self, spec: PlainConv) -> None:
        self.plan = schedule(spec)
        self.tiles = channel_tiles(spec)
        strides = _weight_strides(spec)
        self.spec = spec = spec.normalised()
        self.lanes = row_lanes(spec.window.out[-1], spec.unit)
        outputs = spec.out_channels // spec.groups
        packed = (spec.out_channels * spec.group_inputs * spec.window.taps,)
        as_they_are = (spec.groups, outputs, spec.group_inputs, *spec.window.kernel)
        block = (spec.x_block,) if spec.x_block > 1 else ()
        super().__init__(
            "conv_plain",
            spec,
            x=(spec.batch, spec.in_channels // spec.x_block, *spec.window.reach, *block),
            w=packed if strides is None else as_they_are,
            w_strides=strides,
            channels=spec.out_channels,
            y=(spec.batch, spec.out_channels, *spec.window.out),
            # Weights are read one by one, biases too.
            align=None,
        )

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
                first = b.constant(0, Type(self.sum_dtype, lanes))
            else:
                first = b.splat(b.load(self.bias, channel + r), lanes)
            start += [first] * len(columns)
        planes, block = spec.group_inputs // spec.x_block, spec.x_block
        extents = [(0, extent, 1) for extent in (planes, *spec.window.kernel)]

        def step(at: list[Index], sums: Sequence[IrValue]) -> list[IrValue]:
            weights = self._weights(place, at)
            plane = place.group * planes + at[0]
            entries = [spec.window.at((*place.outer, column), at[1:]) for column in columns]
            return mma_step(
                b,
                sums,
                place.channels,
                len(columns),
                lambda r: self._wide(b.load(self.w, weights(r), block)),
                lambda v: self._wide(self._entries((place.image, plane, *entries[v]), count)),
            )

        sums = iter(over_taps(b, extents, start, step))
        for r in range(place.channels):
            for column in columns:
                at = (place.image, channel + r, *place.outer, column)
                store_lanes(b, self.finish(next(sums), at, count), self.y, at, count)

    def _wide(self, value: IrValue) -> IrValue:
        """Return a number as what products are summed in; dot products take narrow ones."""
        is_wide = self.spec.x_block > 1 or value.type.dtype == self.sum_dtype
        return value if is_wide else self.b.cast(value, self.sum_dtype)

    def _weights(self, place: _PlainTurn, at: list[Index]) -> Callable[[int], tuple[Index, ...]]:
        """Return where the weights of a tile's channels are, for an input channel and a tap."""
        spec, kernel = self.spec, self.spec.window.kernel
        plane, *taps = at
        if spec.weights is not None:
            if spec.is_turned:
                taps = [extent - 1 - tap for tap, extent in zip(taps, kernel, strict=True)]
            return lambda r: (place.group, place.first + r, plane, *taps)
        flat = plane
        for tap, extent in zip(taps, kernel, strict=True):
            flat = flat * extent + tap
        channel = place.group * (spec.out_channels // spec.groups) + place.first
        first = channel * (spec.group_inputs * spec.window.taps) + flat * (
            place.channels * spec.x_block
        )
        return lambda r: (first + r * spec.x_block,)

    def _entries(self, at: tuple[Index, ...], count: int) -> IrValue:
        """Read what a vector of positions meets below one tap, a stride of the window apart."""
        b, lanes, block = self.b, self.lanes, self.spec.x_block
        *where, entry = at
        stride, step = self.spec.window.strides[-1], self.x.strides[len(where)]

        def read(begin: int, positions: int) -> IrValue:
            inner = (entry + begin,) if block == 1 else (entry + begin, Index())
            return b.load(self.x, (*where, *inner), lanes * block, count=positions * block)

        if stride == 1 and step == block:
            return read(0, count)
        if step != block or stride > MOST_LOADS:
            return b.load(self.x, at, lanes, stride=stride * step, count=count)
        last = (count - 1) * stride
        result = read(0, min(lanes, last + 1))
        places = list(range(0, lanes, stride))[:count]  # of the first positions, in `result`
        while len(places) < count:
            # The last read is moved back so that it ends with the last position's entry: what lies
            # behind the input may not be ours.
            begin = min(len(places) * stride, last - (lanes - 1))
            more = range(len(places) * stride - begin, lanes, stride)[: count - len(places)]
            mask = [*places, *(lanes + place for place in more)]
            item = read(begin, lanes)
            result = self._pick(result, item, mask)
            places = list(range(len(mask)))
        return self._pick(result, result, places) if places != list(range(count)) else result

    def _pick(self, left: IrValue, right: IrValue, positions: list[int]) -> IrValue:
        """Return positions of two vectors; what is missing is any."""
        block = self.spec.x_block
        filled = positions + [0] * (self.lanes - len(positions))
        return self.b.shuffle(left, right, [p * block + i for p in filled for i in range(block)])


def _weight_strides(spec: PlainConv) -> tuple[int, ...] | None:
    """Return the strides of weights that are read as they are, over the normalised window.

    A dimension that is added or merged has one tap.
    """
    if spec.weights is None:
        return None
    taps = zip(spec.window.kernel, spec.weights[3:], strict=True)
    steps = iter([stride for extent, stride in taps if extent != 1])
    kernel = spec.normalised().window.kernel
    return (*spec.weights[:3], *(0 if extent == 1 else next(steps) for extent in kernel))


MOST_LOADS = 4
"""Strides up to which whole vectors are read and lanes picked; beyond, lanes are read singly."""
