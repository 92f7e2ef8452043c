# SPDX-License-Identifier: Apache-2.0
"""The few functions of numbers that kernels in C call, for where there is no C library too.

All else is operations of the IR (`codegen.maths`). A hosted program takes square roots, rounding
and remainders from <math.h>; a freestanding one (`-ffreestanding`) has its own, with the same bits.
Helpers are written for those dtypes whose kernels call them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Format:
    """What the text of a helper says of a dtype."""

    suffix: str
    real: str
    bits: str
    whole: str
    width: int
    fraction: int
    bias: int
    ending: str

    def fill(self, text: str) -> str:
        """Return a text for this dtype."""
        words = {
            "SUFFIX": self.suffix,
            "REAL": self.real,
            "BITS": self.bits,
            "WHOLE": self.whole,
            "SIGN": f"(({self.bits})1 << {self.width - 1})",
            "ONES": str((1 << (self.width - 1 - self.fraction)) - 1),
            "DIGITS": str(self.fraction + 1),
            "FRACTION": str(self.fraction),
            "BIAS": str(self.bias),
            "LARGE": f"{float(1 << self.fraction)}{self.ending}",
            "HALF": f"0.5{self.ending}",
            "ZERO": f"0.0{self.ending}",
            "ONE": f"1.0{self.ending}",
            "LIBM": self.ending,
            "FAST": f"__FP_FAST_FMA{self.ending.upper()}",
        }
        for word, filled in words.items():
            text = text.replace(f"${word}", filled)
        return text


_FORMATS = {
    "float32": _Format("f32", "float", "uint32_t", "int32_t", 32, 23, 127, "f"),
    "float64": _Format("f64", "double", "uint64_t", "int64_t", 64, 52, 1023, ""),
}

_NEEDS: dict[str, tuple[str, ...]] = {
    "abs": ("bits",),
    "copysign": ("bits",),
    "trunc": ("bits", "abs", "copysign"),
    "floor": ("trunc",),
    "ceil": ("trunc",),
    "rint": ("bits", "abs", "copysign"),
    "sqrt": ("bits",),
    "rem": ("bits",),
}
"""What a helper calls."""

_OF_LIBRARY = {"trunc": "trunc", "floor": "floor", "ceil": "ceil", "rint": "rint"}
_OF_LIBRARY |= {"sqrt": "sqrt", "rem": "fmod"}
"""Helpers that <math.h> has too, by the name that they have there."""

_TEXTS = {
    "bits": """\
/* Bits as a number, and a number as its bits: C99 reads another member of a union so. */
HELPER $BITS bits_$SUFFIX($REAL number)
{
    union { $REAL number; $BITS bits; } both;
    both.number = number;
    return both.bits;
}

HELPER $REAL from_bits_$SUFFIX($BITS bits)
{
    union { $BITS bits; $REAL number; } both;
    both.bits = bits;
    return both.number;
}
""",
    "abs": """\
HELPER $REAL abs_$SUFFIX($REAL x)
{
    return from_bits_$SUFFIX(bits_$SUFFIX(x) & ~$SIGN);
}
""",
    "copysign": """\
HELPER $REAL copysign_$SUFFIX($REAL x, $REAL sign)
{
    return from_bits_$SUFFIX((bits_$SUFFIX(x) & ~$SIGN) | (bits_$SUFFIX(sign) & $SIGN));
}
""",
    "trunc": """\
HELPER $REAL trunc_$SUFFIX($REAL x)
{
    /* Larger numbers are whole; so that no cast overflows, they become 0 first. */
    const bool is_small = abs_$SUFFIX(x) < $LARGE;
    const $REAL whole = ($REAL)($WHOLE)(is_small ? x : $ZERO);
    return is_small ? copysign_$SUFFIX(whole, x) : x;
}
""",
    "floor": """\
HELPER $REAL floor_$SUFFIX($REAL x)
{
    const $REAL whole = trunc_$SUFFIX(x);
    return whole > x ? whole - $ONE : whole;
}
""",
    "ceil": """\
HELPER $REAL ceil_$SUFFIX($REAL x)
{
    const $REAL whole = trunc_$SUFFIX(x);
    return whole < x ? copysign_$SUFFIX(whole + $ONE, x) : whole;
}
""",
    "rint": """\
/* The nearest whole number, the even one of two: what a sum rounds to that has no place for a half,
   if sums are not held in more bits. */
