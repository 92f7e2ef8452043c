# SPDX-License-Identifier: Apache-2.0
"""The exponential function and what is made of it."""

from __future__ import annotations

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Value
from intarsia.codegen.maths.coefficients import EXPM1
from intarsia.codegen.maths.formats import format_of, polynomial, power_of_two, with_sign_of
from intarsia.codegen.maths.logarithm import log1p

_LOG2_E = 1.4426950408889634


def exp(b: Builder, x: Value) -> Value:
    """Return e to the power of x."""
    return exp_scaled(b, x, 0)


def exp_scaled(b: Builder, x: Value, shift: int) -> Value:
    """Return exp(x) * 2**shift, which may be finite where exp(x) is not.

    Args:
        b: Of the kernel.
        x: The exponent.
        shift: -1 or 0.
    """
    form = format_of(x)
    x = b.maximum(form.exp_low, b.minimum(form.exp_high + 1, x))
    exponent, rest = _split(b, x)
    if shift:
        exponent = b.add(exponent, shift)
    half = b.binary("shr", exponent, 1)
    scaled = b.mul(_exp(b, rest), power_of_two(b, half, x.type.dtype))
    return b.mul(scaled, power_of_two(b, b.sub(exponent, half), x.type.dtype))


def exp_nonpositive(b: Builder, x: Value) -> Value:
    """Return e to the power of x for x <= 0: cheaper than `exp`; denormal results become 0."""
    exponent, rest = _split(b, b.maximum(format_of(x).exp_flush, x))
    return b.mul(_exp(b, rest), power_of_two(b, exponent, x.type.dtype))


def expm1(b: Builder, x: Value) -> Value:
    """Return exp(x) - 1, exact to its last places near 0."""
    form = format_of(x)
    result = _expm1(b, b.minimum(form.exp_high, x))
    is_tiny = b.compare("lt", b.unary("abs", x), 1e-20)  # keeps denormals and the sign of zero
    return b.select(is_tiny, x, result)


def tanh(b: Builder, x: Value) -> Value:
    """Return the hyperbolic tangent."""
    fall = _expm1(b, b.mul(b.unary("abs", x), -2.0))
    magnitude = b.div(fall, b.add(fall, 2.0))
    return with_sign_of(b, magnitude, x)


def sigmoid(b: Builder, x: Value) -> Value:
    """Return 1 / (1 + exp(-x)); below the normal numbers it becomes 0."""
    tail = exp_nonpositive(b, b.unary("neg", b.unary("abs", x)))
    top = b.select(b.compare("lt", x, 0.0), tail, 1.0)
    return b.div(top, b.add(tail, 1.0))


def softplus(b: Builder, x: Value) -> Value:
    """Return log(1 + exp(x))."""
    tail = exp(b, b.unary("neg", b.unary("abs", x)))
    return b.add(b.maximum(0.0, x), log1p(b, tail))


def _split(b: Builder, x: Value) -> tuple[Value, Value]:
    """Return integers n and small numbers r such that exp(x) = 2**n * exp(r)."""
    form = format_of(x)
    shifted = b.fma(x, _LOG2_E, form.magic)
    exponent = b.sub(b.bitcast(shifted, form.bits), form.magic_bits)
    turns = b.sub(shifted, form.magic)
    return exponent, b.fma(turns, -form.ln2_low, b.fma(turns, -form.ln2_high, x))


def _exp(b: Builder, rest: Value) -> Value:
    tail = polynomial(b, rest, EXPM1[rest.type.dtype])
    return b.fma(rest, b.fma(rest, tail, 1.0), 1.0)


def _expm1(b: Builder, x: Value) -> Value:
    exponent, rest = _split(b, b.maximum(format_of(x).expm1_low, x))
    fraction = b.fma(b.mul(rest, rest), polynomial(b, rest, EXPM1[x.type.dtype]), rest)
    half = power_of_two(b, b.sub(exponent, 1), x.type.dtype)  # twice it may be infinite
    return b.mul(b.fma(half, fraction, b.sub(half, 0.5)), 2.0)
