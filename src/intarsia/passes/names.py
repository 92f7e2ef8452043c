# SPDX-License-Identifier: Apache-2.0
"""Names that passes may give: those that nothing else in a model has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


def names_of(graph: ir.Graph) -> set[str]:
    """Return the names of all nodes and values of a graph and of the bodies in it."""
    graphs = [graph, *graph.subgraphs()]
    nodes = list(graph.all_nodes())
    values = [value for one in graphs for value in (*one.inputs, *one.initializers.values())]
    values += [value for node in nodes for value in node.outputs]
    return {one.name for one in (*nodes, *values) if one.name}


def is_name_free(graph: ir.Graph, conv: ir.Node) -> bool:
    """Whether nothing is called as new nodes will be: a node's name, a word, a number."""
    values = [value for node in graph for value in (*node.inputs, *node.outputs) if value]
    names = [value.name or "" for value in (*graph.inputs, *values)]
    names += [node.name or "" for node in graph]
    return bool(conv.name) and not any(
        name.startswith(f"{conv.name}.") and name[-1].isdigit() for name in names
    )
