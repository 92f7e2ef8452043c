# SPDX-License-Identifier: Apache-2.0
"""How WGSL spells an operation on one variable: a scalar, or a vector of 2 or 4.

Integers of 8 and 16 bits are computed with 32, and cut after what may leave them. A constant is
never left to the compiler to compute with, which refuses what overflows: infinities and NaN are
made of their bits while running.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.codegen.emit.device_family import DeviceSpelling
from intarsia.codegen.ir import PREDICATES, SYMBOLS

ELEMENTS = {
    "bool": "bool",
    "int8": "i32",
    "uint8": "u32",
    "int16": "i32",
    "uint16": "u32",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "uint64": "u64",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
}
"""WGSL's type of a value's lanes, by numpy's name."""

WIDTHS = (4, 2, 1)
"""Lanes that a variable can have."""

WORD_BITS = 32
"""Bits of the least that memory is read and written in, but for `f16`."""

_SUFFIXES = {"i32": "i", "u32": "u", "i64": "li", "u64": "lu", "f16": "h", "f32": "f", "f64": "lf"}
_ROUNDINGS = {"rint": "round"}
_CUT = ("add", "sub", "mul", "shl", "div")
"""Operations whose result may leave a type of less than 32 bits."""

EXACT_REMAINDER = """\
// What is left of x after the whole multiples of y; exact.
fn remainder(x: f32, y: f32) -> f32 {
    let sign = bitcast<u32>(x) & 0x80000000u;
    var a = bitcast<u32>(x) ^ sign;
    var b = bitcast<u32>(y) & 0x7fffffffu;
    var first = i32(a >> 23u);
    var last = i32(b >> 23u);
    if (b == 0u || first == 255 || b > 0x7f800000u) { return bitcast<f32>(special[1]); }
    if (a < b) { return x; }
    if (first > 0) { a = (a & 0x7fffffu) | 0x800000u; }
    else { first = 1 - (i32(countLeadingZeros(a)) - 8); a <<= countLeadingZeros(a) - 8u; }
    if (last > 0) { b = (b & 0x7fffffu) | 0x800000u; }
    else { last = 1 - (i32(countLeadingZeros(b)) - 8); b <<= countLeadingZeros(b) - 8u; }
    for (; first > last; first -= 1) {
        a = select(a, a - b, a >= b);
        a <<= 1u;
    }
    a = select(a, a - b, a >= b);
    if (a == 0u) { return bitcast<f32>(sign); }
    let shift = countLeadingZeros(a) - 8u;
    a <<= shift;
    first -= i32(shift);
    if (first > 0) { a += u32(first - 1) << 23u; } else { a >>= u32(1 - first); }
    return bitcast<f32>(sign | a);
}
"""
"""The remainder of floats: WGSL's own is `x - y * trunc(x / y)`, rounded."""

SPECIAL = "var<private> special: array<u32, 2> = array<u32, 2>(0x7f800000u, 0x7fc00000u);"
"""The bits of infinity and of NaN, which no constant can be."""


def literal(value: float, dtype: str) -> str:
    """Return a scalar's literal."""
    element = ELEMENTS[dtype]
    if element == "bool":
        return "true" if value else "false"
    if dtype.startswith("float"):
        return _float(value, dtype)
    number = int(value)
    if dtype in ("int32", "int64") and number == np.iinfo(dtype).min:
        suffix = _SUFFIXES[element]
        return f"({number + 1}{suffix} - 1{suffix})"
    return _parenthesised(f"{number}{_SUFFIXES[element]}")


def _float(value: float, dtype: str) -> str:
    number = np.dtype(dtype).type(value)
    if math.isfinite(number):
        text = str(number)  # the shortest that reads back the same
        if not {".", "e"}.intersection(text):
            text += ".0"
        return _parenthesised(text + _SUFFIXES[ELEMENTS[dtype]])
    bits = f"bitcast<f32>(special[{int(math.isnan(number))}])"
    sign = "-" if number < 0 else ""
    return f"({sign}{bits if dtype == 'float32' else f'{ELEMENTS[dtype]}({bits})'})"


