# SPDX-License-Identifier: Apache-2.0
"""How C99 spells an operation on scalars, and the helpers that such spellings need.

A bool is a `bool` from <stdbool.h>, in memory a byte. A float16 is a `float` that holds a float16's
number, rounded after each operation; in memory it is a `uint16_t` of its bits. Signed sums and
products are computed unsigned, where they wrap as the IR's do.
"""

from __future__ import annotations

import math

import numpy as np

from intarsia.codegen.emit.c_family import Spelling
from intarsia.codegen.ir import SYMBOLS

ELEMENTS = {"bool": "bool", "float16": "float", "float32": "float", "float64": "double"}
ELEMENTS |= {
    f"{sign}int{bits}": f"{sign}int{bits}_t" for bits in (8, 16, 32, 64) for sign in ("", "u")
}
"""C's type of a value, by numpy's name."""

MEMORY = {**ELEMENTS, "bool": "uint8_t", "float16": "uint16_t"}
"""C's type of a buffer's elements, by numpy's name."""

_KEYWORDS = """
auto break case char const continue default do double else enum extern float for goto if inline
int long register restrict return short signed sizeof static struct switch bool typedef union
unsigned void volatile while true false j0 j1 jn y0 y1 yn gamma exp log pow sin cos tan floor
ceil trunc rint sqrt fabs fma div abs remainder class new delete this template operator private
public main KERNEL HELPER INFINITE NOT_A_NUMBER
"""
KEYWORDS = frozenset(_KEYWORDS.split())
"""Names that have a meaning in C, in its headers, or in C++, which reads our headers."""

# gcc knows no FP_CONTRACT pragma, and under -std=c99 it contracts nothing anyway; clang does unless
# told. Kernels stay functions: the bound of the stack is that of one at a time.
PRELUDE = """\
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
#ifdef __GNUC__ /* generated code may well compare a value with itself or with its least value */
#pragma GCC diagnostic ignored "-Wtautological-compare"
#pragma GCC diagnostic ignored "-Wtype-limits"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wbool-compare"
#endif
#define KERNEL static __attribute__((noinline))
#define HELPER static inline __attribute__((unused))
#else
#define KERNEL static
#define HELPER static inline
#endif
"""
"""The source text before the kernels."""

_WRAPPING = ("add", "sub", "mul", "shl")
_WORD = 4
"""Bytes below which C computes with ints."""


