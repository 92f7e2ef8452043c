# SPDX-License-Identifier: Apache-2.0
"""Whether windows of convolutions and poolings fit what they slide over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from intarsia.graph.graph import Graph, Node

_WEIGHTS = {"Conv": 1, "ConvInteger": 1, "DeformConv": 1, "QLinearConv": 3}
"""Operators with weights, and which input these are: their extents are those of the window."""

_POOLINGS = frozenset(("AveragePool", "LpPool", "MaxPool"))


def check_windows(graph: Graph) -> None:
    """Refuse a window that is larger than its input with pads, and has a place there all the same.

    ONNX's text gives it none, and ONNX Runtime fails on it. But onnx's inference divides towards
    zero where the text rounds down, so that with strides it counts one place too many: code for
    that place would read beyond the input.

    Args:
        graph: Shapes are inferred.

    Raises:
        ModelError: There is such a window.
    """
    for node in graph.nodes:
        if node.op_type in _WEIGHTS or node.op_type in _POOLINGS:
            _check(graph, node)


def _check(graph: Graph, node: Node) -> None:
    attributes = node.ir.attributes
    shape, result = (graph.values[i].shape for i in (node.inputs[0], node.outputs[0]))
    is_padded = attributes.get_string("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    # By ceil_mode the last window may lack a part, the only one too.
    if shape is None or result is None or is_padded or attributes.get_int("ceil_mode", 0) != 0:
        return
    kernel = _kernel(graph, node)
    rank = len(kernel)
    dilations = attributes.get_ints("dilations", None) or (1,) * rank
    pads = attributes.get_ints("pads", None) or (0,) * (2 * rank)
    for axis, (extent, size) in enumerate(zip(shape[2:], kernel, strict=False)):
        reach = dilations[axis] * (size - 1) + 1
        room = extent + pads[axis] + pads[axis + rank]
        if room < reach and result[2 + axis] > 0:
            raise ModelError(
                f"the window of {node.op_type} {node.name!r} spans {reach} elements along axis "
                f"{2 + axis}, where its input with pads has {room}",
                node=node.name,
                hint="feed a larger input, or pad it",
            )


def _kernel(graph: Graph, node: Node) -> Sequence[int]:
    stated = node.ir.attributes.get_ints("kernel_shape", None)
    if stated or node.op_type not in _WEIGHTS:
        return stated or ()
    return (graph.values[node.inputs[_WEIGHTS[node.op_type]]].shape or ())[2:]
