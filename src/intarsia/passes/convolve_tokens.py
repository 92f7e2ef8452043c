# SPDX-License-Identifier: Apache-2.0
"""Linear layers of tokens around a depthwise convolution are pointwise convolutions of its image.

Feed-forward layers of SegFormer and PVTv2 widen tokens, turn them into an image for a depthwise
convolution, turn that into tokens again and narrow them. With convolutions on both sides it stays
an image, so that what is turned is the narrow tensors, and what is between need not leave a cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from intarsia.passes.activate_before_views import find_activation, only_exit
from intarsia.passes.convolve_before_resizing import Replacement, is_read_once
from intarsia.passes.merge_linear import (
    TO_CHANNELS,
    bias_of,
    computed_operand,
    constant_of,
    maker_of,
)
from intarsia.passes.names import is_name_free
from intarsia.passes.provenance import device_of, stand_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from intarsia.arrays import Array

_TOKENS, _IMAGE = 2, 3
"""Dimensions of one image as tokens (positions, channels) and as itself."""


def convolve_tokens(model: ir.Model) -> None:
    """Turn linear layers of float32 before and behind depthwise convolutions into convolutions."""
    for conv in list(model.graph):
        if not _is_depthwise(conv):
            continue
        before, after = _read_widening(conv), _read_narrowing(conv)
        if before is None or after is None:
            continue
        (narrow, wide), (_, last) = before.weight.shape, after.weight.shape
        names = (conv, after.nodes[-1])
        if max(narrow, last) <= wide and all(is_name_free(model.graph, node) for node in names):
            _widen(model.graph, conv, before)
            _narrow(model.graph, after)


@dataclass(frozen=True, slots=True)
class _LinearLayer:
    """A linear layer of tokens, and the views between it and an image.

    Attributes:
        value: What the first of the nodes reads: tokens, or an image.
        nodes: In order.
        product: The one of them that multiplies.
        weight: Over (channels before, channels after).
        bias: Over channels after.
        residual: Tokens that are added.
    """

    value: ir.Value
    nodes: tuple[ir.Node, ...]
    product: ir.Node
    weight: Array
    bias: Array | None = None
    residual: ir.Value | None = None


def _is_depthwise(node: ir.Node) -> bool:
    """Whether a node convolves each channel of images of known sizes by itself."""
    if (node.domain, node.op_type) != ("", "Conv"):
        return False
    before, after = _inner(node.inputs[0], _IMAGE), _inner(node.outputs[0], _IMAGE)
    groups = node.attributes.get_int("group", 1)
    return bool(before and after) and 1 < groups == before[0] == after[0]


def _inner(value: ir.Value | None, rank: int) -> tuple[int, ...]:
    """Return the extents behind the first one, if there are so many and all are known."""
    shape = None if value is None else value.shape
    if (
        shape is None
        or len(shape) != rank + 1
        or not all(shape.is_static(i + 1) for i in range(rank))
    ):
        return ()
    extents = tuple(int(shape[i + 1]) for i in range(rank))  # type: ignore[arg-type] # static
    return extents if all(extents) else ()


def _read_widening(conv: ir.Node) -> _LinearLayer | None:
    """Return the linear layer whose tokens become the image that a convolution reads."""
    reshape = maker_of(conv.inputs[0], "Reshape")
    transpose = maker_of(reshape.inputs[0], "Transpose") if reshape else None
    if reshape is None or transpose is None or not _is_image_of(conv.inputs[0], transpose):
        return None
    total = maker_of(transpose.inputs[0], "Add")
    product = maker_of(transpose.inputs[0] if total is None else computed_operand(total), "MatMul")
    weight = None if product is None else _weight(product)
    if product is None or product.inputs[0] is None or weight is None:
        return None
    nodes: tuple[ir.Node, ...] = (product, transpose, reshape)
    bias = None
    if total is not None:
        nodes, bias = (product, total, transpose, reshape), bias_of(total, weight.shape[1])
        if bias is None:
            return None
    is_one = len({device_of(node) for node in (conv, *nodes)}) == 1
    return _LinearLayer(product.inputs[0], nodes, product, weight, bias) if is_one else None


def _read_narrowing(conv: ir.Node) -> _LinearLayer | None:
    """Return the linear layer that alone reads a convolution, through activations and views."""
    image = only_exit(conv, find_activation(conv)) or conv.outputs[0]
    reshape = _reader(image, "Reshape")
    transpose = _reader(reshape.outputs[0], "Transpose") if reshape else None
    product = _reader(transpose.outputs[0], "MatMul") if transpose else None
    if reshape is None or transpose is None or product is None:
        return None
    weight = _weight(product)
    if weight is None or not _is_image_of(image, transpose):
        return None
    nodes: tuple[ir.Node, ...] = (reshape, transpose, product)
    bias, total = None, _reader(product.outputs[0], "Add")
    if total is not None and computed_operand(total) is product.outputs[0]:
        bias = bias_of(total, weight.shape[1])
        if bias is None:
            return None
        nodes, total = (*nodes, total), _reader(total.outputs[0], "Add")
    residual = None if total is None else _summand(total, nodes[-1].outputs[0])
    if total is not None and residual is not None:
        nodes = (*nodes, total)
    is_one = len({device_of(node) for node in (conv, *nodes)}) == 1
    return _LinearLayer(image, nodes, product, weight, bias, residual) if is_one else None


def _is_image_of(image: ir.Value | None, transpose: ir.Node) -> bool:
    """Whether an image, with its pixels in a row, is what a Transpose reads or makes."""
    extents = _inner(image, _IMAGE)
    if not extents or tuple(transpose.attributes.get_ints("perm", ())) != TO_CHANNELS:
        return False
    pixels = extents[1] * extents[2]
    sides = {_inner(transpose.inputs[0], _TOKENS), _inner(transpose.outputs[0], _TOKENS)}
    return sides == {(pixels, extents[0]), (extents[0], pixels)}


def _weight(product: ir.Node) -> Array | None:
    """Return the constant matrix by which a product multiplies tokens from the right."""
    array = constant_of(product.inputs[1])
    is_matrix = array is not None and array.ndim == 2  # noqa: PLR2004 - a matrix
    return array if is_matrix and _inner(product.inputs[0], _TOKENS) else None


def _reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """Return the node of an operator that alone reads a value, as its first input or a summand."""
    use = next(iter(value.uses())) if is_read_once(value) else None
    if use is None or (use.node.domain, use.node.op_type) != ("", op_type):
        return None
    return use.node if use.idx == 0 or op_type == "Add" else None


def _summand(total: ir.Node, tokens: ir.Value) -> ir.Value | None:
    """Return what is added to tokens, if that is tokens of the same shape."""
    others = [value for value in total.inputs if value is not None and value is not tokens]
    is_same = len(others) == 1 and others[0].shape == tokens.shape and tokens.shape is not None
    return others[0] if is_same and constant_of(others[0]) is None else None


def _widen(graph: ir.Graph, conv: ir.Node, layer: _LinearLayer) -> None:
    """Let a convolution widen the image of the tokens that a linear layer reads."""
    draft, wide = Replacement(graph, conv), conv.inputs[0]
    assert wide is not None
    narrow = _as_image(draft, layer.value, _inner(wide, _IMAGE)[1:], layer.nodes)
    result = _convolve(draft, narrow, layer)
    result.shape = wide.shape
    graph.insert_before(conv, draft.nodes)
    conv.replace_input_with(0, result)
    _remove(graph, layer.nodes)


def _narrow(graph: ir.Graph, layer: _LinearLayer) -> None:
    """Let a convolution narrow the image from which a linear layer's tokens are made."""
    last = layer.nodes[-1]
    draft, result, extents = Replacement(graph, last), last.outputs[0], _inner(layer.value, _IMAGE)
    assert result.shape is not None
    batch, pixels, entries = result.shape
    image = _convolve(draft, layer.value, layer)
    image.shape = ir.Shape((batch, entries, *extents[1:]))
    if layer.residual is not None:
        other = _as_image(draft, layer.residual, extents[1:], layer.nodes)
        total = draft.add("Add", [image, other], last)
        total.shape, image = image.shape, total
    flat = _reshape(draft, image, (entries, pixels), layer.nodes)
    tokens = draft.add("Transpose", [flat], last, perm=TO_CHANNELS)
    tokens.shape, tokens.type, name = result.shape, result.type, result.name
    graph.insert_before(last, draft.nodes)
    result.replace_all_uses_with(tokens, replace_graph_outputs=True)
    _remove(graph, layer.nodes)
    tokens.name = name


