# SPDX-License-Identifier: Apache-2.0
"""Numbers that functions are made of: of floating-point formats, and coefficients of polynomials.

Coefficients stand lowest degree first. Unless it says otherwise, a polynomial interpolates its
function at Chebyshev nodes of the interval that the argument is reduced to, computed with 40
digits; float32 rounds them once more. The names tell the functions, `r` is the reduced argument and
`z` its square.
"""

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


# Largest relative errors of what the polynomials stand for, with coefficients as rounded and exact
# arithmetic, in half units in the last place (2^-24 and 2^-53, for float32 and float64): exp 0.18
# and 0.14, expm1 0.43 and 0.37, log 0.05, sin 0.22 and 0.18, cos 0.02, atan 0.07, asin 0.29 and
# 0.51. So nearly all of a function's error is rounding.
EXPM1 = {
    "float32": (
        0.5,
        0.16666576989698775,
        0.041666554617204574,
        0.008363179052722578,
        0.0013926183587713494,
    ),
    "float64": (
        0.5000000000000001,
        0.16666666666666669,
        0.04166666666662413,
        0.008333333333330062,
        0.0013888888917213717,
        0.00019841269863053618,
        2.4801521295954376e-05,
        2.7557268459997064e-06,
        2.7620088445409746e-07,
        2.510038549551032e-08,
    ),
}
"""exp(r) = 1 + r + r*r*p(r), |r| <= log(2)/2."""

EXP2M1 = {
    "float32": (
        0.6931470036506653,
        0.24022242426872253,
        0.05550733581185341,
        0.009671512991189957,
        0.001326472731307149,
    ),
}
"""2**r = 1 + r*p(r), |r| <= 1/2: the polynomial of its degree whose largest error is least, 1.82
half units in the last place; interpolation would have 3.4. With one coefficient more it would be
0.27, and attention on Zen 3 would take 2 per cent longer."""

LOG = {
    "float32": (0.6666668504430419, 0.3998877865642135, 0.2958003582609418),
    "float64": (
        0.666666666666667,
        0.39999999999899455,
        0.285714286259988,
        0.22222211131000275,
        0.18182889401277927,
        0.15331712435870123,
        0.14616562877100406,
    ),
}
"""log((1+r)/(1-r)) = 2*r + r*z*p(z), |r| <= 3 - 2*sqrt(2)."""

SIN = {
    "float32": (-0.16666664661114353, 0.00833274803748557, -0.000195878405172121),
    "float64": (
        -0.16666666666666666,
        0.008333333333330946,
        -0.00019841269836754969,
        2.755731610068279e-06,
        -2.5051131455389307e-08,
        1.5918101227996822e-10,
    ),
}
"""sin(r) = r + r*z*p(z), |r| <= pi/4."""

COS = {
    "float32": (0.041666664658299934, -0.0013888302802277533, 2.4547891615713933e-05),
    "float64": (
        0.041666666666666664,
        -0.0013888888888887395,
        2.4801587298763433e-05,
        -2.7557317270560173e-07,
        2.0876146024665577e-09,
        -1.1382614867131847e-11,
    ),
}
"""cos(r) = 1 - z/2 + z*z*p(z), |r| <= pi/4."""

ATAN = {
    "float32": (
        -0.3333333175969616,
        0.1999954014589179,
        -0.14263943901165255,
        0.10743605098264404,
        -0.06451509387958135,
    ),
    "float64": (
        -0.3333333333333333,
        0.19999999999995513,
        -0.14285714284664816,
        0.11111111015117496,
        -0.09090904572483227,
        0.07692183059815788,
        -0.06664509602321737,
        0.05858132887398298,
        -0.05085365889885127,
        0.03922923629933371,
        -0.019173921355890956,
    ),
}
"""atan(r) = r + r*z*p(z), |r| <= tan(pi/8)."""

ASIN = {
    "float32": (
        0.166666724277139,
        0.07498852961693123,
        0.04500189417116215,
        0.02655066251814542,
        0.03809396294482832,
    ),
    "float64": (
        0.1666666666666665,
        0.07500000000020869,
        0.04464285710323949,
        0.030381947379562776,
        0.022372047201711886,
        0.017355268565541423,
        0.013929545933802807,
        0.011876344411109286,
        0.007798625892483812,
        0.016049126035106293,
        -0.0107731976520474,
        0.0281876687646186,
    ),
}
"""asin(r) = r + r*z*p(z), |r| <= 1/2."""

# 0.22 half units in the last place.
ERF_SMALL = (
    0.1283791670955126,
    -0.3761263890318375,
    0.11283791670954878,
    -0.02686617064507674,
    0.0052239776248174784,
    -0.000854832698080144,
    0.00012055331110409249,
    -1.4925595235965335e-05,
    1.646099997026733e-06,
    -1.635030706446811e-07,
    1.4659736150860157e-08,
    -1.1372693173635986e-09,
    5.956905605689823e-11,
)
"""float64: erf(r) = r + r*p(z), |r| <= 1."""

# 32 half units in the last place, of a tail that is at most erfc(1) = 0.16 beside 1.
ERFCX = (
    0.25539567631050575,
    -0.4271858474139585,
    0.24165819424246585,
    -0.07897858101570611,
    0.0037328924043978336,
    0.006997461736971578,
    -0.00084714325299195,
    -0.0009819769411038642,
    4.355558686575482e-05,
    0.00017435947400205157,
    2.7527175557227246e-05,
    -2.7562209161129353e-05,
    -1.3998283772784976e-05,
    1.3058577122278017e-06,
    4.011749647325067e-06,
    1.272567661840228e-06,
    -1.1352571477273627e-06,
)
"""float64: exp(r*r) * erfc(r) = p((r - 2) / (r + 2)), 1 <= r <= 6."""

# 1.2 half units in the last place of float32.
ERF_NUMERATOR = (
    1.1283791065216064,
    0.1915401965379715,
    0.0528738871216774,
    0.0038076667115092278,
    0.00028466677758842707,
    2.0258594304323196e-06,
)
ERF_DENOMINATOR = (
    1.0,
    0.5030807852745056,
    0.1145552471280098,
    0.015054106712341309,
    0.0011705872602760792,
    3.783019201364368e-05,
)
"""float32: erf(r) = r * numerator(z) / denominator(z), |r| <= 3.95; the least relative error."""
