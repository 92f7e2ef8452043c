"""Subscripts, types and the tree of a kernel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import (
    INT64,
    Buffer,
    Index,
    IrValue,
    Loop,
    LoopKind,
    Store,
    Type,
    operands,
    results,
    row_major,
    walk,
)
from intarsia.extents import symbol

VALUES = [IrValue(INT64, name) for name in "abc"]
indices = st.builds(
    lambda const, scales: sum(
        (Index.of(v) * s for v, s in zip(VALUES, scales, strict=True)), const
    ),
    st.integers(-9, 9).map(Index),
    st.tuples(*[st.integers(-5, 5)] * 3),
)


def evaluate(index, point):
    found = dict(zip(VALUES, point, strict=True))
    return index.const + sum(found[value] * scale for value, scale in index.terms)


@given(indices, indices, st.integers(-4, 4), st.tuples(*[st.integers(-9, 9)] * 3))
def test_subscripts_are_arithmetic(left, right, factor, point):
    a, b = evaluate(left, point), evaluate(right, point)
    assert evaluate(left + right, point) == a + b
    assert evaluate(left - right, point) == a - b
    assert evaluate(7 - left, point) == 7 - a
    assert evaluate(3 + left, point) == 3 + a
    assert evaluate(factor * left, point) == factor * a


@given(indices)
def test_subscripts_drop_what_cancels(index):
    assert index - index == Index()
    assert all(scale for _, scale in index.terms)


def test_only_int64_is_a_subscript():
    assert Index.of(3) == Index(3)
    assert Index.of(VALUES[0]).terms == ((VALUES[0], 1),)
    with pytest.raises(AssertionError, match="float32 is not a subscript"):
        Index.of(IrValue(Type("float32")))


@given(st.lists(st.integers(1, 6), max_size=4).map(tuple))
def test_row_major_is_numpys(shape):
    strides = [step // 4 for step in np.zeros(shape, "float32").strides]
    assert row_major(shape) == tuple(strides)


def test_a_buffer_flattens_subscripts():
    buffer = Buffer("x", "float64", (3, 5), (7, 2))
    assert buffer.item_bytes == 8
    i = Index.of(VALUES[0])
    assert buffer.flatten((i + 1, i * 3)) == i * 13 + 7


def test_types():
    type_ = Type("uint8", 4)
    assert (str(type_), str(Type("int8"))) == ("uint8x4", "int8")
    assert not type_.is_signed
    assert Type("int8").is_signed
    assert Type("float16").is_float
    assert type_.with_lanes(2).with_dtype("bool") == Type("bool", 2)


@pytest.mark.parametrize(
    ("lower", "upper", "step", "count"), [(0, 7, 2, 4), (3, 3, 1, 0), (5, 1, 1, 0), (0, 8, 4, 2)]
)
def test_trip_counts(lower, upper, step, count):
    span = (Index(lower), Index(upper), step)
    loop = Loop(VALUES[0], *span, LoopKind.SERIAL, (), (), (), (), ())
    assert loop.trip_count == count == len(range(lower, upper, step))


def test_a_kernel_is_a_tree():
    b = Builder("double")
    n = symbol("n")
    x = b.argument("x", "float32", (8,))
    y = b.argument("y", "float32", (8,), is_written=True)
    with b.parallel(n) as i:
        b.store(b.add(b.load(x, i), 1), y, i)
    function = b.finish()
    assert function.extent == n
    loop, load, constant, add, store = walk(function.body)
    assert function.parallel is loop
    assert loop.trip_count is None
    assert operands(loop) == function.sizes
    assert operands(load) == (loop.variable,)
    assert operands(constant) == ()
    assert operands(add) == (load.result, constant.result)
    assert operands(store) == (add.result, loop.variable)
    assert isinstance(store, Store)
    assert results(store) == ()
    assert results(add) == (add.result,)
