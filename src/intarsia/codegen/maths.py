# SPDX-License-Identifier: Apache-2.0
"""Functions of float32 and float64 as operations of the loop-level IR, without any library.

One implementation for all backends and all numbers of lanes. NaN, infinities, denormals, overflow
and underflow come out as IEEE 754 and C say; `tests/codegen/test_maths.py` states the measured
errors. They hold where `fma` rounds once; elsewhere they are some units in the last place larger.
"""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.codegen import float_constants as constants
from intarsia.codegen.builder import Builder
from intarsia.codegen.float_constants import FORMATS, INFINITY, NAN, format_of
from intarsia.codegen.ir import IrValue

# What all share


def polynomial(b: Builder, x: IrValue, factors: Sequence[float]) -> IrValue:
    """Return a polynomial's value, its coefficients from the lowest degree on."""
    result = b.constant(factors[-1], x.type)
    for coefficient in reversed(factors[:-1]):
        result = b.fma(result, x, coefficient)
    return result


def power_of_two(b: Builder, exponent: IrValue, dtype: str) -> IrValue:
    """Return 2 to an integer: 0 just below the normal exponents, infinity just above."""
    form = FORMATS[dtype]
    return b.bitcast(b.binary("shl", b.add(exponent, form.bias), form.fraction), dtype)


def with_sign_of(b: Builder, magnitude: IrValue, x: IrValue) -> IrValue:
    """Return a magnitude with the sign of another number."""
    return b.binary("copysign", magnitude, x)


# The exponential function and what is made of it; the error function

LOG2_E = 1.4426950408889634


def exp(b: Builder, x: IrValue) -> IrValue:
    """Return e to the power of x."""
    return exp_scaled(b, x, 0)


def exp_scaled(b: Builder, x: IrValue, shift: int) -> IrValue:
    """Return exp(x) * 2**shift, which may be finite where exp(x) is not.

    Args:
        b: Of the kernel.
        x: The exponent.
        shift: -1 or 0.
    """
    form = format_of(x)
    # x is the right operand each time: it comes out if it is NaN.
    x = b.maximum(form.exp_low, b.minimum(form.exp_high + 1, x))
    exponent, rest = _split(b, x)
    if shift:
        exponent = b.add(exponent, shift)
    # In two factors, as 2**n itself is not a normal number from n = 128 on, nor below -126; only
    # the last product rounds to a subnormal number.
    half = b.binary("shr", exponent, 1)
    scaled = b.mul(_exp(b, rest), power_of_two(b, half, x.type.dtype))
    return b.mul(scaled, power_of_two(b, b.sub(exponent, half), x.type.dtype))


def exp_nonpositive(b: Builder, x: IrValue) -> IrValue:
    """Return e to the power of x for x <= 0: cheaper than `exp`; denormal results become 0."""
    exponent, rest = _split(b, b.maximum(format_of(x).exp_flush, x))
    return b.mul(_exp(b, rest), power_of_two(b, exponent, x.type.dtype))


def exp2_nonpositive(b: Builder, x: IrValue) -> IrValue:
    """Return 2 to the power of x for x <= 0 in float32; below 2**-126.5 it becomes 0."""
    form = format_of(x)
    # With the bias in the sum, its last bits are the exponent of a power of two as they are; -127
    # is that of zero.
    x = b.maximum(-form.bias, x)
    shifted = b.add(x, form.magic + form.bias)
    power = b.bitcast(b.binary("shl", b.bitcast(shifted, form.bits), form.fraction), x.type.dtype)
    rest = b.sub(x, b.sub(shifted, form.magic + form.bias))
    tail = polynomial(b, rest, constants.EXP2M1[x.type.dtype])
    return b.mul(b.fma(rest, tail, 1.0), power)


def expm1(b: Builder, x: IrValue) -> IrValue:
    """Return exp(x) - 1, exact to its last places near 0."""
    form = format_of(x)
    result = _expm1(b, b.minimum(form.exp_high, x))
    is_tiny = b.compare("lt", b.unary("abs", x), 1e-20)  # keeps denormals and the sign of zero
    return b.select(is_tiny, x, result)


def tanh(b: Builder, x: IrValue) -> IrValue:
    """Return the hyperbolic tangent."""
    # expm1 loses no digit near 0, where a quotient of exponentials would (fdlibm, s_tanh.c).
    fall = _expm1(b, b.mul(b.unary("abs", x), -2.0))
    magnitude = b.div(fall, b.add(fall, 2.0))
    return with_sign_of(b, magnitude, x)


