# SPDX-License-Identifier: Apache-2.0
"""Quotients by a known float32 as a product and a multiply-add that give the same bits.

A reciprocal is kept in two parts, `head` and `rest`, each a float32, and `x / divisor` is
`fma(x, head, x * rest)`. The error before the last rounding is some 2**-48 of the quotient. So the
result can be wrong only where the quotient is next to the middle of two floats, of which there are
few candidates for a divisor: those are tried, and a divisor for which one fails stays a divisor.

Source:
    Brisebarre, Muller, Raina, "Accelerating correctly rounded floating-point division when the
    divisor is known in advance", IEEE Transactions on Computers 53(8), 2004.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import frexp

import numpy as np

from intarsia.arrays import Array

_DIGITS = 24
"""Bits of the significand of a float32."""
_LEAST, _LARGEST = 2.0**-40, 2.0**40
"""Divisors between which no part of a reciprocal, nor its product with a number that matters, is
too small or large for all of its bits."""


@dataclass(frozen=True, slots=True)
class Reciprocals:
    """What a number is multiplied by instead of being divided; arrays as the divisors are.

    Attributes:
        head: The nearest float32 to each reciprocal.
        rest: The nearest to what is missing.
    """

    head: Array
    rest: Array


def reciprocals(divisors: Array) -> Reciprocals | None:
    """Return the reciprocals of float32 divisors, or None if one of them needs a division."""
    pairs = [_parts(float(divisor)) for divisor in divisors.reshape(-1)]
    known = [pair for pair in pairs if pair is not None]
    if len(known) < len(pairs):
        return None
    head, rest = (
        np.array([pair[number] for pair in known], np.float32).reshape(divisors.shape)
        for number in range(2)
    )
    return Reciprocals(head, rest)


@lru_cache(maxsize=1 << 16)
def _parts(divisor: float) -> tuple[float, float] | None:
    """Return both parts of a reciprocal if every quotient is the correctly rounded one."""
    if not _LEAST < divisor < _LARGEST:
        return None
    significand, exponent = frexp(divisor)
    whole = int(significand * (1 << _DIGITS))
    exact = Fraction(1, whole)
    head = _rounded(exact)
    rest = _rounded(exact - head)
    if not all(_is_right(whole, head, rest, wide) for wide in (_DIGITS, _DIGITS + 1)):
        return None
    moved = Fraction(2) ** (_DIGITS - exponent)
    return float(head * moved), float(rest * moved)


def _is_right(divisor: int, head: Fraction, rest: Fraction, wide: int) -> bool:
    """Tell whether all quotients of one binade are rounded correctly.

    A middle of two floats is an odd number over 2**wide: 24 where the dividend's significand is
    not below the divisor's, else 25. A quotient is within the error of one if
    `dividend * 2**wide - odd * divisor` is some small number, and it is solved for that.

    Args:
        divisor: Its significand, of 24 bits.
        head: Of its reciprocal.
        rest: Of its reciprocal.
        wide: See above.
    """
    first, end = 1 << (_DIGITS - 1), 1 << _DIGITS
    unit = Fraction(1, 1 << _DIGITS)
    error = end * (abs(Fraction(1, divisor) - head - rest) + abs(rest) * unit)
    most = int(error * divisor * (1 << wide))
    twos = (divisor & -divisor).bit_length() - 1
    modulus = 1 << (wide - twos)
    odd = divisor >> twos
    for distance in range(-most, most + 1):
        if not distance or distance % (1 << twos):  # a middle is odd: distances have as many twos
            continue
        middle = -(distance >> twos) * pow(odd, -1, modulus) % modulus
        while middle < 2 * end:
            dividend, left = divmod(middle * divisor + distance, 1 << wide)
            is_there = not left and middle % 2 == 1 and first <= dividend < end
            if is_there and (dividend < divisor) == (wide > _DIGITS):
                product = _rounded(dividend * rest)
                if _rounded(dividend * head + product) != _rounded(Fraction(dividend, divisor)):
                    return False
            middle += modulus
    return True


def _rounded(number: Fraction) -> Fraction:
    """Return the nearest number with 24 bits, the even one of two as near."""
    top, bottom = abs(number.numerator), number.denominator
    shift = bottom.bit_length() - top.bit_length() + _DIGITS
    if top << max(0, shift) >= bottom << (max(0, -shift) + _DIGITS):
        shift -= 1
    unit = bottom << max(0, -shift)
    whole, left = divmod(top << max(0, shift), unit)
    half = 2 * left - unit
    whole += half > 0 or (half == 0 and whole & 1)
    whole = whole if number > 0 else -whole
    return Fraction(whole, 1 << shift) if shift > 0 else Fraction(whole << -shift)
