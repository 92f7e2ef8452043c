# SPDX-License-Identifier: Apache-2.0
"""Convolution with 3x3 taps by Winograd's F(2x2, 3x3) and F(4x4, 3x3), with blocks of channels.

The output is cut into tiles of m x m. The m + 2 squared inputs of each are transformed to as many
*points*; at every point, sums over input channels are a matrix product of tiles and output
channels, by the same register tile as everywhere; and the sums of all points are transformed to
outputs. A turn does this for a block of tiles, whose points and sums are local: up to
`SCRATCH_BYTES` for each thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.ir import Function, Index, IrValue, Type
from intarsia.codegen.kernels.convolution import LINE_BYTES, ConvKernel
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.window import Split, over_taps, split_extent
from intarsia.codegen.kernels.winograd.schedules import schedule, tile_grid
from intarsia.codegen.kernels.winograd.spec import Winograd
from intarsia.codegen.kernels.winograd.transform import (
    EXACT_FACTOR,
    TAPS,
    points_of_taps,
    transform_input,
    transform_output,
)
from intarsia.codegen.tile import mma_step
from intarsia.graph.arena import aligned_bytes

_CACHED_COLUMNS = 1 << 14
"""Weights are transformed by so many at a time: a megabyte with their taps."""


def pack(spec: Winograd, weights: Array) -> Array:
    """Return weights (out_channels, in_channels, 3, 3), transformed, as `build` reads them.

    In order: panels of output channels, points, input channels, output channels of the panel;
    channels that pad the last block of outputs are zero. Of narrow numbers a group of input
    channels lies in each output channel.
    """
    lanes, inputs, group = spec.unit.lanes(), spec.packed_inputs, spec.group
    count = spec.points * inputs * spec.blocks * lanes
    packed = aligned_bytes(count * np.dtype(spec.weight_dtype).itemsize).view(spec.weight_dtype)
    panels: list[tuple[Array, slice]] = []  # where the channels of each are
    begin = 0
    for run in Split.of(spec.blocks, schedule(spec).vectors).runs:
        for first in run.begins:
            size = spec.points * inputs * run.size * lanes
            panel = packed[begin : begin + size].reshape(
                spec.points, inputs // group, run.size * lanes, group
            )
            channels = slice(first * lanes, min((first + run.size) * lanes, spec.out_channels))
            panels.append((panel[:, :, : channels.stop - channels.start], channels))
            begin += size
    rows = points_of_taps(spec.outputs)
    if group > 1:
        rows = rows * EXACT_FACTOR
        missing = inputs - spec.in_channels
        weights = np.pad(weights, ((0, 0), (0, missing), (0, 0), (0, 0)))
    # All columns at once would be read from memory once more for each of up to 36 points.
    few = max(_CACHED_COLUMNS // spec.out_channels // group, 1) * group
    for low in range(0, inputs, few):
        some = slice(low, min(low + few, inputs))
        taps = weights[:, some].reshape(spec.out_channels, -1, TAPS**2).transpose(2, 1, 0)
        columns = np.ascontiguousarray(taps, np.float64).reshape(TAPS**2, -1)
        for point, row in enumerate(rows):
            transformed = (row @ columns).reshape(-1, group, spec.out_channels).swapaxes(1, 2)
            steps = slice(some.start // group, some.stop // group)
            for panel, channels in panels:
                panel[point, steps] = transformed[:, channels]
    return packed


def packing(spec: Winograd) -> str:
    """Name the order of packed weights."""
    dtype = "" if spec.group == 1 else f"{spec.weight_dtype}by{spec.group}"
    return f"winograd{dtype}{spec.outputs}x{spec.unit.lanes()}{schedule(spec)}"


def build(spec: Winograd) -> Function:
    """Return the kernel; its arguments are x, packed weights, bias if any, y, fused operands."""
    return _WinogradKernel(spec).function()


@dataclass(frozen=True, slots=True)
class _TileBlock:
    """A block of tiles.

    Attributes:
        begin: Where it begins, in images and tiles.
        extents: Of it; rows that are counted when it runs are those of one image.
        tiles: How many it has, or the fewest that it may have, cut into register tiles.
        more: How many register tiles it has beyond those.
    """

    begin: tuple[Index, Index, Index]
    extents: tuple[int, int | Index, int]
    tiles: Split
    more: Index = field(default_factory=Index)


@dataclass(frozen=True, slots=True)
class _WeightPass:
    """One of the register tiles that read the same weights: its number, and how many there are."""

    number: Index
    count: int


@dataclass(frozen=True, slots=True)
class _WinogradTile:
    """A tile of a block.

    Attributes:
        number: In the block.
        image: Of the batch.
        origin: Its first output, in rows and columns.
        extents: How many rows and columns of outputs exist.
    """

    number: Index
    image: Index
    origin: tuple[Index, Index]
    extents: tuple[int, int]


class _WinogradKernel(ConvKernel):
    """Makes one kernel."""

    def __init__(self, spec: Winograd) -> None:
        self.spec, self.plan = spec, schedule(spec)
        self.lanes = lanes = spec.unit.lanes()
        self.side = spec.outputs + TAPS - 1
        self.x_blocks = -(-spec.in_channels // lanes)
        channels = spec.blocks * lanes
        super().__init__(
            "winograd",
            spec,
            x=(spec.batch, self.x_blocks, *spec.window.reach, lanes),
            w=(spec.points * spec.packed_inputs * channels,),
            channels=channels,
            y=(spec.batch, spec.blocks, *spec.window.out, lanes),
        )
        extents = (spec.batch, *tile_grid(spec.window, spec.outputs))
        limits = (self.plan.images, self.plan.rows, self.plan.columns)
        self.blocks = [split_extent(*pair) for pair in zip(extents, limits, strict=True)]
        self.panels = Split.of(spec.blocks, self.plan.vectors)
        self.shares = Split(self.panels.count, self.plan.shares)
        tiles = math.prod(split.size + (split.larger > 0) for split in self.blocks)
        vectors = self.panels.size + (self.panels.larger > 0)
        self.group, self.entry_dtype = spec.group, spec.x.dtype
        self.line_entries = LINE_BYTES // np.dtype(spec.weight_dtype).itemsize
        points = (spec.points, self.x_blocks, tiles, lanes)
        self.points = self.b.local("points", self.entry_dtype, points)
        self.sums = self.b.local("sums", self.sum_dtype, (spec.points, tiles, vectors, lanes))

    def function(self) -> Function:
        b, spec = self.b, self.spec
        b.note(f"F({spec.outputs}), {spec.window.out} positions, {spec.in_channels} channels")
        b.note(f"{self.plan}")
        shape = (self.shares.count, *(split.count for split in self.blocks))
        for share, *at in each_turn(b, shape):
            for block in self._block(at):
                self._inputs(block)
                begin, end = self.shares.begin(b, share), self.shares.begin(b, share + 1)
                for vectors, first in self.panels.each(b, begin, end):
                    self._panel(block, first, vectors)
        return b.finish()

    def _block(self, at: Sequence[Index]) -> Iterator[_TileBlock]:
        """Open a block of code for each shape of a block of tiles.

        Blocks that differ in rows alone, by whole register tiles, share one that counts them.
        """
        b, (images, rows, columns) = self.b, self.blocks
        few, many = (
            self._register_tiles(size * columns.extent) for size in (rows.size, rows.size + 1)
        )
        is_plain = images.count == images.extent and columns.count == 1 and len(rows.sizes) > 1
        if is_plain and few.size == many.size and not few.larger and not many.larger:
            first, end = rows.begin(b, at[1]), rows.begin(b, at[1] + 1)
            more = (end - first - rows.size) * (many.count - few.count)
            yield _TileBlock((at[0], first, Index()), (1, end - first, columns.size), few, more)
            return
        for image_run, image in images.at(self.b, at[0]):
            for row_run, row in rows.at(self.b, at[1]):
                for column_run, column in columns.at(self.b, at[2]):
                    extents = (image_run.size, row_run.size, column_run.size)
                    tiles = self._register_tiles(math.prod(extents))
                    yield _TileBlock((image, row, column), extents, tiles)

    def _register_tiles(self, tiles: int) -> Split:
        return Split.of(tiles, self.plan.tiles)

    def _each_tile(
        self, block: _TileBlock, body: Callable[[_WinogradTile], None], *, is_whole: bool = False
    ) -> None:
        """Append loops over the tiles of a block, taken as whole ones or apart from those cut."""
        b, m = self.b, self.spec.outputs
        images, rows, columns = block.extents
        image, first_row, first_column = block.begin
        spans = partial(self._spans, is_whole=is_whole)
        with b.serial(0, images) as item:
            for height, row_begin, row_end in spans(first_row, rows, 0):
                with b.serial(row_begin, row_end) as row:
                    for width, column_begin, column_end in spans(first_column, columns, 1):
                        with b.serial(column_begin, column_end) as column:
                            above = item * rows if isinstance(rows, int) else 0
                            number = (above + row) * columns + column
                            origin = ((first_row + row) * m, (first_column + column) * m)
                            body(_WinogradTile(number, image + item, origin, (height, width)))

    def _spans(
        self, first: Index, count: int | Index, dim: int, *, is_whole: bool
    ) -> Iterator[tuple[int, Index, Index]]:
        """Yield how much of them is output, for a block's whole tiles along a dimension, then cut.

        After that the range of such tiles, counted from the block's first.
        """
        whole, rest = divmod(self.spec.window.out[dim], self.spec.outputs)
        if is_whole or not rest:
            yield self.spec.outputs, Index(), Index.of(count)
            return
        end = self.b.smaller(whole - first, count)
        if whole:
            yield self.spec.outputs, Index(), end
        yield rest, end, Index.of(count)

    def _inputs(self, block: _TileBlock) -> None:
        """Transform the inputs of a block's tiles."""
        is_whole = self.spec.is_padded
        with self.b.serial(0, self.x_blocks) as channels:
            self._each_tile(block, lambda tile: self._input(tile, channels), is_whole=is_whole)

    def _input(self, tile: _WinogradTile, channels: Index) -> None:
        b, side, lanes = self.b, self.side, self.lanes
        zero = b.constant(0, Type(self.entry_dtype, lanes))
        height, width = (extent + TAPS - 1 for extent in tile.extents)
        rows, columns = (self._entries(origin, dim) for dim, origin in enumerate(tile.origin))

        def entry(r: int, c: int) -> IrValue:
            if r >= height or c >= width:  # beyond what there is
                return zero
            return b.load(self.x, (tile.image, channels, rows[r], columns[c], 0), lanes)

        grid = [[entry(r, c) for c in range(side)] for r in range(side)]
        for r, values in enumerate(transform_input(b, self.spec.outputs, grid)):
            for c, value in enumerate(values):
                b.store(value, self.points, (r * side + c, channels, tile.number, 0))

    def _entries(self, origin: Index, dim: int) -> list[Index]:
        """Return the rows or columns of a tile; zeros beyond the padding are read from its end.

        So one code for all tiles transforms their inputs: half of what LLVM works on in a kernel
        whose tiles are cut in both dimensions.
        """
        rest = self.spec.window.out[dim] % self.spec.outputs
        sure = rest + TAPS - 1 if rest and self.spec.is_padded else self.side
        last = self.spec.window.reach[dim] - 1
        return [
            origin + entry if entry < sure else self.b.smaller(origin + entry, last)
            for entry in range(self.side)
        ]

    def _panel(self, block: _TileBlock, first: Index, vectors: int) -> None:
        """Compute all outputs of a block for a panel of output channels."""
        b = self.b
        with b.serial(0, self.spec.points) as point:
            for run in block.tiles.runs:
                with b.serial(run.first, block.more + run.end) as number:
                    tile = number * run.size + run.offset
                    passes = _WeightPass(number, block.tiles.count)
                    self._products(point, tile, run.size, (first, vectors), passes)
        with b.serial(0, vectors) as vector:
            self._each_tile(block, lambda tile: self._output(tile, first, vector))

    def _products(
        self, point: Index, tile: Index, tiles: int, panel: tuple[Index, int], passes: _WeightPass
    ) -> None:
        """Sum over input channels at one point of some tiles."""
        b, lanes, inputs, group = self.b, self.lanes, self.spec.packed_inputs, self.group
        first, vectors = panel
        width = vectors * lanes
        begin = first * (lanes * inputs * self.spec.points) + point * (inputs * width)

        def step(block: Index, channel: Index, sums: Sequence[IrValue]) -> list[IrValue]:
            w = begin + (block * lanes + channel) * width
            if self.plan.prefetch:
                for offset in range(0, width * group, self.line_entries):
                    b.prefetch(self.w, w + self.plan.prefetch * width * group + offset)
            return mma_step(
                b,
                sums,
                tiles,
                vectors,
                lambda t: b.load(self.points, (point, block, tile + t, channel), group),
                lambda v: b.load(self.w, w + v * lanes * group, lanes * group),
            )

        def over(lower: Index, upper: Index, channels: int) -> list[IrValue]:
            unroll = math.gcd(self.plan.unroll * group, channels)

            def steps(at: list[Index], values: Sequence[IrValue]) -> Sequence[IrValue]:
                block, channel = at
                lines = self._ahead(unroll, width, passes) if channels == lanes else ()
                for number in range(0, unroll, group):
                    # Spread over the steps: a core has few line fill buffers, and its loads need
                    # them too.
                    for line in lines[number // group :: unroll // group]:
                        b.prefetch(self.w, begin + inputs * width + line(at), is_far=True)
                    values = step(block, channel + number, values)
                return values

            # Each chunk is summed from zero and then added: `transform.error_ratio` sums likewise.
            zeros = [b.constant(0, Type(self.sum_dtype, lanes))] * (tiles * vectors)
            return over_taps(b, [(lower, upper, 1), (0, channels, unroll)], zeros, steps)

        def chunk(begin: Index, *totals: IrValue) -> list[IrValue]:
            end = begin + size
            part = over(begin, b.smaller(end, whole) if whole % size else end, lanes)
            return [b.add(total, item) for total, item in zip(totals, part, strict=True)]

        whole, rest = divmod(inputs, lanes)
        size = max(1, min(self.plan.chunk, whole))
        # The block that is part empty comes first, so that the loop over chunks has whole ones
        # alone.
        if rest:
            sums = over(Index(whole), Index(whole + 1), rest)
        else:
            sums = over(Index(), Index(size), lanes)
        sums = b.loop(0 if rest else size, whole, sums, chunk, step=size)
        for number, value in enumerate(sums):
            t, v = divmod(number, vectors)
            b.store(value, self.sums, (point, tile + t, v, 0))

    def _ahead(
        self, unroll: int, width: int, passes: _WeightPass
    ) -> Sequence[Callable[[Sequence[Index]], Index]]:
        """Return which weights of the next point a pass asks for at some input channels.

        All passes together ask for all of them, in order.
        """
        if not self.plan.is_streamed:
            return ()
        count = -(-unroll * width // (self.line_entries * passes.count))
        # Rounded up, the passes may ask for some lines beyond the point: a prefetch never faults.
        share = -(-self.spec.packed_inputs // unroll) * count * self.line_entries

        def line(number: int, at: Sequence[Index]) -> Index:
            block, channel = at
            within = (block * self.lanes + channel) * (count * self.line_entries // unroll)
            return passes.number * share + within + number * self.line_entries

        return [partial(line, number) for number in range(count)]

    def _output(self, tile: _WinogradTile, first: Index, vector: Index) -> None:
        """Transform the sums of a tile, add the bias, and store what the epilogue makes of them."""
        b, side, lanes = self.b, self.side, self.lanes
        block = first + vector
        grid = [
            [b.load(self.sums, (r * side + c, tile.number, vector, 0), lanes) for c in range(side)]
            for r in range(side)
        ]
        bias = b.load(self.bias, block * lanes, lanes) if self.bias else None
        height, width = tile.extents
        row, column = tile.origin
        for r, values in enumerate(transform_output(b, self.spec.outputs, grid)[:height]):
            for c, value in enumerate(values[:width]):
                at = (tile.image, block, row + r, column + c, Index())
                total = value if bias is None else b.add(value, bias)
                if self.group > 1:
                    total = b.binary("shr", total, EXACT_FACTOR.bit_length() - 1)
                b.store(self.finish(total, at), self.y, at)
