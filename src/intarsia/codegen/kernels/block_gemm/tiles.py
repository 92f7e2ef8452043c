# SPDX-License-Identifier: Apache-2.0
"""Many rows times codes in blocks by products of tiles (AMX): the sums are the same, to the bit.

Of a vector of columns some blocks at a time are unpacked to a panel in the first cache, which all
rows of a turn then read: 16 of them are a tile. A row of a tile has 64 codes along k, but a sum is
to have those of one block; so where blocks are smaller, the rest of a right tile is zeros. Sums go
through memory to vectors, which have their scales and add up in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from intarsia.codegen.body import Epilogue, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import TILE_BYTES, TILE_ROWS, Buffer, Index, IrValue, Type
from intarsia.codegen.kernels.block_gemm.spec import GROUP, BlockGemm, BlockWeights

MOST_ROWS = 8 * TILE_ROWS
"""Of a turn: their totals stay in the first cache, while blocks of a few hundred codes go by."""
_PANEL_BYTES = 16 << 10
_RIGHTS = 2
"""Right tiles: the next is loaded while one is multiplied."""


@dataclass(frozen=True, slots=True)
class Operands:
    """What a product of codes reads and writes, see `BlockGemm`.

    Attributes:
        left: Codes of the left operand, of as many rows and columns as tiles read.
        left_scales: Of its blocks, of as many rows.
        left_sums: What zero points are multiplied by, of as many rows.
        codes: Packed ones of the weights.
        scales: Of their blocks.
        zeros: Their zero points, if there are any.
        result: The result.
        epilogue: What is done with it before it is written.
    """

    left: Buffer
    left_scales: Buffer
    left_sums: Buffer
    codes: Buffer
    scales: Buffer
    zeros: Buffer | None
    result: Buffer
    epilogue: Epilogue


def groups_of(b: Builder, word: IrValue, bits: int) -> list[IrValue]:
    """Return the operands of dot products that words of a vector of columns have, unsigned."""
    if bits == 8:  # noqa: PLR2004 - a byte
        return [word]
    return [b.binary("and", word, (1 << bits) - 1), b.binary("shr", word, bits)]


class TileColumns:
    """Computes rows of vectors of columns by products of tiles."""

    def __init__(self, b: Builder, spec: BlockGemm, operands: Operands) -> None:
        self.b, self.spec, self.operands = b, spec, operands
        self.weights = weights = spec.weights
        self.parts = max(1, TILE_BYTES // weights.size)
        self.height = weights.size // GROUP
        room = _PANEL_BYTES // (self.height * TILE_BYTES * self.parts)
        self.chunk = min(-(-spec.blocks // self.parts), max(1, room // self.parts)) * self.parts
        self.is_signed = _takes_zeros_first(weights)
        dtype = "int8" if self.is_signed else "uint8"
        self.panel = b.local("unpacked", dtype, (self.chunk * self.parts * self.height, TILE_BYTES))
        self.sums = b.local("sums", "int32", (self.parts, TILE_ROWS, TILE_ROWS))
        self.totals = b.local("totals", "float32", (MOST_ROWS, TILE_ROWS))
        self.left = b.tile("x", "int8")
        self.rights = [b.tile(f"w{i}", dtype) for i in range(_RIGHTS)]
        self.sum_tiles = [b.tile(f"s{i}", "int32") for i in range(self.parts)]

    def compute(self, first: Index, end: Index, vector: Index, count: int | None) -> None:
        """Compute rows, `MOST_ROWS` at most, of a vector of columns.

        Args:
            first: The first row.
            end: Beyond the last one.
            vector: The vector.
            count: Columns of it that count; None means all.
        """
        b, operands = self.b, self.operands
        rows = end - first
        tiles, _ = b.split(rows + (TILE_ROWS - 1), TILE_ROWS)
        zero = b.constant(0.0, Type("float32", TILE_ROWS))
        with b.serial(0, tiles * TILE_ROWS) as row:
            b.store(zero, self.totals, (row, 0))
        whole, rest = divmod(self.spec.blocks, self.chunk)
        if self.parts > 1:
            nothing = b.constant(0, Type(self.panel.dtype, TILE_BYTES))
            with b.serial(0, self.panel.shape[0]) as line:
                b.store(nothing, self.panel, (line, 0))
        with b.serial(0, whole) as number:
            self._chunk(first, tiles, vector, number * self.chunk, self.chunk)
        if rest:
            self._chunk(first, tiles, vector, Index(whole * self.chunk), rest)
        with b.serial(0, rows) as row:
            at = (first + row, vector * TILE_ROWS)
            value = operands.epilogue(b.load(self.totals, (row, 0), TILE_ROWS), at, count)
            store_lanes(b, value, operands.result, at, count)

    def _chunk(self, first: Index, tiles: Index, vector: Index, block: Index, count: int) -> None:
        """Add what some blocks have to the totals."""
        self._unpack(vector, block, count)
        with self.b.serial(0, tiles) as tile:
            self._tile(first + tile * TILE_ROWS, tile * TILE_ROWS, vector, block, count)

    def _unpack(self, vector: Index, block: Index, count: int) -> None:
        """Write the codes of some blocks to the panel, each where zeros are in front or behind."""
        b, weights, codes = self.b, self.weights, self.operands.codes
        words = weights.size // weights.per_word
        with b.serial(0, count) as number:
            zero = self._zero_codes(vector, block + number)
            with b.serial(0, words) as place:
                at = (block + number) * words + place
                word = b.load(codes, (vector, at, 0), TILE_BYTES)
                # Of the next chunk, which is read when all rows had this one.
                b.prefetch(codes, (vector, at + count * words, 0))
                groups = groups_of(b, word, weights.bits)
                line = number * (self.parts * self.height) + place * len(groups)
                for inner, group in enumerate(groups):
                    b.store(self._signed(group, zero), self.panel, (line + inner, 0))

    def _zero_codes(self, vector: Index, block: Index) -> IrValue | None:
        """Return the zero points of a block, once for each code of a word, if codes take them."""
        b, zeros = self.b, self.operands.zeros
        if not self.is_signed or zeros is None:
            return None
        value = b.bitcast(b.load(zeros, (vector, block, 0), TILE_ROWS), "int8")
        return b.shuffle(value, value, [lane // GROUP for lane in range(TILE_BYTES)])

    def _signed(self, group: IrValue, zero: IrValue | None) -> IrValue:
        """Return codes less their zero points, if they take them here."""
        b, weights = self.b, self.weights
        if not self.is_signed:
            return group
        if zero is None and weights.bits == 8:  # noqa: PLR2004 - a byte
            return b.bitcast(b.binary("xor", group, weights.middle), "int8")
        return b.sub(b.bitcast(group, "int8"), weights.middle if zero is None else zero)

    def _tile(self, row: Index, place: Index, vector: Index, block: Index, count: int) -> None:
        """Add what some blocks have to the totals of 16 rows.

        Args:
            row: The first of them.
            place: Where its totals are.
            vector: The vector of columns.
            block: The first block.
            count: How many.
        """
        b = self.b
        totals = [b.load(self.totals, (place + r, 0), TILE_ROWS) for r in range(TILE_ROWS)]

        def step(number: Index, *sums: IrValue) -> list[IrValue]:
            return self._blocks(row, vector, (block, number), self.parts, sums)

        whole = count - count % self.parts
        totals = b.loop(0, whole, totals, step, step=self.parts) if whole else totals
        if count > whole:
            rest = (block, Index(whole))
            totals = self._blocks(row, vector, rest, count - whole, totals)
        for r, total in enumerate(totals):
            b.store(total, self.totals, (place + r, 0))

    def _blocks(
        self,
        row: Index,
        vector: Index,
        place: tuple[Index, Index],
        count: int,
        totals: Sequence[IrValue],
    ) -> list[IrValue]:
        """Return totals of 16 rows with what the blocks of a row of a tile add.

        Args:
            row: The first row.
            vector: The vector of columns.
            place: The first block of the panel, and the first of these in it.
            count: How many these are.
            totals: Those before.
        """
        b, left = self.b, self.operands.left
        begin, number = place
        by_row = left.strides[-2]
        assert isinstance(by_row, int)
        for part in range(count):
            total, right = self.sum_tiles[part], self.rights[part % _RIGHTS]
            b.tile_zero(total)
            line = ((number + part) * self.parts - part) * self.height
            with b.serial(0, max(1, self.weights.size // TILE_BYTES)) as step:
                if part == 0:
                    k = (begin + number) * self.weights.size + step * TILE_BYTES
                    b.tile_load(self.left, left, (row, k), by_row)
                b.tile_load(right, self.panel, (line + step * TILE_ROWS, 0), TILE_BYTES)
                b.tile_dot(total, self.left, right)
            b.tile_store(total, self.sums, (part, 0, 0), TILE_ROWS)
        out = list(totals)
        for part in range(count):
            self._scale(row, vector, begin + number + part, part, out)
        return out

    def _scale(
        self, row: Index, vector: Index, block: Index, part: int, totals: list[IrValue]
    ) -> None:
        """Add the sums of a block, times its scales, to totals: as tiles of vectors do."""
        b, operands = self.b, self.operands
        scale = b.load(operands.scales, (vector, block, 0), TILE_ROWS)
        zero: IrValue | None = None
        if not self.is_signed:
            assert operands.zeros is not None
            zero = b.load(operands.zeros, (vector, block, 0), TILE_ROWS)
            zero = b.cast(b.cast(zero, "int32") if zero.type.dtype == "uint8" else zero, "float32")

        def of_row(buffer: Buffer, r: int) -> IrValue:
            return b.splat(b.load(buffer, (row + r, block)), TILE_ROWS)

        for r in range(TILE_ROWS):
            number = b.cast(b.load(self.sums, (part, r, 0), TILE_ROWS), "float32")
            if zero is not None:
                number = b.fma(zero, of_row(operands.left_sums, r), number)
            factor = of_row(operands.left_scales, r)
            totals[r] = b.fma(b.mul(number, scale), factor, totals[r])


_MOST_EXACT = 4096
"""Codes of a block of which float32 holds the sums of products with 4 bits less a zero point."""


def _takes_zeros_first(weights: BlockWeights) -> bool:
    """Tell whether codes less their zero points are bytes, whose sums are the same numbers.

    Otherwise what zero points add is found from sums of the left operand, in float32.
    """
    if not weights.zeros:
        return True
    return weights.bits == 4 and weights.zeros == "uint8" and weights.size <= _MOST_EXACT  # noqa: PLR2004
