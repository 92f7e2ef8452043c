# SPDX-License-Identifier: Apache-2.0
"""How a matrix product is cut: picked from shapes and the vector unit, never from the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from intarsia.codegen.kernels.gemm.spec import Gemm, GemmSchedule, PanelSource, merged
from intarsia.codegen.kernels.window import Split
from intarsia.codegen.tile import (
    WIDTHS,
    around,
    blocked_rows,
    crowding,
    fitting_widths,
    is_long_step,
    step_cost,
    tile_rows,
)
from intarsia.extents import UndecidedError, is_free, typical


def schedule(spec: Gemm) -> GemmSchedule:
    """Return the schedule that a product has, or that is picked for it.

    Raises:
        UndecidedError: What is free of it needs a schedule that there is not.
    """
    if spec.schedule is not None:
        return spec.schedule
    product = merged(spec)
    sizes = replace(
        product,
        m=typical(product.m),
        n=typical(product.n),
        k=typical(product.k),
        batch=tuple([typical(extent) for extent in product.batch]),
    )
    if not is_free((product.n, product.k)):
        return _for_any_rows(product, _choose(sizes))
    if is_free((product.n,)):
        if is_free((product.k,)) or not _is_turned(product):
            raise UndecidedError(f"a product of {product.k} terms and {product.n} columns")
        return replace(_dots(sizes), rows=_DOT_ROWS)
    plan = _choose(sizes)
    if plan.source is PanelSource.DOTS or product.b_strides is None:
        raise UndecidedError(f"a product of {product.k} terms")
    if product.b_strides[-1] not in (0, 1):
        raise UndecidedError(f"a product of {product.k} terms that lie apart")
    return replace(plan, source=PanelSource.PLACE, depth=0)


def _for_any_rows(product: Gemm, plan: GemmSchedule) -> GemmSchedule:
    """Return a schedule with which two tiles can ask for all of a panel, where rows are free."""
    if not plan.streamed or not is_free((product.m,)):
        return plan
    width = plan.vectors * product.unit.lanes(product.a.dtype)
    return replace(plan, streamed=-(-width // 2))


def _choose(product: Gemm) -> GemmSchedule:
    """Return the schedule of a product whose batch dimensions are rows as far as possible."""
    m, k, unit = product.m, product.k, product.unit
    # Sums can wait in the result; those of narrow numbers stay in registers.
    can_split = product.c.dtype == product.a.dtype and product.group == 1
    if _wants_dots(product):
        return _dots(product)
    item = np.dtype(product.a.dtype).itemsize
    lanes = unit.lanes(product.sum_dtype)
    vectors = _best_vectors(product, lanes)
    rows = _most_rows(product, vectors)
    width = vectors * lanes
    depth = 0
    if k >= _LONG and can_split and m > rows:
        depth = CHAIN
    source = PanelSource.PANELS
    if product.b_strides is not None:
        source = _source(product, rows, width)
        if source is PanelSource.COPY and k > CHAIN:
            if can_split:
                depth = CHAIN
            elif k * width * item > _COPY_BYTES:
                source = PanelSource.PLACE
    panel_bytes = k * width * item
    is_read_again = m > rows  # a single pass is sequential, which hardware foresees better
    # Half of the first cache: rows of a and c go through it beside the panel.
    is_far = is_read_again and panel_bytes > unit.l1_bytes // 2 and source is not PanelSource.COPY
    is_long = is_long_step(rows_of_tile(product, vectors), vectors)
    prefetch = _PREFETCH if is_far and is_long else 0
    blocks = Split.of(m, rows).count
    panels = Split.of(-(-product.n // lanes), vectors).count
    flop = 2 * product.batches * m * product.n * k
    turns = min(_TURNS, max(1, flop // _TURN_FLOP))
    chunks = max(1, min(blocks, -(-turns // max(1, product.batches * panels))))
    if source is PanelSource.COPY:  # every chunk copies the panel again
        chunks = min(chunks, max(1, blocks * rows // _COPY_ROWS))
    row_blocks = -(-blocks // chunks)
    row_bytes = max(1, k * item)
    # The other half is for the panels that go by.
    cached = unit.l2_bytes // 2 // (rows * row_bytes)
    is_rows_first = m * row_bytes > unit.l2_bytes and cached >= _CACHED_BLOCKS
    is_rows_first = is_rows_first and source is not PanelSource.COPY
    if is_rows_first:  # all panels meet a chunk that stays in the second cache
        row_blocks = min(row_blocks, cached)
    shared = 1
    if depth and source is PanelSource.PANELS and not is_long:  # so does a part of it
        is_rows_first = True
        chunks = Split.of(blocks, max(1, unit.l2_bytes // 4 // (rows * depth * item))).count
        row_blocks = -(-blocks // chunks)
        shared = max(1, min(_PANELS, product.batches * panels * chunks // _FEW_TURNS))
    streamed = 0
    is_near = is_long or product.group > 1  # or there are few bytes for a step
    if source is PanelSource.PANELS and panels > 1 and not is_near:
        tiles = row_blocks if is_rows_first else blocks
        streamed = _streamed(product, width, tiles if is_read_again else 0)
    return GemmSchedule(
        rows,
        vectors,
        source,
        depth,
        # LLVM adds products of integers to one another first where it sees several steps, and runs
        # out of registers.
        unroll=1 if is_long or product.group > 1 else 4,
        prefetch=prefetch,
        streamed=streamed,
        row_blocks=row_blocks,
        turn_panels=shared,
        is_rows_first=is_rows_first,
    )


CHAIN = 512
"""Products that are summed one after the other, in every kernel but for dot products; the sums of
the chains are added in their order. So the order of a sum depends on its length alone, not on how
many rows or columns there are, and results are the same to the bit where some of these are free.

