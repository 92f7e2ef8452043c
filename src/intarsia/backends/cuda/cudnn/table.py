# SPDX-License-Identifier: Apache-2.0
"""Which operators cuDNN computes, and what may follow them there, as patterns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import dropwhile
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from intarsia.backends.cuda.cublas.products import LtProduct
from intarsia.backends.cuda.cublas.table import product_patterns
from intarsia.backends.cuda.cudnn.attention import attention, attention_operator
from intarsia.backends.cuda.cudnn.drafts import CHANNELS, GraphDraft, dense, seen, zeros
from intarsia.backends.cuda.cudnn.graphs import DnnOperation, DnnTensor, dense_strides
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.windows import read_conv_window, read_window
from intarsia.extents import is_free
from intarsia.graph.pattern import ANY, CONSTANT, SOURCE, Match, Op, Pattern

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.graph.graph import Value

DTYPES = ("float32", "float16", "bfloat16")
_SPATIAL = (1, 2, 3)
_OTHERS = 2
"""The first dimension of a window."""


def _conv(match: Match) -> GraphDraft | str:
    """Return a convolution, or why it is not taken."""
    operation = Operation(match.graph, match.nodes[0])
    problem = _refuse(operation)
    if problem:
        return problem
    window = read_conv_window(operation)
    if len(window.kernel) not in _SPATIAL:
        return f"its window has {len(window.kernel)} dimensions"
    if min(end for pads in window.pads for end in pads) < 0:
        return "a pad is negative"
    bias = operation.value(2)
    return GraphDraft(
        operation.node.name,
        DnnOperation(
            "convolution",
            {},
            before=[begin for begin, _ in window.pads],
            after=[end for _, end in window.pads],
            strides=list(window.strides),
            dilations=list(window.dilations),
        ),
        {"X": dense(operation.inputs[0]), "W": dense(operation.inputs[1])},
        dense(operation.output),
        bias=-1 if bias is None else bias.id,
    )


def _conv_transpose(match: Match) -> GraphDraft | str:
    """Return a transposed convolution, or why it is not taken."""
    operation = Operation(match.graph, match.nodes[0])
    problem = _refuse(operation)
    if problem:
        return problem
    if operation.value(2) is not None:
        return "cuDNN has no engine that adds a row behind it, where channels come first"
    automatic = operation.attribute("auto_pad", "NOTSET")
    if automatic not in ("NOTSET", "VALID") or operation.attribute("output_shape"):
        return "its padding follows from the size of its result"
    window = read_conv_window(operation)
    if len(window.kernel) not in _SPATIAL:
        return f"its window has {len(window.kernel)} dimensions"
    before = [begin for begin, _ in window.pads]
    # Of the convolution that goes the other way: what `output_padding` adds, it does not pad.
    sizes = zip(operation.shape()[2:], operation.output_shape[2:], strict=True)
    after = [
        (size - 1) * stride + (taps - 1) * dilation + 1 - out - begin
        for (size, out), stride, taps, dilation, begin in zip(
            sizes, window.strides, window.kernel, window.dilations, before, strict=True
        )
    ]
    if min((*before, *after)) < 0:
        return "a pad is negative"
    strides, dilations = list(window.strides), list(window.dilations)
    return GraphDraft(
        operation.node.name,
        DnnOperation(
            "transposed convolution",
            {},
            before=before,
            after=after,
            strides=strides,
            dilations=dilations,
        ),
        {"X": dense(operation.inputs[0]), "W": dense(operation.inputs[1])},
        dense(operation.output),
    )


def _pool(match: Match) -> GraphDraft | str:
    """Return pooling, or why it is not taken."""
    operation = Operation(match.graph, match.nodes[0])
    problem = _refuse(operation)
    if problem:
        return problem
    if len(operation.outputs) > 1:
        return "where its maxima are is an output"
    sizes = operation.shape()[_OTHERS:]
    if len(sizes) not in _SPATIAL:
        return f"its window has {len(sizes)} dimensions"
    is_global = operation.op_type.startswith("Global")
    window = read_window(operation, sizes if is_global else operation.attribute("kernel_shape"))
    if max(window.dilations) > 1:
        return "its window has gaps"
    before = [begin for begin, _ in window.pads]
    # The last window may begin before the end or reach beyond what `pads` says (`ceil_mode`).
    steps = zip(operation.output_shape[2:], window.strides, window.kernel, strict=True)
    reach = [(out - 1) * stride + taps for out, stride, taps in steps]
    after = [end - size - begin for end, size, begin in zip(reach, sizes, before, strict=True)]
    said = [end for _, end in window.pads]
    is_maximum = operation.op_type.endswith("MaxPool")
    counts = bool(operation.attribute("count_include_pad", 0))
    if counts and any(end > most for end, most in zip(after, said, strict=True)):
        return "it counts padding, and its last window reaches beyond it"
    after = [max(end, 0) for end in after]
    if min(before) < 0 or any(
        pad >= taps
        for pads in (before, after)
        for pad, taps in zip(pads, window.kernel, strict=True)
    ):
        return "a window lies in the padding alone, or a pad is negative"
    average = "AVGPOOL_INCLUDE_PADDING" if counts else "AVGPOOL_EXCLUDE_PADDING"
    return GraphDraft(
        operation.node.name,
        DnnOperation(
            "pooling",
            {},
            "MAXPOOL" if is_maximum else average,
            before=before,
            after=after,
            strides=list(window.strides),
            window=list(window.kernel),
        ),
        {"X": dense(operation.inputs[0])},
        dense(operation.output),
    )


def _layer_norm(match: Match) -> GraphDraft | str:
    """Return a layer normalisation, or why it is not taken."""
    operation = Operation(match.graph, match.nodes[0])
    problem = _refuse(operation)
    if problem:
        return problem
    if len(operation.outputs) > 1:
        return "its mean or deviation is an output"
    shape = operation.shape()
    axis = operation.attribute("axis", -1) % len(shape)
    sizes = prod(shape[:axis]), prod(shape[axis:])
    return _norm(operation, "LAYER_NORM", [*sizes, 1, 1], shape[axis:])


def _instance_norm(match: Match) -> GraphDraft | str:
    """Return an instance normalisation, or why it is not taken."""
    operation = Operation(match.graph, match.nodes[0])
    problem = _refuse(operation)
    if problem:
        return problem
    items, channels, *others = operation.shape()
    if not others:
        return "an item of a channel is one number"
    return _norm(operation, "INSTANCE_NORM", [items, channels, prod(others), 1], (channels,))


def _norm(
    operation: Operation, mode: str, dims: list[int], entries: Sequence[int]
) -> GraphDraft | str:
    """Return a norm whose factors and summands are of the second dimension.

    Args:
        operation: The norm.
        mode: As cuDNN names it.
        dims: Of its input, as cuDNN sees it.
        entries: Dimensions of what has a factor each.
    """
    x, scale, *rest = operation.inputs
    row = [1, dims[1], 1, 1]
    if any(_behind_ones(one.shape or ()) != _behind_ones(entries) for one in (scale, *rest)):
        return "its factors are repeated"
    operands = {"X": seen(x, dims), "SCALE": seen(scale, row)}
    arrays: dict[str, Array] = {}
    if rest:
        operands["BIAS"] = seen(rest[0], row)
    else:
        operands["BIAS"] = seen(scale, row)
        arrays["BIAS"] = zeros(scale.dtype, row)
    epsilon = float(operation.attribute("epsilon", 1e-5))
    operands["EPSILON"] = DnnTensor("float32", [1] * 4, [1] * 4, number=epsilon)
    return GraphDraft(
        operation.node.name,
        DnnOperation("norm", {}, mode),
        operands,
        seen(operation.output, dims),
        arrays,
    )


def _behind_ones(shape: Sequence[int | str]) -> tuple[int | str, ...]:
    """Return a shape without the ones it begins with, which broadcasting adds."""
    return tuple(dropwhile(lambda size: size == 1, shape))


def _batch_norm(match: Match) -> GraphDraft | str:
    """Return a batch normalisation as a product and a sum, or why it is not taken.

    cuDNN's own normalises what it trains with; of pointwise operations it wants rows together.
    """
    operation = Operation(match.graph, match.nodes[0])
    problem = _refuse(operation, operation.inputs[:1])
    if problem:
        return problem
    if len(operation.outputs) > 1 or operation.attribute("training_mode", 0):
        return "it trains"
    if not all(operation.is_constant(position) for position in range(1, 5)):
        return "its statistics are not constant"
    scale, bias, mean, variance = (
        operation.array(position).astype(np.float64) for position in range(1, 5)
    )
    factor = scale / np.sqrt(variance + float(operation.attribute("epsilon", 1e-5)))
    items, channels, *others = operation.shape()
    dims, row = [items * channels, 1, prod(others)], [items * channels, 1, 1]
    arrays = {
        "B": np.tile(factor, items).astype(np.float32).reshape(row),
        "BIAS": np.tile(bias - mean * factor, items).astype(np.float32).reshape(row),
    }
    plain = DnnTensor("float32", row, dense_strides(row))
    return GraphDraft(
        operation.node.name,
        DnnOperation("pointwise", {}, "MUL"),
        {"X": seen(operation.inputs[0], dims), "B": plain, "BIAS": plain},
        seen(operation.output, dims),
        arrays,
    )


def _softmax(match: Match) -> str:
    """Return why cuDNN does not compute a softmax."""
    return "cuDNN's graphs have no engine for a softmax outside of attention"


def _residual(match: Match) -> GraphDraft | str:
    """Return a convolution to which a tensor of its result's shape is added."""
    before = _before(match)
    operation = Operation(match.graph, match.nodes[0])
    others = [value for value in operation.inputs if value.id != match.source]
    if before.is_relu or before.residual >= 0 or before.operation.kind != "convolution":
        return "it follows another sum, or a function"
    if len(others) != 1 or others[0].shape != operation.output.shape:
        return "what is added has not the shape of the result"
    return replace(before, residual=others[0].id)


