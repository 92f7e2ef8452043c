"""What the builder makes of numbers, scalars and subscripts."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.codegen.builder import Builder
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.ir import INT64, Index, Type
from intarsia.codegen.verifier import verify


def stored(make, dtype="int64", lanes=1):
    """What a kernel stores that consists of what `make` returns for a builder."""
    b = Builder("probe")
    y = b.argument("y", dtype, (lanes,), is_written=True)
    b.store(make(b), y, 0)
    function = b.finish()
    verify(function)
    out = np.zeros(lanes, dtype)
    interpret(function, [out])
    return out.tolist() if lanes > 1 else out[0]


@given(st.integers(0, 500), st.integers(1, 9))
def test_split_of_known_and_unknown_subscripts_agree(number, divisor):
    quotient, rest = Builder("known").split(number, divisor)
    assert (quotient, rest) == (Index(number // divisor), Index(number % divisor))

    def make(b, part):
        unknown = Index.of(b.index(Index.of(b.constant(number, INT64)) + 0))
        return b.index(b.split(unknown, divisor)[part])

    assert stored(lambda b: make(b, 0)) == number // divisor
    assert stored(lambda b: make(b, 1)) == number % divisor


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_unravel_is_numpys(shape, data):
    number = data.draw(st.integers(0, int(np.prod(shape)) - 1))
    expected = [Index(int(i)) for i in np.unravel_index(number, shape)]
    assert Builder("u").unravel(number, shape) == expected


def test_smaller_and_larger():
    b = Builder("either")
    assert (b.smaller(3, 5), b.larger(3, 5)) == (Index(3), Index(5))
    assert stored(lambda b: b.index(b.smaller(b.constant(7, INT64), 5))) == 5
    assert stored(lambda b: b.index(b.larger(b.constant(7, INT64), 5))) == 7


def test_numbers_and_scalars_take_the_type_of_what_they_meet():
    b = Builder("types")
    vector = b.constant(2, Type("float32", 4))
    scalar = b.constant(3, Type("float32"))
    assert b.add(1, vector).type == vector.type
    assert b.mul(scalar, vector).type == vector.type
    assert b.fma(scalar, 2, vector).type == vector.type
    assert b.compare("lt", vector, 0).type == Type("bool", 4)
    assert b.select(b.compare("lt", vector, 0), 1, scalar).type == vector.type
    assert b.unary("isnan", vector).type == Type("bool", 4)
    assert b.reduce("add", scalar) is scalar
    assert b.cast(scalar, "float32") is scalar
    assert b.splat(vector, 4) is vector
    with pytest.raises(AssertionError, match="int64 meets float32"):
        b.add(vector, b.constant(1, INT64))
    with pytest.raises(TypeError, match="select needs a value"):
        b.select(b.constant(True, Type("bool")), 1, 2)


def test_mistakes_with_memory():
    b = Builder("memory")
    x = b.argument("x", "float32", (2, 3))
    y = b.argument("y", "float64", (2,), is_written=True)
    value = b.load(x, (0, 1))
    with pytest.raises(AssertionError, match="x is only read"):
        b.store(value, x, (0, 0))
    with pytest.raises(AssertionError, match="float32 into float64 y"):
        b.store(value, y, 0)
    with pytest.raises(AssertionError, match="x has rank 2"):
        b.load(x, 0)


def test_where_runs_if_a_condition_holds():
    b = Builder("conditional")
    y = b.argument("y", "int64", (4,), is_written=True)
    with b.parallel(4) as i, b.where(b.compare("gt", b.index(i), 1)):
        b.store(b.index(i * 10), y, i)
    out = np.full(4, -1)
    interpret(b.finish(), [out])
    assert out.tolist() == [-1, -1, 20, 30]


def test_loops_carry_values():
    def make(b):
        start = [b.constant(1, INT64), b.constant(1, INT64)]

        def step(_, first, second):
            return [second, b.add(first, second)]

        return b.loop(0, 8, start, step)[1]

    assert stored(make) == 55  # Fibonacci


def test_a_loop_yields_what_it_carries():
    b = Builder("wrong")
    with pytest.raises(AssertionError, match="yields what it carries"):
        b.loop(0, 3, [b.constant(1, INT64)], lambda _, value: [b.cast(value, "float32")])


def test_the_parallel_loop_is_the_outermost():
    b = Builder("nested")
    with b.serial(0, 2), pytest.raises(AssertionError, match="outermost"), b.parallel(3):
        pass


def test_interleaved_parts_take_turns():
    b = Builder("turns")
    x = b.argument("x", "float32", (3,))
    y = b.argument("y", "float32", (3,), is_written=True)

    def part(place):
        value = b.load(x, place)
        for _ in range(place):  # parts need not be as long
            value = b.mul(value, value)
        b.store(value, y, place)

    with b.parallel(1):
        b.interleave(partial(part, place) for place in range(3))
    function = b.finish()
    verify(function)
    (loop,) = function.body
    kinds = [type(operation).__name__ for operation in loop.body]
    assert kinds == ["Load"] * 3 + ["Store", "Binary", "Binary", "Store", "Binary", "Store"]
    out = np.zeros(3, np.float32)
    interpret(function, [np.array([2, 3, 2], np.float32), out])
    assert out.tolist() == [2, 9, 16]
