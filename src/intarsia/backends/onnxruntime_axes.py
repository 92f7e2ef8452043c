# SPDX-License-Identifier: Apache-2.0
"""Axes of reductions as ONNX Runtime gets them right: of an empty tensor it passes over others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.backends.values import Artifact
from intarsia.graph.ops import Family, names_of

if TYPE_CHECKING:
    import onnx

    from intarsia.graph.graph import Graph, Node
    from intarsia.graph.region import Region

REDUCTIONS = frozenset(names_of(lambda operator: operator.family is Family.REDUCTION))


def axes_of(graph: Graph, node: Node) -> list[int] | None:
    """Return the axes of a reduction as they are written, or None if they are fed.

    Args:
        graph: Of the node.
        node: One of `REDUCTIONS`.
    """
    if len(node.inputs) > 1 and node.inputs[1] >= 0:
        axes = graph.values[node.inputs[1]].constant
        return None if axes is None else axes.numpy().reshape(-1).tolist()
    return list(node.ir.attributes.get_ints("axes", ()))


def count_axes_from_the_front(artifact: Artifact, region: Region) -> Artifact:
    """Return an artifact whose reductions of what may be empty count axes from the front.

    Args:
        artifact: Its payload is a serialized `ModelProto`.
        region: What it was made from.
    """
    graph = region.graph
    axes = {}
    for node in (graph.nodes[index] for index in region.nodes):
        value = graph.values[node.inputs[0]] if node.op_type in REDUCTIONS else None
        may_be_empty = value is not None and (value.shape is None or 0 in value.shape)
        if value is None or value.ir.shape is None or not may_be_empty:
            continue
        written = axes_of(graph, node) or []
        if any(axis < 0 for axis in written):
            output_name = graph.values[node.outputs[0]].name
            # Only of what may be empty: the same region is the same bytes otherwise.
            axes[output_name] = [axis % len(value.ir.shape) for axis in written]
    if not axes:
        return artifact
    import onnx

    model = onnx.ModelProto.FromString(artifact.payload)
    for proto in model.graph.node:
        if proto.output[0] in axes:
            _count(model.graph, proto, axes[proto.output[0]])
    return replace(artifact, payload=model.SerializeToString())


def _count(graph: onnx.GraphProto, node: onnx.NodeProto, axes: list[int]) -> None:
    for attribute in node.attribute:
        if attribute.name == "axes":
            attribute.ints[:] = axes
            return
    from onnx import TensorProto, helper

    name = f"{node.output[0]}/axes"
    graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [len(axes)], axes))
    node.input[1] = name
