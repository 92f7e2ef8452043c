# SPDX-License-Identifier: Apache-2.0
"""Lanes of a block compute what a kernel says, and races are found."""

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.emit import test_distribute as cases
from tests.codegen.emit.runners import compare
from tests.codegen.emit.test_families import FAMILIES

from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.distribute import Distribution, distribute
from intarsia.codegen.emit.live import prune
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.lanes import interpret_lanes
from intarsia.errors import InternalError

LANES = 4


def run_lanes(function, arrays, *, sizes=(), rtol=1e-6, interpreted=True, level=0):
    """Run a kernel as lanes; return what the arrays hold afterwards."""
    del interpreted, level
    ready = prune(expand(function))
    arrays = [np.ascontiguousarray(array) for array in arrays]
    results = [array.copy() for array in arrays]
    interpret_lanes(ready, [one.reshape(-1) for one in results], distribute(ready), LANES, sizes)
    compare(function, arrays, results, sizes, rtol)
    return results


def numbers(extent=4, dtype="float32"):
    return np.random.default_rng(0).uniform(0.9, 1.1, (extent, 64)).astype(dtype)


@pytest.mark.parametrize("name", cases.STEPS)
def test_terms_are_combined(name):
    function = cases.reduction(cases.STEPS[name])
    run_lanes(function, [numbers(), np.zeros((4, 2), "float32")], rtol=1e-5)


@pytest.mark.parametrize("family", ["pad", "gather", "one hot"])
def test_family(family):
    FAMILIES[family](run_lanes)


def staged():
    """A kernel whose turns write a buffer of their own, and read it backwards."""
    b = Builder("staged")
    x = b.argument("x", "float32", (2, 16))
    y = b.argument("y", "float32", (2, 16), is_written=True)
    t = b.local("t", "float32", (16,))
    with b.parallel(2) as turn:
        with b.serial(0, 16) as i:
            b.store(b.load(x, (turn, i)), t, i)
        with b.serial(0, 16) as i:
            b.store(b.load(t, 15 - i), y, (turn, i))
    return prune(expand(b.finish()))


def test_a_missing_barrier_is_a_race():
    function = staged()
    plan = distribute(function)
    x = np.arange(32, dtype="float32")
    y = np.zeros(32, "float32")
    interpret_lanes(function, [x, y], plan, LANES)
    np.testing.assert_array_equal(y.reshape(2, 16), x.reshape(2, 16)[:, ::-1])
    with pytest.raises(InternalError, match=r"a race: two lanes touch entry \d+ of t"):
        interpret_lanes(function, [x, y], replace(plan, barriers=frozenset()), LANES)


def test_turns_must_not_touch_what_another_one_writes():
    b = Builder("overlapping")
    x = b.argument("x", "float32", (9,), is_written=True)
    with b.parallel(2) as turn, b.serial(0, 5) as i:
        b.store(b.load(x, turn * 4 + i), x, turn * 4 + i)
    function = prune(expand(b.finish()))
    memory = np.ones(9, "float32")
    interpret(function, [memory])
    with pytest.raises(InternalError, match="a race: two turns touch entry 4 of x"):
        interpret_lanes(function, [memory], Distribution(), 1)


def test_all_lanes_have_to_come_to_a_barrier():
    function = staged()
    (loop, *_) = function.parallel.body
    plan = replace(distribute(function), closing=frozenset({id(loop)}))
    memory = [np.ones(32, "float32"), np.ones(32, "float32")]
    interpret_lanes(function, memory, plan, LANES)
    with pytest.raises(InternalError, match="not all lanes"):
        interpret_lanes(function, memory, plan, 3)
