# SPDX-License-Identifier: Apache-2.0
"""Direct convolution with blocked output, and the choice between the convolution kernels.

The register tile is that of a matrix product whose rows are pixels: a scalar of the input, in every
lane, times vectors of output channels. Taps are loops that run, because broadcasts of overlapping
taps would otherwise be kept alive and spilled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from intarsia.codegen.body import NOTHING, Epilogue, Fused, Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, Subscript, Type, Value
from intarsia.codegen.kernels.conv_schedule import Schedule, channel_groups, choose_schedule
from intarsia.codegen.kernels.conv_window import Tiling, Window, normalise, over_taps, unravel
from intarsia.codegen.tile import mma_step
from intarsia.codegen.unit import AVX512, VectorUnit
from intarsia.graph.arena import aligned_bytes

Array = np.ndarray[Any, np.dtype[Any]]
_LINE_BYTES = 64


class Kind(StrEnum):
    """Which kernel computes a convolution."""

    DIRECT = "direct"
    DEPTHWISE = "depthwise"
    PLAIN = "plain"


def choose(groups: int, in_channels: int, out_channels: int, unit: VectorUnit) -> Kind:
    """Return the kernel for a convolution of so many channels, all groups together.

    Direct and depthwise ones want blocks of channels to be well filled; plain takes everything.
    """
    lanes = unit.lanes()
    if groups == in_channels == out_channels and groups > 1:
        return Kind.DEPTHWISE if 2 * groups >= lanes else Kind.PLAIN
    if groups == 1:
        return Kind.DIRECT if 2 * out_channels >= lanes else Kind.PLAIN
    is_blocked = in_channels // groups % lanes == 0 and out_channels // groups % lanes == 0
    return Kind.DIRECT if is_blocked else Kind.PLAIN


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution of float32 with blocks of L output channels, L being the unit's lanes.

    Attributes:
        batch: Images.
        groups: Of channels; more than one need whole blocks of channels in each.
        in_channels: Of all groups; those that pad the last block are never read.
        out_channels: Of all groups; whole blocks are written.
        window: The spatial dimensions.
        x: Over (batch, in_channels / x_block, *spatial with padding, x_block).
        y: Over (batch, out_channels / L, *window.out, L).
        x_block: Channels in a block of the input: L, or 1 for plain NCHW.
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
    x_block: int
    bias: bool = False
    epilogue: Fused = NOTHING
    unit: VectorUnit = AVX512
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        lanes = self.unit.lanes()
        assert self.x_block in (1, lanes), f"input blocks of {self.x_block} channels"
        if self.groups > 1:
            assert self.group_inputs % self.x_block == 0, "a group begins inside an input block"
            assert self.out_channels // self.groups % lanes == 0, "a group begins inside a block"

    @property
    def group_inputs(self) -> int:
        """Input channels of a group."""
        return self.in_channels // self.groups

    @property
    def group_blocks(self) -> int:
        """Blocks of output channels of a group."""
        return -(-self.out_channels // self.groups // self.unit.lanes())

    @property
    def plan(self) -> Schedule:
        """The schedule that `build` and `pack_weights` follow."""
        if self.schedule:
            return self.schedule
        window, *_ = normalise(self.window, self.x, self.y, self.epilogue)
        schedule = choose_schedule(
            window, self.group_inputs, self.group_blocks, self.batch, self.groups, self.unit
        )
        if self.y.dtype != "float32":  # it holds no sums
            return replace(schedule, chunk=0)
        return schedule


def flops(spec: Conv) -> int:
    """Return the additions and multiplications of a convolution."""
    window = spec.window
    pixels = spec.batch * math.prod(window.out)
    return 2 * pixels * spec.out_channels * spec.group_inputs * window.taps


def pack_weights(spec: Conv, weights: Array) -> Array:
    """Return weights (out_channels, in_channels / groups, *kernel) as `build` reads them.

    In order: groups, tiles of output channels, blocks of input channels, taps, channels of the
    block, output channels of the tile; channels that pad the last block of outputs are zero.
    """
    lanes, inputs, block = spec.unit.lanes(), spec.group_inputs, spec.x_block
    taps, outputs = spec.window.taps, spec.out_channels // spec.groups
    grouped = weights.reshape(spec.groups, outputs, inputs, taps)
    packed = aligned_bytes(4 * spec.groups * spec.group_blocks * lanes * inputs * taps)
    rest = packed.view(np.float32)
    for group in grouped:
        for run in channel_groups(spec.group_blocks, spec.plan).runs:
            for first in run.begins:
                columns = group[first * lanes : (first + run.size) * lanes].transpose(2, 1, 0)
                for channel in range(0, inputs, block):
                    item = columns[:, channel : channel + block]
                    shape = (*item.shape[:2], run.size * lanes)
                    place, rest = np.split(rest, [math.prod(shape)])
                    place.reshape(shape)[..., : item.shape[2]] = item
    return packed.view(np.float32)


def pack_bias(lanes: int, bias: Array) -> Array:
    """Return a bias with zeros up to whole blocks."""
    return np.pad(bias.astype(np.float32), (0, -len(bias) % lanes))


def build(spec: Conv) -> Function:
    """Return the kernel; its arguments are x, packed weights, bias if any, y, fused operands."""
    return _Direct(spec).function()


@dataclass(frozen=True, slots=True)
class _Place:
    """What the tiles of one turn have in common; `first` and `vectors` count blocks of outputs."""

    image: Index
    outer: list[Index]
    group: Index
    first: Index
    vectors: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of input blocks; the first part starts the sums, the last one finishes them."""

    begin: Subscript
    end: Subscript
    is_first: bool = False
    is_last: bool = False


