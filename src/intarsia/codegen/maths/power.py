# SPDX-License-Identifier: Apache-2.0
"""Powers."""

from __future__ import annotations

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.maths.coefficients import LOG
from intarsia.codegen.maths.elementary import exp
from intarsia.codegen.maths.formats import INFINITY, NAN, format_of, polynomial
from intarsia.codegen.maths.logarithm import log, log_borders, split_exponent

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
    tail = b.fma(b.mul(s, z), polynomial(b, z, LOG["float64"]), b.mul(s_low, 2.0))
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
