# SPDX-License-Identifier: Apache-2.0
"""Hyperbolic functions and their inverses; `tanh` is with the exponential function."""

from __future__ import annotations

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Value
from intarsia.codegen.maths.exponential import exp_scaled, expm1
from intarsia.codegen.maths.formats import NAN, with_sign_of
from intarsia.codegen.maths.logarithm import log, log1p

_LN2 = 0.6931471805599453
_LARGE = 1e9
"""Above, the square of x swallows 1."""


def sinh(b: Builder, x: Value) -> Value:
    """Return the hyperbolic sine."""
    size = b.unary("abs", x)
    rise = expm1(b, b.minimum(1.0, size))
    small = b.mul(b.add(rise, b.div(rise, b.add(rise, 1.0))), 0.5)
    half = exp_scaled(b, size, -1)
    large = b.sub(half, b.div(0.25, half))
    return with_sign_of(b, b.select(b.compare("lt", size, 1.0), small, large), x)


def cosh(b: Builder, x: Value) -> Value:
    """Return the hyperbolic cosine."""
    half = exp_scaled(b, b.unary("abs", x), -1)
    return b.add(half, b.div(0.25, half))


def asinh(b: Builder, x: Value) -> Value:
    """Return the inverse hyperbolic sine."""
    size = b.unary("abs", x)
    near = b.minimum(_LARGE, size)
    square = b.mul(near, near)
    root = b.unary("sqrt", b.add(square, 1.0))
    small = log1p(b, b.add(near, b.div(square, b.add(root, 1.0))))
    large = b.add(log(b, size), _LN2)
    return with_sign_of(b, b.select(b.compare("gt", size, _LARGE), large, small), x)


def acosh(b: Builder, x: Value) -> Value:
    """Return the inverse hyperbolic cosine; NaN below 1."""
    near = b.sub(b.minimum(_LARGE, x), 1.0)
    root = b.unary("sqrt", b.fma(near, near, b.mul(near, 2.0)))
    small = log1p(b, b.add(near, root))
    large = b.add(log(b, x), _LN2)
    result = b.select(b.compare("gt", x, _LARGE), large, small)
    return b.select(b.compare("lt", x, 1.0), b.constant(NAN, x.type), result)


def atanh(b: Builder, x: Value) -> Value:
    """Return the inverse hyperbolic tangent; NaN beyond 1."""
    size = b.unary("abs", x)
    ratio = b.div(b.mul(size, 2.0), b.sub(1.0, size))
    result = b.mul(log1p(b, ratio), 0.5)
    result = b.select(b.compare("gt", size, 1.0), b.constant(NAN, x.type), result)
    return with_sign_of(b, result, x)
