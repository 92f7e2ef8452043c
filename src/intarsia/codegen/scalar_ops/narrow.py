# SPDX-License-Identifier: Apache-2.0
"""Types that numpy lacks: floats of 16, 8 and 4 bits, integers of 4 and 2.

In kernels an element is the unsigned integer of its bits, a byte or two each, as in ml_dtypes. It
is converted to float32 or int32, which hold all of them, by integer operations.

Source:
    ONNX's pages "Float stored in 8 bits" and "Float stored in 4 bits"; Open Compute Project,
    "Microscaling Formats (MX) Specification" 1.0, 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue
from intarsia.codegen.scalar_ops.conversion import convert, exact_in_single
from intarsia.codegen.scalar_ops.operator import ANY, ScalarOp, unary


@dataclass(frozen=True, slots=True)
class NarrowFloat:
    """A floating-point type: a sign, an exponent, a fraction.

    Attributes:
        bits: Of an element.
        fraction: Bits of the fraction.
        bias: Of the exponent.
        largest: The bits of the largest finite number.
        overflow: The bits of what is larger.
        nan: The bits of NaN, or of what it becomes.
        has_negative_zero: Whether 0 has a sign; if not, `nan` is what would be -0.
        storage: The unsigned integer that holds it.
    """

    bits: int
    fraction: int
    bias: int
    largest: int
    overflow: int
    nan: int
    has_negative_zero: bool = True
    storage: str = "uint8"

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << (self.bits - 1)

    @property
    def shift(self) -> int:
        """Bits by which the fraction of a float32 is longer."""
        return 23 - self.fraction

    @property
    def rebias(self) -> int:
        """By how much the exponent's bias of a float32 is larger."""
        return 127 - self.bias


@dataclass(frozen=True, slots=True)
class NarrowInteger:
    """An integer type of less than a byte, in the low bits of one; the others are 0.

    Attributes:
        bits: Of an element.
        is_signed: Whether it is in two's complement.
        storage: The unsigned integer that holds it.
    """

    bits: int
    is_signed: bool
    storage: str = "uint8"


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """The type of scales: the exponent of a float32, 255 for NaN.

    Attributes:
        storage: The unsigned integer that holds it.
    """

    storage: str = "uint8"