def _bias(match: Match) -> GraphDraft | str:
    """Return a convolution to which a row of its channels is added."""
    before = _before(match)
    operation = Operation(match.graph, match.nodes[0])
    others = [value for value in operation.inputs if value.id != match.source]
    is_first = before.residual < 0 and before.bias < 0 and not before.is_relu
    if not is_first or before.operation.kind != "convolution":
        return "it follows another sum, or a function"
    dims = before.result.dims
    row = [1] * len(dims)
    row[CHANNELS] = dims[CHANNELS]
    if len(others) != 1:
        return "what is added is not a row of the channels"
    shape = list(others[0].shape or ())
    if [1] * (len(dims) - len(shape)) + shape != row or operation.output.shape != tuple(dims):
        return "what is added is not a row of the channels"
    return replace(before, bias=others[0].id)


def _relu(match: Match) -> GraphDraft | str:
    """Return a graph whose negative results become zero."""
    before = _before(match)
    if before.is_relu or before.operation.kind not in ("convolution", "pointwise"):
        return "it follows a function, or what has none behind it"
    return replace(before, is_relu=True)


def _before(match: Match) -> GraphDraft:
    assert match.follows is not None
    last = match.follows.followers[-1] if match.follows.followers else match.follows
    assert isinstance(last.meaning, GraphDraft)
    return last.meaning


