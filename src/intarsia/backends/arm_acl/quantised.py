# SPDX-License-Identifier: Apache-2.0
"""Integers with scales and zero points, as ONNX's QuantizeLinear and DequantizeLinear have them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.lower.operation import Operation
from intarsia.graph.graph import Value

_INTEGERS = ("int8", "uint8", "int32")


@dataclass(frozen=True, eq=False)
class ScaledIntegers:
    """Integers and what they mean: `(integer - zero point) * scale`.

    Attributes:
        value: The integers.
        scale: `f32[1]`, or one per index of the axis.
        zeros: `i32[n]` of the same length.
        axis: The axis with a scale per index; None if there is one for all.
    """

    value: Value
    scale: Array
    zeros: Array
    axis: int | None

    @property
    def zero(self) -> int:
        """The zero point, where there is one for all."""
        return int(self.zeros[0])

    def is_same(self, other: ScaledIntegers) -> bool:
        """Tell whether both mean the same."""
        return (
            self.value.dtype == other.value.dtype
            and self.axis == other.axis
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zeros, other.zeros)
        )


def read_parameters(
    operation: Operation, value: Value, scale_at: int, zero_at: int, axis: int | None
) -> ScaledIntegers | str:
    """Return integers with the scale and zero point at two positions of a node's inputs.

    Args:
        operation: The node.
        value: The integers.
        scale_at: Where the scale is.
        zero_at: Where the zero point is; it may be absent.
        axis: The axis that scales of more than one number go along.

    Returns:
        Them, or why the library cannot have them.
    """
    has_zero = operation.value(zero_at) is not None
    if not operation.is_constant(scale_at) or (has_zero and not operation.is_constant(zero_at)):
        return "its scale or zero point is not constant"
    scale = operation.array(scale_at)
    if scale.dtype != np.float32:
        return f"its scale is of {scale.dtype}, not float32"
    if value.dtype not in _INTEGERS:
        return f"{value.name!r} is of {value.dtype}, not {', '.join(_INTEGERS)}"
    if scale.ndim > 1 and scale.size > 1:
        return "its scales are of blocks"
    scale = scale.reshape(-1)
    zeros = operation.array(zero_at).reshape(-1) if has_zero else np.zeros(1, np.int32)
    shape = value.shape or ()
    if scale.size == 1 and zeros.size == 1:
        axis = None
    elif axis is None or not shape or shape[axis] != scale.size:
        return "its scales do not run along one axis"
    return ScaledIntegers(value, scale, np.broadcast_to(zeros.astype(np.int32), scale.shape), axis)


def read_linear(operation: Operation) -> ScaledIntegers | str:
    """Return the integers of a QuantizeLinear (its result) or DequantizeLinear (its operand)."""
    is_quantize = operation.op_type == "QuantizeLinear"
    integers = operation.output if is_quantize else operation.inputs[0]
    floats = operation.inputs[0] if is_quantize else operation.output
    if floats.dtype != "float32":
        return f"{floats.name!r} is of {floats.dtype}, not float32"
    if operation.attribute("block_size", 0):
        return "its scales are of blocks"
    rank = len(integers.shape or ())
    axis = operation.attribute("axis", 1)
    return read_parameters(operation, integers, 1, 2, axis % rank if rank else None)


def dequantise(quantised: ScaledIntegers, array: Array) -> Array:
    """Return the floats that integers stand for, rounded as ONNX's definition rounds."""
    shape = [-1 if dim == quantised.axis else 1 for dim in range(array.ndim)]
    if quantised.axis is None:
        shape = []
    zeros, scale = quantised.zeros.reshape(shape), quantised.scale.reshape(shape)
    # In int32: the difference of two bytes has nine bits.
    floats: Array = (array.astype(np.int32) - zeros).astype(np.float32) * scale
    return floats
