# SPDX-License-Identifier: Apache-2.0
"""TFLite's products with factors in fixed point; ONNX has no such operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.scalar_ops.operator import FLOATS, ScalarOp, unary

MULTIPLY = "MultiplyByQuantizedMultiplier"
"""A product of int32: a number, a multiplier, how far the number is moved to the left before, and
how far the product to the right (`codegen/fixed_point.py`)."""
ROUND_AWAY = "RoundAway"
"""A number as the nearest integer, halves away from zero, as C's `round`."""


def high_product(b: Builder, left: IrValue, right: IrValue) -> IrValue:
    """Return gemmlowp's SaturatingRoundingDoublingHighMul of int32 that are not both the least."""
    product = b.mul(b.cast(left, "int64"), b.cast(right, "int64"))
    return b.cast(b.binary("shr", b.add(product, 1 << 30), 31), "int32")


def divide(b: Builder, number: IrValue, exponent: IrValue) -> IrValue:
    """Return gemmlowp's RoundingDivideByPOT: a quotient by a power of 2, halves away from zero.

    Args:
        b: Of the kernel.
        number: What is divided, signed.
        exponent: Of the same type.
    """
    dtype = number.type.dtype
    one = b.constant(1, exponent.type)
    mask = b.sub(b.binary("shl", one, exponent), 1)
    rest = b.binary("and", number, mask)
    is_below = b.cast(b.compare("lt", number, 0), dtype)
    is_above = b.compare("gt", rest, b.add(b.binary("shr", mask, 1), is_below))
    return b.add(b.binary("shr", number, exponent), b.cast(is_above, dtype))


def _multiply(b: Builder, x: Sequence[Any], _attrs: Mapping[str, Any], _dtype: str) -> IrValue:
    number, multiplier, left, right = x
    return divide(b, high_product(b, b.binary("shl", number, left), multiplier), right)


def _round_away(b: Builder, x: IrValue) -> IrValue:
    size = b.unary("abs", x)
    whole = b.unary("floor", size)
    whole = b.select(b.compare("ge", b.sub(size, whole), 0.5), b.add(whole, 1.0), whole)
    return b.binary("copysign", whole, x)


FIXED_POINT = {
    MULTIPLY: ScalarOp(_multiply, frozenset(("int32",))),
    ROUND_AWAY: unary(_round_away, FLOATS),
}
"""Operators of TFLite's arithmetic."""
