# SPDX-License-Identifier: Apache-2.0
"""Sizes that the data decides: which value tells each, and which nodes need it before they run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from intarsia.extents import Expression, Extent, Symbol, late_symbols
from intarsia.graph.per_graph import per_graph

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node


@per_graph
def found_at(graph: Graph) -> dict[Symbol, tuple[int, int]]:
    """Return for each size that the data decides the value and the axis that tell it."""
    found: dict[Symbol, tuple[int, int]] = {}
    for value in graph.values:  # the first one that has it makes it
        for axis, extent in enumerate(value.extents or ()):
            for symbol in late_symbols([extent]):
                if extent == Expression.of(symbol):
                    found.setdefault(symbol, (value.id, axis))
    return found


@per_graph
def finders(graph: Graph) -> dict[int, set[Symbol]]:
    """Return by node the sizes that it finds; those of graph inputs are by -1."""
    nodes: dict[int, set[Symbol]] = {}
    for symbol, (value, _) in found_at(graph).items():
        nodes.setdefault(graph.values[value].producer, set()).add(symbol)
    return nodes


def touched(graph: Graph, node: Node) -> frozenset[Symbol]:
    """Return the sizes of what a node reads or makes, and of the entries of shapes among that."""
    extents: list[Extent] = []
    for position in (*node.reads, *node.outputs):
        if position >= 0:
            value = graph.values[position]
            extents += (*(value.extents or ()), *(value.entries or ()))
    return late_symbols(extents)


def needed_by(graph: Graph, nodes: Collection[int]) -> frozenset[Symbol]:
    """Return the sizes that have to be known before some nodes run: they touch and do not find."""
    own = finders(graph)
    every = frozenset().union(*(touched(graph, graph.nodes[node]) for node in nodes))
    return every.difference(*(own.get(node, ()) for node in nodes))


def ends_regions(graph: Graph, sized: Iterable[int]) -> frozenset[int]:
    """Return the nodes that end their regions: code of others needs a size that they find.

    Args:
        graph: What is placed.
        sized: Nodes whose code has to know all sizes before it runs.
    """
    needed = frozenset().union(*(needed_by(graph, (node,)) for node in sized))
    return frozenset(node for node, found in finders(graph).items() if needed & found)
