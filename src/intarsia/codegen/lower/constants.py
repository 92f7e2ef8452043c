# SPDX-License-Identifier: Apache-2.0
"""Operators whose result is known when compiling: Shape, ConstantOfShape and their like."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from intarsia.codegen.lower.assembler import Array, Assembler
from intarsia.codegen.lower.groups import Group
from intarsia.codegen.lower.operation import Operation


def _shape(operation: Operation) -> Array:
    shape = operation.shape()
    return np.array(shape[operation.attribute("start", 0) : operation.attribute("end")], np.int64)


def _size(operation: Operation) -> Array:
    return np.array(prod(operation.shape()), np.int64)


def _constant_of_shape(operation: Operation) -> Array:
    value = operation.attribute("value", np.zeros(1, np.float32))
    return np.full(operation.output_shape, value.reshape(-1)[0])


def _eye_like(operation: Operation) -> Array:
    rows, columns = operation.output_shape
    dtype = np.dtype(operation.output.dtype)
    return np.eye(rows, columns, operation.attribute("k", 0), dtype)


def _constant(operation: Operation) -> Array:
    (value,) = operation.attributes.values()
    return np.asarray(value, operation.output.dtype)


CONSTANTS: dict[str, Callable[[Operation], Array]] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _eye_like,
    "Shape": _shape,
    "Size": _size,
}
"""Each operator with what computes its result."""


def lower_constant(assembler: Assembler, group: Group) -> None:
    """Say that the result is a constant."""
    operation = group.anchor
    array = CONSTANTS[operation.op_type](operation)
    assembler.alias(group.result, assembler.constant(operation.output.name, array))
