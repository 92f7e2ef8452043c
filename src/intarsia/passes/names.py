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
    names = {*(node.name for node in nodes), *(value.name for value in values)}
    return {name for name in names if name}


def is_name_free(graph: ir.Graph, node: ir.Node) -> bool:
    """Whether nothing is called as new nodes will be: a node's name, a word, a number."""
    return bool(node.name) and not any(
        name.startswith(f"{node.name}.") and name[-1].isdigit() for name in names_of(graph)
    )
