# SPDX-License-Identifier: Apache-2.0
"""Sort the nodes of a graph and of its bodies, or name the nodes of a cycle."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from intarsia.errors import ModelError
from intarsia.graph.snapshot import captured_values, node_bodies

if TYPE_CHECKING:
    import onnx_ir as ir

_SHOWN = 8


def sort_nodes(graph: ir.Graph) -> None:
    """Sort a graph and its bodies topologically, in place; sorted ones stay as they are.

    Raises:
        ModelError: Nodes depend on one another in a circle; the message names them.
    """
    graphs = [graph]
    is_sorted = True
    for current in graphs:
        seen: set[ir.Node] = set()
        for node in current:
            before = _before(node)
            is_sorted = is_sorted and seen.issuperset(before)
            seen.add(node)
            graphs += node_bodies(node)
    # Nearly all models are sorted, and one that is keeps the order that its author gave.
    if is_sorted:
        return
    for current in graphs:
        _refuse_cycle(current)
    graph.sort()


def _before(node: ir.Node) -> list[ir.Node]:
    """Return the nodes of the same graph that must run before this one."""
    values = [value for value in node.inputs if value is not None]
    values += captured_values(node)
    producers = [value.producer() for value in values]
    return [
        producer for producer in producers if producer is not None and producer.graph is node.graph
    ]


def _refuse_cycle(graph: ir.Graph) -> None:
    before = {node: _before(node) for node in graph}
    after: dict[ir.Node, list[ir.Node]] = {node: [] for node in graph}
    for node, earlier in before.items():
        for other in earlier:
            after[other].append(node)
    waiting = {node: len(earlier) for node, earlier in before.items()}
    ready = deque(node for node, count in waiting.items() if not count)
    while ready:
        node = ready.popleft()
        del waiting[node]
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    if not waiting:
        return
    path: dict[ir.Node, None] = {}
    node = next(iter(waiting))
    while node not in path:
        path[node] = None
        node = next(other for other in before[node] if other in waiting)
    nodes = list(path)
    names = [_label(other) for other in reversed(nodes[nodes.index(node) :])]
    shown = " -> ".join(names[:_SHOWN]) + (" -> ..." if len(names) > _SHOWN else "")
    raise ModelError(
        f"nodes depend on one another in a cycle: {shown} -> {names[0]}",
        node=names[0],
        hint="an ONNX graph must be acyclic; use Loop or Scan for iteration",
    )


def _label(node: ir.Node) -> str:
    return node.name or next((value.name for value in node.outputs if value.name), node.op_type)
