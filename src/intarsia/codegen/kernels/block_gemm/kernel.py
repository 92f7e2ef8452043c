# SPDX-License-Identifier: Apache-2.0
"""Products with weights in blocks as kernels: packed weights are unpacked in registers.

A tile is rows times vectors of columns. It goes along k block by block, and adds the sum of a
block, times its scales, to what it has; so the order of a sum does not depend on the tile. With one
row each weight is read once, and memory decides. With many, the weights of some columns stay in a
near cache while rows go by; a CPU with products of tiles multiplies codes by these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from intarsia.codegen.body import store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import TILE_BYTES, TILE_ROWS, Buffer, Function, Index, IrValue, Type
from intarsia.codegen.kernels.block_gemm import quantize
from intarsia.codegen.kernels.block_gemm.quantize import QuantizeBlocks
from intarsia.codegen.kernels.block_gemm.spec import (
    GROUP,
    LEAST_TILE_ROWS,
    WORD_BITS,
    BlockGemm,
)
from intarsia.codegen.kernels.block_gemm.tiles import MOST_ROWS, Operands, TileColumns, groups_of
from intarsia.codegen.kernels.gemm import merged
from intarsia.codegen.kernels.window import FreeSplit, Split, split_extent
from intarsia.codegen.tile import mma_step
from intarsia.extents import Expression, typical

_LINE_BYTES = 64
_AHEAD_BYTES = 4096
"""How far ahead codes are asked for: what hardware foresees ends at a page."""
_PART = 32
"""Codes along k whose products are written one after the other: so many products of codes of 4 bits
have sums of 16 bits: a lane has 16 of them, and 16 * 15 * 127 is 30,480."""
_EXACT_PART = 8
"""The same of numbers. The sums of more would wait for one another: a sum is ready after 4 cycles,
and a CPU looks some 200 instructions ahead."""
_MANY_ROWS = 8
"""Rows from which numbers are unpacked into memory first, which is then read again and again."""
_TURN_BYTES = 64 << 10
_TURNS = 64


def build(spec: BlockGemm | QuantizeBlocks) -> Function:
    """Return the kernel.

    The arguments of a product are a, scales and sums of its blocks if it is of codes, codes of the
    weights, their scales and zero points if there are any, c, fused operands.
    """
    if isinstance(spec, QuantizeBlocks):
        return quantize.build(spec)
    return _BlockProduct(replace(spec, product=merged(spec.product))).function()


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile: where it is, and how large.

    Attributes:
        batch: The item.
        row: The first row.
        rows: How many.
        vector: The first vector of columns.
        counts: Lanes that count, for each vector; None means all.
        panel: Where the weights are as numbers already; None if they are only packed.
    """

    batch: list[Index]
    row: Index
    rows: int
    vector: Index
    counts: tuple[int | None, ...]
    panel: Buffer | None = None

    @property
    def places(self) -> list[tuple[int, int]]:
        """Rows and vectors in it."""
        return [(r, v) for r in range(self.rows) for v in range(len(self.counts))]


@dataclass(frozen=True, slots=True)
class _RowsTurn:
    """What a turn of the parallel loop has of rows.

    Attributes:
        batch: The item.
        rows: How all rows are cut.
        begin: Its first block of rows.
        end: Beyond the last one.
    """

    batch: list[Index]
    rows: Split | FreeSplit
    begin: Index
    end: Index