The error bound of a sum in blocks of b grows with b + n / b instead of n (Higham, "Accuracy and
Stability of Numerical Algorithms", 2002, section 4.2). Shorter chains cost time: a tile of 12 sums
adds some 20 cycles to the 3000 of a chain."""
_LONG = 2048
"""Steps along k from which sums go through the result: it is read and written once more for each
part, which paid from here on where rows were many (Cascade Lake)."""
_PREFETCH = 16
"""Steps ahead. On Cascade Lake 16 to 32 gave 6 to 17 per cent once weights came from beyond the
second cache, and nothing before."""
_AHEAD = 8
"""Part of the next panel that a single pass over memory asks for beside its own: two streams have
more loads under way than hardware keeps for one. A quarter, or an eighth, took 4 to 7 per cent off
two rows of BERT on Zen 3; all of it, or steps of the same panel, cost as much."""
_COPY_BYTES = 128 << 10
"""Of a panel's copy, at most: it stays in a near cache, and fits any thread's stack."""
_COPY_ROWS = 160
"""Rows of a turn for which copying a panel costs little."""
_DOT_ROWS = 4
"""Rows up to which summing lanes costs less than transposing the right operand; twice as many from
`_DOT_LONG` steps along k."""
_DOT_LONG = 256
# With one row, 8 sums are what hides the latency of a sum: see `step_cost`.
_DOT_COLUMNS = 8
_CACHED_BLOCKS = 4
"""Blocks of rows for which reading all panels again is worth it."""
_TURNS = 64
"""Turns that keep tens of threads busy."""
_FEW_TURNS = 24
"""Turns that keep some threads about equally busy."""
_PANELS = 4
"""Panels that a part of the rows meets while it is near: on Zen 3 as good as 8 or 16."""
_TURN_FLOP = 1 << 20
"""Work below which a turn of its own does not pay: some ten microseconds."""
_SET_BYTES = 4096
"""Addresses so far apart share a set of the first cache: 32 KiB are 64 sets of 8 lines."""
_SET_ROWS = 7
"""Rows that leave one line of such a set to the panel."""
_HIDING = 8
"""Sums that hide the latency of one: see `step_cost`."""
_VECTORS = (3, 4, 2, 6, 8, 5, 1)
"""In the order of preference between equals. On Cascade Lake 9 rows of 3 vectors and 6 of 4 were
about equal and fastest, 14 of 2 took 3 to 10 per cent longer."""


def _streamed(product: Gemm, width: int, tiles: int) -> int:
    """Return how many entries of the next panel are asked for in a step along k.

    From memory, a panel does not come as fast as its first tile reads it: the tiles before ask.

    Args:
        product: What is cut.
        width: Entries of a panel in a step.
        tiles: How many read a panel; 0 if that is a single pass.
    """
    nbytes = product.n * product.k * np.dtype(product.a.dtype).itemsize
    if tiles:
        return -(-width // tiles) if nbytes > product.unit.l1_bytes else 0
    return width // _AHEAD if nbytes > product.unit.l2_bytes else 0


def _wants_dots(product: Gemm) -> bool:
    if product.b_strides is None or product.unit.lanes(product.a.dtype) == 1:
        return False
    is_empty = 0 in (product.batches, product.m, product.n, product.k)
    if product.is_dots is not None:  # a single column has no stride of its own
        return product.is_dots and product.b_strides[0] == 1 and not is_empty
    most = _DOT_ROWS if product.k < _DOT_LONG else 2 * _DOT_ROWS
    return _is_turned(product) and product.m <= most and not is_empty


def _is_turned(product: Gemm) -> bool:
    """Tell whether the right operand lies column by column."""
    if product.b_strides is None:
        return False
    k_stride, n_stride = product.b_strides
    return k_stride == 1 and n_stride not in (0, 1)


def _dots(product: Gemm) -> GemmSchedule:
    rows = Split.of(product.m, _DOT_ROWS).runs[0].size
    # Rows times columns of sums, a vector of each row and each column, and one to spare.
    columns = min(_DOT_COLUMNS, max(1, (product.unit.registers - 1 - rows) // (rows + 1)))
    turns = product.batches * product.m * product.n * product.k * 2 // _TURN_FLOP
    chunks = -(-min(_TURNS, max(1, turns)) // product.batches)
    blocks = Split.of(product.n, columns).count
    return GemmSchedule(rows, columns, PanelSource.DOTS, row_blocks=-(-blocks // chunks))


def _source(product: Gemm, rows: int, width: int) -> PanelSource:
    """Copy what is not contiguous, what rows share often enough, and nothing else."""
    assert product.b_strides is not None
    _, n_stride = product.b_strides
    if n_stride not in (0, 1):
        return PanelSource.COPY
    is_cut = product.n % width != 0 and _can_copy(product, width)
    return PanelSource.COPY if is_cut and product.m > rows else PanelSource.PLACE


def _can_copy(product: Gemm, width: int) -> bool:
    """Tell whether a copy of a part of a panel is small enough."""
    nbytes: int = min(product.k, CHAIN) * width * np.dtype(product.a.dtype).itemsize
    return nbytes <= _COPY_BYTES


def rows_of_tile(product: Gemm, vectors: int) -> int:
    """Return how many rows of so many vectors fit registers."""
    unit = product.unit
    if product.is_blocked:
        return blocked_rows(vectors, unit)
    if product.group > 1 and not unit.has_byte_dots:  # a product needs a place before it is added
        # Sums of pairs are added to one another by a product with ones.
        unit = replace(unit, has_fma=False, registers=unit.registers - product.has_small_pairs)
    return tile_rows(vectors, unit)


def _most_rows(product: Gemm, vectors: int) -> int:
    """Return how many rows of so many vectors fit registers, and the sets of the first cache.

    Rows a multiple of 4096 bytes apart share one set of 8 lines with the panel's.
    """
    stride = typical(product.a.strides[-2]) * np.dtype(product.a.dtype).itemsize
    rows = rows_of_tile(product, vectors)
    most = _SET_ROWS - _SET_ROWS % 2 if product.is_blocked else _SET_ROWS
    return rows if stride % _SET_BYTES or not stride else min(rows, most)


def _best_vectors(product: Gemm, lanes: int) -> int:
    """Return how many vectors wide a tile should be."""
    total = -(-product.n // lanes)

    def cost(vectors: int) -> float:
        half_cycles: int = sum(
            (columns.end - columns.first)
            * (rows.end - rows.first)
            * _step_cost(product, rows.size, columns.size)
            for columns in Split.of(total, vectors).runs
            for rows in Split.of(product.m, _most_rows(product, vectors)).runs
        )
        return crowding(vectors, product.unit) * half_cycles

    is_copied = product.b_strides is not None and product.b_strides[-1] not in (0, 1)
    fitting = [
        vectors
        for vectors in _VECTORS
        if (2 + 2 * product.is_blocked) * vectors + 1 <= product.unit.registers
        and (not is_copied or _can_copy(product, vectors * lanes))
    ]
    return min(fitting, key=cost)


def _step_cost(product: Gemm, rows: int, vectors: int) -> int:
    """Return half cycles of a step of a tile, as `step_cost`; blocks have an even number of rows.

    They read a column twice as long, and take as many instructions for twice the products.
    """
    if not product.is_blocked:
        return step_cost(rows, vectors)
    rows += rows % 2
    return max(rows * vectors, rows + 2 * vectors, _HIDING) + 1


def candidates(spec: Gemm) -> Iterator[GemmSchedule]:
    """Yield schedules to compare; `depth` decides the order of sums, and stays."""
    heuristic = schedule(spec)
    blocks = min(heuristic.row_blocks, -(-spec.m // heuristic.rows))
    for count in around(blocks):
        yield replace(heuristic, row_blocks=count)
    if heuristic.source is PanelSource.DOTS:
        return
    is_copied = heuristic.source is PanelSource.COPY
    most = heuristic.vectors if is_copied else max(WIDTHS)  # a copy's size was bounded for these
    for vectors in fitting_widths(spec.unit, most):
        tallest = rows_of_tile(spec, vectors)
        for rows in {tallest, min(_SET_ROWS, tallest)}:
            yield replace(heuristic, vectors=vectors, rows=rows)
    yield replace(heuristic, prefetch=0 if heuristic.prefetch else _PREFETCH)
    if not is_copied:
        yield replace(heuristic, is_rows_first=not heuristic.is_rows_first)