HELPER $REAL rint_$SUFFIX($REAL x)
{
    const $REAL size = abs_$SUFFIX(x);
#if FLT_EVAL_METHOD == 0
    return size < $LARGE ? copysign_$SUFFIX((size + $LARGE) - $LARGE, x) : x;
#else
    const $REAL whole = size < $LARGE ? ($REAL)($WHOLE)size : size, rest = size - whole;
    const bool is_up = rest > $HALF || (rest == $HALF && (($WHOLE)whole & 1) != 0);
    return copysign_$SUFFIX(is_up ? whole + $ONE : whole, x);
#endif
}
""",
    "sqrt": """\
/* The square root, rounded once: an instruction where we know it, else digit by digit. */
HELPER $REAL sqrt_$SUFFIX($REAL x)
{
#if defined(__GNUC__) && defined(__arm__) && defined(__ARM_FP) && $WIDTH_TEST
    $REAL root;
    __asm__("vsqrt.$SUFFIX %$MODIFIER0, %$MODIFIER1" : "=$CONSTRAINT"(root) : "$CONSTRAINT"(x));
    return root;
#else
    $BITS bits = bits_$SUFFIX(x);
    int exponent = (int)(bits >> $FRACTION) - $BIAS, digit;
    uint64_t number, rest = 0, root = 0;
    if (!(x > $ZERO) || bits >> $FRACTION == $ONES)
        return x < $ZERO ? from_bits_$SUFFIX(($BITS)0x$QUIET << ($FRACTION - 1)) : x;
    bits &= (($BITS)1 << $FRACTION) - 1;
    if (exponent == -$BIAS) /* subnormal */
        for (++exponent; !(bits >> $FRACTION); --exponent)
            bits <<= 1;
    bits |= ($BITS)1 << $FRACTION;
    /* As a fraction of 64 bits, from a quarter to one, times an even power of two. */
    number = (uint64_t)bits << (exponent % 2 ? 63 - $FRACTION : 62 - $FRACTION);
    exponent += exponent % 2 ? 1 : 2;
    for (digit = 0; digit < $DIGITS; ++digit) {
        const uint64_t trial = root << 2 | 1;
        rest = rest << 2 | number >> 62;
        number <<= 2;
        root <<= 1;
        if (rest >= trial) {
            rest -= trial;
            root |= 1;
        }
    }
    root += rest > root;
    root += (uint64_t)(exponent / 2 - 2 + $BIAS) << $FRACTION;
    return from_bits_$SUFFIX(($BITS)root);
#endif
}
""",
    "rem": """\
/* What is left of x after the whole multiples of y; exact. */
HELPER $REAL rem_$SUFFIX($REAL x, $REAL y)
{
    const $BITS sign = bits_$SUFFIX(x) & $SIGN;
    $BITS a = bits_$SUFFIX(x) ^ sign, b = bits_$SUFFIX(y) & ~$SIGN;
    int first = (int)(a >> $FRACTION), last = (int)(b >> $FRACTION);
    if (b == 0 || first == $ONES || b > (($BITS)$ONES << $FRACTION))
        return (x * y) / (x * y); /* NaN */
    if (a < b)
        return x;
    if (first)
        a = (a & ((($BITS)1 << $FRACTION) - 1)) | ($BITS)1 << $FRACTION;
    else
        for (first = 1; !(a >> $FRACTION); --first)
            a <<= 1;
    if (last)
        b = (b & ((($BITS)1 << $FRACTION) - 1)) | ($BITS)1 << $FRACTION;
    else
        for (last = 1; !(b >> $FRACTION); --last)
            b <<= 1;
    for (; first > last; --first) {
        a = a >= b ? a - b : a;
        a <<= 1;
    }
    a = a >= b ? a - b : a;
    if (a == 0)
        return from_bits_$SUFFIX(sign);
    for (; !(a >> $FRACTION); --first)
        a <<= 1;
    a = first > 0 ? a + (($BITS)(first - 1) << $FRACTION) : a >> (1 - first);
    return from_bits_$SUFFIX(sign | a);
}
""",
}

_FUSED = """\
/* A product and sum, rounded once where that is fast or EXACT_FMA is defined, else twice. */
#if defined(__GNUC__) && (defined($FAST) || defined(EXACT_FMA))
#define fma_$SUFFIX(a, b, c) __builtin_fma$LIBM(a, b, c)
#elif defined(EXACT_FMA)
#include <math.h>
#define fma_$SUFFIX(a, b, c) fma$LIBM(a, b, c)
#else
#define fma_$SUFFIX(a, b, c) ((a) * (b) + (c))
#endif
"""

_SPECIAL = """\
#if defined(__GNUC__)
#define INFINITE __builtin_inff()
#define NOT_A_NUMBER __builtin_nanf("")
#elif __STDC_HOSTED__
#include <math.h>
#define INFINITE INFINITY
#define NOT_A_NUMBER NAN
#else
#define INFINITE (1.0f / 0.0f)
#define NOT_A_NUMBER (0.0f / 0.0f)
#endif
"""

_HALVES = """\
/* The number of a float16 (IEEE 754 binary16) by its bits. */
HELPER float half_to_float(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, fraction = bits & 1023;
    const uint32_t exponent = (bits >> 10) & 31;
    if (exponent == 31)
        return from_bits_f32(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) /* in units of 2^-24 */
        return from_bits_f32(sign | bits_f32((float)fraction * 5.9604644775390625e-08f));
    return from_bits_f32(sign | (exponent + 112) << 23 | fraction << 13);
}