class _BlockProduct:
    """Makes one kernel."""

    def __init__(self, spec: BlockGemm) -> None:
        self.spec = spec
        self.product = product = spec.product
        self.weights = weights = spec.weights
        self.lanes = lanes = spec.lanes
        self.b = b = Builder("block_gemm")
        front = (*product.batch, product.m)
        self.vectors = -(-product.n // lanes)
        blocks, size = spec.blocks, weights.size
        self.words = size // weights.per_word
        rows, columns = front, product.k
        if spec.has_tiles:
            rows = (-(-product.m // TILE_ROWS) * TILE_ROWS,)
            columns = -(-columns // TILE_BYTES) * TILE_BYTES
        self.left = product.a.declare(b, "a", (*rows, columns))
        self.left_scales: Buffer | None = None
        self.left_sums: Buffer | None = None
        if not spec.is_exact:
            self.left_scales = b.argument("a_scales", "float32", (*rows, blocks))
            dtype = "float32" if weights.zeros else "int32"
            self.left_sums = b.argument("a_sums", dtype, (*rows, blocks))
        dtype, count = ("uint32", lanes) if spec.is_exact else ("uint8", GROUP * lanes)
        shape = (self.vectors, blocks * self.words, count)
        self.codes = b.argument("codes", dtype, shape, align=_LINE_BYTES)
        shape = (self.vectors, blocks, lanes)
        self.scales = b.argument("scales", "float32", shape, align=_LINE_BYTES)
        self.panel: Buffer | None = None
        self.zeros: Buffer | None = None
        if weights.zeros:
            self.zeros = b.argument("zeros", weights.zeros, shape, align=_LINE_BYTES)
        domain = (*front, product.n)
        self.result = product.c.declare(b, "c", domain, is_written=True)
        self.epilogue = product.epilogue.bind(b, domain)
        self.tiles: TileColumns | None = None
        if spec.has_tiles:
            assert self.left_scales is not None
            assert self.left_sums is not None
            codes = (self.left, self.left_scales, self.left_sums, self.codes)
            operands = Operands(*codes, self.scales, self.zeros, self.result, self.epilogue)
            self.tiles = TileColumns(b, spec, operands)

    def function(self) -> Function:
        b, product = self.b, self.product
        b.note(f"batch {product.batch}, m {product.m}, n {product.n}, k {product.k}")
        b.note(f"{self.weights}")
        if 0 in (*product.batch, product.m, product.n):
            return b.finish_empty()
        height, width = self._tile_size()
        is_many = isinstance(product.m, Expression) or product.m >= _MANY_ROWS
        if self.spec.is_exact and is_many:
            size = self.spec.blocks * self.weights.size
            self.panel = b.local("panel", "float32", (size, width * self.lanes))
        rows = split_extent(product.m, height)
        tiles = -(-self.vectors // width)
        nbytes = self.vectors * self.lanes * product.k * self.weights.bits // 8
        work = nbytes * max(1, typical(rows.count)) // tiles
        groups = Split.of(tiles, max(-(-tiles // _TURNS), _TURN_BYTES // max(1, work)))
        row_bytes = product.k * (4 if self.spec.is_exact else 1)
        near = max(1, product.unit.l2_bytes // 2 // (height * row_bytes))
        near = min(near, MOST_ROWS // height) if self.tiles else near
        chunks = split_extent(rows.count, near)
        shape = (*product.batch, chunks.count, groups.count)
        with b.parallel(math.prod(shape)) as number:
            *batch, chunk, group = b.unravel(number, shape)
            begin, end = Index(0), Index(rows.count)
            if chunks.count != 1:
                begin, end = chunks.begin(b, chunk), chunks.begin(b, chunk + 1)
            first, last = groups.begin(b, group), groups.begin(b, group + 1)
            # The last columns by themselves: what is cut there is masked.
            whole = self.product.n // (self.lanes * width)
            with b.serial(first, b.smaller(last, whole)) as tile:
                self._columns(_RowsTurn(batch, rows, begin, end), tile * width, (None,) * width)
            if whole < tiles:
                counts = self._last_counts(whole * width)
                with b.serial(b.larger(first, whole), last) as tile:
                    self._columns(_RowsTurn(batch, rows, begin, end), tile * width, counts)
        return b.finish()

    def _columns(self, turn: _RowsTurn, vector: Index, counts: tuple[int | None, ...]) -> None:
        """Compute the rows of a turn for some vectors of columns."""
        m = self.product.m

        def tiles(panel: Buffer | None) -> None:
            for size, row in turn.rows.each(self.b, turn.begin, turn.end):
                self._tile(_Tile(turn.batch, row, size, vector, counts, panel))

        def many() -> None:
            if self.tiles:
                self._by_tiles(self.tiles, turn, vector, counts)
            elif self.panel:
                self._unpack(self.panel, vector, len(counts))
                tiles(self.panel)

        if self.panel is None and self.tiles is None:
            tiles(None)
        elif isinstance(m, Expression):  # both ways have the same order of sums
            least = LEAST_TILE_ROWS if self.tiles else _MANY_ROWS
            with self.b.where(self.b.compare("lt", self.b.index(m), least)):
                tiles(None)
            with self.b.where(self.b.compare("ge", self.b.index(m), least)):
                many()
        else:
            many()

    def _by_tiles(
        self, tiles: TileColumns, turn: _RowsTurn, vector: Index, counts: tuple[int | None, ...]
    ) -> None:
        """Compute the rows of a turn for some vectors of columns by products of tiles."""
        b, m = self.b, self.product.m
        first = turn.rows.begin(b, turn.begin)
        end = b.smaller(turn.rows.begin(b, turn.end), m)
        whole = sum(count is None for count in counts)
        if whole:
            with b.serial(vector, vector + whole) as each:
                tiles.compute(first, end, each, None)
        if whole < len(counts):
            tiles.compute(first, end, vector + whole, counts[-1])

    def _unpack(self, panel: Buffer, vector: Index, width: int) -> None:
        """Write the weights of some vectors of columns as numbers, all but their scales."""
        b, per_word = self.b, self.weights.per_word
        with b.serial(0, self.spec.blocks) as block:
            zero = [self._zero(vector + v, block) for v in range(width)]
            with b.serial(0, self.words) as place:
                word = block * self.words + place
                for v in range(width):
                    for number, value in enumerate(
                        self._numbers(vector + v, word, per_word, zero[v])
                    ):
                        b.store(value, panel, (word * per_word + number, v * self.lanes))

    def _tile_size(self) -> tuple[int, int]:
        """Return rows and vectors of a tile, at most."""
        registers = self.product.unit.registers
        is_one_row = self.product.m == 1
        if self.spec.is_exact:
            # With one row, 8 sums are what hides the latency of a sum.
            width = min(8 if is_one_row else 2, self.vectors)
            # On Zen 3, 6 rows took a tenth longer where these lie a multiple of 4096 bytes apart:
            # then they share sets of the first cache.
            return registers // 4, width
        if self.tiles and not isinstance(self.product.m, Expression):
            return TILE_ROWS, 1
        width = min(2, self.vectors)
        return max(1, (registers - 3 * width - 2) // width), width

    def _last_counts(self, first: int) -> tuple[int | None, ...]:
        counts: list[int | None] = [None] * (self.vectors - first)
        if self.product.n % self.lanes:
            counts[-1] = self.product.n % self.lanes
        return tuple(counts)

    def _tile(self, tile: _Tile) -> None:
        b, lanes, spec = self.b, self.lanes, self.spec
        totals = [b.constant(0.0, Type("float32", lanes)) for _ in tile.places]
        rest = self.product.k % self.weights.size if spec.is_exact else 0
        whole = spec.blocks - bool(rest)

        def step(block: Index, *sums: IrValue) -> Sequence[IrValue]:
            return self._block(tile, block, self.weights.size, sums)

        totals = b.loop(0, whole, totals, step) if whole else totals
        if rest:
            totals = self._block(tile, Index(whole), rest, totals)
        for (r, v), total in zip(tile.places, totals, strict=True):
            at = (*tile.batch, tile.row + r, (tile.vector + v) * lanes)
            count = tile.counts[v]
            store_lanes(b, self.epilogue(total, at, count), self.result, at, count)

    def _block(
        self, tile: _Tile, block: Index, count: int, totals: Sequence[IrValue]
    ) -> list[IrValue]:
        """Add what a block has, of which some codes count, to the sums of those before."""
        add = self._add_exact if self.spec.is_exact else self._add_codes
        return add(tile, block, count, totals)

    def _add_exact(
        self, tile: _Tile, block: Index, count: int, totals: Sequence[IrValue]
    ) -> list[IrValue]:
        """Multiply codes less their zero points as float32; the scale comes last."""
        b = self.b
        width = len(tile.counts)
        zero = [] if tile.panel else [self._zero(tile.vector + v, block) for v in range(width)]

        def part(start: Index, codes: int, sums: Sequence[IrValue]) -> list[IrValue]:
            word = block * self.words + start
            first = word * self.weights.per_word

            def left(r: int, number: int) -> IrValue:
                return b.load(self.left, (*tile.batch, tile.row + r, first + number))

            if tile.panel is not None:
                for number in range(codes):
                    sums = mma_step(
                        b,
                        sums,
                        tile.rows,
                        width,
                        partial(left, number=number),
                        partial(self._of_panel, tile.panel, first + number),
                    )
                return list(sums)
            out = list(sums)
            for v in range(width):
                weights = self._numbers(tile.vector + v, word, codes, zero[v])
                for number, weight in enumerate(weights):
                    for r in range(tile.rows):
                        index = r * width + v
                        out[index] = b.fma(left(r, number), weight, out[index])
            return out

        zeros = [b.constant(0.0, value.type) for value in totals]
        sums = self._in_parts(tile, block, count, zeros, part)
        scales = [self._scale(tile.vector + v, block) for v in range(width)]
        return [
            b.fma(value, scales[v], total)
            for (_, v), value, total in zip(tile.places, sums, totals, strict=True)
        ]

    def _of_panel(self, panel: Buffer, k: Index, v: int) -> IrValue:
        return self.b.load(panel, (k, v * self.lanes), self.lanes)

    def _numbers(self, vector: Index, first: Index, count: int, zero: IrValue) -> list[IrValue]:
        """Return codes less their zero points as float32, from a word on."""
        b, bits, per_word = self.b, self.weights.bits, self.weights.per_word
        out = []
        for place in range(-(-count // per_word)):
            word = b.load(self.codes, (vector, first + place, 0), self.lanes)
            if self.zeros is None:  # a top bit turned makes a signed number less the middle of it
                tops = sum(self.weights.middle << (bits * number) for number in range(per_word))
                word = b.binary("xor", word, tops)
                word = b.bitcast(word, "int32")
            for number in range(min(per_word, count - place * per_word)):
                lowest = 8 * (number % GROUP) + bits * (number // GROUP)
                if self.zeros is None:
                    code = b.binary("shl", word, WORD_BITS - bits - lowest)
                    out.append(b.cast(b.binary("shr", code, WORD_BITS - bits), "float32"))
                else:
                    code = b.binary("and", b.binary("shr", word, lowest), (1 << bits) - 1)
                    out.append(b.sub(b.cast(b.bitcast(code, "int32"), "float32"), zero))
        return out

    def _add_codes(
        self, tile: _Tile, block: Index, count: int, totals: Sequence[IrValue]
    ) -> list[IrValue]:
        """Multiply codes; what zero points add depends on sums of the left operand alone."""
        b, lanes = self.b, self.lanes
        width = len(tile.counts)
        rows = [(*tile.batch, tile.row + r) for r in range(tile.rows)]
        assert self.left_sums is not None
        assert self.left_scales is not None
        left = [b.splat(b.load(self.left_sums, (*row, block)), lanes) for row in rows]

        def part(start: Index, codes: int, sums: Sequence[IrValue]) -> list[IrValue]:
            out = [b.constant(0, Type("int16", 2 * lanes))] * len(sums) if in_pairs else list(sums)
            for place in range(codes // self.weights.per_word):
                at = block * self.words + start + place
                groups = [self._groups(tile.vector + v, at) for v in range(width)]
                for inner in range(len(groups[0])):
                    k = at * self.weights.per_word + inner * GROUP
                    for r, row in enumerate(rows):
                        few = b.load(self.left, (*row, k), GROUP)
                        few = b.shuffle(few, few, tuple(range(GROUP)) * lanes)
                        for v in range(width):
                            index = r * width + v
                            out[index] = b.dot(groups[v][inner], few, out[index])
            if not in_pairs:
                return out
            ones = b.constant(1, Type("int16", 2 * lanes))
            return [b.dot(pairs, ones, value) for pairs, value in zip(out, sums, strict=True)]

        # Where no instruction sums products of bytes by fours; see `_PART`.
        in_pairs = self.weights.bits == GROUP and not self.product.unit.has_byte_dots
        nothing = b.constant(0, Type("int32", lanes))
        first = [nothing if self.weights.zeros else left[r] for r, _ in tile.places]
        sums = self._in_parts(tile, block, count, first, part)
        scales = [self._scale(tile.vector + v, block) for v in range(width)]
        factors = [b.splat(b.load(self.left_scales, (*row, block)), lanes) for row in rows]
        zero = [self._zero(tile.vector + v, block) for v in range(width if self.zeros else 0)]
        out = []
        for (r, v), value, total in zip(tile.places, sums, totals, strict=True):
            number = b.cast(value, "float32")
            number = b.fma(zero[v], left[r], number) if zero else number
            out.append(b.fma(b.mul(number, scales[v]), factors[r], total))
        return out

    def _in_parts(
        self, tile: _Tile, block: Index, count: int, sums: list[IrValue], part: _Part
    ) -> list[IrValue]:
        """Add products of a block part by part, so that code is no longer than a part needs."""
        size = _EXACT_PART if self.spec.is_exact else _PART
        b, words = self.b, size // self.weights.per_word

        def step(start: Index, *values: IrValue) -> Sequence[IrValue]:
            return part(start, size, values)

        for v in range(len(tile.counts) if tile.panel is None else 0):
            self._prefetch(tile.vector + v, block * self.words)
        whole, rest = divmod(count, size)
        sums = b.loop(0, whole * words, sums, step, step=words) if whole else sums
        return part(Index(whole * words), rest, sums) if rest else sums

    # Weights

    def _prefetch(self, vector: Index, word: Index) -> None:
        """Ask for as many words as a block has, further on."""
        nbytes = self.lanes * WORD_BITS // 8
        ahead = _AHEAD_BYTES // nbytes
        for line in range(max(1, self.words * nbytes // _LINE_BYTES)):
            self.b.prefetch(self.codes, (vector, word + ahead + line * _LINE_BYTES // nbytes, 0))

    def _groups(self, vector: Index, word: Index) -> list[IrValue]:
        """Return the operands of dot products that a word has."""
        value = self.b.load(self.codes, (vector, word, 0), GROUP * self.lanes)
        return groups_of(self.b, value, self.weights.bits)

    def _scale(self, vector: Index, block: Index) -> IrValue:
        return self.b.load(self.scales, (vector, block, 0), self.lanes)

    def _zero(self, vector: Index, block: Index) -> IrValue:
        b, lanes = self.b, self.lanes
        if self.zeros is None:
            return b.constant(float(self.weights.middle), Type("float32", lanes))
        value = b.load(self.zeros, (vector, block, 0), lanes)
        wide = b.cast(value, "int32") if value.type.dtype == "uint8" else value
        return b.cast(wide, "float32")


_Part: TypeAlias = Callable[[Index, int, Sequence[IrValue]], list[IrValue]]
"""Adds products to sums: from which word of a block on, and of how many codes."""