def _as_image(
    draft: Replacement, tokens: ir.Value, extents: Sequence[int], origins: Sequence[ir.Node]
) -> ir.Value:
    """Add what turns tokens into an image of some rows and columns."""
    assert tokens.shape is not None
    batch, pixels, entries = tokens.shape
    turned = draft.add("Transpose", [tokens], origins[0], perm=TO_CHANNELS)
    turned.shape = ir.Shape((batch, entries, pixels))
    return _reshape(draft, turned, (entries, *extents), origins)


def _reshape(
    draft: Replacement,
    value: ir.Value,
    inner: Sequence[int | ir.SymbolicDim],
    origins: Sequence[ir.Node],
) -> ir.Value:
    """Add what gives images other extents; how many there are stays."""
    assert value.shape is not None
    shape = np.array([0, *map(int, inner)], np.int64)  # type: ignore[arg-type] # static
    result = draft.add("Reshape", [value, draft.constant(shape)], origins[0])
    result.shape = ir.Shape((value.shape[0], *inner))
    return result


def _convolve(draft: Replacement, image: ir.Value, layer: _LinearLayer) -> ir.Value:
    """Add what a linear layer does with the channels of each pixel."""
    arrays = [np.ascontiguousarray(layer.weight.T)[:, :, None, None]]
    if layer.bias is not None:
        arrays.append(np.ascontiguousarray(layer.bias))
    inputs = [image, *map(draft.constant, arrays)]
    result = draft.add("Conv", inputs, layer.product, kernel_shape=(1, 1))
    stand_for(draft.nodes[-1], layer.nodes)
    return result


def _remove(graph: ir.Graph, nodes: Iterable[ir.Node]) -> None:
    """Remove nodes that nothing reads any more, each before what it read."""
    for node in reversed(list(nodes)):
        graph.remove(node, safe=True)
