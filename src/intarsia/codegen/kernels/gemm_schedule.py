# SPDX-License-Identifier: Apache-2.0
"""How a matrix product is cut: picked from shapes and the vector unit, never from the host."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from intarsia.codegen.kernels.conv_window import Split
from intarsia.codegen.tile import tile_rows
from intarsia.codegen.unit import VectorUnit


class Source(StrEnum):
    """Where the tile macro reads the right operand."""

    PANELS = "panels"  # constant, in panels that were packed at compile time
    PLACE = "place"  # where it lies
    COPY = "copy"  # a panel that the kernel packed into a buffer of its own
    DOTS = "dots"  # where it lies, vectors going along k: it is contiguous there


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices of a matrix product.

    Attributes:
        rows: Of a register tile, at most.
        vectors: Of a row of a register tile, at most; so wide is a panel of the right operand.
            Columns, for dot products.
        source: Where the right operand is read.
        depth: Steps along k that are summed before the next tile; 0 for all.
        unroll: Steps of an iteration of the innermost loop.
        prefetch: How many steps ahead the right operand is asked for; 0 for not at all.
        row_blocks: Blocks of rows of a turn of the parallel loop, at most. Blocks of columns, for
            dot products.
        is_rows_first: Whether turns go through the panels for each chunk of rows, rather than
            through the rows for each panel.
    """

    rows: int
    vectors: int
    source: Source
    depth: int = 0
    unroll: int = 1
    prefetch: int = 0
    row_blocks: int = 1 << 30
    is_rows_first: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """What a schedule depends on.

    Attributes:
        batches: Products of the same shape.
        m: Rows of the result.
        n: Columns.
        k: Products summed for each entry.
        dtype: Of the operands.
        row_stride: Elements from one row of the left operand to the next.
        b_strides: Elements from one k and one n of the right operand to the next; None if it is
            in panels.
        can_split: Whether sums can wait in the result.
    """

    batches: int
    m: int
    n: int
    k: int
    dtype: str
    row_stride: int
    b_strides: tuple[int, int] | None
    can_split: bool


