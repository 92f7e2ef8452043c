# SPDX-License-Identifier: Apache-2.0
"""A linear layer of tokens and the pointwise convolution of the image that they become are one.

Between them stand a Transpose and a Reshape, and no activation: their product is a matrix that is
known now. SegFormer's head has one such pair for each stage, and a pair costs nine times as much as
the layer that it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from intarsia.passes.convolve_before_resizing import (
    channels_of,
    is_pointwise,
    is_read_once,
    known_shape,
)
from intarsia.passes.provenance import device_of, stand_for

if TYPE_CHECKING:
    from intarsia.arrays import Array

TO_CHANNELS = (0, 2, 1)
_TOKENS = 3
"""Dimensions of tokens: images, positions, channels."""


def merge_linear(model: ir.Model) -> None:
    """Merge constant pointwise convolutions of float32 into the linear layers that they read."""
    for conv in list(model.graph):
        if is_pointwise(conv):
            layer = _read_layer(conv)
            if layer is not None and _is_worth_it(layer):
                _merge(model.graph, layer)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A convolution and what it reads: nodes in order, the sum absent if there is no bias."""

    product: ir.Node
    total: ir.Node | None
    transpose: ir.Node
    reshape: ir.Node
    conv: ir.Node

    @property
    def views(self) -> tuple[ir.Node, ...]:
        """What stands between the linear layer and the convolution."""
        return (self.transpose, self.reshape)


def _read_layer(conv: ir.Node) -> _Layer | None:
    """Return the linear layer that a convolution reads through views, if nothing else does."""
    reshape = maker_of(conv.inputs[0], "Reshape")
    transpose = maker_of(reshape.inputs[0], "Transpose") if reshape else None
    if reshape is None or transpose is None:
        return None
    total = maker_of(transpose.inputs[0], "Add")
    source = transpose.inputs[0] if total is None else computed_operand(total)
    product = maker_of(source, "MatMul")
    if product is None:
        return None
    tokens, image = known_shape(transpose.inputs[0]), known_shape(conv.inputs[0])
    nodes = [product, *([total] if total else []), transpose, reshape, conv]
    is_layer = (
        len(tokens) == len(known_shape(product.outputs[0])) == _TOKENS
        and tuple(transpose.attributes.get_ints("perm", ())) == TO_CHANNELS
        and image[:2] == (tokens[0], tokens[2])
        and constant_of(product.inputs[1]) is not None
        and len(known_shape(product.inputs[1])) == 2  # noqa: PLR2004 - a matrix
        and (total is None or bias_of(total, tokens[-1]) is not None)
        and (total is not None or len(conv.inputs) < _WITH_BIAS)
        and len({device_of(node) for node in nodes}) == 1
    )
    return _Layer(product, total, transpose, reshape, conv) if is_layer else None


_WITH_BIAS = 3
"""Inputs of a convolution that has a bias."""


def maker_of(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node of an operator that makes a value which is read once."""
    node = None if value is None or not is_read_once(value) else value.producer()
    is_wanted = node is not None and (node.domain, node.op_type) == ("", op_type)
    return node if is_wanted else None


def computed_operand(total: ir.Node) -> ir.Value | None:
    """Return the operand of a sum that is not constant."""
    operands = [value for value in total.inputs if constant_of(value) is None]
    return operands[0] if len(operands) == 1 else None


def constant_of(value: ir.Value | None) -> Array | None:
    """Return a float32 constant with finite numbers."""
    if value is None or not value.is_initializer() or value.is_graph_input():
        return None
    array = None if value.const_value is None else value.const_value.numpy()
    is_fit = array is not None and array.dtype == np.float32 and np.isfinite(array).all()
    return array if is_fit else None


def bias_of(total: ir.Node, width: int) -> Array | None:
    """Return what a sum adds to each channel."""
    arrays = [array for value in total.inputs if (array := constant_of(value)) is not None]
    return (
        arrays[0].reshape(-1)
        if arrays and arrays[0].shape[-1:] == (arrays[0].size,) == (width,)
        else None
    )


def _is_worth_it(layer: _Layer) -> bool:
    """Whether one matrix takes fewer products than two."""
    inner, middle = known_shape(layer.product.inputs[1])
    outer = channels_of(layer.conv.outputs[0])
    return bool(inner * outer < inner * middle + middle * outer)


def _merge(graph: ir.Graph, layer: _Layer) -> None:
    """Give the linear layer the product of the matrices, and drop the convolution."""
    conv = layer.conv
    filters = conv.inputs[1].const_value.numpy()  # type: ignore[union-attr]
    matrix = filters.reshape(filters.shape[:2]).astype(np.float64).T
    weight = constant_of(layer.product.inputs[1])
    assert weight is not None
    _replace(graph, layer.product, 1, weight @ matrix)
    if layer.total is not None:
        bias = bias_of(layer.total, len(matrix))
        assert bias is not None
        shift = bias @ matrix
        if len(conv.inputs) == _WITH_BIAS and conv.inputs[2] is not None:
            shift = shift + conv.inputs[2].const_value.numpy()  # type: ignore[union-attr]
        computed = computed_operand(layer.total)
        _replace(graph, layer.total, 1 - list(layer.total.inputs).index(computed), shift)
    image = known_shape(conv.outputs[0])
    _replace(graph, layer.reshape, 1, np.array([0, *image[1:]], np.int64))  # 0 keeps the images
    layer.reshape.attributes.pop("allowzero", None)
    tokens = (image[0], known_shape(layer.transpose.inputs[0])[1], image[1])
    for node in (layer.product, layer.total):
        if node is not None:
            node.outputs[0].shape = ir.Shape(tokens)
            node.outputs[0].name = f"{node.outputs[0].name}.merged"  # of other numbers than before
    layer.transpose.outputs[0].shape = ir.Shape((tokens[0], tokens[2], tokens[1]))
    layer.transpose.outputs[0].name = f"{layer.transpose.outputs[0].name}.merged"
    result, viewed = conv.outputs[0], layer.reshape.outputs[0]
    viewed.shape, name = result.shape, result.name
    result.replace_all_uses_with(viewed, replace_graph_outputs=True)
    graph.remove(conv, safe=True)
    viewed.name = name
    stand_for(layer.product, [layer.product, conv])


def _replace(graph: ir.Graph, node: ir.Node, index: int, array: Array) -> None:
    """Give a node another constant; float64 becomes float32."""
    dtype = np.float32 if array.dtype.kind == "f" else array.dtype
    name = f"{node.name}.merged{index}"
    while name in graph.initializers:  # of a convolution that was merged before
        name += ".again"
    tensor = ir.tensor(np.ascontiguousarray(array, dtype), name=name)
    value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape))
    value.dtype = tensor.dtype
    graph.initializers.add(value)
    node.replace_input_with(index, value)
