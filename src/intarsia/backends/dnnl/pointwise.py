# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators: as primitives of their own, and as what follows another primitive."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import TypeAlias

import numpy as np

from intarsia.backends.dnnl.lowering import Ids, Problem, aligned, node_call, unsupported
from intarsia.backends.dnnl.program import Post, PrimitiveCall
from intarsia.backends.dnnl.words import BinaryAlgorithm, Eltwise
from intarsia.codegen.lower.operation import Operation
from intarsia.graph.graph import Value
from intarsia.graph.ops import operator_of

Function: TypeAlias = tuple[Eltwise, float, float]
"""An elementwise algorithm with alpha and beta."""

_BINARY = {
    "Add": BinaryAlgorithm.ADD,
    "Sum": BinaryAlgorithm.ADD,
    "Sub": BinaryAlgorithm.SUB,
    "Mul": BinaryAlgorithm.MUL,
    "Div": BinaryAlgorithm.DIV,
    "Max": BinaryAlgorithm.MAX,
    "Min": BinaryAlgorithm.MIN,
}
_PAIR = 2
_MOST_EXPANDED = 2**18
"""Elements up to which a constant is repeated when compiling."""


def function_of(operation: Operation) -> Function | None:
    """Return the function of one operand that an operation is, or None."""
    plain = _PLAIN.get(operation.op_type)
    if plain is not None:
        return plain
    read = _PARAMETRIC.get(operation.op_type, _with_scalar)
    return read(operation)


_PLAIN: dict[str, Function] = {
    "Abs": (Eltwise.ABS, 0.0, 0.0),
    "Exp": (Eltwise.EXP, 0.0, 0.0),
    "HardSwish": (Eltwise.HARDSWISH, 1 / 6, 0.5),
    "Mish": (Eltwise.MISH, 0.0, 0.0),
    "Neg": (Eltwise.LINEAR, -1.0, 0.0),
    "Reciprocal": (Eltwise.POW, 1.0, -1.0),
    "Relu": (Eltwise.RELU, 0.0, 0.0),
    "Round": (Eltwise.ROUND, 0.0, 0.0),
    "Sigmoid": (Eltwise.LOGISTIC, 0.0, 0.0),
    "Softplus": (Eltwise.SOFT_RELU, 1.0, 0.0),
    "Sqrt": (Eltwise.SQRT, 0.0, 0.0),
    "Tanh": (Eltwise.TANH, 0.0, 0.0),
}


def _clip(operation: Operation) -> Function | None:
    low, high = operation.attribute("min"), operation.attribute("max")
    for position in (1, 2):
        if operation.value(position) is not None and not operation.is_constant(position):
            return None
    if operation.is_constant(1):
        low = float(operation.array(1).reshape(()))
    if operation.is_constant(2):
        high = float(operation.array(2).reshape(()))
    low, high = -inf if low is None else low, inf if high is None else high
    return (Eltwise.CLIP, low, high) if low <= high else None


def _power(operation: Operation) -> Function | None:
    exponent = _scalar(operation.value(1), operation)
    if exponent is None or operation.shape() != operation.output_shape:
        return None
    return (Eltwise.SQUARE, 0.0, 0.0) if exponent == _PAIR else (Eltwise.POW, 1.0, exponent)


def _gelu(operation: Operation) -> Function:
    is_tanh = operation.attribute("approximate", "none") == "tanh"
    return Eltwise.GELU_TANH if is_tanh else Eltwise.GELU_ERF, 0.0, 0.0


def _hard_sigmoid(operation: Operation) -> Function:
    alpha, beta = operation.attribute("alpha", 0.2), operation.attribute("beta", 0.5)
    return Eltwise.HARDSIGMOID, alpha, beta


_PARAMETRIC: dict[str, Callable[[Operation], Function | None]] = {
    "Clip": _clip,
    "Elu": lambda operation: (Eltwise.ELU, operation.attribute("alpha", 1.0), 0.0),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "LeakyRelu": lambda operation: (Eltwise.RELU, operation.attribute("alpha", 0.01), 0.0),
    "Pow": _power,
}

UNARY = (*_PLAIN, *_PARAMETRIC)
BINARY = tuple(_BINARY)


def _scalar(value: Value | None, operation: Operation) -> float | None:
    """Return a constant of one element as a number."""
    if value is None or value.constant is None or value.shape is None:
        return None
    if any(extent != 1 for extent in value.shape):
        return None
    position = operation.node.inputs.index(value.id)
    return float(operation.array(position).reshape(()))


def _with_scalar(operation: Operation) -> Function | None:
    if operation.op_type not in _BINARY or len(operation.inputs) != _PAIR:
        return None
    left, right = (_scalar(value, operation) for value in operation.inputs)
    number = left if right is None else right
    if number is None or (left is not None and right is not None):
        return None
    if operation.shape(0 if left is None else 1) != operation.output_shape:
        return None
    if right is None:
        return _of_number_first(operation.op_type, number)
    return _of_number_last(operation.op_type, number)


def _of_number_first(op_type: str, number: float) -> Function | None:
    if op_type == "Sub":
        return Eltwise.LINEAR, -1.0, number
    if op_type == "Div":
        return Eltwise.POW, number, -1.0
    return _of_number_last(op_type, number)


