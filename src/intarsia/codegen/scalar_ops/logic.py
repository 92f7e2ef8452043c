# SPDX-License-Identifier: Apache-2.0
"""Comparisons, logic and bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Value
from intarsia.codegen.scalar_ops.operator import (
    ANY,
    BOOL,
    FLOATS,
    INTS,
    NUMBERS,
    ScalarOp,
    binary,
    unary,
)

Arguments = Sequence[Any]
Attributes = Mapping[str, Any]

_INFINITY = float("inf")


def _compared(predicate: str, dtypes: frozenset[str]) -> ScalarOp:
    return binary(lambda b, x, y: b.compare(predicate, x, y), dtypes)


def _combined(name: str, dtypes: frozenset[str]) -> ScalarOp:
    return binary(lambda b, x, y: b.binary(name, x, y), dtypes)


def _is_inf(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> Value:
    positive = b.compare("eq", x[0], _INFINITY)
    negative = b.compare("eq", x[0], -_INFINITY)
    both = bool(attrs.get("detect_positive", 1)), bool(attrs.get("detect_negative", 1))
    if both == (True, True):
        return b.binary("or", positive, negative)
    if both == (False, False):
        return b.constant(value=False, type_=positive.type)
    return positive if both[0] else negative


def _bit_shift(b: Builder, x: Arguments, attrs: Attributes, dtype: str) -> Value:
    """Shift; by as many bits as there are, or more, or a negative number: all of them out."""
    value, amount = x
    width = 8 * np.dtype(value.type.dtype).itemsize
    inside = b.compare("lt", amount, width)
    if value.type.is_signed:
        inside = b.binary("and", inside, b.compare("ge", amount, 0))
    if attrs["direction"] == "LEFT":
        return b.select(inside, b.binary("shl", value, b.select(inside, amount, 0)), 0)
    if value.type.is_signed:  # what is left is the sign
        return b.binary("shr", value, b.select(inside, amount, width - 1))
    return b.select(inside, b.binary("shr", value, b.select(inside, amount, 0)), 0)


LOGIC = {
    "Equal": _compared("eq", NUMBERS | BOOL),
    "Less": _compared("lt", NUMBERS),
    "LessOrEqual": _compared("le", NUMBERS),
    "Greater": _compared("gt", NUMBERS),
    "GreaterOrEqual": _compared("ge", NUMBERS),
    "And": _combined("and", BOOL),
    "Or": _combined("or", BOOL),
    "Xor": _combined("xor", BOOL),
    "Not": unary(lambda b, x: b.unary("not", x), BOOL),
    "BitwiseAnd": _combined("and", INTS),
    "BitwiseOr": _combined("or", INTS),
    "BitwiseXor": _combined("xor", INTS),
    "BitwiseNot": unary(lambda b, x: b.unary("not", x), INTS),
    "BitShift": ScalarOp(_bit_shift, INTS),
    "IsNaN": unary(lambda b, x: b.unary("isnan", x), FLOATS),
    "IsInf": ScalarOp(_is_inf, FLOATS),
    "Where": ScalarOp(lambda b, x, attrs, dtype: b.select(x[0], x[1], x[2]), ANY),
}
"""Operators that yield bool, take it, or look at bits."""
