"""The interpreter defines what operations mean, so it is held against plain Python."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.codegen.builder import Builder
from intarsia.codegen.computation import apply_binary
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.ir import INT64, IrValue, Type
from intarsia.errors import InternalError
from intarsia.extents import symbol

int32s = st.integers(-(2**31) + 1, 2**31 - 1)


@given(int32s, int32s.filter(bool))
def test_integers_divide_as_in_c(left, right):
    a, b = np.int32(left), np.int32(right)
    assert apply_binary("div", a, b) == math.trunc(left / right)
    assert apply_binary("rem", a, b) == math.fmod(left, right)


@given(st.floats(width=32), st.floats(width=32))
def test_extrema_take_the_right_operand_for_nan(left, right):
    a, b = np.float32(left), np.float32(right)
    expected = a if left > right else b
    np.testing.assert_array_equal(apply_binary("max", a, b), expected)
    expected = a if left < right else b
    np.testing.assert_array_equal(apply_binary("min", a, b), expected)


def test_shifts():
    assert apply_binary("shr", np.int32(-8), np.int32(1)) == -4
    assert apply_binary("shr", np.uint32(2**31), np.uint32(1)) == 2**30
    assert apply_binary("shl", np.int8(1), np.int8(6)) == 64


def run(make, arrays, sizes=(), turns=None, out=("float32", 4)):
    b = Builder("probe")
    buffers = [b.argument(f"x{i}", a.dtype.name, a.shape) for i, a in enumerate(arrays)]
    y = b.argument("y", out[0], (out[1],), is_written=True)
    make(b, buffers, y)
    result = np.full(out[1], 9, out[0])
    interpret(b.finish(), [*arrays, result], sizes, turns)
    return result.tolist()


def test_lanes_that_are_not_read_are_zero_and_those_not_written_stay():
    x = np.arange(1, 9, dtype="float32")

    def make(b, buffers, y):
        b.store(b.load(buffers[0], 1, 4, stride=3, count=2), y, 0, count=3)

    assert run(make, [x]) == [2, 5, 0, 9]


@pytest.mark.parametrize("position", [-1, 6])
def test_leaving_a_buffer_is_an_error(position):
    def make(b, buffers, y):
        b.load(buffers[0], b.constant(position, INT64), 4)

    with pytest.raises(InternalError, match="kernel probe leaves x0"):
        run(make, [np.zeros(8, "float32")])


def test_turns_of_the_parallel_loop():
    def make(b, buffers, y):
        with b.parallel(4) as i:
            b.store(b.constant(1, Type("float32")), y, i)

    assert run(make, []) == [1, 1, 1, 1]
    assert run(make, [], turns=range(1, 3)) == [9, 1, 1, 9]


def test_sizes_are_given_when_it_runs():
    def make(b, buffers, y):
        n = symbol("n")
        with b.serial(0, n) as i:
            b.store(b.constant(1, Type("float32")), y, i)

    assert run(make, [], [2]) == [1, 1, 9, 9]


def test_horizontal_reductions_go_by_halves():
    x = np.array([1e8, 1, -1e8, 1, 0, 0, 0], "float32")

    def make(b, buffers, y):
        b.store(b.reduce("add", b.load(buffers[0], 0, 7)), y, 0)

    assert run(make, [x], out=("float32", 1)) == [2]  # not ((1e8 + 1) - 1e8) + 1 = 1


def test_an_fma_rounds_once():
    x = np.array([1 + 2**-12, -1 - 2**-11], "float32")

    def make(b, buffers, y):
        a = b.load(buffers[0], 0)
        b.store(b.fma(a, a, b.load(buffers[0], 1)), y, 0)

    assert run(make, [x], out=("float32", 1)) == [2**-24]


def test_floats_become_integers_by_truncation():
    x = np.array([1.9, -1.9, 0, np.nan], "float32")

    def make(b, buffers, y):
        b.store(b.cast(b.load(buffers[0], 0, 3), "int32"), y, 0)

    assert run(make, [x], out=("int32", 3)) == [1, -1, 0]

    def to_bool(b, buffers, y):
        b.store(b.cast(b.load(buffers[0], 0, 4), "bool"), y, 0)

    assert run(to_bool, [x], out=("bool", 4)) == [True, True, False, True]


def test_local_memory_is_the_kernels_own():
    def make(b, buffers, y):
        t = b.local("t", "float32", (2, 2))
        b.store(b.constant(5, Type("float32", 2)), t, (1, 0))
        b.store(b.load(t, (1, 0), 2), y, 2)

    assert run(make, []) == [9, 9, 5, 5]


def test_values_are_compared_by_identity():
    assert IrValue(INT64, "i") != IrValue(INT64, "i")
