# SPDX-License-Identifier: Apache-2.0
"""Conversions between dtypes, and operators that change nothing.

Those of float16 are integer operations: not every CPU has instructions for it.
"""

from __future__ import annotations

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.scalar_ops.operator import ANY, ScalarOp, unary


def convert(b: Builder, x: IrValue, dtype: str) -> IrValue:
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
        return b.bitcast(half_bits(b, exact_in_single(b, x)), dtype)
    # LLVM leaves open what a float gives that does not fit; x86 converts to 32 and 64 bits only,
    # and so does numpy before it cuts.
    if x.type.is_float and dtype in ("uint8", "uint16", "int8", "int16"):
        return b.cast(b.cast(x, "int32"), dtype)
    if x.type.is_float and dtype == "uint32":
        return b.cast(b.cast(x, "int64"), dtype)
    return b.cast(x, dtype)


def reinterpret(b: Builder, x: IrValue, dtype: str) -> IrValue:
    """Return the bits of a value as another dtype of the same width, which is not bool."""
    source = x.type.dtype
    is_integer = not x.type.is_float and not x.type.with_dtype(dtype).is_float
    return b.cast(x, dtype) if is_integer or source == dtype else b.bitcast(x, dtype)


def exact_in_single(b: Builder, x: IrValue) -> IrValue:
    """Return a float32 that rounds to the same float16, or narrower float, as the value does."""
    if x.type.dtype == "float32":
        return x
    if x.type.dtype == "float16":
        return half_to_float(b, x)
    wide = b.cast(x, "float64")
    near = b.cast(wide, "float32")
    back = b.cast(near, "float64")
    # Twice rounded is as once rounded if the first time was to odd, with two more bits (Boldo and
    # Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
    # odd", IEEE Transactions on Computers 57(4), 2008).
    bits = b.bitcast(near, "int32")  # rounded to odd, so that rounding again is right
    is_above = b.compare("gt", b.unary("abs", back), b.unary("abs", wide))
    bits = b.select(is_above, b.sub(bits, 1), bits)
    bits = b.select(b.compare("ne", back, wide), b.binary("or", bits, 1), bits)
    return b.bitcast(bits, "float32")


CONVERSIONS = {
    "BitCast": ScalarOp(lambda b, x, attrs, dtype: reinterpret(b, x[0], dtype), ANY),
    "Dropout": unary(lambda b, x: x, ANY),  # in inference
}
"""Operators that keep the number."""


_FRACTION = 13
"""Bits by which a float32's fraction is longer than a float16's."""
_REBIAS = 112
"""Difference of the exponent biases of float32 and float16."""


def half_to_float(b: Builder, x: IrValue) -> IrValue:
    """Return a float16, or the bits of one, as float32, which holds them all."""
    bits = b.cast(reinterpret(b, x, "uint16"), "uint32")
    moved = b.binary("shl", b.binary("and", bits, 0x7FFF), _FRACTION)
    number = b.mul(b.bitcast(moved, "float32"), 2.0**_REBIAS)  # denormals become normal
    is_special = b.compare("ge", moved, 0x7C00 << _FRACTION)  # infinity or NaN
    special = b.binary("or", moved, 0x7F800000)
    size = b.select(is_special, special, b.bitcast(number, "uint32"))
    sign = b.binary("shl", b.binary("and", bits, 0x8000), 16)
    return b.bitcast(b.binary("or", size, sign), "float32")


def half_bits(b: Builder, x: IrValue) -> IrValue:
    """Return the bits of a float32 as float16, halves rounded to even."""
    bits = b.bitcast(x, "uint32")
    size = b.binary("and", bits, 0x7FFFFFFF)
    is_odd = b.binary("and", b.binary("shr", size, _FRACTION), 1)
    # Half a unit less one, plus the last bit that stays: ties go to even, and a carry into the
    # exponent is right.
    rounded = b.add(b.sub(size, (_REBIAS << 23) - 0xFFF), is_odd)
    normal = b.binary("shr", rounded, _FRACTION)
    # One unit in the last place of 0.5 is 2^-24, the smallest float16.
    shifted = b.add(b.bitcast(size, "float32"), 0.5)  # leaves a denormal's bits, rounded
    denormal = b.sub(b.bitcast(shifted, "uint32"), 0x3F000000)
    result = b.select(b.compare("lt", size, (_REBIAS + 1) << 23), denormal, normal)
    result = b.select(b.compare("ge", size, (_REBIAS + 31) << 23), 0x7C00, result)
    result = b.select(b.compare("gt", size, 0x7F800000), 0x7E00, result)
    result = b.binary("or", result, b.binary("shr", b.sub(bits, size), 16))
    return b.cast(result, "uint16")
