# SPDX-License-Identifier: Apache-2.0
"""Cycles of kernels: bounds that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from intarsia.codegen.builder import Builder
from intarsia.codegen.cycles.instructions import Instructions, Slots, throughput
from intarsia.codegen.cycles.kernel import KernelCost, kernel_cost
from intarsia.codegen.expand import expand
from intarsia.codegen.ir import Function
from intarsia.codegen.unit import AVX2, AVX512, SCALAR, CpuModel
from intarsia.target.cores import Core, core_named


def isa(cpu: str, unit: CpuModel = AVX2) -> Instructions:
    return Instructions(core(cpu), unit, "x86")


def core(cpu: str) -> Core:
    found = core_named(cpu)
    assert found is not None
    return found


def products(sums: int, turns: int, lanes: int = 8) -> Function:
    b = Builder("products")
    y = b.argument("y", "float32", (sums * lanes,), is_written=True)
    with b.parallel(1):
        values = [b.load(y, i * lanes, lanes) for i in range(sums)]
        factor = values[0]
        values = b.loop(0, turns, values, lambda _, *v: [b.fma(factor, a, a) for a in v])
        for i, value in enumerate(values):
            b.store(value, y, i * lanes)
    return expand(b.finish())


def cycles(cost: KernelCost) -> float:
    return sum(each.core for each in cost.loops)


def test_many_sums_are_bound_by_pipes_and_few_by_latency() -> None:
    turns = 10_000
    assert cycles(kernel_cost(products(12, turns), isa("znver3"))) / turns == pytest.approx(6, 0.02)
    assert cycles(kernel_cost(products(2, turns), isa("znver3"))) / turns == pytest.approx(4, 0.02)


def test_wide_vectors_take_two_cycles_of_narrow_pipes() -> None:
    function, turns = products(12, 1000, 16), 1000
    narrow, wide = isa("znver4", AVX512), isa("skylake-avx512", AVX512)
    assert cycles(kernel_cost(function, narrow)) / turns == pytest.approx(12, 0.05)
    assert cycles(kernel_cost(function, wide)) / turns == pytest.approx(6, 0.05)


def test_without_vectors_each_lane_is_an_instruction() -> None:
    function = products(12, 1000)
    vectors = cycles(kernel_cost(function, isa("znver3")))
    scalars = cycles(kernel_cost(function, isa("znver3", replace(SCALAR, has_fma=True))))
    assert scalars / vectors == pytest.approx(8, 0.05)


def test_pipes_that_operations_share_are_filled_fairly() -> None:
    zen = core("znver3")
    # Products on pipes 0 and 1, logic on all four: 6 and 6 fill 3 cycles of four.
    assert throughput(Slots(fma=6, alu=6), 0, zen) == pytest.approx(3)
    assert throughput(Slots(fma=8, alu=2), 0, zen) == pytest.approx(4)
    assert throughput(Slots(fma=1), 60, zen) == pytest.approx(10)


def sums_of_columns(rows: int, columns: int) -> Function:
    """Every turn reads one row of all rows, again and again."""
    b = Builder("again")
    x = b.argument("x", "float32", (columns,), align=64)
    y = b.argument("y", "float32", (rows, 8), is_written=True, align=64)
    with b.parallel(rows) as row:
        zero = b.load(y, (row, 0), 8)
        (total,) = b.loop(0, columns, [zero], lambda at, v: [b.add(v, b.load(x, at, 8))], step=8)
        b.store(total, y, (row, 0))
    return expand(b.finish())


@pytest.mark.parametrize(("columns", "times"), [(2048, 1), (1 << 16, 10)])
def test_lines_come_again_where_a_turn_has_no_room_for_them(columns: int, times: int) -> None:
    cost = kernel_cost(sums_of_columns(10, columns), isa("znver3"))
    first = {place[1].name: lines for place, lines in cost.traffic[0].items() if lines}
    assert first["x"] == pytest.approx(times * columns * 4 / 64, rel=0.01)


def tiles(count: int, turns: int) -> Function:
    """Return a kernel that adds `count` products of tiles in each turn, each to its own sum."""
    b = Builder("tiles")
    x = b.argument("x", "uint16", (turns * 512,))
    y = b.argument("y", "float32", (count * 256,), is_written=True)
    left, right = b.tile("left", "uint16"), b.tile("right", "uint16")
    totals = [b.tile(f"s{i}", "float32") for i in range(count)]
    with b.parallel(1):
        for total in totals:
            b.tile_zero(total)
        with b.serial(0, turns) as turn:
            b.tile_load(left, x, turn * 512, 32)
            b.tile_load(right, x, turn * 512, 32)
            for total in totals:
                b.tile_dot(total, left, right)
        for i, total in enumerate(totals):
            b.tile_store(total, y, i * 256, 16)
    return expand(b.finish())


def test_products_of_tiles_are_bound_by_their_unit_and_few_by_latency() -> None:
    turns, amx = 1000, isa("sapphirerapids", AVX512)
    four, one = (cycles(kernel_cost(tiles(n, turns), amx)) / turns for n in (4, 1))
    assert four == pytest.approx(4 * 16, 0.02)
    assert one == pytest.approx(52, 0.02)  # each waits for the sums of the one before


def test_products_of_tiles_cost_something_where_no_unit_is_described() -> None:
    plain = isa("skylake-avx512", AVX512)
    assert cycles(kernel_cost(tiles(4, 1000), plain)) / 1000 == pytest.approx(4 * 16, 0.02)


def test_tiles_count_as_the_memory_that_they_touch() -> None:
    turns = 1000
    cost = kernel_cost(tiles(1, turns), isa("sapphirerapids", AVX512))
    lines = {
        buffer.name: each.lines for buffer, each in cost.nest.footprints(cost.nest.root, 0).items()
    }
    assert lines["x"] == pytest.approx(turns * 1024 / 64, 0.01)
    assert lines["y"] == pytest.approx(1024 / 64, 0.1)
