# SPDX-License-Identifier: Apache-2.0
"""Remainders of floats in LLVM's IR, so that no kernel needs a C library.

The bits are those of C's `fmod`, which is exact: integers are divided digit by digit, as in
`c_maths`. Denormals count also where a CPU has vectors that take them for zeros.
"""

from __future__ import annotations

FORMATS = {"float16": ("half", 16, 10), "float32": ("float", 32, 23), "float64": ("double", 64, 52)}
"""By type, LLVM's name, its bits and those of its fraction."""

_SCALAR = """\
define internal REAL @NAME(REAL %x, REAL %y) nounwind {
entry:
  %x.bits = bitcast REAL %x to WORD
  %y.bits = bitcast REAL %y to WORD
  %sign = and WORD %x.bits, SIGN
  %a.bits = and WORD %x.bits, MAGNITUDE
  %b.bits = and WORD %y.bits, MAGNITUDE
  %by.zero = icmp eq WORD %b.bits, 0
  %of.infinity = icmp uge WORD %a.bits, INFINITY
  %by.nan = icmp ugt WORD %b.bits, INFINITY
  %wrong.x = or i1 %by.zero, %of.infinity
  %wrong = or i1 %wrong.x, %by.nan
  br i1 %wrong, label %nan, label %numbers
nan:
  %product = fmul REAL %x, %y
  %none = fdiv REAL %product, %product
  ret REAL %none
numbers:
  %is.less = icmp ult WORD %a.bits, %b.bits
  br i1 %is.less, label %same, label %divide
same:
  ret REAL %x
divide:
NORMALISED
  br label %digit
digit:
  %a = phi WORD [ %a.whole, %divide ], [ %a.next, %shift ]
  %exponent = phi WORD [ %a.exponent, %divide ], [ %exponent.next, %shift ]
  %fits = icmp uge WORD %a, %b.whole
  %difference = sub WORD %a, %b.whole
  %rest = select i1 %fits, WORD %difference, WORD %a
  %is.more = icmp sgt WORD %exponent, %b.exponent
  br i1 %is.more, label %shift, label %divided
shift:
  %a.next = shl WORD %rest, 1
  %exponent.next = sub WORD %exponent, 1
  br label %digit
divided:
  %is.exact = icmp eq WORD %rest, 0
  br i1 %is.exact, label %zero, label %rounded
zero:
  %signed.zero = bitcast WORD %sign to REAL
  ret REAL %signed.zero
rounded:
  %rest.zeros = call WORD @llvm.ctlz.WORD(WORD %rest, i1 false)
  %rest.by = sub WORD %rest.zeros, SPARE
  %rest.whole = shl WORD %rest, %rest.by
  %rest.exponent = sub WORD %exponent, %rest.by
  %is.normal = icmp sgt WORD %rest.exponent, 0
  %biased = sub WORD %rest.exponent, 1
  %high = shl WORD %biased, FRACTION
  %normal = add WORD %rest.whole, %high
  %down = sub WORD 1, %rest.exponent
  %denormal = lshr WORD %rest.whole, %down
  %magnitude = select i1 %is.normal, WORD %normal, WORD %denormal
  %result.bits = or WORD %magnitude, %sign
  %result = bitcast WORD %result.bits to REAL
  ret REAL %result
}"""

_NORMALISED = """\
  %N.zeros = call WORD @llvm.ctlz.WORD(WORD %N.bits, i1 false)
  %N.by = sub WORD %N.zeros, SPARE
  %N.shifted = shl WORD %N.bits, %N.by
  %N.low = sub WORD 1, %N.by
  %N.fraction = and WORD %N.bits, BELOW
  %N.one = or WORD %N.fraction, ONE
  %N.high = lshr WORD %N.bits, FRACTION
  %N.is.denormal = icmp eq WORD %N.high, 0
  %N.whole = select i1 %N.is.denormal, WORD %N.shifted, WORD %N.one
  %N.exponent = select i1 %N.is.denormal, WORD %N.low, WORD %N.high"""


def remainder_function(name: str, dtype: str) -> str:
    """Return the definition of a function of two scalars, and a declaration that it needs.

    Args:
        name: Of the function.
        dtype: A key of `FORMATS`.
    """
    real, bits, fraction = FORMATS[dtype]
    above = bits - 1 - fraction
    words = {
        "NORMALISED": "\n".join(_NORMALISED.replace("%N", f"%{one}") for one in "ab"),
        "MAGNITUDE": (1 << bits - 1) - 1,
        "INFINITY": ((1 << above) - 1) << fraction,
        "FRACTION": fraction,
        "BELOW": (1 << fraction) - 1,
        "SPARE": above,
        "SIGN": -(1 << bits - 1),
        "REAL": real,
        "WORD": f"i{bits}",
        "NAME": name,
        "ONE": 1 << fraction,
    }
    text = _SCALAR
    for word, value in words.items():
        text = text.replace(word, str(value))
    return f"declare i{bits} @llvm.ctlz.i{bits}(i{bits}, i1)\n{text}"


def by_lanes(name: str, scalar: str, dtype: str, lanes: int) -> str:
    """Return the definition of a function of two vectors that calls one of scalars.

    Args:
        name: Of the function.
        scalar: Of the other one.
        dtype: A key of `FORMATS`.
        lanes: Of the vectors.
    """
    real = FORMATS[dtype][0]
    vector = f"<{lanes} x {real}>"
    lines, made = [], "poison"
    for lane in range(lanes):
        lines += [f"%{side}{lane} = extractelement {vector} %{side}, i32 {lane}" for side in "xy"]
        lines.append(f"%r{lane} = call {real} @{scalar}({real} %x{lane}, {real} %y{lane})")
        lines.append(f"%v{lane} = insertelement {vector} {made}, {real} %r{lane}, i32 {lane}")
        made = f"%v{lane}"
    body = "\n".join(f"  {line}" for line in (*lines, f"ret {vector} {made}"))
    return f"define internal {vector} @{name}({vector} %x, {vector} %y) nounwind {{\n{body}\n}}"