def sigmoid(b: Builder, x: IrValue) -> IrValue:
    """Return 1 / (1 + exp(-x)); below the normal numbers it becomes 0."""
    # Of numbers that are not positive only, so that nothing overflows.
    tail = exp_nonpositive(b, b.unary("neg", b.unary("abs", x)))
    top = b.select(b.compare("lt", x, 0.0), tail, 1.0)
    return b.div(top, b.add(tail, 1.0))


def softplus(b: Builder, x: IrValue) -> IrValue:
    """Return log(1 + exp(x))."""
    tail = exp(b, b.unary("neg", b.unary("abs", x)))
    return b.add(b.maximum(0.0, x), log1p(b, tail))


def _split(b: Builder, x: IrValue) -> tuple[IrValue, IrValue]:
    """Return integers n and small numbers r such that exp(x) = 2**n * exp(r)."""
    form = format_of(x)
    # The sum's last bits are the nearest integer, with no instruction that converts. Subtracting n
    # log(2) in two parts keeps the rest exact: Cody and Waite, "Software Manual for the Elementary
    # Functions", 1980.
    shifted = b.fma(x, LOG2_E, form.magic)
    exponent = b.sub(b.bitcast(shifted, form.bits), form.magic_bits)
    turns = b.sub(shifted, form.magic)
    return exponent, b.fma(turns, -form.ln2_low, b.fma(turns, -form.ln2_high, x))


def _exp(b: Builder, rest: IrValue) -> IrValue:
    tail = polynomial(b, rest, constants.EXPM1[rest.type.dtype])
    return b.fma(rest, b.fma(rest, tail, 1.0), 1.0)


def _expm1(b: Builder, x: IrValue) -> IrValue:
    exponent, rest = _split(b, b.maximum(format_of(x).expm1_low, x))
    fraction = b.fma(b.mul(rest, rest), polynomial(b, rest, constants.EXPM1[x.type.dtype]), rest)
    # 2**n (1 + fraction) - 1, as 2**n fraction + (2**n - 1), of which the second is exact unless 1
    # no longer counts.
    half = power_of_two(b, b.sub(exponent, 1), x.type.dtype)  # twice it may be infinite
    return b.mul(b.fma(half, fraction, b.sub(half, 0.5)), 2.0)


def erf(b: Builder, x: IrValue) -> IrValue:
    """Return the error function."""
    return _erf32(b, x) if x.type.dtype == "float32" else _erf64(b, x)


def _erf32(b: Builder, x: IrValue) -> IrValue:
    # 1 - erf(3.95) is 2.3e-8, less than half a unit in the last place below 1: it rounds to 1.
    x = b.maximum(-3.95, b.minimum(3.95, x))
    z = b.mul(x, x)
    top = b.mul(x, polynomial(b, z, constants.ERF_NUMERATOR))
    ratio = b.div(top, polynomial(b, z, constants.ERF_DENOMINATOR))
    # The quotient may round to more than 1.
    return b.maximum(-1.0, b.minimum(1.0, ratio))


def _erf64(b: Builder, x: IrValue) -> IrValue:
    # erfc(6) is 2.2e-17: beyond, erf rounds to 1.
    size = b.minimum(6.0, b.unary("abs", x))
    z = b.mul(size, size)
    small = b.fma(size, polynomial(b, z, constants.ERF_SMALL), size)
    tail = polynomial(b, b.div(b.sub(size, 2.0), b.add(size, 2.0)), constants.ERFCX)
    large = b.sub(1.0, b.mul(exp_nonpositive(b, b.unary("neg", z)), tail))
    return with_sign_of(b, b.select(b.compare("gt", size, 1.0), large, small), x)


_LN2 = 0.6931471805599453
_LARGE = 1e9
"""Above, the square of x swallows 1."""


def sinh(b: Builder, x: IrValue) -> IrValue:
    """Return the hyperbolic sine."""
    size = b.unary("abs", x)
    # With t = expm1(x) it is (t + t / (t + 1)) / 2, which does not cancel near 0; far from it half
    # of exp(x) overflows only where sinh does (fdlibm, e_sinh.c).
    rise = expm1(b, b.minimum(1.0, size))
    small = b.mul(b.add(rise, b.div(rise, b.add(rise, 1.0))), 0.5)
    half = exp_scaled(b, size, -1)
    large = b.sub(half, b.div(0.25, half))
    return with_sign_of(b, b.select(b.compare("lt", size, 1.0), small, large), x)


