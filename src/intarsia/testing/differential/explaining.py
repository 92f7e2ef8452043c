# SPDX-License-Identifier: Apache-2.0
"""Which stated rule explains a disagreement: a predicate over nodes and numbers, never a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.backends.defects import Bound
from intarsia.backends.registry import load_backends
from intarsia.graph.graph import Graph, Node
from intarsia.graph.load import load
from intarsia.settings import Settings

if TYPE_CHECKING:
    import onnx


def explain(
    model: onnx.ModelProto, program: Any, values: Mapping[str, Any], outputs: Sequence[str]
) -> dict[str, str]:
    """Return the rules that explain why outputs differ, by output; those explained are in it.

    A rule explains an output if it describes a node that the output depends on, on the backend
    that the node was placed on, and the numbers that this node reads or makes are of its classes.
    Rules that flush subnormal numbers are left to `flushes`.

    Args:
        model: The model.
        program: What it was compiled into.
        values: What the reference computes for every name.
        outputs: Names of the outputs that differ.
    """
    graph = Graph.from_model(load(model))
    placed = _placed(program)
    rules = {name: _rule(graph, placed, values, ancestors(model, name)) for name in outputs}
    return {name: rule for name, rule in rules.items() if rule}


def inaccuracies(
    model: onnx.ModelProto, program: Any, outputs: Sequence[str]
) -> dict[str, dict[str, Bound]]:
    """Return the stated bounds of nodes that outputs depend on: by first output, by their words.

    Args:
        model: The model.
        program: What it was compiled into.
        outputs: Names of the outputs that differ.
    """
    graph = Graph.from_model(load(model))
    placed = _placed(program)
    backends: Mapping[str, Any] = load_backends(Settings.from_environment()).by_name
    bounded: dict[str, dict[str, Bound]] = {}
    for proto in (node for output in outputs for node in ancestors(model, output)):
        node = node_of(graph, proto)
        name = placed.get(node.name, "")
        backend: Any = backends.get(name)
        for defect in getattr(backend, "defects", ()):
            if defect.bound and defect.describes(graph, node, backend.version()):
                words = f"{name} {node.op_type}: {defect.says}"
                bounded.setdefault(proto.output[0], {})[words] = defect.bound
    return bounded


def flushes(model: onnx.ModelProto, program: Any, outputs: Sequence[str]) -> dict[str, str]:
    """Return the nodes that outputs depend on and that take subnormal numbers for zeros.

    Args:
        model: The model.
        program: What it was compiled into.
        outputs: Names of the outputs that differ.

    Returns:
        By the name of a node's first output, the rule that says so.
    """
    graph = Graph.from_model(load(model))
    placed = _placed(program)
    backends: Mapping[str, Any] = load_backends(Settings.from_environment()).by_name
    flushing: dict[str, str] = {}
    for proto in (node for output in outputs for node in ancestors(model, output)):
        node = node_of(graph, proto)
        name = placed.get(node.name, "")
        backend: Any = backends.get(name)
        for defect in getattr(backend, "defects", ()):
            if defect.flushes and defect.describes(graph, node, backend.version()):
                flushing[proto.output[0]] = f"{name} {node.op_type}: {defect.says}"
    return flushing


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
    backends = load_backends(Settings.from_environment()).by_name
    for proto in nodes:
        node = node_of(graph, proto)
        name = placed.get(node.name, "")
        backend: Any = backends.get(name)
        if backend is None:
            continue
        arrays = arrays_of(proto, values)
        for defect in getattr(backend, "defects", ()):
            is_stated = defect.values and defect.describes(graph, node, backend.version())
            if is_stated and not defect.flushes and defect.explains(arrays):
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