def _of_number_last(op_type: str, number: float) -> Function | None:
    functions: dict[str, Function] = {
        "Add": (Eltwise.LINEAR, 1.0, number),
        "Sum": (Eltwise.LINEAR, 1.0, number),
        "Sub": (Eltwise.LINEAR, 1.0, -number),
        "Mul": (Eltwise.LINEAR, number, 0.0),
        "Max": (Eltwise.CLIP, number, inf),
        "Min": (Eltwise.CLIP, -inf, number),
    }
    # 1.0 / 0.0 would raise here; as a primitive of two operands it gives infinities, as ONNX does.
    if number:
        functions["Div"] = (Eltwise.LINEAR, 1.0 / number, 0.0)
    return functions.get(op_type)


def source_of(operation: Operation) -> Value:
    """Return the operand that is not a constant of an operation with a function."""
    if operation.op_type in _BINARY and operation.is_constant(0):
        return operation.inputs[1]
    return operation.inputs[0]


def lower_unary(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return an elementwise primitive of one operand."""
    function = function_of(operation)
    if function is None:
        return unsupported(f"{operation.op_type} with bounds or an exponent that are not constants")
    return _eltwise(operation, ids, function)


def _eltwise(operation: Operation, ids: Ids, function: Function) -> PrimitiveCall:
    algorithm, alpha, beta = function
    source = (ids(source_of(operation).id),)
    numbers = {"alpha": alpha, "beta": beta}
    return node_call("eltwise", operation, ids, algorithm, inputs=source, numbers=numbers)


def lower_binary(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return an elementwise primitive of two operands, or of one and a number."""
    function = function_of(operation)
    if function is not None:
        return _eltwise(operation, ids, function)
    if len(operation.inputs) != _PAIR:
        return unsupported(f"{operation.op_type} of {len(operation.inputs)} operands")
    left, right = operation.inputs
    shape = operation.output_shape
    if left.shape != shape:
        if right.shape != shape or not operator_of(operation.node).is_commutative:
            return unsupported("broadcasting of the first operand")
        left, right = right, left
    assert right.shape is not None
    operand, operand_shape = _operand(operation, right, ids)
    lists = {"shape1": operand_shape} if right.shape != shape else {}
    inputs, algorithm = (ids(left.id), operand), _BINARY[operation.op_type]
    return node_call("binary", operation, ids, algorithm, inputs=inputs, lists=lists)


def _operand(operation: Operation, value: Value, ids: Ids) -> tuple[int, tuple[int, ...]]:
    """Return the second operand and its dimensions; some constants are repeated to full size."""
    assert value.shape is not None
    shape = operation.output_shape
    aligned_shape = aligned(value.shape, len(shape))
    if (
        value.constant is None
        or not _is_mixed(aligned_shape, shape)
        or prod(shape) > _MOST_EXPANDED
    ):
        return ids(value.id), aligned_shape
    array = operation.array(operation.node.inputs.index(value.id)).reshape(aligned_shape)
    # 1 MiB of float32 at most, which a primitive with specialised code reads faster than plain
    # loops read the small operand.
    expanded = np.ascontiguousarray(np.broadcast_to(array, shape))
    return ids.constant(f"{operation.node.name}/operand", expanded), shape


def _is_mixed(operand: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Tell whether an operand is broadcast in a way that has only reference code.

    That is along some dimensions between others: neither one number, nor one for each channel, nor
    the innermost dimensions.
    """
    varying = [dim for dim, extent in enumerate(operand) if extent != 1]
    if operand == shape or varying in ([], [1]):
        return False
    return any(operand[dim] != shape[dim] for dim in range(varying[0], len(shape)))


def post_of(operation: Operation, source: int, ids: Ids) -> Post | None:
    """Return an operation as something done to a result, or None.

    Args:
        operation: An elementwise operation.
        source: The value that is the result.
        ids: Tensors of values.
    """
    if operation.shape(operation.node.inputs.index(source)) != operation.output_shape:
        return None
    function = function_of(operation)
    if function is not None:
        return Post(*function)
    if operation.op_type not in _BINARY or len(operation.inputs) != _PAIR:
        return None
    left, right = operation.inputs
    # `y + y` of a result that is still being made: the second operand would have to be in memory
    # already.
    if left.id == right.id:
        return None
    if left.id != source:
        if not operator_of(operation.node).is_commutative:
            return None
        left, right = right, left
    operand, shape = _operand(operation, right, ids)
    return Post(_BINARY[operation.op_type], operand=operand, shape=shape)


def lower_prelu(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a leaky rectifier with a tensor of slopes."""
    _, slope = operation.inputs
    assert slope.shape is not None
    rank = len(operation.shape())
    if len(slope.shape) > rank:
        return unsupported("slopes of more dimensions than the operand")
    lists = {"shape1": aligned(slope.shape, rank)}
    return node_call("prelu", operation, ids, lists=lists)


def lower_batch_normalization(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a batch normalisation; further inputs: scale, shift, mean, variance."""
    if len(operation.outputs) > 1 or operation.attribute("training_mode", 0):
        return unsupported("batch normalisation while training")
    if len(operation.shape()) not in (2, 3, 4, 5) or operation.attribute("spatial", 1) != 1:
        return unsupported(f"normalising {len(operation.shape())} dimensions")
    numbers = {"epsilon": operation.attribute("epsilon", 1e-5)}
    return node_call("batch_normalization", operation, ids, numbers=numbers)
