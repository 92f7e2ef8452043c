# SPDX-License-Identifier: Apache-2.0
"""What the functions must know of a floating-point format, and what they all use."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.codegen.ir import IrValue


@dataclass(frozen=True, slots=True)
class Format:
    """A format of IEEE 754, and constants in it.

    Attributes:
        bits: The integer type of the same width.
        fraction: Bits after the point.
        bias: Of the exponent.
        magic: Added to a small number, it leaves the nearest integer in the lowest bits.
        magic_bits: The bits of `magic`.
        smallest: The smallest normal number.
        sqrt_half_bits: The bits of the square root of one half.
        ln2_high: log(2) with trailing zeros, so that small multiples are exact.
        ln2_low: The rest of it.
        exp_low: exp is 0 below.
        exp_high: exp is infinite above.
        exp_flush: The reduced exponent of this one is that of zero.
        expm1_low: expm1 is -1 below.
    """

    bits: str
    fraction: int
    bias: int
    magic: float
    magic_bits: int
    smallest: float
    sqrt_half_bits: int
    ln2_high: float
    ln2_low: float
    exp_low: float
    exp_high: float
    exp_flush: float
    expm1_low: float


FORMATS = {
    "float32": Format(
        bits="int32",
        fraction=23,
        bias=127,
        # One unit in the last place is 1 from 2^23 to 2^24; with 1.5 negative numbers stay there
        # too.
        magic=1.5 * 2.0**23,
        magic_bits=0x4B400000,
        smallest=2.0**-126,
        sqrt_half_bits=0x3F3504F3,
        # Cephes' split (expf.c): 9 bits, so that products with up to 15 bits are exact.
        ln2_high=0.693359375,
        ln2_low=-2.1219444005469058e-4,
        # exp is below half of the smallest subnormal number there, 2^-150, and infinite from 88.73
        # on.
        exp_low=-104.0,
        exp_high=89.0,
        # -88.02 / log(2) rounds to -127, whose biased exponent is 0: the bits of 0.0.
        exp_flush=-88.02,
        # exp is below 2^-25 there, half the distance from 1 to the float below it.
        expm1_low=-18.0,
    ),
    "float64": Format(
        bits="int64",
        fraction=52,
        bias=1023,
        magic=1.5 * 2.0**52,
        magic_bits=0x4338000000000000,
        smallest=2.0**-1022,
        sqrt_half_bits=0x3FE6A09E667F3BCD,
        # fdlibm's split (e_exp.c): 32 bits, so that products with up to 21 bits are exact.
        ln2_high=6.93147180369123816490e-01,
        ln2_low=1.90821492927058770002e-10,
        exp_low=-746.0,
        exp_high=710.0,
        exp_flush=-709.0,
        expm1_low=-38.0,
    ),
}

INFINITY = float("inf")
NAN = float("nan")


def format_of(x: IrValue) -> Format:
    """Return the format of a value's elements."""
    return FORMATS[x.type.dtype]