def cosh(b: Builder, x: IrValue) -> IrValue:
    """Return the hyperbolic cosine."""
    half = exp_scaled(b, b.unary("abs", x), -1)
    return b.add(half, b.div(0.25, half))


def asinh(b: Builder, x: IrValue) -> IrValue:
    """Return the inverse hyperbolic sine."""
    size = b.unary("abs", x)
    near = b.minimum(_LARGE, size)
    square = b.mul(near, near)
    # x + sqrt(x^2 + 1) - 1 without cancelling (fdlibm, s_asinh.c).
    root = b.unary("sqrt", b.add(square, 1.0))
    small = log1p(b, b.add(near, b.div(square, b.add(root, 1.0))))
    large = b.add(log(b, size), _LN2)
    return with_sign_of(b, b.select(b.compare("gt", size, _LARGE), large, small), x)


def acosh(b: Builder, x: IrValue) -> IrValue:
    """Return the inverse hyperbolic cosine; NaN below 1."""
    # With t = x - 1, which is exact near 1, log1p(t + sqrt(t^2 + 2t)) keeps its digits (fdlibm,
    # e_acosh.c).
    near = b.sub(b.minimum(_LARGE, x), 1.0)
    root = b.unary("sqrt", b.fma(near, near, b.mul(near, 2.0)))
    small = log1p(b, b.add(near, root))
    large = b.add(log(b, x), _LN2)
    result = b.select(b.compare("gt", x, _LARGE), large, small)
    return b.select(b.compare("lt", x, 1.0), b.constant(NAN, x.type), result)


def atanh(b: Builder, x: IrValue) -> IrValue:
    """Return the inverse hyperbolic tangent; NaN beyond 1."""
    size = b.unary("abs", x)
    ratio = b.div(b.mul(size, 2.0), b.sub(1.0, size))
    result = b.mul(log1p(b, ratio), 0.5)
    result = b.select(b.compare("gt", size, 1.0), b.constant(NAN, x.type), result)
    return with_sign_of(b, result, x)


_PI = 3.141592653589793
_TWO_BY_PI = 0.6366197723675814
# fdlibm's (e_rem_pio2.c).
_HALF_PI = (
    1.57079632673412561417e00,
    6.07710050630396597660e-11,
    2.02226624871116645580e-21,
    8.47842766036889956997e-32,
)
"""Half of pi in parts of 33 bits, so that small multiples of each are exact."""
_COUNTABLE = 2.0**50
"""Up to here the turns of an angle are a whole number that float64 holds."""
_TAN_PI_BY_8 = 0.41421356237309503


def sin(b: Builder, x: IrValue) -> IrValue:
    """Return the sine; exact to its last places up to 2**50.

    Beyond, where the turns cannot be counted, it is NaN rather than a wrong number.
    """
    quadrant, sine, cosine = _sin_cos(b, x)
    return _signed(b, b.select(_is_odd(b, quadrant), cosine, sine), quadrant)


def cos(b: Builder, x: IrValue) -> IrValue:
    """Return the cosine; as exact as `sin`."""
    quadrant, sine, cosine = _sin_cos(b, x)
    result = b.select(_is_odd(b, quadrant), sine, cosine)
    return _signed(b, result, b.add(quadrant, 1))


def tan(b: Builder, x: IrValue) -> IrValue:
    """Return the tangent; as exact as `sin`."""
    quadrant, sine, cosine = _sin_cos(b, x)
    is_odd = _is_odd(b, quadrant)
    top = b.select(is_odd, b.unary("neg", cosine), sine)
    return b.div(top, b.select(is_odd, sine, cosine))


def atan(b: Builder, x: IrValue) -> IrValue:
    """Return the inverse tangent."""
    size = b.unary("abs", x)
    is_steep = b.compare("gt", size, 1.0)
    # atan(x) = pi/2 - atan(1/x), then atan(x) = pi/4 + atan((x - 1)/(x + 1)): what is left is at
    # most tan(pi/8).
    slope = b.select(is_steep, b.div(1.0, size), size)
    is_wide = b.compare("gt", slope, _TAN_PI_BY_8)
    reduced = b.div(b.sub(slope, 1.0), b.add(slope, 1.0))
    angle = _odd(b, b.select(is_wide, reduced, slope), constants.ATAN[x.type.dtype])
    angle = b.select(is_wide, b.add(angle, _PI / 4), angle)
    angle = b.select(is_steep, b.sub(_PI / 2, angle), angle)
    return with_sign_of(b, angle, x)