def choose_schedule(problem: Problem, unit: VectorUnit) -> Schedule:
    """Return the schedule of a matrix product."""
    m, k = problem.m, problem.k
    if _wants_dots(problem, unit):
        return _dots(problem, unit)
    item = np.dtype(problem.dtype).itemsize
    lanes = unit.lanes(problem.dtype)
    vectors = _best_vectors(problem, unit, lanes)
    rows = _most_rows(problem, vectors, unit)
    width = vectors * lanes
    depth = 0
    if k >= _LONG and problem.can_split and m > rows:
        depth = -(-k // Split.of(k, _DEPTH).count // lanes) * lanes
    source = Source.PANELS
    if problem.b_strides is not None:
        source = _source(problem, rows, width)
        if source is Source.COPY:
            limit = max(lanes, _COPY_BYTES // (width * item) // lanes * lanes)
            if k > limit:
                if problem.can_split:
                    depth = min(depth, limit) if depth else limit
                else:
                    source = Source.PLACE
    panel_bytes = k * width * item
    is_read_again = m > rows  # a single pass is sequential, which hardware foresees better
    is_far = is_read_again and panel_bytes > unit.l1_bytes // 2 and source is not Source.COPY
    prefetch = _PREFETCH if is_far else 0
    blocks = Split.of(m, rows).count
    panels = Split.of(-(-problem.n // lanes), vectors).count
    flop = 2 * problem.batches * m * problem.n * k
    turns = min(_TURNS, max(1, flop // _TURN_FLOP))
    chunks = max(1, min(blocks, -(-turns // max(1, problem.batches * panels))))
    if source is Source.COPY:  # every chunk copies the panel again
        chunks = min(chunks, max(1, blocks * rows // _COPY_ROWS))
    row_blocks = -(-blocks // chunks)
    row_bytes = max(1, k * item)
    cached = unit.l2_bytes // 2 // (rows * row_bytes)
    is_rows_first = m * row_bytes > unit.l2_bytes and cached >= _CACHED_BLOCKS
    is_rows_first = is_rows_first and source is not Source.COPY
    if is_rows_first:  # all panels meet a chunk that stays in the second cache
        row_blocks = min(row_blocks, cached)
    return Schedule(
        *(rows, vectors, source, depth),
        prefetch=prefetch,
        row_blocks=row_blocks,
        is_rows_first=is_rows_first,
    )


_LONG = 2048
"""Steps along k from which sums go through the result."""
_DEPTH = 768
_PREFETCH = 16
_COPY_BYTES = 64 << 10
"""Of a panel's copy: it stays in the first cache or nearly so, and fits any thread's stack."""
_COPY_ROWS = 160
"""Rows of a turn for which copying a panel costs little."""
_DOT_ROWS = 4
"""Rows up to which summing lanes costs less than transposing the right operand; twice as many from
`_DOT_LONG` steps along k."""
_DOT_LONG = 256
_DOT_COLUMNS = 8
_CACHED_BLOCKS = 4
"""Blocks of rows for which reading all panels again is worth it."""
_TURNS = 64
"""Turns that keep tens of threads busy."""
_TURN_FLOP = 1 << 20
"""Work below which a turn of its own does not pay: some ten microseconds."""
_SET_BYTES = 4096
_SET_ROWS = 7
_VECTORS = (3, 4, 2, 6, 8, 5, 1)
"""In the order of preference between equals."""


def _wants_dots(problem: Problem, unit: VectorUnit) -> bool:
    if problem.b_strides is None or unit.lanes(problem.dtype) == 1:
        return False
    is_empty = 0 in (problem.batches, problem.m, problem.n, problem.k)
    k_stride, n_stride = problem.b_strides
    is_transposed = k_stride == 1 and n_stride not in (0, 1)
    most = _DOT_ROWS if problem.k < _DOT_LONG else 2 * _DOT_ROWS
    return is_transposed and problem.m <= most and not is_empty


def _dots(problem: Problem, unit: VectorUnit) -> Schedule:
    rows = Split.of(problem.m, _DOT_ROWS).runs[0].size
    columns = min(_DOT_COLUMNS, max(1, (unit.registers - 1 - rows) // (rows + 1)))
    turns = problem.batches * problem.m * problem.n * problem.k * 2 // _TURN_FLOP
    chunks = -(-min(_TURNS, max(1, turns)) // problem.batches)
    blocks = Split.of(problem.n, columns).count
    return Schedule(rows, columns, Source.DOTS, row_blocks=-(-blocks // chunks))


def _source(problem: Problem, rows: int, width: int) -> Source:
    """Copy what is not contiguous, what rows share often enough, and nothing else."""
    assert problem.b_strides is not None
    _, n_stride = problem.b_strides
    if n_stride not in (0, 1):
        return Source.COPY
    is_cut = problem.n % width != 0
    return Source.COPY if is_cut and problem.m > rows else Source.PLACE


def _most_rows(problem: Problem, vectors: int, unit: VectorUnit) -> int:
    """Return how many rows of so many vectors fit registers, and the sets of the first cache.

    Rows a multiple of 4096 bytes apart share one set of 8 lines with the panel's.
    """
    stride = problem.row_stride * np.dtype(problem.dtype).itemsize
    rows = tile_rows(vectors, unit)
    return rows if stride % _SET_BYTES or not stride else min(rows, _SET_ROWS)


def _best_vectors(problem: Problem, unit: VectorUnit, lanes: int) -> int:
    """Return how many vectors wide a tile should be."""
    total = -(-problem.n // lanes)

    def cost(vectors: int) -> int:
        return sum(
            (columns.end - columns.first)
            * (rows.end - rows.first)
            * _step_cost(rows.size, columns.size)
            for columns in Split.of(total, vectors).runs
            for rows in Split.of(problem.m, _most_rows(problem, vectors, unit)).runs
        )

    fitting = [vectors for vectors in _VECTORS if 2 * vectors + 1 <= unit.registers]
    return min(fitting, key=cost)


def _step_cost(rows: int, vectors: int) -> int:
    """Return half cycles of a step, at two products and two loads a cycle with latency 4."""
    return max(rows * vectors, rows + vectors, 8) + 1
