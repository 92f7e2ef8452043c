# SPDX-License-Identifier: Apache-2.0
"""Attention whose two products are made of tiles of bfloat16; all else is that of float32.

Lanes are queries here too, so that a tile of sums has keys by queries, then entries of values by
queries: what is between the products, and behind them, is what `kernel.py` does. Queries are turned
once, to pairs of entries. Keys of a block are copied as rows of tiles, and values turned, for all
tiles of queries of a turn; exponentials are rounded to pairs of keys as they are made. Sums of
exponentials are those before rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import TILE_ROWS, Buffer, Index, IrValue, Type
from intarsia.codegen.kernels.attention.kernel import (
    AttentionKernel,
    AttentionTile,
    AttentionTurn,
)
from intarsia.codegen.kernels.attention.spec import Attention, AttentionSchedule
from intarsia.codegen.kernels.lane_transpose import transpose_lanes
from intarsia.codegen.kernels.tile_rows import NARROW_ROW
from intarsia.extents import Size, most

_DTYPE, _NARROW = "float32", "uint16"
_PAIR = 2
"""Numbers of bfloat16 in a lane, and tiles of either side of a product that are held at once."""


def _whole(extent: Size, step: int) -> Size:
    """Return an extent filled up to whole steps."""
    return -(-extent // step) * step


class TiledAttentionKernel(AttentionKernel):
    """Makes one kernel."""

    def __init__(self, spec: Attention, plan: AttentionSchedule) -> None:
        assert spec.unit.lanes(_DTYPE) == TILE_ROWS, "a vector is a row of a tile of sums"
        assert plan.vectors <= _PAIR, f"{plan.vectors} vectors of queries"
        super().__init__(spec, plan)

    def rows_of_block(self) -> int:
        """Return how many keys of a block there is room for."""
        return most(_whole(self.plan.keys, NARROW_ROW), 1 << 62)

    def declare_operands(self, keys: int) -> None:
        """Declare what the products of a turn read, and the sums of values."""
        b, spec, tiles, width = self.b, self.spec, self.plan.tiles, self.width
        depth = -(-spec.key_size // NARROW_ROW) * NARROW_ROW
        entries = -(-spec.value_size // TILE_ROWS) * TILE_ROWS
        self.turned = b.local("turned", _NARROW, (tiles, depth // _PAIR, _PAIR * width))
        self.weights = b.local("weights", _NARROW, (keys // _PAIR, _PAIR * width))
        self.sums = b.local("sums", _DTYPE, (tiles, entries, width))
        self.tiled_keys = b.local("near_keys", _NARROW, (keys, depth))
        self.tiled_values = b.local("near_values", _NARROW, (entries, keys))
        self.lefts = [b.tile(f"left{i}", _NARROW) for i in range(_PAIR)]
        self.rights = [b.tile(f"right{j}", _NARROW) for j in range(_PAIR)]
        self.products = [[b.tile(f"s{i}{j}", _DTYPE) for j in range(_PAIR)] for i in range(_PAIR)]

    def has_rest(self, size: Size) -> bool:
        """Tell whether rows of a block of so many keys may lie beyond the last one."""
        return not isinstance(size, int) or size % NARROW_ROW != 0

    def turn(self, batch: list[Index], number: Index) -> AttentionTurn:
        """Return what makes a turn."""
        return _TiledTurn(self, batch, number)

    def tile(
        self, batch: list[Index], first: Index, vectors: int, place: tuple[Index, Index], rest: bool
    ) -> AttentionTile:
        """Return what makes a tile of a turn; see `AttentionTile`."""
        return _TiledTile(self, batch, first, vectors, place, is_rest=rest)


class _TiledTurn(AttentionTurn):
    """Makes what one turn does; its keys and values are always brought together."""

    kernel: TiledAttentionKernel

    def fetch(self, begin: Index, size: Size) -> None:
        """Copy keys and values of a block to rows of tiles, and ask for those of the next one."""
        b, lanes = self.b, self.kernel.lanes
        if self.plan.is_far:
            with b.serial(0, size) as key:
                self.ask(begin + key + self.plan.keys)
        rows = _whole(size, NARROW_ROW)
        with b.serial(0, rows) as row:
            self._copy_key(begin, row, size)
        with b.serial(0, rows, lanes) as row:
            self._turn_values(begin, row, size)

    def _there(self, row: Index, size: Size) -> Index:
        """Return a row of a block that is there."""
        return self.b.smaller(row, size - 1) if self.kernel.has_rest(size) else row

    def _copy_key(self, begin: Index, row: Index, size: Size) -> None:
        """Write a key as bfloat16, with zeros behind; that of a row beyond the last is the last."""
        b, lanes, kernel = self.b, self.kernel.lanes, self.kernel
        far, near = kernel.k, kernel.tiled_keys
        for at in range(0, near.shape[-1], lanes):
            count = min(lanes, self.spec.key_size - at)
            if count <= 0:
                bits = b.constant(0, Type(_NARROW, lanes))
            else:
                place = (*self.batch, begin + self._there(row, size), at)
                value = b.load(far, place, lanes, stride=far.strides[-1] or 1, count=count)
                bits = b.unary("bfloat16", value)
            b.store(bits, near, (row, at))

    def _turn_values(self, begin: Index, first: Index, size: Size) -> None:
        """Write some values as bfloat16, entries as rows; those beyond the last one are zeros."""
        b, lanes, kernel = self.b, self.kernel.lanes, self.kernel
        far, near, has_rest = kernel.v, kernel.tiled_values, self.kernel.has_rest(size)
        places = [self._there(first + lane, size) for lane in range(lanes)]
        seen = [
            b.compare("lt", b.index(first + lane), b.index(size)) if has_rest else None
            for lane in range(lanes)
        ]

        def turn(entry: Index, count: int) -> None:
            rows = []
            for place, is_there in zip(places, seen, strict=True):
                at = (*self.batch, begin + place, entry)
                value = b.load(far, at, lanes, stride=far.strides[-1] or 1, count=count)
                rows.append(value if is_there is None else b.select(is_there, value, 0.0))
            for number, column in enumerate(transpose_lanes(b, rows)):
                b.store(b.unary("bfloat16", column), near, (entry + number, first))

        whole = self.spec.value_size // lanes * lanes
        with b.serial(0, whole, lanes) as entry:
            turn(entry, lanes)
        if self.spec.value_size > whole:
            turn(Index(whole), self.spec.value_size - whole)


class _TiledTile(AttentionTile):
    """Makes what one or two vectors of queries do with blocks of keys."""

    kernel: TiledAttentionKernel

    def start(self) -> None:
        """Transpose the queries, and clear the sums, those that fill the last tile too."""
        super().start()
        zero = self.b.constant(0.0, self.type)
        for entry in range(self.spec.value_size, self.kernel.sums.shape[1]):
            for v in range(self.vectors):
                at = (self.number, entry, self.lane + v * self.lanes)
                self.b.store(zero, self.kernel.sums, at)

    def store_queries(self, entry: Index, lane: int, values: Sequence[IrValue]) -> None:
        """Keep some entries of turned queries, from an even one on, as pairs with zeros behind."""
        b, kernel = self.b, self.kernel
        zero = b.constant(0.0, self.type)
        filled = [*values, *[zero] * (len(values) % _PAIR)]
        half = b.split(entry, _PAIR)[0]
        for number in range(0, len(filled), _PAIR):
            pairs = _pairs(b, *filled[number : number + _PAIR])
            at = (self.number, half + number // _PAIR, (self.lane + lane) * _PAIR)
            b.store(pairs, kernel.turned, at)

    def turn_queries(self) -> None:
        """Transpose the queries and scale them, with zeros behind their entries."""
        super().turn_queries()
        b, kernel = self.b, self.kernel
        zero = b.constant(0, Type(_NARROW, _PAIR * self.lanes))
        for pair in range(-(-self.spec.key_size // _PAIR), kernel.turned.shape[1]):
            for v in range(self.vectors):
                at = (self.number, pair, (self.lane + v * self.lanes) * _PAIR)
                b.store(zero, kernel.turned, at)

    def write_scores(self, begin: Index, size: Size, peaks: Sequence[IrValue]) -> list[IrValue]:
        """Write the scores of a block of keys; return the largest of each query so far."""
        b, lanes, kernel = self.b, self.lanes, self.kernel
        rows = _whole(size, NARROW_ROW)
        depth = kernel.tiled_keys.shape[1]
        with b.serial(0, rows, NARROW_ROW) as row:
            for i in range(_PAIR):
                for j in range(self.vectors):
                    b.tile_zero(kernel.products[i][j])
            with b.serial(0, depth // NARROW_ROW) as step:
                lefts = (kernel.tiled_keys, row, step * NARROW_ROW)
                rights = (kernel.turned, [self.number], self.lane, step)
                self._multiply(_PAIR, lefts, rights)
            for i in range(_PAIR):
                for j in range(self.vectors):
                    at = (row + i * TILE_ROWS, j * lanes)
                    b.tile_store(kernel.products[i][j], kernel.scores, at, kernel.width)
        limits = self.limits()
        is_same = not (self.spec.cap or self.spec.masks or limits)

        def mask(row: Index, *peaks: IrValue) -> Sequence[IrValue]:
            places = [(row, v * lanes) for v in range(self.vectors)]
            scores = [b.load(kernel.scores, at, lanes) for at in places]
            for at, score in zip(places, self.masked(scores, begin, row, limits), strict=True):
                scores = [*scores[1:], score]
                if not is_same:
                    b.store(score, kernel.scores, at)
            return [b.maximum(*pair) for pair in zip(scores, peaks, strict=True)]

        return b.loop(0, rows, peaks, mask)

    def _multiply(
        self,
        count: int,
        lefts: tuple[Buffer, Index, Index],
        rights: tuple[Buffer, list[Index], Index, Index],
    ) -> None:
        """Add a step of products to those of this tile.

        Args:
            count: Tiles of rows.
            lefts: Where they are read, from which row and which column on.
            rights: Where queries or exponentials are read, of which tile, from which lane on, and
                the step.
        """
        b, kernel = self.b, self.kernel
        left, row, column = lefts
        right, tile, lane, step = rights
        for i in range(count):
            b.tile_load(kernel.lefts[i], left, (row + i * TILE_ROWS, column), left.shape[-1])
        for j in range(self.vectors):
            at = (*tile, step * TILE_ROWS, (lane + j * self.lanes) * _PAIR)
            b.tile_load(kernel.rights[j], right, at, right.shape[-1])
        for i in range(count):
            for j in range(self.vectors):
                b.tile_dot(kernel.products[i][j], kernel.lefts[i], kernel.rights[j])

    def rise(self, size: Size, peaks: Sequence[IrValue]) -> list[IrValue]:
        """Make exponentials of the scores, as pairs of keys; return their sums."""
        b, lanes, kernel = self.b, self.lanes, self.kernel

        def rise(pair: Index, *totals: IrValue) -> Sequence[IrValue]:
            out = []
            for v, total in enumerate(totals):
                values = [
                    self.power(
                        b.load(kernel.scores, (pair * _PAIR + i, v * lanes), lanes), peaks[v]
                    )
                    for i in range(_PAIR)
                ]
                at = (pair, v * lanes * _PAIR)
                b.store(_pairs(b, *values), kernel.weights, at)
                out.append(b.add(total, b.add(*values)))
            return out

        zeros = [b.constant(0.0, self.type)] * self.vectors
        return b.loop(0, _whole(size, NARROW_ROW) // _PAIR, zeros, rise)

    def add_values(self, begin: Index, size: Size, falls: Sequence[IrValue]) -> None:
        """Add the values of a block of keys to the sums, which fall first."""
        b, lanes, kernel = self.b, self.lanes, self.kernel
        steps = _whole(size, NARROW_ROW) // NARROW_ROW
        blocks = kernel.sums.shape[1] // TILE_ROWS
        with b.serial(0, self.spec.value_size) as entry:
            for v, fall in enumerate(falls):
                at = (self.number, entry, self.lane + v * lanes)
                b.store(b.mul(b.load(kernel.sums, at, lanes), fall), kernel.sums, at)

        def add(block: Index, count: int) -> None:
            grid = [(i, j) for i in range(count) for j in range(self.vectors)]
            places = [
                (self.number, (block + i) * TILE_ROWS, self.lane + j * lanes) for i, j in grid
            ]
            for (i, j), at in zip(grid, places, strict=True):
                b.tile_load(kernel.products[i][j], kernel.sums, at, kernel.width)
            with b.serial(0, steps) as step:
                lefts = (kernel.tiled_values, block * TILE_ROWS, step * NARROW_ROW)
                rights: tuple[Buffer, list[Index], Index, Index] = (
                    kernel.weights,
                    [],
                    Index(),
                    step,
                )
                self._multiply(count, lefts, rights)
            for (i, j), at in zip(grid, places, strict=True):
                b.tile_store(kernel.products[i][j], kernel.sums, at, kernel.width)

        whole = blocks // _PAIR * _PAIR
        with b.serial(0, whole, _PAIR) as block:
            add(block, _PAIR)
        if blocks > whole:
            add(Index(whole), blocks - whole)


def _pairs(b: Builder, first: IrValue, second: IrValue) -> IrValue:
    """Return two vectors as pairs of bfloat16, by turns."""
    lanes = first.type.lanes
    order = [lane + lanes * which for lane in range(lanes) for which in range(_PAIR)]
    return b.shuffle(b.unary("bfloat16", first), b.unary("bfloat16", second), order)
