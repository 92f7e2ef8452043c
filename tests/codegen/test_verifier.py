"""The verifier catches each class of wrong kernel."""

import dataclasses

import pytest

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import (
    INT64,
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Compare,
    Constant,
    Extract,
    Fma,
    Function,
    Index,
    IndexValue,
    IrValue,
    Load,
    Loop,
    LoopKind,
    Reduce,
    Scope,
    Select,
    Shuffle,
    Splat,
    Store,
    Type,
    Unary,
)
from intarsia.codegen.verifier import verify
from intarsia.errors import InternalError
from intarsia.extents import symbol

F32, VECTOR, BOOL = Type("float32"), Type("float32", 4), Type("bool")
X = Buffer("x", "float32", (8,), (1,))
Y = Buffer("y", "float32", (8,), (1,), is_written=True)
ONE, LANES, WHOLE = IrValue(F32), IrValue(VECTOR), IrValue(INT64)
GIVEN = (Constant(ONE, 1.0), Constant(LANES, 1.0), Constant(WHOLE, 1))


def kernel(*body, buffers=(X, Y), inner=(), name="wrong"):
    return Function(name, buffers, inner, (), (*GIVEN, *body))


def loop(body=(), span=(0, 4, 1), kind=LoopKind.SERIAL, **changes):
    lower, upper, step = span
    made = Loop(IrValue(INT64), Index(lower), Index(upper), step, kind, (), (), tuple(body), (), ())
    return dataclasses.replace(made, **changes)


def at(*items):
    return tuple(Index.of(item) for item in items)


TWICE = IrValue(F32)
CARRIED = IrValue(VECTOR)
FOREIGN = Buffer("z", "float32", (8,), (1,), is_written=True)
OUTSIDE = IrValue(INT64)
STORE = Store(ONE, Y, at(0), 1, 1)
WRONG = {
    "is not an identifier": kernel(name="a b"),
    "has dtype complex64": kernel(buffers=(X, Buffer("c", "complex64", (1,), (1,)))),
    "has 1 strides": kernel(buffers=(X, Buffer("c", "float32", (1, 2), (1,)))),
    "negative extent": kernel(buffers=(X, Buffer("c", "float32", (-1,), (1,)))),
    "has scope global": kernel(inner=(Buffer("t", "float32", (4,), (1,)),)),
    "has scope local": kernel(buffers=(X, Buffer("t", "float32", (4,), (1,), Scope.LOCAL))),
    "two parallel loops": kernel(*(loop(kind=LoopKind.PARALLEL) for _ in range(2))),
    "written outside the parallel": kernel(loop(kind=LoopKind.PARALLEL), loop([STORE])),
    "inside another loop": kernel(loop([loop(kind=LoopKind.PARALLEL)])),
    "defined twice": kernel(Constant(TWICE, 1.0), Constant(TWICE, 2.0)),
    "Unary uses a value before": kernel(Unary(IrValue(F32), "neg", IrValue(F32))),
    "Loop uses a value before": kernel(
        loop(
            initial=(ONE,),
            carried=(IrValue(F32),),
            yielded=(IrValue(F32),),
            results=(IrValue(F32),),
        )
    ),
    "has step 0": kernel(loop(span=(0, 4, 0))),
    "different types": kernel(
        loop(initial=(ONE,), carried=(CARRIED,), yielded=(CARRIED,), results=(IrValue(F32),))
    ),
    "parallel loop carries": kernel(
        loop(
            kind=LoopKind.PARALLEL,
            initial=(LANES,),
            carried=(CARRIED,),
            yielded=(CARRIED,),
            results=(IrValue(VECTOR),),
        )
    ),
    "z is not declared": kernel(Store(ONE, FOREIGN, at(0), 1, 1)),
    "int64 goes with y": kernel(Store(WHOLE, Y, at(0), 1, 1)),
    "x is only read": kernel(Store(ONE, X, at(0), 1, 1)),
    "5 of 4 lanes": kernel(Store(LANES, Y, at(0), 1, 5)),
    "0 of 4 lanes": kernel(Load(IrValue(VECTOR), X, at(0), 1, 0)),
    "x is left: 5 to 8 of 8": kernel(Load(IrValue(VECTOR), X, at(5), 1, 4)),
    "x is left: -1 to -1": kernel(Load(IrValue(F32), X, at(-1), 1, 1)),
    "x is left: 0 to 9 of 8": kernel(Load(IrValue(VECTOR), X, at(0), 3, 4)),
    "float32 stands in a subscript": kernel(Load(IrValue(F32), X, (Index(0, ((ONE, 1),)),), 1, 1)),
    "Unary: float32 meets float32x4": kernel(Unary(IrValue(F32), "neg", LANES)),
    "Unary: float32 meets bool": kernel(Unary(IrValue(F32), "isnan", ONE)),
    "Binary: float32 meets int64": kernel(Binary(IrValue(F32), "add", ONE, WHOLE)),
    "Fma: float32x4 meets float32": kernel(Fma(IrValue(VECTOR), LANES, LANES, ONE)),
    "Compare: float32 meets bool": kernel(Compare(IrValue(F32), "lt", ONE, ONE)),
    "Select: float32 meets bool": kernel(Select(IrValue(F32), ONE, ONE, ONE)),
    "Cast: float32x4 meets float32": kernel(Cast(IrValue(VECTOR), ONE)),
    "Bitcast: another width": kernel(Bitcast(IrValue(INT64), ONE)),
    "Splat: float32 meets int64": kernel(Splat(IrValue(VECTOR), WHOLE)),
    "lanes (8,) of two float32x4": kernel(Shuffle(IrValue(F32), LANES, LANES, (8,))),
    "Shuffle: float32 meets float32x2": kernel(Shuffle(IrValue(F32), LANES, LANES, (0, 1))),
    "lane 4 of float32x4": kernel(Extract(IrValue(F32), LANES, 4)),
    "Reduce: float32x4 meets float32": kernel(Reduce(IrValue(VECTOR), "add", LANES)),
}


