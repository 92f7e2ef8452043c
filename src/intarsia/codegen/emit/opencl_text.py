# SPDX-License-Identifier: Apache-2.0
"""How OpenCL C spells an operation on one variable: a scalar, or a vector of 2, 4, 8 or 16.

A bool is a `char` that is 0 or -1, as a comparison of vectors yields it; in memory it is a `uchar`
that is 0 or 1. Signed sums and products are computed unsigned, where they wrap as the IR's do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.codegen.emit.device_family import DeviceSpelling
from intarsia.codegen.ir import PREDICATES, SYMBOLS

ELEMENTS = {
    "bool": "char",
    "int8": "char",
    "uint8": "uchar",
    "int16": "short",
    "uint16": "ushort",
    "int32": "int",
    "uint32": "uint",
    "int64": "long",
    "uint64": "ulong",
    "float16": "half",
    "float32": "float",
    "float64": "double",
}
"""OpenCL's type of a value's lanes, by numpy's name."""

MEMORY = {**ELEMENTS, "bool": "uchar"}
"""OpenCL's type of a buffer's elements, by numpy's name."""

WIDTHS = (16, 8, 4, 2, 1)
"""Lanes that a variable can have."""

_UNSIGNED = {"char": "uchar", "short": "ushort", "int": "uint", "long": "ulong"}
_MASKS = {1: "char", 2: "short", 4: "int", 8: "long"}
_SUFFIXES = {"float16": "h", "float32": "f", "float64": "", "int32": "", "uint32": "u"}
_SUFFIXES |= {"int64": "L", "uint64": "UL"}
_WRAPPING = ("add", "sub", "mul", "shl")
_SMALL = 4
"""Bytes below which C computes with ints."""


def literal(value: float, dtype: str) -> str:
    """Return a scalar's literal."""
    if dtype == "bool":
        return "((char)-1)" if value else "((char)0)"
    if dtype.startswith("float"):
        return _float(value, dtype)
    number = int(value)
    if dtype not in _SUFFIXES:
        return f"(({ELEMENTS[dtype]}){number})"
    if number == np.iinfo(dtype).min < 0:
        return "INT_MIN" if dtype == "int32" else "LONG_MIN"
    return _parenthesised(f"{number}{_SUFFIXES[dtype]}")


def _float(value: float, dtype: str) -> str:
    number = float(np.dtype(dtype).type(value))
    if math.isnan(number):
        return f"(({ELEMENTS[dtype]})NAN)"
    if math.isinf(number):
        return f"(({ELEMENTS[dtype]}){'-' if number < 0 else ''}INFINITY)"
    text = str(np.dtype(dtype).type(value))  # the shortest that reads back the same
    if not {".", "e"}.intersection(text):
        text += ".0"
    return _parenthesised(text + _SUFFIXES[dtype])


