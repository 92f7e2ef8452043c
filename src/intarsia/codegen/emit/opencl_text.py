# SPDX-License-Identifier: Apache-2.0
"""How OpenCL C spells an operation on one variable: a scalar, or a vector of 2, 4, 8 or 16.

A bool is a `char` that is 0 or -1, as a comparison of vectors yields it; in memory it is a `uchar`
that is 0 or 1. Signed sums and products are computed unsigned, where they wrap as the IR's do.
"""

from __future__ import annotations

import math

import numpy as np

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
"""Of a value's lanes, by numpy's name."""

MEMORY = {**ELEMENTS, "bool": "uchar"}
"""Of a buffer's elements."""

WIDTHS = (16, 8, 4, 2, 1)
"""Lanes that a variable can have."""

_UNSIGNED = {"char": "uchar", "short": "ushort", "int": "uint", "long": "ulong"}
_MASKS = {1: "char", 2: "short", 4: "int", 8: "long"}
_SUFFIXES = {"float16": "h", "float32": "f", "float64": "", "int32": "", "uint32": "u"}
_SUFFIXES |= {"int64": "L", "uint64": "UL"}
_WRAPPING = ("add", "sub", "mul", "shl")
_SMALL = 4
"""Bytes below which C computes with ints."""


def vector(element: str, width: int) -> str:
    """Return the type of a variable."""
    return element if width == 1 else f"{element}{width}"


def type_of(dtype: str, width: int) -> str:
    """Return the type of a variable with lanes of a dtype."""
    return vector(ELEMENTS[dtype], width)


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


def repeated(scalar: str, dtype: str, width: int) -> str:
    """Return a scalar in every lane."""
    return scalar if width == 1 else f"({type_of(dtype, width)})({scalar})"


def unary(name: str, a: str, dtype: str, width: int) -> str:
    """Spell one of `ir.UNARY`."""
    type_ = type_of(dtype, width)
    if name == "isnan":
        return _condition(f"isnan({a})", dtype, width)
    if name == "not":
        return _narrow(f"~{a}", dtype, width)
    if dtype.startswith("float"):
        return f"-{a}" if name == "neg" else f"{'fabs' if name == 'abs' else name}({a})"
    if name == "neg":
        return binary("sub", repeated(literal(0, dtype), dtype, width), a, dtype, width)
    assert name == "abs", name
    return f"as_{type_}(abs({a}))"


def binary(name: str, a: str, b: str, dtype: str, width: int) -> str:
    """Spell one of `ir.BINARY`."""
    if name in ("min", "max"):
        sign = "<" if name == "min" else ">"
        order = f"{_ordered(a, dtype, width)} {sign} {_ordered(b, dtype, width)}"
        return f"({order}) ? {a} : {b}" if width == 1 else f"select({b}, {a}, {order})"
    if name == "copysign":
        return f"copysign({a}, {b})"
    if dtype.startswith("float"):
        return f"fmod({a}, {b})" if name == "rem" else f"{a} {SYMBOLS[name]} {b}"
    element = ELEMENTS[dtype]
    if name in _WRAPPING and element in _UNSIGNED:
        unsigned = vector(_UNSIGNED[element], width)
        right = b if name == "shl" else f"as_{unsigned}({b})"
        text = _narrow(f"as_{unsigned}({a}) {SYMBOLS[name]} {right}", "u" + dtype, width)
        return f"as_{vector(element, width)}({text})"
    if dtype == "uint16" and name == "mul" and width == 1:  # of ints it would overflow
        return f"(ushort)((uint){a} * (uint){b})"
    assert dtype != "bool" or name in ("and", "or", "xor"), f"{name} of bool"
    return _narrow(f"{a} {SYMBOLS[name]} {b}", dtype, width)


def fused(a: str, b: str, c: str, dtype: str, width: int, *, has_fma: bool) -> str:
    """Spell a multiply-add."""
    if not dtype.startswith("float"):
        product = f"({binary('mul', a, b, dtype, width)})"
        return binary("add", product, c, dtype, width)
    return f"fma({a}, {b}, {c})" if has_fma else f"{a} * {b} + {c}"


def compare(predicate: str, a: str, b: str, dtype: str, width: int) -> str:
    """Spell a comparison; yields a bool."""
    left, right = _ordered(a, dtype, width), _ordered(b, dtype, width)
    return _condition(f"{left} {PREDICATES[predicate]} {right}", dtype, width)


def choose(condition: str, a: str, b: str, dtype: str, width: int) -> str:
    """Spell a selection by a bool."""
    if width == 1:
        return f"{condition} ? {a} : {b}"
    mask = _MASKS[np.dtype(dtype).itemsize]
    wide = condition if mask == "char" else f"convert_{mask}{width}({condition})"
    return f"select({b}, {a}, {wide})"


def cast(a: str, source: str, target: str, width: int) -> str:
    """Spell a conversion."""
    if target == "bool":
        zero = repeated(literal(0, source), source, width)
        return _condition(f"{a} != {zero}", source, width)
    if source == "bool":
        a = f"{a} & {repeated(literal(1, 'int8'), 'int8', width)}"
    return f"convert_{type_of(target, width)}({a})"


def bitcast(a: str, target: str, width: int) -> str:
    """Spell taking bits as another dtype."""
    return f"as_{type_of(target, width)}({a})"


def from_memory(a: str, dtype: str, width: int) -> str:
    """Spell what a loaded element means."""
    if dtype != "bool":
        return a
    return f"(char)-({a} != 0)" if width == 1 else f"{a} != (uchar{width})(0)"


def to_memory(a: str, dtype: str, width: int) -> str:
    """Spell what is stored of a value."""
    if dtype != "bool":
        return a
    return f"(uchar)({a} & 1)" if width == 1 else f"as_uchar{width}({a} & (char{width})(1))"


def _condition(text: str, dtype: str, width: int) -> str:
    """Return a comparison of a dtype's lanes as a bool."""
    if width == 1:
        return f"(char)-({text})"
    return text if np.dtype(dtype).itemsize == 1 else f"convert_char{width}({text})"


def _ordered(a: str, dtype: str, width: int) -> str:
    """Return what orders as the values do: true is above false."""
    return f"as_{vector('uchar', width)}({a})" if dtype == "bool" else a


def _narrow(text: str, dtype: str, width: int) -> str:
    """Cut a scalar that C has computed as an int."""
    is_small = np.dtype(dtype if dtype != "ubool" else "bool").itemsize < _SMALL
    return f"({ELEMENTS[dtype]})({text})" if width == 1 and is_small else text