def asin(b: Builder, x: IrValue) -> IrValue:
    """Return the inverse sine; NaN beyond 1."""
    size = b.unary("abs", x)
    # asin(x) = pi/2 - 2 asin(sqrt((1 - x)/2)) beyond a half, where the series converges slowly.
    is_wide = b.compare("gt", size, 0.5)
    angle = _odd(b, b.select(is_wide, _half_chord(b, size), size), constants.ASIN[x.type.dtype])
    angle = b.select(is_wide, b.fma(angle, -2.0, _PI / 2), angle)
    return with_sign_of(b, angle, x)


def acos(b: Builder, x: IrValue) -> IrValue:
    """Return the inverse cosine; NaN beyond 1."""
    size = b.unary("abs", x)
    # As in `asin`: near 1 the difference from pi/2 would cancel.
    is_wide = b.compare("gt", size, 0.5)
    angle = _odd(b, b.select(is_wide, _half_chord(b, size), x), constants.ASIN[x.type.dtype])
    double = b.mul(angle, 2.0)
    outer = b.select(b.compare("lt", x, 0.0), b.sub(_PI, double), double)
    return b.select(is_wide, outer, b.sub(_PI / 2, angle))


def _half_chord(b: Builder, size: IrValue) -> IrValue:
    return b.unary("sqrt", b.mul(b.sub(1.0, size), 0.5))


def _odd(b: Builder, x: IrValue, factors: tuple[float, ...]) -> IrValue:
    z = b.mul(x, x)
    return b.fma(b.mul(x, z), polynomial(b, z, factors), x)


def _sin_cos(b: Builder, x: IrValue) -> tuple[IrValue, IrValue, IrValue]:
    """Return the quadrant (an integer), and sine and cosine of the angle inside it."""
    dtype = x.type.dtype
    x = b.select(b.compare("le", b.unary("abs", x), _COUNTABLE), x, NAN)
    wide = b.cast(x, "float64")  # enough digits for every float32 up to there
    form = FORMATS["float64"]
    shifted = b.fma(wide, _TWO_BY_PI, form.magic)
    turns = b.sub(shifted, form.magic)
    # fma rounds a product and a difference once; the first step, in which most cancels, is exact.
    for part in _HALF_PI:
        wide = b.fma(turns, -part, wide)
    quadrant = b.cast(b.bitcast(shifted, form.bits), FORMATS[dtype].bits)
    r = b.cast(wide, dtype)
    z = b.mul(r, r)
    cosine = b.fma(z, b.fma(z, polynomial(b, z, constants.COS[dtype]), -0.5), 1.0)
    return quadrant, _odd(b, r, constants.SIN[dtype]), cosine


def _is_odd(b: Builder, quadrant: IrValue) -> IrValue:
    return b.compare("ne", b.binary("and", quadrant, 1), 0)


def _signed(b: Builder, magnitude: IrValue, quadrant: IrValue) -> IrValue:
    """Return the negative in the third and the fourth quadrant."""
    bits = format_of(magnitude).bits
    # Bit 1 of the quadrant is the sign.
    top = b.binary("shl", b.binary("and", quadrant, 2), int(bits[3:]) - 2)
    return b.bitcast(b.binary("xor", b.bitcast(magnitude, bits), top), magnitude.type.dtype)


# Logarithms


def log(b: Builder, x: IrValue) -> IrValue:
    """Return the natural logarithm; NaN below 0."""
    form = format_of(x)
    exponent, f = split_exponent(b, x)
    # fdlibm's way (e_log.c): log(1 + f) = f - (f^2/2 - s (f^2/2 + R)) with s = f / (2 + f), in
    # which f, the largest term, is exact.
    s = b.div(f, b.add(f, 2.0))
    z = b.mul(s, s)
    square = b.mul(b.mul(f, f), 0.5)
    rest = b.fma(z, polynomial(b, z, constants.LOG[x.type.dtype]), square)
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


# Powers

_OVERFLOW = 800.0
"""Beyond it the exponential function of a float64 is 0 or infinite."""


