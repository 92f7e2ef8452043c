# SPDX-License-Identifier: Apache-2.0
"""What a product with weights in blocks is, and how these are packed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.ir import TILE_ROWS
from intarsia.codegen.kernels.gemm import Gemm, merged
from intarsia.codegen.unit import CpuModel
from intarsia.extents import Size, most
from intarsia.graph.arena import aligned_bytes

WORD_BITS = 32
"""Of a lane: codes that follow each other along k."""
GROUP = 4
"""Codes of a dot product."""
LEAST_TILE_ROWS = 8
"""Rows from which products of tiles are worth unpacking weights for."""
_LARGEST_TILED = 1024
"""Codes of a block that products of tiles take."""


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Weights as codes, of which neighbours along k share a scale and a zero point.

    A weight is `(code - zero) * scale`.

    Attributes:
        bits: Of a code, 4 or 8; codes are unsigned.
        size: Codes of a block: a power of two, at least 16.
        zeros: Dtype of the zero points, uint8 or float32; empty if all are half of the range.
    """

    bits: int
    size: int
    zeros: str = ""

    @property
    def middle(self) -> int:
        """The zero point where none is given."""
        return 1 << (self.bits - 1)

    @property
    def per_word(self) -> int:
        """Codes of a word."""
        return WORD_BITS // self.bits


@dataclass(frozen=True, slots=True)
class BlockGemm:
    """`c = epilogue(a @ b)` with b in blocks.

    The left operand is float32, and weights become numbers in registers; or it is int8, of blocks
    of the same size with a scale each (`QuantizeBlocks`), and codes are multiplied.

    Attributes:
        product: It, with b in panels of a's dtype, which says nothing of how b is packed.
        weights: How b is made.
    """

    product: Gemm
    weights: BlockWeights

    @property
    def is_exact(self) -> bool:
        """Whether the left operand is what the model has, and not codes."""
        return self.product.a.dtype == "float32"

    @property
    def has_tiles(self) -> bool:
        """Whether it is made of products of tiles where there are `LEAST_TILE_ROWS` or more.

        Its left operand, with scales and sums, then has memory for rows and codes up to whole tiles
        behind the last ones, which may hold anything.
        """
        product = merged(self.product)
        return (
            not self.is_exact
            and has_tiles(product.m, self.weights.size, product.unit)
            and not product.batch
        )

    @property
    def lanes(self) -> int:
        """Columns of a vector."""
        return self.product.unit.lanes()

    @property
    def blocks(self) -> int:
        """Blocks along k."""
        return int(-(-self.product.k // self.weights.size))


def has_tiles(rows: Size, size: int, unit: CpuModel) -> bool:
    """Tell whether rows of codes in blocks may be multiplied by products of tiles.

    Args:
        rows: How many.
        size: Of a block.
        unit: What kernels are shaped for.
    """
    is_fit = unit.has_byte_tiles and unit.lanes() == TILE_ROWS and size <= _LARGEST_TILED
    return is_fit and most(rows, LEAST_TILE_ROWS) == LEAST_TILE_ROWS


def pack_codes(codes: Array, weights: BlockWeights, lanes: int) -> Array:
    """Return codes as a kernel reads them: `[vectors of columns, words, lanes, 4]` bytes.

    A word of a column is 8 or 4 codes along k. Of 4 bits, its bytes have the first four codes in
    their lower halves and the next four in their upper ones, so that a mask makes operands of dot
    products of either. Nothing depends on how many rows are multiplied.

    Args:
        codes: `uint8[n, k]`, k a multiple of the block's size.
        weights: What they are.
        lanes: Columns of a vector; those that fill the last one are zeros.
    """
    n, k = codes.shape
    words = codes.reshape(n, k // weights.per_word, weights.per_word)
    if weights.bits == GROUP:
        words = words[..., :GROUP] | (words[..., GROUP:] << weights.bits)
    return _by_vectors(words, lanes)


def pack_numbers(numbers: Array, lanes: int) -> Array:
    """Return scales or zero points of blocks, `[n, blocks]`, as `[vectors, blocks, lanes]`."""
    return _by_vectors(numbers, lanes)


def _by_vectors(rows: Array, lanes: int) -> Array:
    """Return rows for columns of b side by side in vectors, `[vectors, ..., lanes, rest]`."""
    n, steps, *rest = rows.shape
    vectors = -(-n // lanes)
    shape = (vectors, steps, lanes, *rest)
    packed = aligned_bytes(int(np.prod(shape)) * rows.itemsize).view(rows.dtype).reshape(shape)
    for vector in range(vectors):
        part = rows[vector * lanes : (vector + 1) * lanes]
        packed[vector, :, : len(part)] = part.swapaxes(0, 1)
        packed[vector, :, len(part) :] = 0
    return packed
