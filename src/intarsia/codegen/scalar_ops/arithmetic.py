# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, rounding, functions and activations; comparisons, logic and bits: a row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import pi, sqrt
from typing import Any

import numpy as np

from intarsia.codegen import maths
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.scalar_ops.conversion import convert
from intarsia.codegen.scalar_ops.operator import (
    ANY,
    BOOL,
    FLOATS,
    INTS,
    NUMBERS,
    ScalarOp,
    binary,
    parametric,
    unary,
)

Arguments = Sequence[Any]
Attributes = Mapping[str, Any]


def divide(b: Builder, x: IrValue, y: IrValue) -> IrValue:
    """Return a quotient; of integers it is truncated, 0 where the divisor is 0."""
    if x.type.is_float:
        return b.div(x, y)
    # x86 traps at 0 and where the smallest integer is divided by -1.
    result = b.div(x, _safe_divisor(b, y))
    return b.select(b.compare("eq", y, 0), 0, _wrapped(b, y, b.unary("neg", x), result))


def modulo(b: Builder, x: IrValue, y: IrValue) -> IrValue:
    """Return the remainder that has the divisor's sign; 0 where an integer divisor is 0."""
    rest = remainder(b, x, y)
    if not x.type.is_signed:
        return rest
    is_other = b.binary("xor", b.compare("lt", rest, 0), b.compare("lt", y, 0))
    is_off = b.binary("and", b.compare("ne", rest, 0), is_other)
    result = b.select(is_off, b.add(rest, y), rest)
    if not x.type.is_float:
        return result
    return b.select(b.compare("eq", rest, 0.0), b.binary("copysign", rest, y), result)


def remainder(b: Builder, x: IrValue, y: IrValue) -> IrValue:
    """Return the remainder that has the dividend's sign, as C does."""
    if x.type.is_float:
        return b.binary("rem", x, y)
    result = b.binary("rem", x, _safe_divisor(b, y))
    return b.select(b.compare("eq", y, 0), 0, _wrapped(b, y, b.constant(0, x.type), result))


def larger(b: Builder, x: IrValue, y: IrValue) -> IrValue:
    """Return the larger one, NaN if one is NaN, as numpy does."""
    return _extremum(b, b.maximum(x, y), x)


def smaller(b: Builder, x: IrValue, y: IrValue) -> IrValue:
    """Return the smaller one, NaN if one is NaN, as numpy does."""
    return _extremum(b, b.minimum(x, y), x)


def _extremum(b: Builder, result: IrValue, x: IrValue) -> IrValue:
    return b.select(b.unary("isnan", x), x, result) if x.type.is_float else result


def _safe_divisor(b: Builder, y: IrValue) -> IrValue:
    """Return a divisor that no processor traps at: neither 0 nor the -1 that can overflow."""
    y = b.select(b.compare("eq", y, 0), 1, y)
    return b.select(b.compare("eq", y, -1), 1, y) if y.type.is_signed else y


def _wrapped(b: Builder, y: IrValue, at_minus_one: IrValue, result: IrValue) -> IrValue:
    if not y.type.is_signed:
        return result
    return b.select(b.compare("eq", y, -1), at_minus_one, result)