def pow(b: Builder, base: IrValue, exponent: IrValue) -> IrValue:  # noqa: A001 - the operator's name
    """Return a power, with the special cases of C and numpy."""
    if base.type.dtype == "float32":  # the logarithm needs more digits than the result
        wide = b.cast(base, "float64"), b.cast(exponent, "float64")
        size = exp(b, b.mul(wide[1], log(b, b.unary("abs", wide[0]))))
        size = b.cast(size, "float32")
    else:
        size = _power64(b, b.unary("abs", base), exponent)
    return _with_special_cases(b, base, exponent, size)


def integer_power(b: Builder, base: IrValue, exponent: IrValue) -> IrValue:
    """Return a power of integers that wraps around; 0 for negative exponents beyond base 1."""
    result = b.constant(1, base.type)
    factor, rest = base, exponent
    # As many turns as an exponent has bits: lanes end at different ones.
    for _ in range(int(base.type.dtype.lstrip("uint"))):
        is_odd = b.compare("ne", b.binary("and", rest, 1), 0)
        result = b.select(is_odd, b.mul(result, factor), result)
        factor, rest = b.mul(factor, factor), b.binary("shr", rest, 1)
    if not base.type.is_signed:
        return result
    is_unit = b.compare("le", b.unary("abs", base), 1)
    is_positive = b.compare("ge", exponent, 0)
    return b.select(b.binary("or", is_unit, is_positive), result, 0)


def _power64(b: Builder, x: IrValue, y: IrValue) -> IrValue:
    """Return a power of what is not negative, by a logarithm of twice the digits."""
    form = format_of(x)
    e, f = split_exponent(b, x)
    # The quotient f / (2 + f) and its error, by what 2 + f lost and by an exact remainder.
    total = b.add(f, 2.0)
    lost = b.sub(f, b.sub(total, 2.0))
    s = b.div(f, total)
    s_low = b.div(b.fma(b.unary("neg", s), lost, b.fma(b.unary("neg", s), total, f)), total)
    z = b.mul(s, s)
    tail = b.fma(b.mul(s, z), polynomial(b, z, constants.LOG["float64"]), b.mul(s_low, 2.0))
    first, second = b.mul(e, form.ln2_high), b.mul(s, 2.0)
    high = b.add(first, second)
    # The error of a sum is a float itself: Knuth's six operations ("The Art of Computer
    # Programming", volume 2, section 4.2.2, theorem B).
    other = b.sub(high, first)
    error = b.add(b.sub(first, b.sub(high, other)), b.sub(second, other))
    low = b.add(error, b.fma(e, form.ln2_low, tail))
    whole = log_borders(b, x, b.add(high, low))
    low = b.sub(low, b.sub(whole, high))
    # exp(a + b) is exp(a) + exp(a) b for the error b of the product, which fma finds.
    product = b.mul(y, whole)
    rest = b.fma(y, low, b.fma(y, whole, b.unary("neg", product)))
    inside = b.compare("lt", b.unary("abs", product), _OVERFLOW)
    size = exp(b, product)
    correction = b.select(inside, b.mul(size, rest), 0.0)
    return b.select(b.compare("lt", size, INFINITY), b.add(size, correction), size)


def _with_special_cases(b: Builder, x: IrValue, y: IrValue, size: IrValue) -> IrValue:
    one = b.constant(1.0, x.type)
    half = b.mul(y, 0.5)
    is_whole = b.compare("eq", b.unary("trunc", y), y)
    is_even = b.compare("eq", b.unary("trunc", half), half)
    is_negative = b.compare("lt", b.binary("copysign", one, x), 0.0)
    is_odd = b.binary("and", is_whole, b.unary("not", is_even))
    flips = b.binary("and", is_negative, is_odd)
    result = b.select(flips, b.unary("neg", size), size)
    finite_below = b.binary("and", b.compare("lt", x, 0.0), b.compare("gt", x, -INFINITY))
    has_none = b.binary("and", finite_below, b.unary("not", is_whole))
    result = b.select(b.binary("and", has_none, b.compare("eq", y, y)), NAN, result)
    endless = b.compare("eq", b.unary("abs", y), INFINITY)
    is_unit = b.compare("eq", b.unary("abs", x), 1.0)
    is_one = b.binary("or", b.compare("eq", y, 0.0), b.compare("eq", x, 1.0))
    is_one = b.binary("or", is_one, b.binary("and", is_unit, endless))
    return b.select(is_one, one, result)