def literal(value: float, dtype: str) -> str:
    """Return a number."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype.startswith("float"):
        return _float(value, dtype)
    number, info = int(value), np.iinfo(dtype)
    # C has no negative literals: this one would be minus a number that the type does not hold.
    if number == info.min < 0:
        return f"INT{info.bits}_MIN"
    text = str(number)
    if dtype == "uint64":
        text = f"UINT64_C({number})"
    elif dtype == "int64" and abs(number) >= 1 << 31:
        text = f"INT64_C({number})"
    elif dtype == "uint32":
        text = f"{number}u"
    return f"({text})" if number < 0 else text


def _float(value: float, dtype: str) -> str:
    number = np.dtype(dtype).type(value)
    wide = f"({ELEMENTS[dtype]})"
    if math.isnan(number):
        return f"({wide}NOT_A_NUMBER)" if dtype == "float64" else "NOT_A_NUMBER"
    if math.isinf(number):
        text = f"{wide}INFINITE" if dtype == "float64" else "INFINITE"
        return f"(-{text})" if number < 0 else text
    text = str(np.float32(number) if dtype == "float16" else number)  # reads back the same
    if not {".", "e"}.intersection(text):
        text += ".0"
    text += "" if dtype == "float64" else "f"
    return f"({text})" if text.startswith("-") else text


def bitcast_helper(source: str, target: str) -> str:
    """Return the function that a spelling of `bitcast` calls."""
    old, new = ELEMENTS[source], ELEMENTS[target]
    return (
        f"HELPER {new} {source}_bits_as_{target}({old} number)\n{{\n"
        f"    union {{ {old} number; {new} result; }} both;\n    both.number = number;\n"
        "    return both.result;\n}\n"
    )


def from_memory(a: str, dtype: str) -> str:
    """Spell what a loaded element means."""
    if dtype == "float16":
        return f"half_to_float({a})"
    # A caller's byte may be any number; a `bool` that is not 0 or 1 is undefined.
    return f"{a} != 0" if dtype == "bool" else a


def to_memory(a: str, dtype: str) -> str:
    """Spell what is stored of a value."""
    return f"float_to_half({a})" if dtype == "float16" else a


def _function(name: str, dtype: str) -> str:
    return f"{name}_{'f64' if dtype == 'float64' else 'f32'}"


def _rounded(text: str, dtype: str) -> str:
    return f"round_half({text})" if dtype == "float16" else text


def _narrow(text: str, dtype: str) -> str:
    """Cut what C has computed as an int."""
    return f"({ELEMENTS[dtype]})({text})" if np.dtype(dtype).itemsize < _WORD else text


def dot_step(x: str, y: str, total: str, dtype: str, sums: str) -> str:
    """Spell what a product of two neighbours, of a dtype, adds to a dot product of another."""
    if dtype == "uint16":  # bfloat16: the upper half of a float32
        wide = (f"uint32_bits_as_float32((uint32_t){item} << 16)" for item in (x, y))
        return f"fma_f32({', '.join(wide)}, {total})"
    if sums == "int16":
        return f"(int16_t)({total} + {x} * {y})"
    # The product of two int16 fits an int; sums wrap.
    return f"(int32_t)((uint32_t){total} + (uint32_t)({x} * {y}))"


class CSpelling(Spelling):
    """The spellings for scalars."""

    def unary(self, name: str, a: str, dtype: str) -> str:
        """Spell one of `ir.UNARY`."""
        if name == "isnan":
            return f"{a} != {a}"
        if name == "not":
            return f"!{a}" if dtype == "bool" else _narrow(f"~{a}", dtype)
        if dtype.startswith("float"):
            if name == "neg":
                return f"-{a}"
            return _rounded(f"{_function(name, dtype)}({a})", dtype)
        negated = self.binary("sub", literal(0, dtype), a, dtype)
        if name == "neg":
            return negated
        assert name == "abs", name
        return f"{a} < 0 ? {negated} : {a}" if dtype.startswith("int") else a

    def binary(self, name: str, a: str, b: str, dtype: str) -> str:
        """Spell one of `ir.BINARY`."""
        # By a comparison, not `fmin`: where one is NaN the right operand stays, as with `minps`.
        if name in ("min", "max"):
            return f"{a} {'<' if name == 'min' else '>'} {b} ? {a} : {b}"
        if dtype.startswith("float"):
            if name in ("copysign", "rem"):
                text = f"{_function(name, dtype)}({a}, {b})"
            else:
                text = f"{a} {SYMBOLS[name]} {b}"
            return _rounded(text, dtype)
        assert dtype != "bool" or name in ("and", "or", "xor"), f"{name} of bool"
        if dtype == "bool":
            return f"{a} != {b}" if name == "xor" else f"{a} {SYMBOLS[name] * 2} {b}"
        symbol, type_ = SYMBOLS[name], ELEMENTS[dtype]
        is_word = np.dtype(dtype).itemsize >= _WORD
        if name in _WRAPPING and dtype.startswith("int") and (is_word or name == "shl"):
            unsigned = f"u{type_}" if is_word else "uint32_t"
            right = b if name == "shl" else f"({unsigned}){b}"
            return f"({type_})(({unsigned}){a} {symbol} {right})"
        if dtype == "uint16" and name == "mul":  # of ints it would overflow
            return f"(uint16_t)((uint32_t){a} * {b})"
        return _narrow(f"{a} {symbol} {b}", dtype)

    def fused(self, a: str, b: str, c: str, dtype: str) -> str:
        """Spell a multiply-add."""
        if dtype in ("float32", "float64"):
            return f"fma_f{dtype[-2:]}({a}, {b}, {c})"
        if dtype == "float16":
            # A product of two float16 has 22 bits and is exact in a double: one rounding counts.
            return f"round_half((double){a} * {b} + {c})"
        return self.binary("add", f"({self.binary('mul', a, b, dtype)})", c, dtype)

    def cast(self, a: str, source: str, target: str) -> str:
        """Spell a conversion."""
        if target == "bool":
            return f"{a} != {literal(0, source)}"
        if target == "float16":
            return a if source == "bool" else f"round_half({a})"
        return f"({ELEMENTS[target]}){a}"

    def bitcast(self, a: str, source: str, target: str) -> str:
        """Spell taking bits as another dtype; float16's are in its own helpers."""
        if source == target:
            return a
        if source == "float16":
            return f"({ELEMENTS[target]})float_to_half({a})"
        if target == "float16":
            return f"half_to_float((uint16_t){a})"
        if not (source.startswith("float") or target.startswith("float")):
            return f"({ELEMENTS[target]}){a}"
        return f"{source}_bits_as_{target}({a})"
