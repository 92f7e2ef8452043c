# SPDX-License-Identifier: Apache-2.0
"""Conversions between dtypes, and operators that change nothing."""

from __future__ import annotations

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Value
from intarsia.codegen.scalar_ops.half import float_to_half, half_to_float
from intarsia.codegen.scalar_ops.operator import ANY, ScalarOp, unary


def convert(b: Builder, x: Value, dtype: str) -> Value:
    """Return a value as another dtype, rounded once; floats to integers truncate.

    A float that the integer type cannot hold gives what numpy gives on x86 for small unsigned
    types, and anything elsewhere.
    """
    source = x.type.dtype
    if source == dtype:
        return x
    if source == "float16":
        return convert(b, half_to_float(b, x), dtype)
    if dtype == "float16":
        return float_to_half(b, _as_float32_for_half(b, x))
    if x.type.is_float and dtype in ("uint8", "uint16", "int8", "int16"):
        return b.cast(b.cast(x, "int32"), dtype)
    if x.type.is_float and dtype == "uint32":
        return b.cast(b.cast(x, "int64"), dtype)
    return b.cast(x, dtype)


def _as_float32_for_half(b: Builder, x: Value) -> Value:
    """Return a float32 that rounds to the same float16 as the value does."""
    if x.type.dtype == "float32":
        return x
    wide = b.cast(x, "float64")
    near = b.cast(wide, "float32")
    back = b.cast(near, "float64")
    bits = b.bitcast(near, "int32")  # rounded to odd, so that rounding again is right
    is_above = b.compare("gt", b.unary("abs", back), b.unary("abs", wide))
    bits = b.select(is_above, b.sub(bits, 1), bits)
    bits = b.select(b.compare("ne", back, wide), b.binary("or", bits, 1), bits)
    return b.bitcast(bits, "float32")


CONVERSIONS = {
    "Cast": ScalarOp(lambda b, x, attrs, dtype: convert(b, x[0], dtype), ANY),
    "CastLike": ScalarOp(lambda b, x, attrs, dtype: convert(b, x[0], dtype), ANY),
    "Identity": unary(lambda b, x: x, ANY),
    "Dropout": unary(lambda b, x: x, ANY),  # in inference
}
"""Operators that keep the number."""