def _refuse(operation: Operation, operands: Sequence[Value] = ()) -> str:
    for value in (*(operands or operation.inputs), operation.output):
        if value.dtype not in DTYPES:
            return f"cuDNN is given no {value.dtype}"
        if value.shape is None or is_free(value.shape):
            return "a size is not known"
        if 0 in value.shape:
            return "an operand is empty"
    if operation.inputs[0].dtype != operation.output.dtype:
        return "its types differ"
    return ""


def _refuse_product(product: LtProduct) -> str:
    """Return why cuDNN does not compute a product."""
    if product.dtype not in DTYPES:
        return f"cuDNN is given no {product.dtype}"
    if product.alpha != 1:
        return "it is multiplied by a factor"
    if product.activation and product.bias < 0:
        return "cuDNN applies functions behind a row that is added"
    if product.dtype != "float32":
        left = product.m if product.is_left_turned else product.k
        right = product.k if product.is_right_turned else product.n
        if left % 2 or right % 2 or product.n % 2:
            return "numbers of 16 bits come in pairs, and a row has an odd one"
    return ""


_FOLLOWERS = (
    Pattern("row", Op("Add", SOURCE, ANY), _bias),
    Pattern("sum", Op("Add", SOURCE, ANY), _residual),
    Pattern("relu", Op("Relu", SOURCE), _relu),
)
_SCORES = Op("MatMul", ANY, Op("Transpose", ANY))
_POOLS = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
TABLE = (
    Pattern("Attention", Op("Attention", ANY, ANY, ANY), attention_operator),
    *(
        Pattern(name, Op("MatMul", Op("Softmax", scores), ANY), attention)
        for name, scores in (
            ("attention scaled", Op(("Mul", "Div"), _SCORES, CONSTANT)),
            ("attention", _SCORES),
        )
    ),
    Pattern("Conv", Op("Conv", ANY, ANY), _conv, _FOLLOWERS),
    Pattern("ConvTranspose", Op("ConvTranspose", ANY, ANY), _conv_transpose),
    Pattern("pool", Op(_POOLS, ANY), _pool),
    Pattern("LayerNormalization", Op("LayerNormalization", ANY, ANY), _layer_norm),
    Pattern("InstanceNormalization", Op("InstanceNormalization", ANY, ANY), _instance_norm),
    Pattern("BatchNormalization", Op("BatchNormalization", ANY, ANY), _batch_norm, _FOLLOWERS[2:]),
    Pattern("Softmax", Op("Softmax", ANY), _softmax),
    *product_patterns(_refuse_product),
)
"""The order is their priority."""
