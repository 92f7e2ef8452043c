# SPDX-License-Identifier: Apache-2.0
"""The exponential function and what is made of it; the error function; trigonometric ones."""

from __future__ import annotations

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.maths.coefficients import (
    ASIN,
    ATAN,
    COS,
    ERF_DENOMINATOR,
    ERF_NUMERATOR,
    ERF_SMALL,
    ERFCX,
    EXPM1,
    SIN,
)
from intarsia.codegen.maths.formats import (
    FORMATS,
    NAN,
    format_of,
    polynomial,
    power_of_two,
    with_sign_of,
)
from intarsia.codegen.maths.logarithm import log, log1p

_LOG2_E = 1.4426950408889634


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
    shifted = b.fma(x, _LOG2_E, form.magic)
    exponent = b.sub(b.bitcast(shifted, form.bits), form.magic_bits)
    turns = b.sub(shifted, form.magic)
    return exponent, b.fma(turns, -form.ln2_low, b.fma(turns, -form.ln2_high, x))


def _exp(b: Builder, rest: IrValue) -> IrValue:
    tail = polynomial(b, rest, EXPM1[rest.type.dtype])
    return b.fma(rest, b.fma(rest, tail, 1.0), 1.0)


def _expm1(b: Builder, x: IrValue) -> IrValue:
    exponent, rest = _split(b, b.maximum(format_of(x).expm1_low, x))
    fraction = b.fma(b.mul(rest, rest), polynomial(b, rest, EXPM1[x.type.dtype]), rest)
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
    top = b.mul(x, polynomial(b, z, ERF_NUMERATOR))
    ratio = b.div(top, polynomial(b, z, ERF_DENOMINATOR))
    # The quotient may round to more than 1.
    return b.maximum(-1.0, b.minimum(1.0, ratio))


def _erf64(b: Builder, x: IrValue) -> IrValue:
    # erfc(6) is 2.2e-17: beyond, erf rounds to 1.
    size = b.minimum(6.0, b.unary("abs", x))
    z = b.mul(size, size)
    small = b.fma(size, polynomial(b, z, ERF_SMALL), size)
    tail = polynomial(b, b.div(b.sub(size, 2.0), b.add(size, 2.0)), ERFCX)
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
    angle = _odd(b, b.select(is_wide, reduced, slope), ATAN[x.type.dtype])
    angle = b.select(is_wide, b.add(angle, _PI / 4), angle)
    angle = b.select(is_steep, b.sub(_PI / 2, angle), angle)
    return with_sign_of(b, angle, x)


def asin(b: Builder, x: IrValue) -> IrValue:
    """Return the inverse sine; NaN beyond 1."""
    size = b.unary("abs", x)
    # asin(x) = pi/2 - 2 asin(sqrt((1 - x)/2)) beyond a half, where the series converges slowly.
    is_wide = b.compare("gt", size, 0.5)
    angle = _odd(b, b.select(is_wide, _half_chord(b, size), size), ASIN[x.type.dtype])
    angle = b.select(is_wide, b.fma(angle, -2.0, _PI / 2), angle)
    return with_sign_of(b, angle, x)


def acos(b: Builder, x: IrValue) -> IrValue:
    """Return the inverse cosine; NaN beyond 1."""
    size = b.unary("abs", x)
    # As in `asin`: near 1 the difference from pi/2 would cancel.
    is_wide = b.compare("gt", size, 0.5)
    angle = _odd(b, b.select(is_wide, _half_chord(b, size), x), ASIN[x.type.dtype])
    double = b.mul(angle, 2.0)
    outer = b.select(b.compare("lt", x, 0.0), b.sub(_PI, double), double)
    return b.select(is_wide, outer, b.sub(_PI / 2, angle))


def _half_chord(b: Builder, size: IrValue) -> IrValue:
    return b.unary("sqrt", b.mul(b.sub(1.0, size), 0.5))


def _odd(b: Builder, x: IrValue, coefficients: tuple[float, ...]) -> IrValue:
    z = b.mul(x, x)
    return b.fma(b.mul(x, z), polynomial(b, z, coefficients), x)


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
    cosine = b.fma(z, b.fma(z, polynomial(b, z, COS[dtype]), -0.5), 1.0)
    return quadrant, _odd(b, r, SIN[dtype]), cosine


def _is_odd(b: Builder, quadrant: IrValue) -> IrValue:
    return b.compare("ne", b.binary("and", quadrant, 1), 0)


def _signed(b: Builder, magnitude: IrValue, quadrant: IrValue) -> IrValue:
    """Return the negative in the third and the fourth quadrant."""
    bits = format_of(magnitude).bits
    # Bit 1 of the quadrant is the sign.
    top = b.binary("shl", b.binary("and", quadrant, 2), int(bits[3:]) - 2)
    return b.bitcast(b.binary("xor", b.bitcast(magnitude, bits), top), magnitude.type.dtype)