def _parenthesised(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


@dataclass(frozen=True, slots=True)
class WgslSpelling(DeviceSpelling):
    """The spellings for variables of one width.

    Attributes:
        width: Lanes of a variable.
    """

    width: int

    def vector(self, element: str) -> str:
        """Return the type of a variable."""
        return element if self.width == 1 else f"vec{self.width}<{element}>"

    def type_of(self, dtype: str) -> str:
        """Return the type of a variable with lanes of a dtype."""
        return self.vector(ELEMENTS[dtype])

    def repeated(self, scalar: str, dtype: str) -> str:
        """Return a scalar in every lane."""
        return scalar if self.width == 1 else f"{self.type_of(dtype)}({scalar})"

    def joined(self, lanes: Sequence[str], dtype: str) -> str:
        """Return a vector of scalars."""
        return f"{self.type_of(dtype)}({', '.join(lanes)})"

    def unary(self, name: str, a: str, dtype: str) -> str:
        """Spell one of `ir.UNARY`."""
        if name == "isnan":
            return self._is_nan(a, dtype)
        if name == "not":
            return f"!{a}" if dtype == "bool" else _cut(self.width, f"~{a}", dtype)
        if name == "neg":
            if dtype.startswith("float"):
                return f"-{a}"
            return self.binary("sub", self.repeated(literal(0, dtype), dtype), a, dtype)
        if name == "abs" and dtype.startswith("uint"):
            return a
        text = f"{_ROUNDINGS.get(name, name)}({a})"
        return _cut(self.width, text, dtype) if name == "abs" else text

    def binary(self, name: str, a: str, b: str, dtype: str) -> str:
        """Spell one of `ir.BINARY`."""
        if name in ("min", "max"):
            sign = "<" if name == "min" else ">"
            return f"select({b}, {a}, {self._ordered(a, dtype)} {sign} {self._ordered(b, dtype)})"
        if name == "copysign":
            return self._copysign(a, b, dtype)
        if name == "rem" and dtype.startswith("float"):
            return self._remainder(a, b, dtype)
        if dtype == "bool" and name == "xor":
            return f"{a} != {b}"
        if name in ("shl", "shr"):
            b = f"{self.vector('u32')}({b})"
        text = f"{a} {SYMBOLS[name]} {b}"
        return _cut(self.width, text, dtype) if name in _CUT else text

    def fused(self, a: str, b: str, c: str, dtype: str) -> str:
        """Spell a multiply-add."""
        if dtype.startswith("float"):
            return f"fma({a}, {b}, {c})"
        return _cut(self.width, f"{a} * {b} + {c}", dtype)

    def compare(self, predicate: str, a: str, b: str, dtype: str) -> str:
        """Spell a comparison; yields a bool."""
        return f"{self._ordered(a, dtype)} {PREDICATES[predicate]} {self._ordered(b, dtype)}"

    def choose(self, condition: str, a: str, b: str, dtype: str) -> str:
        """Spell a selection by a bool."""
        return f"select({b}, {a}, {condition})"

    def cast(self, a: str, source: str, target: str) -> str:
        """Spell a conversion."""
        if source == target:
            return a
        if target == "bool":
            return f"{a} != {self.repeated(literal(0, source), source)}"
        if source == "bool":
            zero, one = (self.repeated(literal(n, target), target) for n in (0, 1))
            return f"select({zero}, {one}, {a})"
        is_small = ELEMENTS[target] in ("i32", "u32") and target not in ("int32", "uint32")
        if is_small and source.startswith("float"):  # as a C compiler: by way of an int
            a = f"{self.vector('i32')}({a})"
        return _cut(self.width, f"{self.type_of(target)}({a})", target)

    def bitcast(self, a: str, source: str, target: str) -> str:
        """Spell taking bits as another dtype."""
        if source == target:
            return a
        if "float16" in (source, target):
            return self._half_bits(a, source, target)
        return _cut(self.width, f"bitcast<{self.type_of(target)}>({a})", target)

    def _half_bits(self, a: str, source: str, target: str) -> str:
        """Spell a half as its bits, or the other way: of 16 bits there is no integer."""
        lanes = [a] if self.width == 1 else [f"({a}).{lane}" for lane in "xyzw"[: self.width]]
        if target == "float16":
            halves = [f"f16(unpack2x16float(u32({lane})).x)" for lane in lanes]
        else:
            words = [f"pack2x16float(vec2<f32>(f32({lane}), 0.0f))" for lane in lanes]
            halves = [_cut(1, f"{ELEMENTS[target]}({word})", target) for word in words]
        return halves[0] if self.width == 1 else self.joined(halves, target)

    def _is_nan(self, a: str, dtype: str) -> str:
        # By its bits: a driver may take it for granted that a number equals itself.
        if dtype == "float64":
            return f"{a} != {a}"
        number = f"bitcast<{self.vector('u32')}>({self.cast(a, dtype, 'float32')})"
        exponent, mask = (self.vector("u32") + f"({n}u)" for n in ("0x7f800000", "0x7fffffff"))
        return f"({number} & {mask}) > {exponent}"

    def _copysign(self, a: str, b: str, dtype: str) -> str:
        if dtype != "float32":  # a bit of the sign is what a conversion keeps
            sign = self._sign(self.cast(b, dtype, "float32"))
            zero = self.vector("u32") + "(0u)"
            return f"select(abs({a}), -abs({a}), {sign} != {zero})"
        word = self.vector("u32")
        bits = f"(bitcast<{word}>({a}) & {word}(0x7fffffffu)) | {self._sign(b)}"
        return f"bitcast<{self.vector('f32')}>({bits})"

    def _sign(self, a: str) -> str:
        word = self.vector("u32")
        return f"(bitcast<{word}>({a}) & {word}(0x80000000u))"

    def _remainder(self, a: str, b: str, dtype: str) -> str:
        assert dtype != "float64", "refused"
        pairs = [(a, b)]
        if self.width > 1:
            pairs = [(f"({a}).{lane}", f"({b}).{lane}") for lane in "xyzw"[: self.width]]
        scalar = WgslSpelling(1)
        texts = [
            scalar.cast(
                f"remainder({scalar.cast(x, dtype, 'float32')}, "
                f"{scalar.cast(y, dtype, 'float32')})",
                "float32",
                dtype,
            )
            for x, y in pairs
        ]
        return texts[0] if self.width == 1 else self.joined(texts, dtype)

    def _ordered(self, a: str, dtype: str) -> str:
        """Return what orders as the values do: true is above false."""
        return self.cast(a, "bool", "uint32") if dtype == "bool" else a


def _cut(width: int, text: str, dtype: str) -> str:
    """Cut what was computed with 32 bits to the bits of a dtype."""
    bits = 8 * np.dtype(dtype).itemsize
    if bits >= WORD_BITS or dtype == "bool" or dtype.startswith("float"):
        return text
    word = "u32" if width == 1 else f"vec{width}<u32>"
    if dtype.startswith("uint"):
        return f"({text}) & {word}({(1 << bits) - 1}u)"
    shift = f"{word}({WORD_BITS - bits}u)"
    return f"(({text}) << {shift}) >> {shift}"
