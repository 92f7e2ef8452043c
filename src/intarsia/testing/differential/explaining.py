# SPDX-License-Identifier: Apache-2.0
"""Which stated rule explains a disagreement: a predicate over nodes and numbers, never a case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.graph.graph import Graph, Node
from intarsia.graph.inline import calls_of
from intarsia.graph.load import load
from intarsia.testing.differential.unrolling import body_name

if TYPE_CHECKING:
    import onnx

    from intarsia.backends.defects import Bound, Flushed, KnownDefect
    from intarsia.backends.registry import Backends
    from intarsia.plan.plan import Plan


def explain(
    model: onnx.ModelProto,
    program: Any,
    values: Mapping[str, Any],
    outputs: Sequence[str],
    backends: Backends,
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
        backends: State what they compute otherwise.
    """
    rules = {}
    for name in outputs:
        for proto, words, defect in _stated(model, program, [name], backends):
            explains = defect.values and not defect.flushes
            if explains and defect.explains(arrays_of(proto, values)):
                rules[name] = words
                break
    return rules


def inaccuracies(
    model: onnx.ModelProto, program: Any, outputs: Sequence[str], backends: Backends
) -> dict[str, dict[str, Bound]]:
    """Return the stated bounds of nodes that outputs depend on: by first output, by their words.

    Args:
        model: The model.
        program: What it was compiled into.
        outputs: Names of the outputs that differ.
        backends: State what they compute otherwise.
    """
    bounded: dict[str, dict[str, Bound]] = {}
    for proto, words, defect in _stated(model, program, outputs, backends):
        if defect.bound:
            bounded.setdefault(proto.output[0], {})[words] = defect.bound
    return bounded


def flushes(
    model: onnx.ModelProto, program: Any, outputs: Sequence[str], backends: Backends
) -> dict[str, tuple[str, Flushed]]:
    """Return the nodes that outputs depend on and that take subnormal numbers for zeros.

    Args:
        model: The model.
        program: What it was compiled into.
        outputs: Names of the outputs that differ.
        backends: State what they compute otherwise.

    Returns:
        By the name of a node's first output, the rule that says so, and which numbers it takes.
    """
    stated = _stated(model, program, outputs, backends)
    return {
        proto.output[0]: (words, defect.flushes)
        for proto, words, defect in stated
        if defect.flushes is not None
    }


def _stated(
    model: onnx.ModelProto, program: Any, outputs: Sequence[str], backends: Backends
) -> Iterator[tuple[onnx.NodeProto, str, KnownDefect]]:
    """Yield the rules that describe nodes that outputs depend on, on the backends that run them.

    Yields:
        A node, the rule in words, and the rule.
    """
    graph = Graph.from_model(load(model))
    placed = _placed(program)
    for proto in (node for output in outputs for node in ancestors(model, output)):
        for node in _nodes_of(graph, proto):
            backend = backends.by_name.get(placed.get(body_name(node.name), ""))
            if backend is None:
                continue
            for defect in backend.defects:
                if defect.describes(graph, node, backend.version()):
                    yield proto, f"{backend.name} {node.op_type}: {defect.says}", defect


def ancestors(model: onnx.ModelProto, output: str) -> list[onnx.NodeProto]:
    """Return the nodes that an output depends on, the nearest first."""
    wanted, nodes = {output}, []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            nodes.append(node)
            wanted.update(node.input)
    return nodes


def _placed(program: Any) -> dict[str, str]:
    """Return the backend of every node of the user's model that still is one, bodies' too."""
    plans: list[Plan] = [program.latest.plan]
    placed: dict[str, str] = {}
    while plans:
        plan = plans.pop()
        plans += [body.plan for body in plan.bodies]
        placed |= {
            origin: region.backend
            for region in plan.placement.regions
            for node in region.nodes
            for origin in (node.name, *node.origins)
        }
    return placed


def node_of(graph: Graph, proto: onnx.NodeProto) -> Node:
    """Return a node of the model in its graph, where every node has a name."""
    output = next(name for name in proto.output if name)
    return graph.nodes[graph.value_named(output).producer]


def _nodes_of(graph: Graph, proto: onnx.NodeProto) -> list[Node]:
    """Return a node of the model in its graph, or those of the function that defines it."""
    node = node_of(graph, proto)
    call = calls_of(node.ir)[:1]
    return [one for one in graph.nodes if calls_of(one.ir)[:1] == call] if call else [node]


def arrays_of(proto: onnx.NodeProto, values: Mapping[str, Any]) -> list[Any]:
    """Return the tensors that a node reads and makes, as the reference computes them."""
    tensors = (values.get(name) for name in (*proto.input, *proto.output))
    return [value for value in tensors if isinstance(value, np.ndarray)]
