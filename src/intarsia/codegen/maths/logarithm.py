# SPDX-License-Identifier: Apache-2.0
"""The natural logarithm."""

from __future__ import annotations

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.maths.coefficients import LOG
from intarsia.codegen.maths.formats import INFINITY, NAN, format_of, polynomial


def log(b: Builder, x: IrValue) -> IrValue:
    """Return the natural logarithm; NaN below 0."""
    form = format_of(x)
    exponent, f = split_exponent(b, x)
    # fdlibm's way (e_log.c): log(1 + f) = f - (f^2/2 - s (f^2/2 + R)) with s = f / (2 + f), in
    # which f, the largest term, is exact.
    s = b.div(f, b.add(f, 2.0))
    z = b.mul(s, s)
    square = b.mul(b.mul(f, f), 0.5)
    rest = b.fma(z, polynomial(b, z, LOG[x.type.dtype]), square)
    low = b.fma(exponent, form.ln2_low, b.mul(s, rest))
    result = b.fma(exponent, form.ln2_high, b.sub(f, b.sub(square, low)))
    return log_borders(b, x, result)


def log1p(b: Builder, x: IrValue) -> IrValue:
    """Return log(1 + x), exact to its last places near 0."""
    total = b.add(x, 1.0)
    # What 1 + x lost, times the derivative of the logarithm (fdlibm, s_log1p.c).
    lost = b.div(b.sub(x, b.sub(total, 1.0)), total)
    inside = b.binary("and", b.compare("gt", total, 0.0), b.compare("lt", total, INFINITY))
    return b.add(log(b, total), b.select(inside, lost, 0.0))


def split_exponent(b: Builder, x: IrValue) -> tuple[IrValue, IrValue]:
    """Return e and f such that x = 2**e * (1 + f), for positive finite x; f is exact.

    1 + f lies between the square roots of 1/2 and 2.
    """
    form, dtype = format_of(x), x.type.dtype
    shift = form.fraction + 1
    is_tiny = b.compare("lt", x, form.smallest)
    x = b.select(is_tiny, b.mul(x, 2.0**shift), x)
    bits = b.bitcast(x, form.bits)
    # Bits of positive floats are ordered as they are: subtracting those of sqrt(1/2) moves the
    # borders of exponents there.
    exponent = b.binary("shr", b.sub(bits, form.sqrt_half_bits), form.fraction)
    fraction = b.bitcast(b.sub(bits, b.binary("shl", exponent, form.fraction)), dtype)
    # By bits, as AVX2 does not convert int64 to float64.
    number = b.sub(b.bitcast(b.add(exponent, form.magic_bits), dtype), form.magic)
    number = b.sub(number, b.select(is_tiny, b.constant(float(shift), x.type), 0.0))
    return number, b.sub(fraction, 1.0)


def log_borders(b: Builder, x: IrValue, result: IrValue) -> IrValue:
    """Return a logarithm with the values that belong to zero, infinity, NaN and below zero."""
    result = b.select(b.compare("lt", x, INFINITY), result, x)
    zero = b.select(b.compare("eq", x, 0.0), b.constant(-INFINITY, x.type), NAN)
    return b.select(b.compare("gt", x, 0.0), result, zero)
