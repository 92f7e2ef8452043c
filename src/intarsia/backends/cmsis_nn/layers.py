# SPDX-License-Identifier: Apache-2.0
"""Which integer layers the library computes, and why it does not compute others."""

from __future__ import annotations

import math
from math import prod

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.tflite.layers import Codes, Layer, is_same
from intarsia.codegen.fixed_point import SOFTMAX_SCALE, SUM_BITS
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.windows import WindowAttributes, read_window
from intarsia.graph.graph import Value

MOVES = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
"""What gives codes another shape, or changes nothing."""
COMPUTED = MOVES | {
    "Add",
    "AveragePool",
    "Conv",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "MatMul",
    "MaxPool",
    "Mul",
    "Softmax",
}
"""Operators of which some layers are computed."""

_IMAGE, _MATRIX = 4, 2
_ALONG_ONE = 13
"""The operator set since which Softmax is along one dimension."""


def refuse_layer(layer: Layer) -> str | None:
    """Say why the library does not compute a layer; None if it does."""
    for codes in (*layer.operands, layer.result):
        if codes.value.dtype != "int8":
            return f"{codes.value.name!r} is {codes.value.dtype}: the library takes int8"
        if codes.value.shape is None or 0 in codes.value.shape:
            return f"{codes.value.name!r} is empty, or its shape is not fixed"
    if layer.operands[0].is_constant:
        return "its first operand is constant"
    if layer.op_type in MOVES:
        return (
            None
            if _keeps_codes(layer)
            else "it only changes scales: the library has no such function"
        )
    if layer.op_type in ("Conv", "Gemm", "MatMul"):
        return _refuse_weighted(layer)
    if layer.op_type in ("Add", "Mul"):
        shapes = {codes.shape for codes in (*layer.operands, layer.result)}
        return None if len(shapes) == 1 else "its operands have several shapes"
    return _refuse_softmax(layer) if layer.op_type == "Softmax" else _refuse_pool(layer)


def _keeps_codes(layer: Layer) -> bool:
    is_free = layer.limits == (-math.inf, math.inf)
    return is_free and is_same(layer.operands[0].quantity, layer.result.quantity)


def _refuse_weighted(layer: Layer) -> str | None:
    """Say why a convolution or product is not computed."""
    x, weights = layer.operands
    operation, zeros = layer.operation, weights.quantity.zeros
    is_conv = layer.op_type == "Conv"
    along = 0 if is_conv else columns_axis(layer)
    bias = layer.bias.value if isinstance(layer.bias, Codes) else layer.bias
    scaled = [operation.attribute(name, 1.0) for name in ("alpha", "beta")] != [1.0, 1.0]
    is_gemm = layer.op_type == "Gemm"
    reasons = (
        (not weights.is_constant, "its weights are computed"),
        (is_conv and len(weights.shape) != _IMAGE, "its spatial dimensions are not two"),
        (not is_conv and len(weights.shape) != _MATRIX, "its weights are no matrix"),
        (len(x.shape) < _MATRIX, "its operand has one dimension"),
        (
            len(zeros) > 1 and weights.quantity.axis != along,
            "the scales of its weights do not go along its results",
        ),
        (any(zeros) and (is_conv or len(zeros) > 1), "its weights have zero points other than 0"),
        (is_gemm and scaled, "it scales its terms"),
        (is_gemm and bool(operation.attribute("transA", 0)), "it turns its left operand"),
        (
            bias is not None and prod(bias.shape or ()) != layer.result.shape[channel_axis(layer)],
            "what it adds is not one number for each result",
        ),
    )
    return next((reason for is_so, reason in reasons if is_so), None)


def channel_axis(layer: Layer) -> int:
    """Return along which dimension of a result its channels go."""
    return 1 if layer.op_type == "Conv" else len(layer.result.shape) - 1


