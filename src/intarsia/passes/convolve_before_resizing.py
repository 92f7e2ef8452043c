# SPDX-License-Identifier: Apache-2.0
"""Pointwise convolutions move before the resizes that they read, where there are fewer pixels.

A 1x1 convolution works along the channels and a resize along the pixels; both are linear, so they
may swap. What a `Concat` joins is convolved part by part, and the results are added: heads that
join the stages of a network at the size of the first (SegFormer, PSPNet, FPN) spend most of their
time on pixels that were only interpolated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from intarsia.passes.names import is_name_free
from intarsia.passes.provenance import device_of, stand_for

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHANNELS, _SPATIAL = 1, 2
_LEAST_GROWTH = 4
"""How many times more pixels a resize makes at least: below, it is not worth more additions."""


def convolve_before_resizing(model: ir.Model) -> None:
    """Swap constant pointwise convolutions of float32 with the resizes that only they read."""
    for node in list(model.graph):
        if is_pointwise(node):
            parts = _read_parts(node)
            if any(part.resize is not None for part in parts) and is_name_free(model.graph, node):
                _swap(model.graph, node, parts)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some input channels of a convolution.

    Attributes:
        value: What it reads: a resized value, or one as it is.
        first: Its first channel.
        resize: What makes it, if that is to come after the convolution.
    """

    value: ir.Value
    first: int
    resize: ir.Node | None

    @property
    def channels(self) -> slice:
        """Which input channels it has."""
        return slice(self.first, self.first + channels_of(self.value))


def is_pointwise(node: ir.Node) -> bool:
    """Whether a node is a convolution of float32 that reads each pixel once and by itself."""
    if (node.domain, node.op_type) != ("", "Conv") or _joined(node) is None:
        return False
    weights = node.inputs[1:]
    is_constant = all(v is None or _is_constant(v) for v in weights) and weights[0] is not None
    attributes = node.attributes
    return (
        is_constant
        and np.isfinite(weights[0].const_value.numpy()).all()  # type: ignore[union-attr]
        and node.inputs[1].dtype == ir.DataType.FLOAT  # type: ignore[union-attr]
        and set(known_shape(node.inputs[1])[_SPATIAL:]) == {1}
        and attributes.get_int("group", 1) == 1
        and set(attributes.get_ints("strides", ())) <= {1}
        and not any(attributes.get_ints("pads", ()))
    )


def _joined(node: ir.Node) -> ir.Value | None:
    """Return what a convolution reads, if its shapes are known but for the number of images."""
    source, result = node.inputs[0], node.outputs[0]
    is_known = source is not None and known_shape(source) and known_shape(result)
    return source if is_known else None


def known_shape(value: ir.Value | None) -> tuple[Any, ...]:
    """Return a shape without empty dimensions, of which only the first may be free, else nothing.

    A free one is the symbol that equals others of its name.
    """
    if value is None or not value.shape:
        return ()
    first, *inner = value.shape
    is_named = isinstance(first, int) or first.value is not None
    is_known = is_named and all(isinstance(extent, int) for extent in inner)
    return (first, *inner) if is_known and 0 not in (first, *inner) else ()


def channels_of(value: ir.Value | None) -> int:
    """Return the channels of images whose shape is known."""
    return int(known_shape(value)[_CHANNELS])


def _read_parts(conv: ir.Node) -> list[_Part]:
    """Return what a convolution reads: the values that a `Concat` of channels joins, or one."""
    source = conv.inputs[0]
    assert source is not None
    concat, values = source.producer(), [source]
    if concat is not None and (concat.domain, concat.op_type) == ("", "Concat"):
        axis = concat.attributes.get_int("axis", 1) % len(known_shape(source))
        shapes = [known_shape(value) for value in concat.inputs]
        is_inner = device_of(concat) == device_of(conv) and is_read_once(source)
        if is_inner and axis == _CHANNELS and all(shapes):
            values = [value for value in concat.inputs if value is not None]
    parts, first = [], 0
    for value in values:
        parts.append(_Part(value, first, _movable(value, conv)))
        first += channels_of(value)
    return parts


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input() and value.const_value is not None


