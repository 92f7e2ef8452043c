# SPDX-License-Identifier: Apache-2.0
"""What tables of float32 operators read of ONNX's nodes, or why they take them not."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from intarsia.backends.tflite.layers import NotTakenError
from intarsia.graph.extract import constant_array

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.codegen.lower.operation import Operation

IMAGE = 4
"""Axes of a batch of images."""
MATRIX = 2
"""Axes of a matrix."""
_ONE_AXIS = 13
"""The operator set since which a softmax is along one axis; before, those after it counted too."""


def check_operation(operation: Operation, table: Collection[str], indexed: Collection[str]) -> None:
    """Refuse a node for what it reads and makes.

    Args:
        operation: The node.
        table: Operators that are taken.
        indexed: Those of them whose further inputs are integers.

    Raises:
        NotTakenError: It is not in the table, or not of dense tensors of float32.
    """
    if operation.op_type not in table:
        raise NotTakenError(f"there is no {operation.op_type} in the table")
    if len(operation.outputs) != 1:
        raise NotTakenError("it has several results")
    for value in (*operation.inputs, operation.output):
        if not value.is_static or value.is_free or 0 in (value.shape or ()):
            raise NotTakenError(f"the shape of {value.name!r} is empty or not fixed")
    floats = operation.inputs[:1] if operation.op_type in indexed else operation.inputs
    for value in (*floats, operation.output):
        if value.dtype != "float32":
            raise NotTakenError(f"{value.name!r} is of {value.dtype}, not of float32")
    if all(value.constant is not None for value in operation.inputs):
        raise NotTakenError("all that it reads is constant")
    if any(value.constant is None for value in operation.inputs[len(floats) :]):
        raise NotTakenError("its shape or its axes are computed")


def read_limits(operation: Operation) -> tuple[float, float]:
    """Return the limits of a Clip; infinite where there is none.

    Raises:
        NotTakenError: They are computed.
    """
    limits = []
    for position, name, default in ((1, "min", -math.inf), (2, "max", math.inf)):
        if operation.value(position) is None:
            limits.append(float(operation.attribute(name, default)))
        elif operation.is_constant(position):
            limits.append(float(operation.array(position).reshape(())))
        else:
            raise NotTakenError("its limits are computed")
    return limits[0], limits[1]


def read_filters(operation: Operation) -> tuple[Array, Array]:
    """Return the weights `[O, I, h, w]` and the bias `[O]` of a convolution of images.

    Raises:
        NotTakenError: They are computed, or it is none.
    """
    bias = operation.value(2)
    if not operation.is_constant(1) or (bias is not None and bias.constant is None):
        raise NotTakenError("its weights or its bias are computed")
    weights = operation.array(1)
    if weights.ndim != IMAGE:
        raise NotTakenError("it is no convolution of images")
    return weights, np.zeros(len(weights), np.float32) if bias is None else constant_array(bias)


def read_softmax_axis(operation: Operation) -> int:
    """Return the axis of a softmax.

    Raises:
        NotTakenError: It is along several.
    """
    rank, is_old = len(operation.output_shape), operation.opset < _ONE_AXIS
    axis = int(operation.attribute("axis", 1 if is_old else -1)) % max(rank, 1)
    if rank == 0 or (is_old and axis != rank - 1):
        raise NotTakenError("it is along several axes")
    return axis


def is_dense(operation: Operation) -> bool:
    """Tell whether the second operand of a product is a constant matrix, or has to be one.

    Raises:
        NotTakenError: An operand is a vector.
    """
    if min(len(operation.shape(0)), len(operation.shape(1))) < MATRIX:
        raise NotTakenError("an operand is a vector")
    is_matrix = operation.is_constant(1) and len(operation.shape(1)) == MATRIX
    return operation.op_type == "Gemm" or is_matrix


def read_dense(operation: Operation) -> tuple[Array, Array]:
    """Return the weights `[N, K]` and the bias `[N]` of a Gemm, or of a MatMul with a matrix.

    Raises:
        NotTakenError: They are computed, or it is another product.
    """
    bias = operation.value(2)
    if operation.attribute("transA", 0) or not operation.is_constant(1):
        raise NotTakenError("its first operand is transposed, or its second one is computed")
    weights = operation.array(1) * np.float32(operation.attribute("alpha", 1.0))
    weights = weights if operation.attribute("transB", 0) else weights.T
    added: Array = np.zeros(len(weights), np.float32)
    if bias is not None:
        if bias.constant is None or math.prod(bias.shape or ()) != (bias.shape or (1,))[-1]:
            raise NotTakenError("its bias is computed, or differs from row to row")
        beta = np.float32(operation.attribute("beta", 1.0))
        added = added + constant_array(bias).reshape(-1) * beta
    return weights, added