def columns_axis(layer: Layer) -> int:
    """Return along which dimension of a matrix of weights the results go."""
    return 0 if layer.op_type == "Gemm" and layer.operation.attribute("transB", 0) else 1


def _refuse_softmax(layer: Layer) -> str | None:
    operation, shape = layer.operation, layer.operands[0].shape
    default = -1 if operation.opset >= _ALONG_ONE else 1
    axis = operation.attribute("axis", default) % max(1, len(shape))
    if not shape or axis != len(shape) - 1:
        return "it is not along the last dimension"
    if shape[-1] >= 1 << SUM_BITS:
        return f"rows of {1 << SUM_BITS} entries or more overflow"
    result = layer.result.quantity
    if result.scale != SOFTMAX_SCALE or result.zero != np.iinfo(np.int8).min:
        return "its result has other steps than 1/256, or its least code is not 0"
    return None


def _refuse_pool(layer: Layer) -> str | None:
    operation = layer.operation
    if len(layer.result.shape) != _IMAGE:
        return "its spatial dimensions are not two"
    window, is_largest = window_of(layer), layer.op_type.endswith("MaxPool")
    is_rescaled = not is_same(layer.operands[0].quantity, layer.result.quantity)
    is_padded = any(map(any, window.pads))
    counts = is_padded and operation.attribute("count_include_pad", 0)
    reaches = operation.attribute("ceil_mode", 0) and not is_whole(layer)
    reasons = (
        (len(operation.node.outputs) > 1, "it has several outputs"),
        (set(window.dilations) != {1}, "it has dilations"),
        (is_rescaled and (is_largest or is_padded), _RESCALED),
        (not is_largest and counts, "it counts what is padded"),
        (not is_largest and reaches, "its last windows reach beyond its operand"),
    )
    return next((reason for is_so, reason in reasons if is_so), None)


_RESCALED = "its result has another scale than its operand"


def window_of(layer: Layer) -> WindowAttributes:
    """Return the window of a convolution or pooling of images."""
    operation: Operation = layer.operation
    shape = layer.operands[0].shape
    if layer.op_type.startswith("Global"):
        return WindowAttributes(shape[2:], (1, 1), (1, 1), ((0, 0), (0, 0)))
    kernel = operation.attribute("kernel_shape") or layer.operands[1].shape[2:]
    return read_window(operation, tuple(kernel))


def is_whole(layer: Layer) -> bool:
    """Tell whether no window of a pooling reaches beyond the operand and its padding."""
    window = window_of(layer)
    sizes = zip(
        layer.operands[0].shape[2:], layer.result.shape[2:], window.kernel, window.strides,
        window.pads, strict=True,
    )  # fmt: skip
    return all((out - 1) * step + taps <= size + sum(pad) for size, out, taps, step, pad in sizes)


def bias_codes(layer: Layer, scales: tuple[float, ...]) -> Array:
    """Return what is added to the sums of each channel, int32: zeros for nothing.

    Args:
        layer: A convolution or product.
        scales: Of its sums: one, or one for each channel.
    """
    channels = layer.result.shape[channel_axis(layer)]
    if layer.bias is None:
        return np.zeros(channels, np.int32)
    from intarsia.graph.extract import constant_array

    if isinstance(layer.bias, Codes):
        codes, quantity = constant_array(layer.bias.value).reshape(-1), layer.bias.quantity
        is_alike = np.allclose(quantity.scales, scales, rtol=1e-6, atol=0)
        if codes.dtype == np.int32 and is_alike and not any(quantity.zeros):
            return codes
        numbers = (codes.astype(np.float64) - quantity.zeros) * quantity.scales
    else:
        value: Value = layer.bias
        numbers = constant_array(value).astype(np.float64).reshape(-1)
    limits = np.iinfo(np.int32)
    bias = np.clip(np.rint(numbers / np.asarray(scales)), limits.min, limits.max)
    codes_of_bias: Array = bias.astype(np.int32)
    return codes_of_bias