def _parenthesised(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


@dataclass(frozen=True, slots=True)
class OpenClSpelling(DeviceSpelling):
    """The spellings for variables of one width.

    Attributes:
        width: Lanes of a variable.
        has_fma: Whether `fma` is fast; if not, a multiply-add rounds twice.
    """

    width: int
    has_fma: bool = True

    def vector(self, element: str) -> str:
        """Return the type of a variable."""
        return element if self.width == 1 else f"{element}{self.width}"

    def type_of(self, dtype: str) -> str:
        """Return the type of a variable with lanes of a dtype."""
        return self.vector(ELEMENTS[dtype])

    def repeated(self, scalar: str, dtype: str) -> str:
        """Return a scalar in every lane."""
        return scalar if self.width == 1 else f"({self.type_of(dtype)})({scalar})"

    def joined(self, lanes: Sequence[str], dtype: str) -> str:
        """Return a vector of scalars."""
        return f"({self.type_of(dtype)})({', '.join(lanes)})"

    def unary(self, name: str, a: str, dtype: str) -> str:
        """Spell one of `ir.UNARY`."""
        type_ = self.type_of(dtype)
        if name == "isnan":
            return self._condition(f"isnan({a})", dtype)
        if name == "not":
            return self._narrow(f"~{a}", dtype)
        if dtype.startswith("float"):
            return f"-{a}" if name == "neg" else f"{'fabs' if name == 'abs' else name}({a})"
        if name == "neg":
            return self.binary("sub", self.repeated(literal(0, dtype), dtype), a, dtype)
        assert name == "abs", name
        return f"as_{type_}(abs({a}))"

    def _remainder(self, a: str, b: str, dtype: str) -> str:
        """Spell C's `fmod`, which is exact, a lane at a time.

        That of eight doubles is not in PoCL 3.0 with AVX-512: of (-4.3, 7.2, 5, 4.3, -7.2, 8, 0,
        0) by (2.1, -3.4, 8, -2.1, 3.4, 5, 0, 0) its fourth is 0.0125, where 0.1 is right.
        """
        if self.width == 1:
            return f"fmod({a}, {b})"
        lanes = [f"s{lane:x}" for lane in range(self.width)]
        return self.joined([f"fmod(({a}).{lane}, ({b}).{lane})" for lane in lanes], dtype)

    def binary(self, name: str, a: str, b: str, dtype: str) -> str:
        """Spell one of `ir.BINARY`."""
        if name in ("min", "max"):
            sign = "<" if name == "min" else ">"
            order = f"{self._ordered(a, dtype)} {sign} {self._ordered(b, dtype)}"
            return f"({order}) ? {a} : {b}" if self.width == 1 else f"select({b}, {a}, {order})"
        if name == "copysign":
            return f"copysign({a}, {b})"
        if dtype.startswith("float"):
            return self._remainder(a, b, dtype) if name == "rem" else f"{a} {SYMBOLS[name]} {b}"
        element = ELEMENTS[dtype]
        if name in _WRAPPING and element in _UNSIGNED:
            unsigned = self.vector(_UNSIGNED[element])
            right = b if name == "shl" else f"as_{unsigned}({b})"
            text = self._narrow(f"as_{unsigned}({a}) {SYMBOLS[name]} {right}", "u" + dtype)
            return f"as_{self.vector(element)}({text})"
        if dtype == "uint16" and name == "mul" and self.width == 1:  # of ints it would overflow
            return f"(ushort)((uint){a} * (uint){b})"
        assert dtype != "bool" or name in ("and", "or", "xor"), f"{name} of bool"
        return self._narrow(f"{a} {SYMBOLS[name]} {b}", dtype)

    def fused(self, a: str, b: str, c: str, dtype: str) -> str:
        """Spell a multiply-add."""
        if not dtype.startswith("float"):
            return self.binary("add", f"({self.binary('mul', a, b, dtype)})", c, dtype)
        return f"fma({a}, {b}, {c})" if self.has_fma else f"{a} * {b} + {c}"

    def compare(self, predicate: str, a: str, b: str, dtype: str) -> str:
        """Spell a comparison; yields a bool."""
        left, right = self._ordered(a, dtype), self._ordered(b, dtype)
        return self._condition(f"{left} {PREDICATES[predicate]} {right}", dtype)

    def choose(self, condition: str, a: str, b: str, dtype: str) -> str:
        """Spell a selection by a bool."""
        if self.width == 1:
            return f"{condition} ? {a} : {b}"
        mask = _MASKS[np.dtype(dtype).itemsize]
        wide = condition if mask == "char" else f"convert_{mask}{self.width}({condition})"
        return f"select({b}, {a}, {wide})"

    def cast(self, a: str, source: str, target: str) -> str:
        """Spell a conversion."""
        if target == "bool":
            zero = self.repeated(literal(0, source), source)
            return self._condition(f"{a} != {zero}", source)
        if source == "bool":
            # A bool is -1 here, and 1 in every other type.
            a = f"{a} & {self.repeated(literal(1, 'int8'), 'int8')}"
        return f"convert_{self.type_of(target)}({a})"

    def bitcast(self, a: str, source: str, target: str) -> str:
        """Spell taking bits as another dtype."""
        return f"as_{self.type_of(target)}({a})"

    def from_memory(self, a: str, dtype: str) -> str:
        """Spell what a loaded element means."""
        if dtype != "bool":
            return a
        # All bits are set, as vectors have it (6.3 d); of scalars true is 1.
        return f"(char)-({a} != 0)" if self.width == 1 else f"{a} != (uchar{self.width})(0)"

    def to_memory(self, a: str, dtype: str) -> str:
        """Spell what is stored of a value."""
        if dtype != "bool":
            return a
        if self.width == 1:
            return f"(uchar)({a} & 1)"
        return f"as_uchar{self.width}({a} & (char{self.width})(1))"

    def _condition(self, text: str, dtype: str) -> str:
        """Return a comparison of a dtype's lanes as a bool."""
        if self.width == 1:
            return f"(char)-({text})"
        return text if np.dtype(dtype).itemsize == 1 else f"convert_char{self.width}({text})"

    def _ordered(self, a: str, dtype: str) -> str:
        """Return what orders as the values do: true is above false."""
        return f"as_{self.vector('uchar')}({a})" if dtype == "bool" else a

    def _narrow(self, text: str, dtype: str) -> str:
        """Cut a scalar that C has computed as an int."""
        is_small = np.dtype(dtype if dtype != "ubool" else "bool").itemsize < _SMALL
        return f"({ELEMENTS[dtype]})({text})" if self.width == 1 and is_small else text
