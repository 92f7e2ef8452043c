# SPDX-License-Identifier: Apache-2.0
"""The loop nest of a kernel: how often loops turn, and what they touch."""

from __future__ import annotations

import pytest

from intarsia.codegen.builder import Builder
from intarsia.codegen.cycles.nest import LINE, KernelNest


def test_remainders_count_as_often_as_they_occur() -> None:
    b = Builder("blocks")
    y = b.argument("y", "float32", (100,), is_written=True)
    with b.parallel(2) as block:
        start = block * 64
        with b.serial(start, b.smaller(start + 64, 100)) as at:
            b.store(b.constant(0.0, b.load(y, at).type), y, at)
    (outer,) = KernelNest(b.finish()).root.children
    (inner,) = outer.children
    assert inner.executions == pytest.approx(100)
    assert inner.turns == pytest.approx(50)


def test_a_column_is_a_line_for_each_row_and_crowds_its_sets() -> None:
    b = Builder("column")
    x = b.argument("x", "float32", (512, 1024), align=64)
    y = b.argument("y", "float32", (512,), is_written=True, align=64)
    with b.parallel(512) as row:
        b.store(b.load(x, (row, 3)), y, row)
    nest = KernelNest(b.finish())
    touched = nest.footprints(nest.root, 0)
    column, result = touched[x], touched[y]
    assert column.lines == pytest.approx(512, rel=0.01)
    assert result.lines == pytest.approx(512 * 4 / LINE, abs=1)
    # Rows are 4096 bytes apart: all in one set of a cache of 64.
    assert column.room(64) == pytest.approx(512 * 64, rel=0.01)


def test_what_loops_share_is_touched_once() -> None:
    b = Builder("twice")
    x = b.argument("x", "float32", (1024,), align=64)
    y = b.argument("y", "float32", (2, 1024), is_written=True, align=64)
    for pass_ in range(2):
        with b.serial(0, 1024, step=8) as at:
            b.store(b.load(x, at, 8), y, (pass_, at))
    nest = KernelNest(b.finish())
    assert nest.footprints(nest.root, 0)[x].nbytes == 4096
    assert nest.footprints(nest.root, 0)[y].nbytes == 8192


def test_a_place_that_a_loop_decides_twice_is_none_of_its_own() -> None:
    """A second row of a step, which is the first one again where the last step has one row."""
    b = Builder("pairs")
    x = b.argument("x", "float32", (64, 1024), align=64)
    y = b.argument("y", "float32", (7,), is_written=True, align=64)
    with b.serial(0, 13, 2) as row:
        second = row + b.smaller(row * -1 + 12, 1)
        b.store(b.add(b.load(x, (row, 0)), b.load(x, (second, 0))), y, b.split(row, 2)[0])
    nest = KernelNest(b.finish())
    # Each of the two is a row a step; that they may be one is not seen.
    assert nest.footprints(nest.root, 0)[x].lines == pytest.approx(14, abs=1)
