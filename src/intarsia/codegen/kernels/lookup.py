# SPDX-License-Identifier: Apache-2.0
"""Functions of codes of 8 bits by a table: each entry is what the table has for a code.

The table is read an entry at a time: of 256 entries, a register holds a few.
"""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index
from intarsia.codegen.kernels.domain import entries_of, plan_axes, simplify, turns, walk
from intarsia.extents import Size, typical

CODES = 256


@dataclass(frozen=True, slots=True)
class CodeLookup:
    """One kernel; its arguments are the codes, the table and the results.

    Attributes:
        domain: The extents that it runs over.
        x: Of the codes, int8 or uint8; no stride is negative.
        y: Of the results, and of the table's entries: one for each code, the least code first.
    """

    domain: tuple[Size, ...]
    x: Layout
    y: Layout


SPECS = (CodeLookup,)


def build(spec: CodeLookup) -> Function:
    """Return the kernel."""
    b = Builder("lookup")
    steps = [typical(step) for step in spec.y.strides]
    order = sorted(range(len(spec.domain)), key=lambda dim: (-steps[dim], dim))
    domain = simplify(spec.domain, [spec.x.strides, spec.y.strides], order)
    x_strides, y_strides = domain.strides
    x = Layout(spec.x.dtype, x_strides).declare(b, "x", domain.extents)
    table = b.argument("table", spec.y.dtype, (CODES,))
    y = Layout(spec.y.dtype, y_strides).declare(b, "y", domain.extents, is_written=True)
    if 0 in spec.domain:
        return b.finish_empty()
    last = len(domain.extents) - 1
    span = [entries_of(extent) for extent in domain.extents]
    axes = plan_axes(span, range(len(span)), {last: _UNROLL}, _BUDGET)
    first = CODES // 2 if x.dtype == "int8" else 0

    def cell(at: dict[int, Index], counts: dict[int, int]) -> None:
        for number in range(counts[last]):
            place = [at[dim] + (number if dim == last else 0) for dim in range(last + 1)]
            code = b.cast(b.load(x, place), "int64")
            b.store(b.load(table, Index.of(code) + first), y, place)

    with b.parallel(turns(axes)) as turn:
        walk(b, axes, turn, cell)
    return b.finish()


_UNROLL = 8
_BUDGET = 1 << 14
"""About how many entries one turn of the parallel loop takes."""
