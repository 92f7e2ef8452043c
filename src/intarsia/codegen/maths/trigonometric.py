# SPDX-License-Identifier: Apache-2.0
"""Trigonometric functions and their inverses."""

from __future__ import annotations

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.maths.coefficients import ASIN, ATAN, COS, SIN
from intarsia.codegen.maths.formats import FORMATS, NAN, format_of, polynomial, with_sign_of

_PI = 3.141592653589793
_TWO_BY_PI = 0.6366197723675814
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
    is_wide = b.compare("gt", size, 0.5)
    angle = _odd(b, b.select(is_wide, _half_chord(b, size), size), ASIN[x.type.dtype])
    angle = b.select(is_wide, b.fma(angle, -2.0, _PI / 2), angle)
    return with_sign_of(b, angle, x)


def acos(b: Builder, x: IrValue) -> IrValue:
    """Return the inverse cosine; NaN beyond 1."""
    size = b.unary("abs", x)
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
    top = b.binary("shl", b.binary("and", quadrant, 2), int(bits[3:]) - 2)
    return b.bitcast(b.binary("xor", b.bitcast(magnitude, bits), top), magnitude.type.dtype)