class _Direct:
    """Makes one kernel."""

    def __init__(self, spec: Conv) -> None:
        self.plan = spec.plan
        window, x, y, epilogue = normalise(spec.window, spec.x, spec.y, spec.epilogue)
        self.spec = spec = replace(spec, window=window, x=x, y=y, epilogue=epilogue)
        self.lanes = spec.unit.lanes()
        self.b = Builder("conv")
        blocks = spec.groups * spec.group_blocks
        x_blocks = -(-spec.in_channels // spec.x_block)
        self.x = x.declare(self.b, "x", (spec.batch, x_blocks, *window.reach, spec.x_block))
        size = blocks * self.lanes * spec.group_inputs * window.taps
        self.w = self.b.argument("w", "float32", (size,), align=_LINE_BYTES)
        self.bias: Buffer | None = None
        if spec.bias:
            self.bias = self.b.argument(
                "bias", "float32", (blocks * self.lanes,), align=_LINE_BYTES
            )
        domain = (spec.batch, blocks, *window.out, self.lanes)
        self.y = y.declare(self.b, "y", domain, is_written=True)
        self.epilogue: Epilogue = epilogue.bind(self.b, domain)

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
        with self.b.parallel(math.prod(shape)) as turn:
            at = unravel(self.b, turn, shape)
            if plan.is_channels_first:
                group, tile, image, *outer, band = at
            else:
                image, *outer, band, group, tile = at
            for run, first in tiles.at(self.b, tile):
                self._tiles(tiling, band, _Place(image, outer, group, first, run.size))
        return self.b.finish()

    def _tiles(self, tiling: Tiling, band: Index, place: _Place) -> None:
        """Compute a band; many input channels in chunks, with sums in the output between them."""
        blocks = self.spec.group_inputs // self.spec.x_block
        chunk = self.plan.chunk

        def run(part: _Part) -> None:
            tiling.each(self.b, band, lambda *tile: self._tile(place, part, *tile))

        if not chunk or chunk >= blocks:
            run(_Part(0, blocks, is_first=True, is_last=True))
            return
        run(_Part(0, 0, is_first=True))
        with self.b.serial(0, blocks, chunk) as begin:
            end = begin + chunk
            run(_Part(begin, self.b.smaller(end, blocks) if blocks % chunk else end))
        run(_Part(blocks, blocks, is_last=True))

    def _tile(
        self, place: _Place, part: _Part, row: Index, column: Index, height: int, width: int
    ) -> None:
        b, spec, vectors = self.b, self.spec, place.vectors
        pixels = [(row + r, column + c) for r in range(height) for c in range(width)]
        block = place.group * spec.group_blocks + place.first

        def at(pixel: int, vector: int) -> tuple[Index, ...]:
            return (place.image, block + vector, *place.outer, *pixels[pixel], Index())

        grid = [(p, v) for p in range(len(pixels)) for v in range(vectors)]
        if part.is_first:
            start = [self._start(block + v) for v in range(vectors)]
            sums = self._accumulate(place, part, pixels, [start[v] for _, v in grid])
        else:  # from zero: sums of a few chains are rounded less than one long chain
            zero = b.constant(0, Type("float32", self.lanes))
            found = self._accumulate(place, part, pixels, [zero] * len(grid))
            before = [b.load(self.y, at(p, v), self.lanes) for p, v in grid]
            sums = [b.add(total, value) for total, value in zip(before, found, strict=True)]
        for (p, v), value in zip(grid, sums, strict=True):
            result = self.epilogue(value, at(p, v), None) if part.is_last else value
            b.store(result, self.y, at(p, v))

    def _start(self, block: Index) -> Value:
        if self.bias is None:
            return self.b.constant(0, Type("float32", self.lanes))
        return self.b.load(self.bias, block * self.lanes, self.lanes)

    def _accumulate(
        self, place: _Place, part: _Part, pixels: list[tuple[Index, Index]], sums: list[Value]
    ) -> list[Value]:
        """Add the products of whole input blocks, and last of the one that is part empty."""
        spec, kernel = self.spec, self.spec.window.kernel
        inputs, block, unroll = spec.group_inputs, spec.x_block, self.plan.unroll
        taps = [(0, extent, 1) for extent in kernel]
        rest = inputs % block if part.is_last else 0

        def step(at: list[Index], values: Sequence[Value], channels: int) -> Sequence[Value]:
            number, *tap, first = at
            for channel in range(math.gcd(unroll, channels)):
                x = (place.group * (inputs // block) + number, tap, first + channel)
                w = self._weight(place, number, tap, channels) + (first + channel) * (
                    place.vectors * self.lanes
                )
                values = self._step(place, pixels, x, w, values)
            return values

        def over(begin: Subscript, end: Subscript, channels: int, sums: list[Value]) -> list[Value]:
            extents = [(begin, end, 1), *taps, (0, channels, math.gcd(unroll, channels))]
            return over_taps(self.b, extents, sums, lambda at, v: step(at, v, channels))

        sums = over(part.begin, part.end, block, sums)
        return over(inputs // block, inputs // block + 1, rest, sums) if rest else sums

    def _weight(self, place: _Place, number: Index, tap: list[Index], channels: int) -> Index:
        """Return where the weights of a block's first channel begin; see `pack_weights`."""
        spec, taps = self.spec, self.spec.window.taps
        flat = Index()
        for index, extent in zip(tap, spec.window.kernel, strict=True):
            flat = flat * extent + index
        block = place.group * spec.group_blocks + place.first
        begin = block * (self.lanes * spec.group_inputs * taps)
        columns = place.vectors * self.lanes
        return begin + number * (taps * spec.x_block * columns) + flat * (channels * columns)

    def _step(
        self,
        place: _Place,
        pixels: list[tuple[Index, Index]],
        x: tuple[Index, list[Index], Index],
        w: Index,
        sums: Sequence[Value],
    ) -> list[Value]:
        """Add the products of one channel below one tap."""
        b, lanes, vectors = self.b, self.lanes, place.vectors
        block, tap, channel = x
        entries = [self.spec.window.at((*place.outer, *pixel), tap) for pixel in pixels]
        if self.plan.prefetch:
            ahead = w + self.plan.prefetch * vectors * lanes
            for offset in range(0, vectors * lanes, _LINE_BYTES // 4):
                b.prefetch(self.w, ahead + offset)
        return mma_step(
            b,
            sums,
            len(pixels),
            vectors,
            lambda p: b.load(self.x, (place.image, block, *entries[p], channel)),
            lambda v: b.load(self.w, w + v * lanes, lanes),
        )
