# SPDX-License-Identifier: Apache-2.0
"""Products of tiles as kernels, and how their weights are packed.

Two tiles of positions by two of output channels are summed at a time, which takes all eight tile
registers: each that is loaded is multiplied twice. Sums go through a buffer in the first cache to
the vectors of the epilogue. A convolution reads its taps where they are, as displacements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TypeAlias

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import TILE_ROWS, Buffer, Function, Index, IrValue
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.tile_product.spec import TileProduct, schedule
from intarsia.codegen.kernels.tile_rows import NARROW_ROW
from intarsia.graph.arena import aligned_bytes

_SUMS = TILE_ROWS * TILE_ROWS
_LINE_BYTES = 64

Counts: TypeAlias = "tuple[int | None, ...]"
"""For each block of a pair how many of its channels count; None means all."""


def pack(spec: TileProduct, weights: Array) -> Array:
    """Return weights (out_channels, in_channels, *taps), bits of bfloat16 or codes, as read.

    In order: pairs of blocks of output channels, taps, rows of input channels, the blocks of a
    pair, groups of input channels, output channels, the input channels of a group. Output channels
    that fill the last block are zero.
    """
    outputs, inputs = weights.shape[:2]
    row, group = spec.row, spec.group
    tile = TILE_ROWS * row
    taps = math.prod(taps.count for taps in spec.taps)
    packed = aligned_bytes(spec.blocks * spec.steps * tile * weights.itemsize)
    rest = packed.view(weights.dtype)
    rows = weights.reshape(outputs, inputs // row, TILE_ROWS, group, taps)
    for first in range(0, spec.blocks, 2):
        size = min(2, spec.blocks - first)
        part = rows[first * TILE_ROWS : (first + size) * TILE_ROWS]
        place, rest = np.split(rest, [size * spec.steps * tile])
        shape = (taps, inputs // row, size, TILE_ROWS, TILE_ROWS, group)
        by_block = place.reshape(shape)
        for block in range(size):
            some = part[block * TILE_ROWS : (block + 1) * TILE_ROWS]
            by_block[:, :, block, :, : len(some)] = some.transpose(4, 1, 2, 0, 3)
    return packed.view(weights.dtype)


def packing(spec: TileProduct) -> str:
    """Name the order of packed weights."""
    return f"tiles of {spec.w_dtype} {spec.blocks} by {spec.steps}"


def build(spec: TileProduct) -> Function:
    """Return the kernel.

    Its arguments are x, weights, bias if any, y if it is kept, the narrow one if any, and fused
    operands.
    """
    return _TileKernel(spec).function()


class _TileKernel:
    """Makes one kernel."""

    def __init__(self, spec: TileProduct) -> None:
        self.spec, self.plan = spec, schedule(spec)
        self.b = b = Builder("tile_product")
        self.x = b.argument("x", spec.x_dtype, (spec.x_size,))
        self.tile = TILE_ROWS * spec.row
        count = spec.batch if spec.has_own else 1
        self.w = b.argument("w", spec.w_dtype, (count * spec.weights,), align=_LINE_BYTES)
        self.bias: Buffer | None = None
        if spec.bias:
            self.bias = b.argument("bias", "float32", (spec.blocks * TILE_ROWS,), align=4)
        self.y: Buffer | None = None
        if spec.is_kept:
            self.y = spec.y.declare(b, "y", spec.domain, is_written=True)
        self.narrow: Buffer | None = None
        if spec.narrow is not None:
            images, blocks, *positions, _ = spec.domain
            domain = (images, blocks // 2, *positions, NARROW_ROW)
            self.narrow = spec.narrow.declare(b, "narrow", domain, is_written=True)
        self.epilogue = spec.epilogue.bind(b, spec.domain)
        self.sums = b.local("sums", spec.sum_dtype, (4 * _SUMS,))
        self.lefts = [b.tile(f"x{i}", spec.x_dtype) for i in range(2)]
        self.rights = [b.tile(f"w{i}", spec.w_dtype) for i in range(2)]
        self.totals = [[b.tile(f"s{i}{j}", spec.sum_dtype) for j in range(2)] for i in range(2)]

    def function(self) -> Function:
        b, spec, plan = self.b, self.spec, self.plan
        b.note(f"{spec.rows} x {spec.columns} positions, {spec.in_channels} channels")
        b.note(f"{plan}")
        if 0 in (*spec.domain, spec.out_channels):
            return b.finish_empty()
        self.in_line = -(-plan.length // TILE_ROWS)
        tiles = plan.lines * self.in_line
        pairs = -(-spec.blocks // 2)
        shape = (spec.batch, -(-tiles // plan.positions), -(-pairs // plan.pairs))
        for image, chunk, group in each_turn(b, shape):
            begin = chunk * plan.positions
            end = b.smaller(begin + plan.positions, tiles)
            for pair, counts in self._pairs(group):
                with b.serial(begin, end, 2) as tile:
                    self._tiles(image, tile, end, tile - begin, pair, counts)
        return b.finish()

    def _pairs(self, group: Index) -> Iterator[tuple[Index, Counts]]:
        """Open a loop over the pairs of a turn, and a block for a last one that is not whole."""
        b, spec, step = self.b, self.spec, self.plan.pairs
        first, end = group * step, group * step + step
        pairs, rest = divmod(spec.blocks, 2)
        last: Counts = (None,) * (rest or 2)
        if spec.is_cut and spec.out_channels % TILE_ROWS:
            last = (*last[:-1], spec.out_channels % TILE_ROWS)
        whole = pairs - (rest == 0 and last[-1] is not None)
        if whole:
            with b.serial(first, b.smaller(end, whole)) as pair:
                yield pair, (None, None)
        if rest or whole < pairs:
            with b.serial(b.larger(first, whole), b.smaller(end, whole + 1)) as pair:
                yield pair, last

    def _tiles(
        self, image: Index, tile: Index, end: Index, done: Index, pair: Index, counts: Counts
    ) -> None:
        """Compute two tiles of positions, or one, by one or two blocks of output channels.

        Args:
            image: Of which image.
            tile: The first of them.
            end: Where those of the turn end.
            done: How many of the turn were computed by these output channels.
            pair: The blocks of output channels.
            counts: See `Counts`.
        """
        b, spec, size = self.b, self.spec, len(counts)
        is_two = b.smaller(end - tile - 1, 1)
        number = [tile, tile + is_two]
        places = [b.split(each, self.in_line) for each in number]
        by_image, _, by_row, by_column = spec.x_strides
        starts = [
            image * by_image + line * by_row + first * (by_column * TILE_ROWS)
            for line, first in places
        ]
        for i in range(2):
            for j in range(size):
                b.tile_zero(self.totals[i][j])
        weights = pair * (2 * spec.steps * self.tile)
        if spec.has_own:
            weights += image * spec.weights
        self._accumulate(starts, done, weights, size)
        for i in range(2):
            for j in range(size):
                b.tile_store(self.totals[i][j], self.sums, (2 * i + j) * _SUMS, TILE_ROWS)
        self._finish(image, places[0], 0, pair, counts)
        with b.serial(0, is_two):
            self._finish(image, places[1], 1, pair, counts)

    def _accumulate(self, starts: list[Index], done: Index, first: Index, size: int) -> None:
        b, spec = self.b, self.spec
        rows, columns = spec.taps
        by_group, by_column = spec.x_strides[1], spec.x_strides[3]
        groups = spec.in_channels // spec.row
        with (
            b.serial(0, rows.count) as r,
            b.serial(0, columns.count) as c,
            b.serial(0, groups) as group,
        ):
            tap = r * rows.stride + c * columns.stride + group * by_group
            step = (r * columns.count + c) * groups + group
            for i, start in enumerate(starts):
                b.tile_load(self.lefts[i], self.x, start + tap, by_column)
            for j in range(size):
                place = first + step * (size * self.tile) + j * self.tile
                b.tile_load(self.rights[j], self.w, place, spec.row)
            self._prefetch(first, step, done)
            for i in range(2):
                for j in range(size):
                    b.tile_dot(self.totals[i][j], self.lefts[i], self.rights[j])

    def _prefetch(self, first: Index, step: Index, done: Index) -> None:
        """Ask for weights of the next pair, as many as a step's part of them."""
        spec, count = self.spec, self.plan.prefetch
        following = first + 2 * spec.steps * self.tile
        turn = done * (spec.steps * count * spec.row // 2)
        for line in range(count):
            place = following + turn + step * (count * spec.row) + line * spec.row
            self.b.prefetch(self.w, place, is_far=True)

    def _finish(
        self, image: Index, place: tuple[Index, Index], which: int, pair: Index, counts: Counts
    ) -> None:
        """Write the results of a tile of positions, as far as they are some."""
        b, spec, plan = self.b, self.spec, self.plan
        line, first = place
        begin = first * TILE_ROWS
        if not spec.is_flat:
            count = b.smaller(begin * -1 + plan.length, TILE_ROWS)
            with b.serial(0, count) as row:
                self._store((image, line, begin + row), row, which, pair, counts)
            return
        pitch = spec.pitch
        top, _ = b.split(begin, pitch)
        bottom, _ = b.split(begin + (TILE_ROWS - 1), pitch)
        with b.serial(top, b.smaller(bottom + 1, spec.rows)) as line:
            skipped = begin - line * pitch
            last = b.smaller(skipped + TILE_ROWS, spec.columns)
            with b.serial(b.larger(skipped, 0), last) as column:
                self._store((image, line, column), column - skipped, which, pair, counts)

    def _store(
        self, place: tuple[Index, ...], row: Index, which: int, pair: Index, counts: Counts
    ) -> None:
        """Write the results of a position."""
        b = self.b
        image, line, column = place
        values: dict[int, IrValue] = {}

        def write(number: int) -> None:
            block = pair * 2 + number
            at = (image, block, line, column, Index())
            value = b.load(self.sums, (2 * which + number) * _SUMS + row * TILE_ROWS, TILE_ROWS)
            if self.bias is not None:
                value = b.add(value, b.load(self.bias, block * TILE_ROWS, TILE_ROWS))
            count = counts[number]
            values[number] = self.epilogue(value, at, count)
            if self.y is not None:
                store_lanes(b, values[number], self.y, at, count)

        b.interleave(partial(write, number) for number in range(len(counts)))
        if self.narrow is not None:
            first, second = (b.unary("bfloat16", values[number]) for number in range(2))
            both = b.shuffle(first, second, range(NARROW_ROW))
            b.store(both, self.narrow, (image, pair, line, column, 0))