def _mod(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    return remainder(b, x[0], x[1]) if attrs.get("fmod", 0) else modulo(b, x[0], x[1])


def _pow(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    base, exponent = x
    if base.type.is_float:
        return maths.pow(b, base, convert(b, exponent, base.type.dtype))
    if exponent.type.is_float:
        wide = maths.pow(b, convert(b, base, "float64"), convert(b, exponent, "float64"))
        return convert(b, wide, base.type.dtype)
    return maths.integer_power(b, base, b.cast(exponent, base.type.dtype))


def _sum(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    total: IrValue = reduce(b.add, x)
    return total


def _mean(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    """Divide a sum by how many were added, some of them before if there are more (`count`)."""
    return b.div(reduce(b.add, x), float(attrs.get("count", len(x))))


def _max(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    limit: IrValue = reduce(lambda left, right: larger(b, left, right), x)
    return limit


def _min(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    limit: IrValue = reduce(lambda left, right: smaller(b, left, right), x)
    return limit


def _clip(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    """Bounds are inputs, or attributes as before opset 11.

    With the attribute `nan`, which ONNX does not have, NaN is the lower one.
    """
    value, low, high = (*x, None, None)[:3]
    low = attrs.get("min") if low is None else low
    high = attrs.get("max") if high is None else high
    if low is not None:
        # NaN is what the right operand is: it stays if that is the value.
        value = b.maximum(value, low) if "nan" in attrs else b.maximum(low, value)
    result: IrValue = value if high is None else b.minimum(high, value)
    return result


def _sign(b: Builder, x: IrValue) -> IrValue:
    one = b.constant(1, x.type)
    result = b.select(b.compare("gt", x, 0), one, 0)
    if not x.type.is_signed:
        return result
    result = b.select(b.compare("lt", x, 0), b.unary("neg", one), result)
    return b.select(b.unary("isnan", x), x, result) if x.type.is_float else result


MULTIPLY_ADD = "MultiplyAdd"
"""A product and a sum that are rounded once; ONNX has no such operator."""

ARITHMETIC = {
    "Add": binary(Builder.add, NUMBERS),
    "Sub": binary(Builder.sub, NUMBERS),
    "Mul": binary(Builder.mul, NUMBERS),
    "Div": binary(divide, NUMBERS),
    MULTIPLY_ADD: ScalarOp(lambda b, x, attrs, dtype: b.fma(x[0], x[1], x[2]), FLOATS),
    "Mod": ScalarOp(_mod, NUMBERS),
    "Pow": ScalarOp(_pow, NUMBERS),
    "Neg": unary(lambda b, x: b.unary("neg", x), NUMBERS),
    "Abs": unary(lambda b, x: b.unary("abs", x), NUMBERS),
    "Sign": unary(_sign, NUMBERS),
    "Reciprocal": unary(lambda b, x: b.div(1.0, x), FLOATS),
    "Sqrt": unary(lambda b, x: b.unary("sqrt", x), FLOATS),
    "Floor": unary(lambda b, x: b.unary("floor", x), FLOATS),
    "Ceil": unary(lambda b, x: b.unary("ceil", x), FLOATS),
    "Round": unary(lambda b, x: b.unary("rint", x), FLOATS),
    "Sum": ScalarOp(_sum, FLOATS),
    "Mean": ScalarOp(_mean, FLOATS),
    "Max": ScalarOp(_max, NUMBERS),
    "Min": ScalarOp(_min, NUMBERS),
    "Clip": ScalarOp(_clip, NUMBERS),
    "Exp": unary(maths.exp, FLOATS),
    "Log": unary(maths.log, FLOATS),
    "Erf": unary(maths.erf, FLOATS),
    "Sin": unary(maths.sin, FLOATS),
    "Cos": unary(maths.cos, FLOATS),
    "Tan": unary(maths.tan, FLOATS),
    "Asin": unary(maths.asin, FLOATS),
    "Acos": unary(maths.acos, FLOATS),
    "Atan": unary(maths.atan, FLOATS),
    "Sinh": unary(maths.sinh, FLOATS),
    "Cosh": unary(maths.cosh, FLOATS),
    "Asinh": unary(maths.asinh, FLOATS),
    "Acosh": unary(maths.acosh, FLOATS),
    "Atanh": unary(maths.atanh, FLOATS),
}
"""Operators that compute numbers from numbers."""


_INFINITY = float("inf")


def _compared(predicate: str, dtypes: frozenset[str]) -> ScalarOp:
    return binary(lambda b, x, y: b.compare(predicate, x, y), dtypes)


def _combined(name: str, dtypes: frozenset[str]) -> ScalarOp:
    return binary(lambda b, x, y: b.binary(name, x, y), dtypes)


def _is_inf(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    positive = b.compare("eq", x[0], _INFINITY)
    negative = b.compare("eq", x[0], -_INFINITY)
    both = bool(attrs.get("detect_positive", 1)), bool(attrs.get("detect_negative", 1))
    if both == (True, True):
        return b.binary("or", positive, negative)
    if both == (False, False):
        return b.constant(value=False, type_=positive.type)
    return positive if both[0] else negative


def _bit_shift(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    """Shift; by as many bits as there are, or more, or a negative number: all of them out."""
    value, amount = x
    width = 8 * np.dtype(value.type.dtype).itemsize
    inside = b.compare("lt", amount, width)
    # Shifting by as many bits as there are, or more, is poison in LLVM.
    if value.type.is_signed:
        inside = b.binary("and", inside, b.compare("ge", amount, 0))
    if attrs["direction"] == "LEFT":
        return b.select(inside, b.binary("shl", value, b.select(inside, amount, 0)), 0)
    if value.type.is_signed:  # what is left is the sign
        return b.binary("shr", value, b.select(inside, amount, width - 1))
    return b.select(inside, b.binary("shr", value, b.select(inside, amount, 0)), 0)


LOGIC = {
    "Equal": _compared("eq", NUMBERS | BOOL),
    "Less": _compared("lt", NUMBERS),
    "LessOrEqual": _compared("le", NUMBERS),
    "Greater": _compared("gt", NUMBERS),
    "GreaterOrEqual": _compared("ge", NUMBERS),
    "And": _combined("and", BOOL),
    "Or": _combined("or", BOOL),
    "Xor": _combined("xor", BOOL),
    "Not": unary(lambda b, x: b.unary("not", x), BOOL),
    "BitwiseAnd": _combined("and", INTS),
    "BitwiseOr": _combined("or", INTS),
    "BitwiseXor": _combined("xor", INTS),
    "BitwiseNot": unary(lambda b, x: b.unary("not", x), INTS),
    "BitShift": ScalarOp(_bit_shift, INTS),
    "IsNaN": unary(lambda b, x: b.unary("isnan", x), FLOATS),
    "IsInf": ScalarOp(_is_inf, FLOATS),
    "Where": ScalarOp(lambda b, x, attrs, dtype: b.select(x[0], x[1], x[2]), ANY),
}
"""Operators that yield bool, take it, or look at bits."""


def _single(value: float) -> float:
    """Return a default as an attribute holds it: in single precision."""
    return float(np.float32(value))


def _where_negative(b: Builder, x: IrValue, below: IrValue) -> IrValue:
    return b.select(b.compare("lt", x, 0), below, x)


def _scaled_expm1(b: Builder, x: IrValue, alpha: float) -> IrValue:
    return _where_negative(b, x, b.mul(maths.expm1(b, x), alpha))


def _celu(b: Builder, x: IrValue, alpha: float) -> IrValue:
    below = b.mul(maths.expm1(b, b.div(x, alpha)), alpha)
    return _where_negative(b, x, below) if alpha else below  # ONNX's minimum with 0 * inf


def _gelu(b: Builder, arguments: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    x: IrValue = arguments[0]
    half = b.mul(x, 0.5)
    if attrs.get("approximate", "none") == "tanh":
        # sqrt(2/pi) (x + 0.044715 x^3), as ONNX's function body has it, with x taken out.
        cubic = b.mul(b.mul(x, x), 0.044715 * sqrt(2 / pi))
        return b.fma(half, maths.tanh(b, b.mul(x, b.add(cubic, sqrt(2 / pi)))), half)
    return b.fma(half, maths.erf(b, b.mul(x, sqrt(0.5))), half)


def _swish(b: Builder, x: IrValue, alpha: float) -> IrValue:
    return b.mul(x, maths.sigmoid(b, b.mul(x, alpha)))


def _swiglu(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> IrValue:
    return b.mul(_swish(b, x[0], float(attrs.get("alpha", 1.0))), x[1])


def _hard_sigmoid(b: Builder, x: IrValue, alpha: float, beta: float) -> IrValue:
    return b.maximum(0.0, b.minimum(1.0, b.add(b.mul(x, alpha), beta)))


def _shrink(b: Builder, x: IrValue, bias: float, lambd: float) -> IrValue:
    inner = b.select(b.compare("gt", x, lambd), b.sub(x, bias), 0)
    return b.select(b.compare("lt", x, -lambd), b.add(x, bias), inner)


ACTIVATIONS = {
    "Relu": unary(lambda b, x: b.maximum(0, x), FLOATS | INTS),
    "LeakyRelu": parametric(
        lambda b, x, alpha: _where_negative(b, x, b.mul(x, alpha)), FLOATS, alpha=_single(0.01)
    ),
    "PRelu": binary(lambda b, x, y: _where_negative(b, x, b.mul(x, y)), FLOATS | INTS),
    "Elu": parametric(_scaled_expm1, FLOATS, alpha=1.0),
    "Selu": parametric(
        lambda b, x, alpha, gamma: b.mul(_scaled_expm1(b, x, alpha), gamma),
        FLOATS,
        alpha=1.67326319217681884765625,
        gamma=1.05070102214813232421875,
    ),
    "Celu": parametric(_celu, FLOATS, alpha=1.0),
    "Gelu": ScalarOp(_gelu, FLOATS),
    "HardSigmoid": parametric(_hard_sigmoid, FLOATS, alpha=_single(0.2), beta=0.5),
    "HardSwish": unary(lambda b, x: b.mul(x, _hard_sigmoid(b, x, _single(1 / 6), 0.5)), FLOATS),
    "Mish": unary(lambda b, x: b.mul(x, maths.tanh(b, maths.softplus(b, x))), FLOATS),
    "Sigmoid": unary(maths.sigmoid, FLOATS),
    "Softplus": unary(maths.softplus, FLOATS),
    "Softsign": unary(lambda b, x: b.div(x, b.add(b.unary("abs", x), 1.0)), FLOATS),
    "Swish": parametric(_swish, FLOATS, alpha=1.0),
    "SwiGLU": ScalarOp(_swiglu, FLOATS),
    "Tanh": unary(maths.tanh, FLOATS),
    "ThresholdedRelu": parametric(
        lambda b, x, alpha: b.select(b.compare("gt", x, alpha), x, 0.0), FLOATS, alpha=1.0
    ),
    "Shrink": parametric(_shrink, FLOATS, bias=0.0, lambd=0.5),
}
"""Activation functions of neural networks."""
