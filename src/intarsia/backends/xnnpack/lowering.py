# SPDX-License-Identifier: Apache-2.0
"""A region of float32 operators as a TFLite network: a table by ONNX operator.

Images have their channels last there. A value may exist in both orders; the second one is made when
something asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from intarsia.backends.float_operators import (
    IMAGE,
    MATRIX,
    check_operation,
    is_dense,
    read_dense,
    read_filters,
    read_limits,
    read_softmax_axis,
)
from intarsia.backends.tflite.layers import NotTakenError
from intarsia.backends.tflite.network import Network, NetworkTensor, Quantity
from intarsia.backends.tflite.operators import ImageWindow, NetworkDraft, read_window
from intarsia.codegen.lower.operation import Operation
from intarsia.graph.extract import constant_array

if TYPE_CHECKING:
    from intarsia.graph.graph import Value
    from intarsia.graph.region import Region

_LAST = (0, 2, 3, 1)
_FIRST = (0, 3, 1, 2)


def lower_region(region: Region) -> Network:
    """Return a region as a network; its inputs and outputs are in the region's order.

    Raises:
        NotTakenError: TFLite says a node otherwise, or not at all.
    """
    draft, values = FloatDraft(), region.graph.values
    operations = [Operation(region.graph, region.graph.nodes[node]) for node in region.nodes]
    for operation in operations:
        check_operation(operation, _TABLE, _INDEXED)
    inputs = tuple(draft.add_input(values[number]) for number in region.inputs)
    for operation in operations:
        draft.node = operation.node.name
        _TABLE[operation.op_type](draft, operation)
    outputs = tuple(draft.read_value(values[number]) for number in region.outputs)
    if len({*inputs, *outputs}) < len(inputs) + len(outputs):
        raise NotTakenError("a result is nothing but another one, or an input")
    return Network(tuple(draft.tensors), tuple(draft.operators), inputs, outputs)


class FloatDraft(NetworkDraft):
    """A network of float32 that is being written; values of the graph are tensors of it."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[tuple[int, bool], int] = {}

    def computed(
        self, shape: Sequence[int], quantity: Quantity | None = None, name: str = ""
    ) -> int:
        """Add a tensor that an operator makes."""
        text = name or f"{self.node}/{len(self.tensors)}"
        return self.tensor(NetworkTensor(text, tuple(shape), "float32"))

    def add_input(self, value: Value) -> int:
        """Add an input of the network."""
        assert value.shape is not None
        number = self.computed(value.shape, name=value.name)
        self._held[value.id, False] = number
        return number

    def is_held(self, value: Value, *, is_last: bool) -> bool:
        """Tell whether a value is there in an order, so that reading it so moves nothing."""
        return (value.id, is_last) in self._held

    def read_value(self, value: Value, *, is_last: bool = False) -> int:
        """Return the tensor of a value, with channels last where that is asked for."""
        key = (value.id, is_last)
        if key not in self._held:
            assert value.shape is not None
            if value.constant is not None:
                array = constant_array(value)
                if is_last:
                    array = array.reshape((1,) * (IMAGE - array.ndim) + array.shape)
                    array = array.transpose(_LAST)
                self._held[key] = self.constant(array)
            elif is_last and len(value.shape) != IMAGE:
                raise NotTakenError(f"{value.name!r} is no image: it has {len(value.shape)} axes")
            else:
                source = self._held[value.id, not is_last]
                self._held[key] = self.transposed(source, _LAST if is_last else _FIRST)
        return self._held[key]

    def write(
        self, op: Operation, code: str, inputs: Sequence[int], is_last: bool = False, **more: Any
    ) -> None:
        """Add an operator that makes the result of a node.

        Args:
            op: The node.
            code: TFLite's name of the operator.
            inputs: Tensors.
            is_last: Whether the result has its channels last.
            more: Its options.
        """
        shape = op.output_shape
        out = self.computed([shape[axis] for axis in _LAST] if is_last else shape)
        self._held[op.output.id, is_last] = self.operator(code, inputs, out, **more)


_Lower: TypeAlias = Callable[[FloatDraft, Operation], None]


def _is_last(draft: FloatDraft, operation: Operation) -> bool:
    """Tell whether to compute with channels last: an operand is so, and all can be."""
    fed = [value for value in operation.inputs if value.constant is None]
    return all(len(value.shape or ()) == IMAGE for value in fed) and any(
        draft.is_held(value, is_last=True) and not draft.is_held(value, is_last=False)
        for value in fed
    )


