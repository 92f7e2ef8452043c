# SPDX-License-Identifier: Apache-2.0
"""Direct convolution of unsigned bytes by instructions that multiply these by twos, exactly.

`pmaddubsw` adds two products in 16 bits, and saturates. Two weights are safe with any codes if they
differ in sign, or if their sum is within 128 (`kernels.gemm.small_pairs`). Quantised by channel,
one to seven in a hundred pairs are not, and the columns of a vector share them. Yet who is whose
neighbour is free: the input is there in three kinds of pairs (`kernels.paired_codes`), and each
vector of columns has each group of four channels in one in which its weights are safe. Where there
is none, the group comes twice, with halves of its weights, which are safe in any.

So the steps of a vector of columns are a list: where in the input the bytes of each are, all taps
and channels alike, and the weights that they are multiplied by. A tile has one vector, as fewer
columns have fewer pairs that are not safe, and as many positions as registers hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Layout
from intarsia.codegen.ir import Function, Index, IrValue
from intarsia.codegen.kernels.conv.schedules import choose_schedule
from intarsia.codegen.kernels.convolution import (
    LINE_BYTES,
    ConvKernel,
    Convolution,
    flops,
    of_codes,
    unit_of_tile,
)
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.gemm.small_pairs import is_large
from intarsia.codegen.kernels.paired_codes import GROUP, PAIRINGS, SPREAD
from intarsia.codegen.kernels.window import Tiling, Window, window_key
from intarsia.codegen.tile import around, mma_step, tile_rows
from intarsia.extents import least
from intarsia.graph.arena import aligned_bytes

_UNROLL = 2
"""Steps of a turn of the loop over them; the last turn is filled up with zeros."""


@dataclass(frozen=True, slots=True)
class PairSchedule:
    """The choices of a convolution by pairs of bytes.

    Attributes:
        pixels: Positions of a register tile, at most.
        bands: Shares of an image's tiles, for turns of their own.
        is_channels_first: Whether turns go through images for each vector of output channels,
            rather than the other way round.
    """

    pixels: int
    bands: int = 1
    is_channels_first: bool = True


@dataclass(frozen=True, slots=True)
class PairConv(Convolution):
    """A convolution of codes in pairs by int8, of one group of channels.

    Attributes:
        x: Over (batch, blocks of L channels, *spatial with padding, 2 L), as `PairedCodes` writes.
        y: Over (batch, out_channels / L, *window.out, L).
        turns: Turns of the loop over steps that a vector of columns has room for.
        schedule: How; None leaves it to the heuristic.
    """

    turns: int = field(kw_only=True)
    schedule: PairSchedule | None = None

    @property
    def steps(self) -> int:
        """Steps that a vector of columns has room for."""
        return _UNROLL * self.turns


SPECS = (PairConv,)


def key(spec: PairConv) -> str:
    """Say in words what decides which schedules a convolution can have, and which are fast."""
    extents = (spec.batch, spec.in_channels, spec.out_channels)
    more = f"{spec.turns} turns{of_codes(spec)}"
    return window_key("pair conv", extents, spec.window, more, spec.y.dtype)


def schedule(spec: PairConv) -> PairSchedule:
    """Return the schedule that a convolution has, or that is picked for it."""
    if spec.schedule:
        return spec.schedule
    window, unit = spec.normalised().window, unit_of_tile(spec)
    steps = -(-spec.in_channels // GROUP)
    like = choose_schedule(window, steps, spec.blocks, least(spec.batch), 1, unit, has_rows=True)
    return PairSchedule(tile_rows(1, unit), like.bands, like.is_channels_first)


def candidates(spec: PairConv) -> Iterator[PairSchedule]:
    """Yield schedules to compare."""
    heuristic = schedule(spec)
    yield replace(heuristic, is_channels_first=not heuristic.is_channels_first)
    for bands in around(heuristic.bands):
        yield replace(heuristic, bands=bands)


# Weights


@dataclass(frozen=True, slots=True)
class _ColumnSteps:
    """The steps of a vector of columns.

    Attributes:
        groups: Which group of channels, taps outside, each has.
        begins: At which byte of the group it begins.
        weights: Over (steps, columns, 4).
    """

    groups: Array
    begins: Array
    weights: Array


def count_turns(weights: Array, lanes: int) -> tuple[int, float]:
    """Return how many turns the vector of columns with most of them has, and the mean in steps.

    The mean is in parts of the steps that there were if all weights were safe.

    Args:
        weights: Over (out_channels, in_channels, *kernel), int8.
        lanes: Columns of a vector.
    """
    counts = [len(steps.groups) for steps in _each_vector(weights, lanes)]
    groups = math.prod(_grouped(weights, lanes).shape[:1])
    coarse = max(groups // _PARTS, 1)  # weights of one shape shall mostly share a kernel
    most = groups + -(-(max(counts) - groups) // coarse) * coarse
    return -(-most // _UNROLL), sum(counts) / (len(counts) * max(groups, 1))


_PARTS = 16


def pack(spec: PairConv, weights: Array) -> Array:
    """Return weights (out_channels, in_channels, *kernel) as `build` reads them.

    In order: vectors of columns, their steps, columns, channels of the step.
    """
    lanes = spec.unit.lanes()
    packed = aligned_bytes(spec.blocks * spec.steps * lanes * GROUP).view(np.int8)
    panels = packed.reshape(spec.blocks, spec.steps, lanes, GROUP)
    for panel, steps in zip(panels, _each_vector(weights, lanes), strict=True):
        panel[: len(steps.weights)] = steps.weights
    return packed


def place_steps(spec: PairConv, weights: Array) -> Array:
    """Return what `build` reads of each vector of columns: its turns, and where steps read.

    A place is in bytes from a position's first tap and channel.
    """
    spec = spec.normalised()
    lanes = spec.unit.lanes()
    places = np.zeros((spec.blocks, 1 + spec.steps), np.int32)
    taps = np.array(_tap_places(spec.window, spec.x), np.int64)
    for row, steps in zip(places, _each_vector(weights, lanes), strict=True):
        tap, group = np.divmod(steps.groups, -(-spec.in_channels // lanes) * lanes // GROUP)
        block, within = np.divmod(group, lanes // GROUP)
        found = taps[tap] + block * spec.x.strides[1] + within * SPREAD * GROUP + steps.begins
        row[0] = -(-len(found) // _UNROLL)
        row[1 : 1 + len(found)] = found
    return places.reshape(-1)


def _tap_places(window: Window, x: Layout) -> list[int]:
    """Return where taps are from the first one, in elements of the input."""
    steps = x.strides[2:-1]
    return [
        sum(
            tap * dilation * step
            for tap, dilation, step in zip(at, window.dilations, steps, strict=True)
        )
        for at in np.ndindex(*window.kernel)
    ]


def packing(spec: PairConv) -> str:
    """Name the order of packed weights."""
    return f"pairs{spec.turns}x{spec.unit.lanes()}"


def _grouped(weights: Array, lanes: int) -> Array:
    """Return weights over (groups of channels, taps outside; 4, out_channels), all blocks full."""
    outputs, inputs = weights.shape[:2]
    flat = weights.reshape(outputs, inputs, -1)
    flat = np.pad(flat, ((0, -outputs % lanes), (0, -inputs % lanes), (0, 0)))
    return flat.transpose(2, 1, 0).reshape(-1, GROUP, outputs + -outputs % lanes)


def _each_vector(weights: Array, lanes: int) -> Iterator[_ColumnSteps]:
    """Yield the steps of each vector of columns."""
    grouped = _grouped(weights, lanes)
    ways = [grouped[:, list(order)] for order in PAIRINGS.values()]
    larges = [is_large(way) for way in ways]
    begins = np.array(list(PAIRINGS), np.int64)
    numbers = np.arange(len(grouped))
    for first in range(0, grouped.shape[2], lanes):
        columns = slice(first, first + lanes)
        unsafe = np.stack([large[..., columns].any((1, 2)) for large in larges])
        way = unsafe.argmin(0)  # the first that is safe, or the first
        chosen = np.stack([item[..., columns] for item in ways])[way, numbers].swapaxes(1, 2)
        is_split = unsafe[way, numbers]
        halves = np.where(is_split[:, None, None], chosen // 2, 0).astype(np.int8)
        both = np.stack((chosen - halves, halves), 1)
        is_kept = np.stack((np.ones_like(is_split), is_split), 1)
        groups = np.repeat(numbers, 2).reshape(-1, 2)[is_kept]
        yield _ColumnSteps(groups, begins[way][groups], both[is_kept])


# The kernel


def build(spec: PairConv) -> Function:
    """Return the kernel; its arguments are x, packed weights, y, fused operands, places."""
    return _PairConvKernel(spec).function()


class _PairConvKernel(ConvKernel):
    """Makes one kernel."""

    def __init__(self, spec: PairConv) -> None:
        self.plan = schedule(spec)
        self.spec = spec = spec.normalised()
        self.lanes = lanes = spec.unit.lanes()
        window, x = spec.window, spec.x
        blocks = -(-spec.in_channels // lanes)
        # Taps, blocks and channels are one dimension: steps say where in it they read.
        first = [(out - 1) * step + 1 for out, step in zip(window.out, window.strides, strict=True)]
        reach = (blocks - 1) * x.strides[1] + max(_tap_places(window, x)) + SPREAD * lanes
        strides = (x.strides[0], *x.strides[2:])
        super().__init__(
            "pair_conv",
            replace(spec, x=replace(x, strides=strides)),
            x=(spec.batch, *first, reach),
            w=(spec.blocks * spec.steps * lanes * GROUP,),
            channels=0,
            y=(spec.batch, spec.blocks, *window.out, lanes),
        )
        self.places = self.b.argument(
            "places", "int32", (spec.blocks, 1 + spec.steps), align=LINE_BYTES
        )

    def function(self) -> Function:
        b, spec, plan, out = self.b, self.spec, self.plan, self.spec.window.out
        tiling = Tiling.of(out, plan.pixels, plan.bands)
        b.note(f"{out} positions, {spec.window.kernel} taps, {spec.in_channels} channels")
        b.note(f"{plan}")
        pixels = (spec.batch, *out[:-2], tiling.bands.count)
        shape = (spec.blocks, *pixels) if plan.is_channels_first else (*pixels, spec.blocks)
        for at in each_turn(b, shape):
            if plan.is_channels_first:
                block, image, *outer, band = at
            else:
                image, *outer, band, block = at
            turns = Index.of(b.cast(b.load(self.places, (block, 0)), "int64"))
            self._tiles((image, *outer), block, turns, tiling, band)
        return b.finish()

    def _tiles(
        self, outer: Sequence[Index], block: Index, turns: Index, tiling: Tiling, band: Index
    ) -> None:
        def tile(row: Index, column: Index, height: int, width: int) -> None:
            places = [(row + r, column + c) for r in range(height) for c in range(width)]
            pixels = [(*outer[1:], *place) for place in places]
            sums = self._sums(outer[0], pixels, block, turns)
            for pixel, total in zip(pixels, sums, strict=True):
                at = (outer[0], block, *pixel, Index())
                self.b.store(self.finish(total, at), self.y, at)

        tiling.each(self.b, band, tile)

    def _sums(
        self, image: Index, pixels: Sequence[tuple[Index, ...]], block: Index, turns: Index
    ) -> list[IrValue]:
        b, spec, lanes = self.b, self.spec, self.lanes
        strides = spec.window.strides
        entries = [[at * step for at, step in zip(pixel, strides, strict=True)] for pixel in pixels]
        begin = block * (spec.steps * lanes * GROUP)

        def step(number: Index, sums: Sequence[IrValue]) -> list[IrValue]:
            place = Index.of(b.cast(b.load(self.places, (block, number + 1)), "int64"))
            return mma_step(
                b,
                sums,
                len(pixels),
                1,
                lambda p: b.load(self.x, (image, *entries[p], place), GROUP),
                lambda _: b.load(self.w, begin + number * (lanes * GROUP), lanes * GROUP),
                fits_pairs=True,
            )

        def turn(number: Index, *sums: IrValue) -> Sequence[IrValue]:
            out: Sequence[IrValue] = sums
            for offset in range(_UNROLL):
                out = step(number * _UNROLL + offset, out)
            return out

        return b.loop(0, turns, [self.start(block, lanes)] * len(pixels), turn)


__all__ = [
    "SPECS",
    "PairConv",
    "PairSchedule",
    "build",
    "candidates",
    "count_turns",
    "flops",
    "key",
    "pack",
    "packing",
    "place_steps",
    "schedule",
]