BFLOAT16 = NarrowFloat(16, 7, 127, 0x7F7F, 0x7F80, 0x7FC0, storage="uint16")
NARROW: Mapping[str, NarrowFloat | NarrowInteger | PowerOfTwo] = {
    "bfloat16": BFLOAT16,
    "float8_e4m3fn": NarrowFloat(8, 3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": NarrowFloat(8, 3, 8, 0x7F, 0x80, 0x80, has_negative_zero=False),
    "float8_e5m2": NarrowFloat(8, 2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e5m2fnuz": NarrowFloat(8, 2, 16, 0x7F, 0x80, 0x80, has_negative_zero=False),
    "float8_e8m0fnu": PowerOfTwo(),
    "float4_e2m1fn": NarrowFloat(4, 1, 1, 0x7, 0x7, 0x8),
    "int4": NarrowInteger(4, is_signed=True),
    "uint4": NarrowInteger(4, is_signed=False),
    "int2": NarrowInteger(2, is_signed=True),
    "uint2": NarrowInteger(2, is_signed=False),
}
"""The types, by their names in ml_dtypes."""


WITH_NARROW = ANY | frozenset(NARROW)
"""All types of elements that kernels can move."""


def storage_of(dtype: str) -> str:
    """Return the dtype, by numpy's name, that kernels know elements of a dtype as."""
    return NARROW[dtype].storage if dtype in NARROW else dtype


def cast(b: Builder, x: IrValue, attributes: Mapping[str, Any], dtype: str) -> IrValue:
    """Return a value as another dtype.

    Args:
        b: Of the kernel.
        x: The value; the bits of an element if it is of a narrow type.
        attributes: `from` and `to` name narrow types; `saturate` and `round_mode` are ONNX's.
        dtype: Of the result, or what holds it.
    """
    source, target = NARROW.get(attributes.get("from", "")), NARROW.get(attributes.get("to", ""))
    if source is not None:
        x = narrow_to_float(b, x, source)
    if target is None:
        return convert(b, x, dtype)
    saturates = bool(attributes.get("saturate", 1))
    if isinstance(target, NarrowInteger):
        number = convert(b, x, "int32")
        return b.cast(b.binary("and", number, (1 << target.bits) - 1), target.storage)
    if isinstance(target, PowerOfTwo):
        rounding = attributes.get("round_mode", "up")
        return _to_scale(b, convert(b, x, "float32"), rounding, saturates=saturates)
    saturates = saturates and target is not BFLOAT16
    return float_to_narrow(b, exact_in_single(b, x), target, saturates=saturates)


def _cast(b: Builder, x: Sequence[Any], attributes: Mapping[str, Any], dtype: str) -> IrValue:
    return cast(b, x[0], attributes, dtype)


CASTS = {
    "Cast": ScalarOp(_cast, WITH_NARROW),
    "CastLike": ScalarOp(_cast, WITH_NARROW),
    "Identity": unary(lambda _b, x: x, WITH_NARROW),
}
"""Operators that take every type: they convert, or change nothing."""


def narrow_to_float(
    b: Builder, x: IrValue, type_: NarrowFloat | NarrowInteger | PowerOfTwo
) -> IrValue:
    """Return a float32 or an int32 of an element's bits."""
    if isinstance(type_, NarrowInteger):
        number = b.binary("and", b.cast(x, "int32"), (1 << type_.bits) - 1)
        sign = 1 << (type_.bits - 1)
        return b.sub(b.binary("xor", number, sign), sign) if type_.is_signed else number
    bits = b.cast(x, "uint32")
    if isinstance(type_, PowerOfTwo):
        scale = b.select(b.compare("eq", bits, 0), 1 << 22, b.binary("shl", bits, 23))
        return b.bitcast(b.select(b.compare("eq", bits, 0xFF), 0x7FC00000, scale), "float32")
    if not type_.rebias:
        return b.bitcast(b.binary("shl", bits, type_.shift), "float32")
    size = b.binary("and", bits, type_.sign - 1)
    moved = b.binary("shl", size, type_.shift)
    number = b.mul(b.bitcast(moved, "float32"), 2.0**type_.rebias)  # denormals become normal
    wide = b.bitcast(number, "uint32")
    if type_.overflow != type_.largest and type_.has_negative_zero:
        # Where there is infinity, NaN keeps its fraction.
        has_infinity = type_.overflow != type_.nan
        special = b.binary("or", moved, 0x7F800000 if has_infinity else 0x7FC00000)
        wide = b.select(b.compare("gt", size, type_.largest), special, wide)
    negative = b.binary("shl", b.binary("and", bits, type_.sign), 32 - type_.bits)
    wide = b.binary("or", wide, negative)
    if not type_.has_negative_zero:
        wide = b.select(b.compare("eq", bits, type_.nan), 0xFFC00000, wide)
    return b.bitcast(wide, "float32")


def float_to_narrow(b: Builder, x: IrValue, type_: NarrowFloat, *, saturates: bool) -> IrValue:
    """Return the bits of a float32 in a narrow type, halves rounded to even."""
    bits = b.bitcast(x, "uint32")
    size = b.binary("and", bits, 0x7FFFFFFF)
    is_odd = b.binary("and", b.binary("shr", size, type_.shift), 1)
    half = 1 << (type_.shift - 1)
    # Half a unit less one, plus the last bit that stays: ties go to even, and a carry into the
    # exponent is right.
    rounded = b.add(b.add(b.sub(size, type_.rebias << 23), half - 1), is_odd)
    result = b.binary("shr", rounded, type_.shift)
    if type_.rebias:
        # One unit in its last place is the smallest number of the narrow type.
        offset = np.float32(2.0 ** (24 - type_.bias - type_.fraction))
        shifted = b.add(b.bitcast(size, "float32"), float(offset))
        denormal = b.sub(b.bitcast(shifted, "uint32"), int(offset.view(np.uint32)))
        result = b.select(b.compare("lt", size, (type_.rebias + 1) << 23), denormal, result)
    limit = type_.largest if saturates else type_.overflow
    result = b.select(b.compare("gt", result, type_.largest), limit, result)
    result = b.select(b.compare("gt", size, 0x7F800000), type_.nan, result)
    sign = b.binary("shr", b.sub(bits, size), 32 - type_.bits)
    if not type_.has_negative_zero:
        sign = b.select(b.compare("eq", result, 0), 0, sign)
    return b.cast(b.binary("or", result, sign), type_.storage)


def _to_scale(b: Builder, x: IrValue, rounding: str, *, saturates: bool) -> IrValue:
    """Return the exponent of a float32, rounded by its fraction."""
    bits = b.bitcast(x, "uint32")
    exponent = b.binary("and", b.binary("shr", bits, 23), 0xFF)
    fraction = b.binary("and", bits, 0x7FFFFF)
    is_up = b.compare("gt", fraction, 0)
    if rounding == "nearest":  # a tie goes up, but from the least scale
        above = b.cast(b.compare("eq", exponent, 0), "uint32")
        is_up = b.compare("ge", fraction, b.add(above, 1 << 22))
    following = b.add(exponent, b.cast(is_up, "uint32"))
    if rounding == "down":
        following = exponent
    if saturates:
        following = b.minimum(following, 0xFE)
    return b.cast(b.select(b.compare("eq", exponent, 0xFF), 0xFF, following), "uint8")