def _pointwise(code: str, draft: FloatDraft, operation: Operation, **options: Any) -> None:
    is_last = _is_last(draft, operation)
    inputs = [draft.read_value(value, is_last=is_last) for value in operation.inputs]
    draft.write(operation, code, inputs, is_last=is_last, **options)


def _binary(code: str, draft: FloatDraft, operation: Operation) -> None:
    if len(operation.inputs) != 2:  # noqa: PLR2004
        raise NotTakenError(f"it has {len(operation.inputs)} operands")
    _pointwise(code, draft, operation)


def _leaky(draft: FloatDraft, operation: Operation) -> None:
    _pointwise("LEAKY_RELU", draft, operation, Alpha=float(operation.attribute("alpha", 0.01)))


def _clip(draft: FloatDraft, operation: Operation) -> None:
    """Write limits; those that TFLite has no name for are a maximum and a minimum."""
    low, high = read_limits(operation)
    is_last = _is_last(draft, operation)
    x = draft.read_value(operation.inputs[0], is_last=is_last)
    named = {(0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1", (0.0, math.inf): "RELU"}
    if (low, high) in named:
        draft.write(operation, named[low, high], (x,), is_last=is_last)
    elif math.isfinite(low) and math.isfinite(high) and low <= high:
        below, above = (draft.constant(np.array(limit, np.float32)) for limit in (low, high))
        inner = draft.operator("MAXIMUM", (x, below), draft.computed(draft.tensors[x].shape))
        draft.write(operation, "MINIMUM", (inner, above), is_last=is_last)
    else:
        raise NotTakenError("one limit is infinite, or they cross")


def _softmax(draft: FloatDraft, operation: Operation) -> None:
    rank, axis = len(operation.output_shape), read_softmax_axis(operation)
    is_last = rank == IMAGE and axis == 1
    if not (is_last or axis == rank - 1):
        raise NotTakenError("it is not along the last axis, or the channels of an image")
    x = draft.read_value(operation.inputs[0], is_last=is_last)
    draft.write(operation, "SOFTMAX", (x,), is_last=is_last, Beta=1.0)


def _padded(draft: FloatDraft, x: int, window: ImageWindow, filler: float) -> int:
    """Return an image with the pads for which TFLite has no name."""
    if not window.is_padded or window.is_same:
        return x
    pads = ((0, 0), *window.pads, (0, 0))
    old = draft.tensors[x].shape
    out = draft.computed([a + size + b for size, (a, b) in zip(old, pads, strict=True)])
    value = draft.constant(np.array([filler], np.float32))
    return draft.operator("PADV2", (x, draft.numbers(pads), value), out)


def _conv(draft: FloatDraft, operation: Operation) -> None:
    weights, bias = read_filters(operation)
    group, channels, count = (
        int(operation.attribute("group", 1)),
        operation.shape()[1],
        len(weights),
    )
    window = read_window(operation, weights.shape[2:], operation.shape(), operation.output_shape)
    gaps = window.dilations
    options: dict[str, Any] = {"DilationHFactor": gaps[0], "DilationWFactor": gaps[1]}
    if group > 1 and group == channels and weights.shape[1] == 1:
        code, weights = "DEPTHWISE_CONV_2D", weights.transpose(1, 2, 3, 0)
        options["DepthMultiplier"] = count // channels
    elif group == 1:
        code, weights = "CONV_2D", weights.transpose(_LAST)
    else:
        raise NotTakenError(f"it has {group} groups of {weights.shape[1]} channels")
    x = _padded(draft, draft.read_value(operation.inputs[0], is_last=True), window, 0.0)
    inputs = (x, draft.constant(weights), draft.constant(bias))
    draft.write(operation, code, inputs, is_last=True, **_places(window), **options)


def _places(window: ImageWindow) -> Mapping[str, Any]:
    """Return the options that convolutions and pools have in common."""
    return {
        "Padding": window.padding,
        "StrideH": window.strides[0],
        "StrideW": window.strides[1],
        "FusedActivationFunction": "NONE",
    }


def _pool(code: str, draft: FloatDraft, operation: Operation) -> None:
    shape = operation.shape()
    if len(shape) != IMAGE:
        raise NotTakenError("it is no pool of images")
    kernel = operation.attribute("kernel_shape", shape[2:])
    window = read_window(operation, kernel, shape, operation.output_shape)
    if window.dilations != (1, 1) or operation.attribute("ceil_mode", 0):
        raise NotTakenError("its window has gaps, or its last ones are cut off")
    is_counted = operation.attribute("count_include_pad", 0) or not window.is_same
    if code == "AVERAGE_POOL_2D" and window.is_padded and is_counted:
        raise NotTakenError("its windows count the padding, or TFLite has no name for the pads")
    x = _padded(draft, draft.read_value(operation.inputs[0], is_last=True), window, -math.inf)
    sizes = {"FilterHeight": window.kernel[0], "FilterWidth": window.kernel[1]}
    draft.write(operation, code, (x,), is_last=True, **_places(window), **sizes)


def _mean(draft: FloatDraft, operation: Operation) -> None:
    rank, given = len(operation.shape()), operation.axes()
    if operation.op_type == "GlobalAveragePool":
        given = tuple(range(2, rank))
    axes, keeps = given or (), bool(operation.attribute("keepdims", 1))
    if not axes:
        raise NotTakenError("it has no axes")
    is_last = keeps and rank == IMAGE and axes == (2, 3)
    x = draft.read_value(operation.inputs[0], is_last=is_last)
    places = draft.numbers((1, 2) if is_last else axes)
    draft.write(operation, "MEAN", (x, places), is_last=is_last, KeepDims=keeps)


def _product(draft: FloatDraft, operation: Operation) -> None:
    x = draft.read_value(operation.inputs[0])
    if not is_dense(operation):
        draft.write(operation, "BATCH_MATMUL", (x, draft.read_value(operation.inputs[1])))
        return
    weights, added = read_dense(operation)
    inputs = (x, draft.constant(weights), draft.constant(added))
    options: dict[str, Any] = {"FusedActivationFunction": "NONE"}
    options["KeepNumDims"] = len(operation.shape(0)) > MATRIX
    draft.write(operation, "FULLY_CONNECTED", inputs, **options)


def _reshape(draft: FloatDraft, operation: Operation) -> None:
    x = draft.read_value(operation.inputs[0])
    draft.write(operation, "RESHAPE", (x, draft.numbers(operation.output_shape)))


def _transpose(draft: FloatDraft, operation: Operation) -> None:
    axes = range(len(operation.shape()))
    order = draft.numbers(operation.attribute("perm", tuple(reversed(axes))))
    draft.write(operation, "TRANSPOSE", (draft.read_value(operation.inputs[0]), order))


def _concat(draft: FloatDraft, operation: Operation) -> None:
    axis = int(operation.attribute("axis", 0)) % len(operation.output_shape)
    place = _LAST.index(axis) if _is_last(draft, operation) else axis
    _pointwise("CONCATENATION", draft, operation, Axis=place, FusedActivationFunction="NONE")


_UNARY = {
    "Abs": "ABS", "Ceil": "CEIL", "Exp": "EXP", "Floor": "FLOOR", "HardSwish": "HARD_SWISH",
    "Neg": "NEG", "Relu": "RELU", "Sigmoid": "LOGISTIC", "Sqrt": "SQRT", "Tanh": "TANH",
}  # fmt: skip
_BINARY = {
    "Add": "ADD", "Div": "DIV", "Max": "MAXIMUM", "Min": "MINIMUM", "Mul": "MUL", "Sub": "SUB",
}  # fmt: skip
_TABLE: Mapping[str, _Lower] = {
    **{name: partial(_pointwise, code) for name, code in _UNARY.items()},
    **{name: partial(_binary, code) for name, code in _BINARY.items()},
    "AveragePool": partial(_pool, "AVERAGE_POOL_2D"),
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Flatten": _reshape,
    "Gemm": _product,
    "GlobalAveragePool": _mean,
    "GlobalMaxPool": partial(_pool, "MAX_POOL_2D"),
    "LeakyRelu": _leaky,
    "MatMul": _product,
    "MaxPool": partial(_pool, "MAX_POOL_2D"),
    "ReduceMean": _mean,
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Squeeze": _reshape,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}
"""By operator of ONNX, what writes it."""
_INDEXED = frozenset(("ReduceMean", "Reshape", "Squeeze", "Unsqueeze"))
"""Those whose further inputs are integers."""
