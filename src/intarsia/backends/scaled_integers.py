# SPDX-License-Identifier: Apache-2.0
"""Integers with scales and zero points, as ONNX's QuantizeLinear and DequantizeLinear have them.

What backends that compute with integers make of a node; those that have other numbers in their
place (codes of a kernel, a flat buffer's fields) read them otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import ReasonCode
from intarsia.graph.graph import Value
from intarsia.graph.region import Region

BYTES = ("int8", "uint8")
_INTEGERS = (*BYTES, "int32")


@dataclass(frozen=True, eq=False)
class ScaledIntegers:
    """Integers and what they mean: `(integer - zero point) * scale`.

    Attributes:
        value: The integers.
        scale: `f32[1]`, or one per index of the axis.
        zero_points: `i32[n]` of the same length.
        axis: The axis with a scale per index; None if there is one for all.
    """

    value: Value
    scale: Array
    zero_points: Array
    axis: int | None

    @property
    def is_alike(self) -> bool:
        """Whether one zero point serves all."""
        return bool((self.zero_points == self.zero_points[0]).all())

    @property
    def zero(self) -> int:
        """The one zero point."""
        return int(self.zero_points[0])

    def along(self, rank: int) -> tuple[int, ...]:
        """Return the shape in which scales and zero points are broadcast to the integers."""
        if self.axis is None:
            return ()
        return tuple(-1 if dim == self.axis else 1 for dim in range(rank))

    def is_same(self, other: ScaledIntegers) -> bool:
        """Tell whether both have the same dtype, axis, scale and zero point."""
        return (
            self.value.dtype == other.value.dtype
            and self.axis == other.axis
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_points, other.zero_points)
        )


def read_parameters(
    operation: Operation, value: Value, scale_at: int, zero_at: int, axis: int | None
) -> ScaledIntegers | tuple[ReasonCode, str]:
    """Return integers with the scale and zero point at two positions of a node's inputs.

    Args:
        operation: The node.
        value: The integers.
        scale_at: Where the scale is.
        zero_at: Where the zero point is; it may be absent.
        axis: The axis that scales of more than one number go along.

    Returns:
        Them, or a reason code and a sentence: why a library cannot have them.
    """
    node = Operation(operation.graph, operation.node)  # all of its inputs, not a selection
    has_zero = node.value(zero_at) is not None
    if not node.is_constant(scale_at) or (has_zero and not node.is_constant(zero_at)):
        return _unsupported("its scale or zero point is not constant")
    scale = node.array(scale_at)
    if scale.dtype != np.float32:
        return ReasonCode.UNSUPPORTED_DTYPE, f"its scale is of {scale.dtype}, not float32"
    if value.dtype not in _INTEGERS:
        return _other_dtype(value, _INTEGERS)
    if scale.ndim > 1 and scale.size > 1:
        return _unsupported("its scales are of blocks")
    scale = scale.reshape(-1)
    zeros = node.array(zero_at).reshape(-1) if has_zero else np.zeros(1, np.int32)
    shape = value.shape or ()
    if scale.size == 1 and zeros.size == 1:
        axis = None
    elif axis is None or not shape or shape[axis] != scale.size:
        return _unsupported("its scales do not run along one axis")
    return ScaledIntegers(value, scale, np.broadcast_to(zeros.astype(np.int32), scale.shape), axis)


def read_linear(operation: Operation) -> ScaledIntegers | tuple[ReasonCode, str]:
    """Return the integers of a QuantizeLinear (its result) or DequantizeLinear (its operand)."""
    is_quantize = operation.op_type == "QuantizeLinear"
    integers = operation.output if is_quantize else operation.inputs[0]
    floats = operation.inputs[0] if is_quantize else operation.output
    dtypes = BYTES if is_quantize else _INTEGERS
    if integers.dtype not in dtypes:
        return _other_dtype(integers, dtypes)
    if floats.dtype != "float32":
        return _other_dtype(floats, ("float32",))
    if operation.attribute("block_size", 0):
        return _unsupported("its scales are of blocks")
    rank = len(integers.shape or ())
    axis = operation.attribute("axis", 1)
    return read_parameters(operation, integers, 1, 2, axis % rank if rank else None)


def integers_of(value: Value | None, region: Region) -> ScaledIntegers | None:
    """Return the integers that a value of a region stands for, if it has them."""
    if value is None or value.producer < 0 or value.producer not in region:
        return None
    node = region.graph.nodes[value.producer]
    if node.op_type != "DequantizeLinear":
        return None
    integers = read_linear(Operation(region.graph, node))
    return integers if isinstance(integers, ScaledIntegers) else None


def dequantise(integers: ScaledIntegers, array: Array) -> Array:
    """Return the floats that integers stand for, rounded as ONNX's definition rounds."""
    shape = integers.along(array.ndim)
    zeros, scale = integers.zero_points.reshape(shape), integers.scale.reshape(shape)
    # In int32: the difference of two bytes has nine bits.
    floats: Array = (array.astype(np.int32) - zeros).astype(np.float32) * scale
    return floats


def _unsupported(sentence: str) -> tuple[ReasonCode, str]:
    return ReasonCode.UNSUPPORTED_OP, sentence


def _other_dtype(value: Value, dtypes: tuple[str, ...]) -> tuple[ReasonCode, str]:
    sentence = f"{value.name!r} is of {value.dtype}, not {' or '.join(dtypes)}"
    return ReasonCode.UNSUPPORTED_DTYPE, sentence
