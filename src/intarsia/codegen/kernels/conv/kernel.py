# SPDX-License-Identifier: Apache-2.0
"""Direct convolution with blocked output, and how its weights are packed.

The register tile is that of a matrix product whose rows are pixels: a scalar of the input, in every
lane, times vectors of output channels (Georganas et al., "Anatomy of High-Performance Deep Learning
Convolutions on SIMD Architectures", SC18). Taps are loops that run, because broadcasts of
overlapping taps would otherwise be kept alive and spilled: a stem of 7 x 7 taps by tiles of 14
pixels went from 85 to 131 GFLOP/s on Cascade Lake when its taps along a row became a loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.ir import Function, Index, IrValue, Subscript, Type
from intarsia.codegen.kernels.conv.schedules import channel_groups, schedule
from intarsia.codegen.kernels.conv.spec import Conv
from intarsia.codegen.kernels.convolution import LINE_BYTES, ConvKernel
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.window import Tiling, over_taps
from intarsia.codegen.tile import blocked_count, blocked_step, mma_step, rows_of_blocks
from intarsia.graph.arena import aligned_bytes


def pack(spec: Conv, weights: Array) -> Array:
    """Return weights (out_channels, in_channels / groups, *kernel) as `build` reads them.

    In order: groups, tiles of output channels, blocks of input channels, taps, channels of the
    block, output channels of the tile; channels that pad the last block of outputs are zero. Of
    narrow numbers a group of input channels lies in each output channel, and those that pad the
    last block of inputs are zero, too.
    """
    lanes, inputs, block = spec.unit.lanes(), spec.group_inputs, spec.x_block
    dtype, group = spec.weight_dtype, spec.group
    if group > 1:
        weights = _filled_up(spec, weights)
        inputs = spec.packed_inputs
    taps, outputs = spec.window.taps, spec.out_channels // spec.groups
    grouped = weights.reshape(spec.groups, outputs, inputs, taps)
    count = spec.groups * spec.group_blocks * lanes * inputs * taps
    packed = aligned_bytes(count * np.dtype(dtype).itemsize)
    rest = packed.view(dtype)
    for item_of_group in grouped:
        for run in channel_groups(spec.group_blocks, schedule(spec)).runs:
            for first in run.begins:
                columns = item_of_group[first * lanes : (first + run.size) * lanes].transpose(
                    2, 1, 0
                )
                for channel in range(0, inputs, block):
                    item = columns[:, channel : channel + block]
                    steps = item.shape[1] // group  # said, as there may be no taps
                    item = item.reshape(taps, steps, group, item.shape[2]).swapaxes(2, 3)
                    shape = (*item.shape[:2], run.size * lanes, group)
                    place, rest = np.split(rest, [math.prod(shape)])
                    place.reshape(shape)[:, :, : item.shape[2]] = item
    return packed.view(dtype)


def _filled_up(spec: Conv, weights: Array) -> Array:
    """Return weights with zeros for the input channels that fill the last block up."""
    missing = spec.packed_inputs - spec.group_inputs
    return np.pad(weights, [(0, 0), (0, missing), *[(0, 0)] * (weights.ndim - 2)])


def packing(spec: Conv) -> str:
    """Name the order of packed weights."""
    dtype = "" if spec.group == 1 else f"{spec.weight_dtype}by{'2x' * spec.is_blocked}{spec.group}"
    return f"direct{dtype}{spec.x_block}x{spec.unit.lanes()}g{spec.groups}{schedule(spec)}"


def build(spec: Conv) -> Function:
    """Return the kernel; its arguments are x, packed weights, bias if any, y, fused operands."""
    return _Direct(spec).function()


@dataclass(frozen=True, slots=True)
class _ConvTurn:
    """What the tiles of one turn have in common; `first` and `vectors` count blocks of outputs."""

    image: Index
    outer: list[Index]
    group: Index
    first: Index
    vectors: int


@dataclass(frozen=True, slots=True)
class _ChannelRange:
    """A range of input blocks; the first part starts the sums, the last one finishes them."""

    begin: Subscript
    end: Subscript
    is_first: bool = False
    is_last: bool = False


class _Direct(ConvKernel):
    """Makes one kernel."""

    def __init__(self, spec: Conv) -> None:
        self.plan = schedule(spec)
        self.spec = spec = spec.normalised()
        self.lanes = spec.unit.lanes()
        blocks = spec.groups * spec.group_blocks
        x_blocks = -(-spec.in_channels // spec.x_block)
        super().__init__(
            "conv",
            spec,
            x=(spec.batch, x_blocks, *spec.window.reach, spec.x_block),
            w=(blocks * self.lanes * spec.packed_inputs * spec.window.taps,),
            channels=blocks * self.lanes,
            y=(spec.batch, blocks, *spec.window.out, self.lanes),
        )

    def function(self) -> Function:
        spec, plan = self.spec, self.plan
        out = spec.window.out
        tiling = Tiling.of(out, plan.pixels, plan.bands)
        tiles = channel_groups(spec.group_blocks, plan)
        self.b.note(f"{out} positions, {spec.window.kernel} taps, {spec.in_channels} channels")
        self.b.note(f"{plan}")
        pixels = (spec.batch, *out[:-2], tiling.bands.count)
        channels = (spec.groups, tiles.count)
        shape = (*channels, *pixels) if plan.is_channels_first else (*pixels, *channels)
        for at in each_turn(self.b, shape):
            if plan.is_channels_first:
                group, tile, image, *outer, band = at
            else:
                image, *outer, band, group, tile = at
            for run, first in tiles.at(self.b, tile):
                self._tiles(tiling, band, _ConvTurn(image, outer, group, first, run.size))
        return self.b.finish()

    def _tiles(self, tiling: Tiling, band: Index, place: _ConvTurn) -> None:
        """Compute a band; many input channels in chunks, with sums in the output between them."""
        blocks = self.spec.packed_inputs // self.spec.x_block
        chunk = self.plan.chunk

        def run(part: _ChannelRange) -> None:
            tiling.each(self.b, band, lambda *tile: self._tile(place, part, *tile))

        if not chunk or chunk >= blocks:
            run(_ChannelRange(0, blocks, is_first=True, is_last=True))
            return
        # Writing biases and applying the epilogue are passes of their own, so that all chunks are
        # one loop with one body: a body for the first and the last chunk each would be nearly three
        # times the code.
        run(_ChannelRange(0, 0, is_first=True))
        with self.b.serial(0, blocks, chunk) as begin:
            end = begin + chunk
            run(_ChannelRange(begin, self.b.smaller(end, blocks) if blocks % chunk else end))
        run(_ChannelRange(blocks, blocks, is_last=True))

    def _tile(
        self,
        place: _ConvTurn,
        part: _ChannelRange,
        row: Index,
        column: Index,
        height: int,
        width: int,
    ) -> None:
        b, spec, vectors = self.b, self.spec, place.vectors
        pixels = [(row + r, column + c) for r in range(height) for c in range(width)]
        block = place.group * spec.group_blocks + place.first

        def at(pixel: int, vector: int) -> tuple[Index, ...]:
            return (place.image, block + vector, *place.outer, *pixels[pixel], Index())

        grid = [(p, v) for p in range(len(pixels)) for v in range(vectors)]
        if spec.is_blocked:  # of integers, which are summed at once
            assert part.is_first, "sums of blocks stay in registers"
            count = blocked_count(len(pixels), vectors)
            zeros = [b.constant(0, Type(self.sum_dtype, self.lanes))] * count
            sums = self._accumulate(place, part, pixels, zeros)
            sums = rows_of_blocks(b, sums, len(pixels), vectors)
        elif part.is_first:
            start = [self.start(block + v, self.lanes) for v in range(vectors)]
            sums = self._accumulate(place, part, pixels, [start[v] for _, v in grid])
        else:  # from zero: sums of a few chains are rounded less than one long chain
            zero = b.constant(0, Type(self.sum_dtype, self.lanes))
            products = self._accumulate(place, part, pixels, [zero] * len(grid))
            before = [b.load(self.y, at(p, v), self.lanes) for p, v in grid]
            sums = [b.add(total, value) for total, value in zip(before, products, strict=True)]
        for (p, v), value in zip(grid, sums, strict=True):
            result = self.finish(value, at(p, v)) if part.is_last else value
            b.store(result, self.y, at(p, v))

    def _accumulate(
        self,
        place: _ConvTurn,
        part: _ChannelRange,
        pixels: list[tuple[Index, Index]],
        sums: list[IrValue],
    ) -> list[IrValue]:
        """Add the products of whole input blocks, and last of the one that is part empty."""
        spec, kernel = self.spec, self.spec.window.kernel
        inputs, block, unroll = spec.packed_inputs, spec.x_block, self.plan.unroll * spec.group
        taps = [(0, extent, 1) for extent in kernel]
        # Pad lanes of the last block hold anything, so they are not multiplied, not even by zeros:
        # NaN.
        rest = inputs % block if part.is_last else 0

        def step(at: list[Index], values: Sequence[IrValue], channels: int) -> Sequence[IrValue]:
            number, *tap, first = at
            for channel in range(0, math.gcd(unroll, channels), spec.group):
                x = (place.group * (inputs // block) + number, tap, first + channel)
                w = self._weight(place, number, tap, channels) + (first + channel) * (
                    place.vectors * self.lanes
                )
                values = self._step(place, pixels, x, w, values)
            return values

        def over(
            begin: Subscript, end: Subscript, channels: int, sums: list[IrValue]
        ) -> list[IrValue]:
            extents = [(begin, end, 1), *taps, (0, channels, math.gcd(unroll, channels))]
            return over_taps(self.b, extents, sums, lambda at, v: step(at, v, channels))

        sums = over(part.begin, part.end, block, sums)
        return over(inputs // block, inputs // block + 1, rest, sums) if rest else sums

    def _weight(self, place: _ConvTurn, number: Index, tap: list[Index], channels: int) -> Index:
        """Return where the weights of a block's first channel begin; see `pack`."""
        spec, taps = self.spec, self.spec.window.taps
        flat = Index()
        for index, extent in zip(tap, spec.window.kernel, strict=True):
            flat = flat * extent + index
        block = place.group * spec.group_blocks + place.first
        begin = block * (self.lanes * spec.packed_inputs * taps)
        columns = place.vectors * self.lanes
        return begin + number * (taps * spec.x_block * columns) + flat * (channels * columns)

    def _step(
        self,
        place: _ConvTurn,
        pixels: list[tuple[Index, Index]],
        x: tuple[Index, list[Index], Index],
        w: Index,
        sums: Sequence[IrValue],
    ) -> list[IrValue]:
        """Add the products of one channel below one tap."""
        b, lanes, vectors, group = self.b, self.lanes, place.vectors, self.spec.group
        block, tap, channel = x
        entries = [self.spec.window.at((*place.outer, *pixel), tap) for pixel in pixels]
        if self.plan.prefetch:
            width = vectors * lanes * group
            line = LINE_BYTES // np.dtype(self.w.dtype).itemsize
            ahead = w + self.plan.prefetch * width
            for offset in range(0, width, line):
                b.prefetch(self.w, ahead + offset)

        def of_pixel(p: int) -> IrValue:
            return b.load(self.x, (place.image, block, *entries[p], channel), group)

        width = lanes * group
        if self.spec.is_blocked:
            half = width // 2
            return blocked_step(
                b,
                sums,
                len(pixels),
                vectors,
                of_pixel,
                lambda v, side: b.load(self.w, w + v * width + side * half, half),
            )
        return mma_step(
            b,
            sums,
            len(pixels),
            vectors,
            of_pixel,
            lambda v: b.load(self.w, w + v * width, width),
        )