@pytest.mark.parametrize("problem", WRONG)
def test_a_wrong_kernel_is_refused(problem):
    with pytest.raises(InternalError) as caught:
        verify(WRONG[problem])
    assert problem in str(caught.value)


def test_a_value_of_a_loop_ends_with_it():
    inside = Constant(IrValue(F32), 1.0)
    with pytest.raises(InternalError, match="before it is defined"):
        verify(kernel(loop([inside]), Store(inside.result, Y, at(0), 1, 1)))


@pytest.mark.parametrize(("span", "fits"), [((0, 8, 1), True), ((0, 9, 1), False)])
def test_subscripts_of_loops_are_bounded(span, fits):
    b = Builder("copy")
    x = b.argument("x", "float32", (8,))
    y = b.argument("y", "float32", (8,), is_written=True)
    with b.serial(*span) as i:
        b.store(b.load(x, i), y, 7 - i)
    if fits:
        verify(b.finish())
    else:
        with pytest.raises(InternalError, match="x is left: 0 to 8 of 8"):
            verify(b.finish())


def test_steps_end_before_the_bound():
    b = Builder("strided")
    x = b.argument("x", "float32", (8,))
    y = b.argument("y", "float32", (8,), is_written=True)
    with b.serial(0, 7, 4) as i:  # 0 and 4
        b.store(b.load(x, i, 4), y, i)
    verify(b.finish())


def test_what_never_turns_may_be_anything():
    b = Builder("never")
    x = b.argument("x", "float32", (0,))
    y = b.argument("y", "float32", (0,), is_written=True)
    with b.parallel(0) as i:
        b.store(b.load(x, i), y, i)
    verify(b.finish())


def test_unknown_subscripts_pass():
    b = Builder("unknown")
    n = symbol("n")
    x = b.argument("x", "float32", (8,))
    y = b.argument("y", "float32", (8,), is_written=True)
    b.store(b.load(x, n), y, n)
    verify(b.finish())


def test_index_values_have_types():
    value = IndexValue(IrValue(INT64), Index.of(WHOLE) + 1)
    verify(kernel(value, Store(ONE, Y, at(0), 1, 1)))
