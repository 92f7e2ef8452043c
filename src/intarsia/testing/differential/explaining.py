# SPDX-License-Identifier: Apache-2.0
"""Which stated rule explains a disagreement: a predicate over nodes and numbers, never a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.backends.registry import load_backends
from intarsia.graph.graph import Graph, Node
from intarsia.graph.load import load
from intarsia.testing.differential.accuracies import Accuracy, accuracy_of

if TYPE_CHECKING:
    import onnx


def explain(
    model: onnx.ModelProto, program: Any, values: Mapping[str, Any], outputs: Sequence[str]
) -> str:
    """Return the rule that explains why outputs differ, or nothing.

    A rule explains an output if it describes a node that the output depends on, on the backend
    that the node was placed on, and the numbers that this node reads or makes are of its classes.

    Args:
        model: The model.
        program: What it was compiled into.
        values: What the reference computes for every name.
        outputs: Names of the outputs that differ; all of them must be explained.
    """
    graph = Graph.from_model(load(model))
    placed = _placed(program)
    rules = [_rule(graph, placed, values, ancestors(model, output)) for output in outputs]
    return "; ".join(dict.fromkeys(rules)) if all(rules) else ""


def inaccuracies(
    model: onnx.ModelProto, program: Any, outputs: Sequence[str]
) -> dict[str, tuple[str, Accuracy]]:
    """Return the stated bounds of nodes that outputs depend on: words and bound, by first output.

    Args:
        model: The model.
        program: What it was compiled into.
        outputs: Names of the outputs that differ.
    """
    graph = Graph.from_model(load(model))
    placed = _placed(program)
    found = {}
    for proto in (node for output in outputs for node in ancestors(model, output)):
        backend = placed.get(node_of(graph, proto).name, "")
        accuracy = accuracy_of(backend, proto.op_type)
        if accuracy is not None:
            words = f"{backend} {proto.op_type}: {accuracy.says}"
            found[proto.output[0]] = (words, accuracy)
    return found


def ancestors(model: onnx.ModelProto, output: str) -> list[onnx.NodeProto]:
    """Return the nodes that an output depends on, the nearest first."""
    wanted, found = {output}, []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            found.append(node)
            wanted.update(node.input)
    return found


def _placed(program: Any) -> dict[str, str]:
    """Return the backend of every node of the user's model that still is one."""
    return {
        origin: region.backend
        for region in program.placement.regions
        for node in region.nodes
        for origin in (node.name, *node.origins)
    }


def _rule(
    graph: Graph,
    placed: Mapping[str, str],
    values: Mapping[str, Any],
    nodes: Sequence[onnx.NodeProto],
) -> str:
    backends = load_backends().by_name
    for proto in nodes:
        node = node_of(graph, proto)
        name = placed.get(node.name, "")
        backend: Any = backends.get(name)
        if backend is None:
            continue
        arrays = arrays_of(proto, values)
        for defect in getattr(backend, "defects", ()):
            is_stated = defect.values and defect.describes(graph, node, backend.version())
            if is_stated and defect.explains(arrays):
                return f"{name} {node.op_type}: {defect.says}"
    return ""


def node_of(graph: Graph, proto: onnx.NodeProto) -> Node:
    """Return a node of the model in its graph, where every node has a name."""
    made = next(name for name in proto.output if name)
    return graph.nodes[graph.value_named(made).producer]


def arrays_of(proto: onnx.NodeProto, values: Mapping[str, Any]) -> list[Any]:
    """Return the tensors that a node reads and makes, as the reference computes them."""
    found = (values.get(name) for name in (*proto.input, *proto.output))
    return [value for value in found if isinstance(value, np.ndarray)]
