# SPDX-License-Identifier: Apache-2.0
"""The tile macro: a block of rows times vectors of columns, accumulated in registers.

GEMM, direct convolution, Winograd's products and attention are this macro with other index
functions. It expands to loads, splats and fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.unit import CpuModel


def tile_rows(vectors: int, unit: CpuModel) -> int:
    """Return how many rows of so many vectors fit the registers, beside vectors and a scalar.

    One more is much too many: 7 rows of 4 vectors, which want 33 registers of 32, ran at half the
    speed of 6 on Cascade Lake.
    """
    spare = 1 if unit.has_fma else 2  # a product needs a place before it is added
    return max(1, (unit.registers - spare - vectors) // vectors)


WIDTHS = (1, 2, 3, 4, 6, 8)
"""Vectors of a row of a register tile that are worth comparing."""


def fitting_widths(unit: CpuModel, most: int) -> list[int]:
    """Return those widths of a register tile that registers hold, up to some number of vectors."""
    # Vectors of a row, their sums and a scalar: a tile of one row at least.
    return [n for n in WIDTHS if n <= max(1, most) and 2 * n + 1 <= unit.registers]


def step_cost(rows: int, vectors: int) -> int:
    """Return half cycles of a step of the macro, and of the loop around it.

    Two products and two loads are done in a cycle, and a sum is ready after 4: fewer than 8 sums
    wait for themselves (Fog, "Instruction tables": Skylake, and Zen from the third on).
    """
    return max(rows * vectors, rows + vectors, 8) + 1


def crowding(vectors: int, unit: CpuModel) -> float:
    """Return what the cost of a tile as large as registers hold is multiplied by.

    One that leaves no register free loses to one that costs as much. With AVX2 on Zen 3, 4 rows of
    3 vectors were as fast as 6 of 2 where the panel of weights is in the first cache, and took a
    tenth longer where it is not.
    """
    needed = tile_rows(vectors, unit) * vectors + vectors + 1
    return 1.02 if needed >= unit.registers else 1.0


def is_long_step(rows: int, vectors: int) -> bool:
    """Tell whether a step has products enough for a loop around it, and to ask for weights ahead.

    A step of AVX2 is 12 products and 8 loads, and a prefetch takes the place of one. Without, with
    weights from beyond the second cache, convolutions of 1x1 taps were 3 to 10 per cent faster on
    Zen 3, those by Winograd's transforms up to a fifth, and matrix products up to a fifth where
    weights come from memory; these also gained 7 per cent from four steps in a turn (MiniLM).
    """
    return rows * vectors >= _LONG_STEP


_LONG_STEP = 15
"""Products; any tile of 32 registers has as many."""


def unrolled_steps(unit: CpuModel) -> int:
    """Return how many channels of a block the innermost loop takes in a turn.

    A whole block of few: then there is no loop inside it, and each load is one stride from where it
    was in the turn before, which hardware foresees, unlike steps of two sizes that alternate. With
    AVX2 on Zen 3, 256 channels at 56 x 56 went from 65 to 91 of 103 GFLOP/s so, 512 at 28 x 28 from
    82 to 96.
    """
    # On Cascade Lake 2 or 4 of 16 were as fast as all, at a fourth of the code.
    return unit.lanes() if unit.lanes() <= _FEW_LANES else 4


_FEW_LANES = 8


def around(value: int) -> tuple[int, ...]:
    """Return numbers of turns of a loop that are far enough apart from one another to differ."""
    return tuple(sorted({1, max(1, value // 2), 2 * value, 4 * value}))


def mma_step(
    builder: Builder,
    accumulators: Sequence[IrValue],
    rows: int,
    vectors: int,
    scalar: Callable[[int], IrValue],
    vector: Callable[[int], IrValue],
    *,
    fits_pairs: bool = False,
) -> list[IrValue]:
    """Return accumulators after one step: `acc[r, v] += scalar(r) * vector(v)`.

    Of narrow numbers a step is several along k: a scalar is then a group of neighbours, which all
    lanes of a vector have, and a vector has as many for each lane.

    Args:
        builder: Of the kernel.
        accumulators: `rows * vectors` of them, row by row.
        rows: Rows of the tile.
        vectors: Vectors of a row.
        scalar: From a row to its scalar.
        vector: From a column of vectors to its vector.
        fits_pairs: Of bytes; see `ir.Dot`.
    """
    lanes = accumulators[0].type.lanes
    columns = [vector(v) for v in range(vectors)]
    out = list(accumulators)
    for r in range(rows):
        item = scalar(r)
        group = item.type.lanes
        if group == 1:
            item = builder.splat(item, lanes)
        else:
            item = builder.shuffle(item, item, tuple(range(group)) * lanes)
        multiply = multiply_add if group == 1 else partial(Builder.dot, fits_pairs=fits_pairs)
        for v in range(vectors):
            out[r * vectors + v] = multiply(builder, item, columns[v], out[r * vectors + v])
    return out


def blocked_step(
    builder: Builder,
    accumulators: Sequence[IrValue],
    rows: int,
    vectors: int,
    row: Callable[[int], IrValue],
    columns: Callable[[int, int], IrValue],
) -> list[IrValue]:
    """Return accumulators after one step of blocks of two rows by two columns.

    A register has two rows, or two columns, with as many neighbours along k in each as fill it; a
    last row without a second one is there twice.

    Args:
        builder: Of the kernel.
        accumulators: For each two rows, `2 * vectors` registers of blocks; see `rows_of_blocks`.
        rows: Rows of the tile.
        vectors: Vectors of a row.
        row: From a row to its neighbours.
        columns: From a vector of columns, and which half of them, to their neighbours.
    """
    pairs = [columns(v, half) for v in range(vectors) for half in range(2)]
    out = list(accumulators)
    for first in range(0, rows, 2):
        one = row(first)
        other = row(first + 1) if first + 1 < rows else one
        both = builder.shuffle(one, other, range(2 * one.type.lanes))
        for number, pair in enumerate(pairs, first * vectors):
            out[number] = builder.dot(both, pair, out[number], is_blocked=True)
    return out


def blocked_rows(vectors: int, unit: CpuModel) -> int:
    """Return how many rows of so many vectors fit the registers, beside two columns each and a row.

    A register has two columns, or two rows.
    """
    return max(2, (unit.registers - 1 - 2 * vectors) // vectors // 2 * 2)


def blocked_count(rows: int, vectors: int) -> int:
    """Return how many accumulators a tile of blocks has."""
    return (rows + rows % 2) * vectors


def rows_of_blocks(
    builder: Builder, accumulators: Sequence[IrValue], rows: int, vectors: int
) -> list[IrValue]:
    """Return the sums of `blocked_step` as `mma_step` has them: vectors of a row, row by row."""
    out = []
    for r in range(rows):
        top = r % 2 * 2  # where a row is in its block
        for v in range(vectors):
            first = (r - r % 2) * vectors + 2 * v
            left, right = accumulators[first : first + 2]
            half = left.type.lanes
            out.append(builder.shuffle(left, right, (top, top + 1, half + top, half + top + 1)))
    return out


def multiply_add(builder: Builder, left: IrValue, right: IrValue, addend: IrValue) -> IrValue:
    """Return `left * right + addend`, fused where the elements have that."""
    if addend.type.is_float:
        return builder.fma(left, right, addend)
    return builder.add(builder.mul(left, right), addend)