def is_read_once(value: ir.Value) -> bool:
    """Whether one node reads a value, and nothing outside the graph does."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def _movable(value: ir.Value, conv: ir.Node) -> ir.Node | None:
    """Return the resize that makes a value, if it had better come after a convolution."""
    resize, result = value.producer(), known_shape(value)
    if resize is None or (resize.domain, resize.op_type) != ("", "Resize"):
        return None
    source, attributes = known_shape(resize.inputs[0]), resize.attributes
    if not source or source[:_SPATIAL] != result[:_SPATIAL] or not is_read_once(value):
        return None
    constants = resize.inputs[1:_SIZES]
    if not all(other is None or _is_constant(other) for other in constants):
        return None
    is_linear = (
        attributes.get_string("coordinate_transformation_mode", "half_pixel")
        != "tf_crop_and_resize"
        and attributes.get_string("keep_aspect_ratio_policy", "stretch") == "stretch"
        and device_of(resize) == device_of(conv)
    )
    outputs = channels_of(conv.outputs[0])
    is_worth = (
        math.prod(result[_SPATIAL:]) >= _LEAST_GROWTH * math.prod(source[_SPATIAL:])
        and outputs <= source[_CHANNELS]
    )
    return resize if is_linear and is_worth else None


def _swap(graph: ir.Graph, conv: ir.Node, parts: Sequence[_Part]) -> None:
    """Replace a convolution by one for each resized part, one for the rest, and their sum."""
    draft = Replacement(graph, conv)
    terms: list[ir.Value] = []
    rest = [part for part in parts if part.resize is None]
    if rest:
        values = [part.value for part in rest]
        joined = values[0] if len(values) == 1 else draft.add("Concat", values, axis=_CHANNELS)
        terms.append(draft.convolve(joined, rest, has_bias=True))
    for part in parts:
        if part.resize is not None:
            small = part.resize.inputs[0]
            terms.append(
                draft.resize(part.resize, draft.convolve(small, [part], has_bias=not terms))
            )
    total = terms[0]
    for term in terms[1:]:
        total = draft.add("Add", [total, term])
    result = conv.outputs[0]
    graph.insert_before(conv, draft.nodes)
    name, total.shape, total.type = result.name, result.shape, result.type
    result.replace_all_uses_with(total, replace_graph_outputs=True)
    source = conv.inputs[0]
    replaced = [conv, None if source is None else source.producer()]
    for node in (*replaced, *(part.resize for part in parts)):
        # What is read no more must not count as a reader for the passes that come next.
        if node is not None and node.graph is graph and not node.outputs[0].uses():
            graph.remove(node, safe=True)
    total.name = name


_SIZES = 3
"""The input of a resize with the extents of its result."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """The nodes that come in the place of a convolution; their names begin with its own."""

    graph: ir.Graph
    conv: ir.Node
    nodes: list[ir.Node] = field(default_factory=list)
    constants: list[ir.Value] = field(default_factory=list)

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        origin: ir.Node | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """Add a node that stands for another one, the convolution unless told otherwise."""
        name = f"{self.conv.name}.{op_type.lower()}{len(self.nodes)}"
        node = ir.node(op_type, inputs, attributes, name=name)
        node.outputs[0].name, node.outputs[0].dtype = name, ir.DataType.FLOAT
        stand_for(node, [origin or self.conv])
        self.nodes.append(node)
        return node.outputs[0]

    def convolve(self, x: ir.Value | None, parts: Sequence[_Part], *, has_bias: bool) -> ir.Value:
        """Add a convolution of some parts, which `x` holds, by their filters."""
        weights, *bias = self.conv.inputs[1:]
        array = weights.const_value.numpy()  # type: ignore[union-attr]
        filters = np.concatenate([array[:, part.channels] for part in parts], axis=1)
        inputs = [x, self.constant(filters), *(bias if has_bias else [])]
        result = self.add("Conv", inputs, kernel_shape=array.shape[_SPATIAL:])
        if pixels := known_shape(x):  # for the passes that come next
            result.shape = ir.Shape((pixels[0], len(array), *pixels[_SPATIAL:]))
        return result

    def resize(self, resize: ir.Node, x: ir.Value) -> ir.Value:
        """Add a resize of what comes out of a convolution."""
        inputs = [x, *resize.inputs[1:]]
        if len(inputs) > _SIZES and inputs[_SIZES] is not None:
            inputs[_SIZES] = self._sizes(inputs[_SIZES], resize)
        attributes = {name: item.value for name, item in resize.attributes.items()}
        return self.add("Resize", inputs, resize, **attributes)

    def _sizes(self, sizes: ir.Value | None, resize: ir.Node) -> ir.Value | None:
        """Return the sizes that a resize is given, with the channels of the convolution."""
        source = known_shape(resize.inputs[0])
        rank = len(source)
        axes = [axis % rank for axis in resize.attributes.get_ints("axes", tuple(range(rank)))]
        if sizes is None or _CHANNELS not in axes:
            return sizes
        more = np.zeros(len(axes), np.int64)
        more[axes.index(_CHANNELS)] = channels_of(self.conv.outputs[0]) - source[_CHANNELS]
        if sizes.const_value is not None:
            return self.constant(sizes.const_value.numpy() + more)
        # How many images there are is not known yet.
        total = self.add("Add", [sizes, self.constant(more)], resize)
        total.dtype, total.shape = ir.DataType.INT64, ir.Shape(more.shape)
        return total

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """Add an array that is known."""
        name = f"{self.conv.name}.constant{len(self.constants)}"
        tensor = ir.tensor(np.ascontiguousarray(array), name=name)
        value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape))
        value.dtype = tensor.dtype
        self.graph.initializers.add(value)
        self.constants.append(value)
        return value
