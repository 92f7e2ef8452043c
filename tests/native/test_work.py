# SPDX-License-Identifier: Apache-2.0
"""The estimate of a kernel's work: it counts turns, and registers of the target's width."""

import pytest

from intarsia.codegen.builder import Builder
from intarsia.codegen.expand import expand
from intarsia.codegen.unit import AVX2, AVX512, SCALAR
from intarsia.native.chunks import call_work
from intarsia.native.work import count_work


def doubled(extent, *, stride=1, turns=None):
    """A kernel that doubles vectors of 16 lanes; `turns` makes a loop of a nested one's bounds."""
    b = Builder("double")
    x = b.argument("x", "float32", (4 * extent * 16 * stride,), is_written=True)
    with b.parallel(4) as i:
        lower, upper = (0, extent) if turns is None else (i * extent, turns(i, extent))
        base = i * extent if turns is None else 0
        with b.serial(lower, upper) as j:
            at = (base + j) * (16 * stride)
            value = b.load(x, at, 16, stride=stride)
            b.store(b.add(value, value), x, at, stride=stride)
    return expand(b.finish())


@pytest.mark.parametrize(("unit", "registers"), [(AVX512, 1), (AVX2, 2), (SCALAR, 16)])
def test_work_is_turns_times_registers(unit, registers):
    body = (2 + 1 + 2) * registers
    assert count_work(doubled(10), unit) == 4 * (1 + 10 * (1 + body))


def test_lanes_that_lie_apart_are_read_one_by_one():
    assert count_work(doubled(10, stride=3), AVX512) == 4 * (1 + 10 * (1 + 32 + 1 + 32))


def test_bounds_that_move_together_are_known():
    moved = doubled(10, turns=lambda i, extent: i * extent + extent)
    assert count_work(moved, AVX512) == count_work(doubled(10), AVX512)


def test_bounds_that_do_not_are_taken_for_few_turns():
    work = count_work(doubled(100, turns=lambda i, extent: i * extent + i), AVX512)
    assert 0 < work < count_work(doubled(100), AVX512)


def test_a_loop_that_does_not_turn_is_no_work():
    assert count_work(doubled(0), AVX512) == 4


def test_work_of_a_call_is_at_least_what_is_known_of_it():
    """A multiply-add per vector of operations, and what moving its bytes costs."""
    assert call_work(0, 3200, 0) == 100
    assert call_work(0, 0, 6400) == 600
    assert call_work(0, 3200, 6400) == 700
    assert call_work(900, 3200, 6400) == 900


def test_a_count_beyond_reason_is_held_to_what_is_known():
    assert call_work(10**9, 3200, 0) == 800


def test_a_call_of_which_nothing_is_known_is_what_its_kernel_counts():
    assert call_work(123, 0, 0) == 123