/* The bits of the float16 that is next to a number, the even one of two. */
HELPER uint16_t float_to_half(double number)
{
    const uint64_t bits = bits_f64(number), size = bits & ~((uint64_t)1 << 63);
    const uint16_t sign = (uint16_t)(bits >> 48 & 0x8000);
    const int exponent = (int)(size >> 52) - 1023;
    /* Bits that go: more of a subnormal number. */
    const int shift = exponent < -14 ? 28 - exponent : 42;
    const uint64_t digits = (size & (((uint64_t)1 << 52) - 1)) | (uint64_t)1 << 52;
    uint64_t kept, rest, half;
    if (size > (uint64_t)0x7ff << 52)
        return 0x7e00;
    if (exponent > 15)
        return (uint16_t)(sign | 0x7c00);
    if (shift > 53)
        return sign;
    kept = digits >> shift;
    rest = digits & (((uint64_t)1 << shift) - 1);
    half = (uint64_t)1 << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1));
    /* A carry out of the fraction goes into the exponent, as it should. */
    return (uint16_t)(sign | (exponent < -14 ? kept : kept + ((uint64_t)(exponent + 14) << 10)));
}

/* The float16 that is next to a number. */
HELPER float round_half(double number)
{
    return half_to_float(float_to_half(number));
}
"""


def helpers(calls: Collection[tuple[str, str]], *, has_halves: bool) -> str:
    """Return the text before kernels that call some functions.

    Args:
        calls: Names (of `ir.UNARY` and `ir.BINARY`; `fma`; `special` for infinities and NaN) with
            dtypes.
        has_halves: Whether they read or write float16.
    """
    wanted = set(calls) | ({("bits", "float32"), ("bits", "float64")} if has_halves else set())
    ours, listed = set[tuple[str, str]](), list(wanted)
    for name, dtype in listed:
        ours.add((name, dtype))
        listed += [(needed, dtype) for needed in _NEEDS.get(name, ())]
    parts = [_SPECIAL] if any(name == "special" for name, _ in wanted) else []
    always, inside, hosted = list[str](), list[str](), list[str]()
    for dtype, form in _FORMATS.items():
        if ("fma", dtype) in ours:
            parts.append(form.fill(_FUSED))
        by_library = {name for name in _OF_LIBRARY if (name, dtype) in wanted}
        only_ours = _closure({name for name, other in wanted if other == dtype} - by_library)
        for name, text in _TEXTS.items():
            if (name, dtype) not in ours:
                continue
            (always if name in only_ours else inside).append(form.fill(_with_root(text, dtype)))
        hosted += [
            f"#define {name}_{form.suffix} {_OF_LIBRARY[name]}{form.ending}\n"
            for name in sorted(by_library)
        ]
    parts += always
    if any(name == "rint" for name, _ in ours):
        parts.insert(0, "#include <float.h>\n")
    if hosted:
        parts.append(
            "#if __STDC_HOSTED__\n#include <math.h>\n"
            + "".join(hosted)
            + "#else /* the same without a library */\n"
            + "\n".join(inside)
            + "#endif\n"
        )
    if has_halves:
        parts.append(_HALVES)
    return "\n".join(parts)


def _closure(names: set[str]) -> set[str]:
    """Return helpers with all that they call."""
    listed = list(names)
    for name in listed:
        listed += _NEEDS.get(name, ())
    return set(listed)


def _with_root(text: str, dtype: str) -> str:
    """Fill in how Arm's instruction for square roots is written, and the bits of a NaN."""
    single = dtype == "float32"
    words = {
        "$WIDTH_TEST": "(__ARM_FP & 4)" if single else "(__ARM_FP & 8)",
        "$MODIFIER": "" if single else "P",
        "$CONSTRAINT": "t" if single else "w",
        "$QUIET": "1ff" if single else "fff",
    }
    for word, filled in words.items():
        text = text.replace(word, filled)
    return text
