# SPDX-License-Identifier: Apache-2.0
"""Cuts an assigned graph into few regions that run one after another.

The regions are intervals of one topological order, so each is convex and their quotient is
acyclic, whatever their shape. A region need not be connected. Nodes that a value of unknown type
ties together are in one region.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from intarsia.graph.untyped import tied_nodes

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph


def cut_regions(graph: Graph, choices: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return regions in the order in which they run, as (choice, ascending node ids).

    Each region takes every node of its target whose inputs are there, so for two targets the
    number of regions is the least possible for the target that starts; each start is tried.
    With more targets, the one that can take the most nodes comes next. Linear in the graph for
    each start.

    Args:
        graph: The nodes and their order.
        choices: By node id, the position of its target.
    """
    units, before, after = _units(graph)
    of_units = [choices[nodes[0]] for nodes in units]
    starts = sorted({choice for choice, those in zip(of_units, before, strict=True) if not those})
    cuts = (_Cutter(of_units, before, after).cut(start) for start in starts)
    return [
        (choice, sorted(node for unit in found for node in units[unit]))
        for choice, found in min(cuts, key=len, default=[])
    ]


_Neighbours: TypeAlias = Sequence[Sequence[int]]


def _units(graph: Graph) -> tuple[_Neighbours, _Neighbours, _Neighbours]:
    """Return the nodes of each unit that no cut may part, and the units before and after it."""
    tied = tied_nodes(graph)
    if not tied:
        return [(node.id,) for node in graph.nodes], graph.predecessors, graph.successors
    rest = {node.id for node in graph.nodes}.difference(*tied)
    units = sorted([*tied, *((node,) for node in rest)])
    owner = {node: unit for unit, nodes in enumerate(units) for node in nodes}

    def around(edges: _Neighbours) -> _Neighbours:
        return [
            sorted({owner[other] for node in nodes for other in edges[node]} - {unit})
            for unit, nodes in enumerate(units)
        ]

    return units, around(graph.predecessors), around(graph.successors)


class _Cutter:
    """The state of one sweep over the units of a graph."""

    def __init__(self, choices: Sequence[int], before: _Neighbours, after: _Neighbours) -> None:
        self.successors = after
        self.choices = choices
        self.waiting = [len(those) for those in before]
        self.ready: dict[int, list[int]] = {choice: [] for choice in sorted(set(choices))}
        for node, count in enumerate(self.waiting):
            if count == 0:
                self.ready[choices[node]].append(node)

    def cut(self, start: int) -> list[tuple[int, list[int]]]:
        regions = []
        choice: int | None = start
        while choice is not None:
            nodes = self.reachable(choice)
            regions.append((choice, sorted(nodes)))
            self.take(choice, nodes)
            choice = self.next_choice()
        return regions

    def next_choice(self) -> int | None:
        ready = [choice for choice, nodes in self.ready.items() if nodes]
        if len(ready) == 1:
            return ready[0]
        sizes = {choice: len(self.reachable(choice)) for choice in ready}
        return max(ready, key=sizes.__getitem__, default=None)

    def reachable(self, choice: int) -> list[int]:
        """Return the nodes that this target could run now, without changing anything."""
        nodes = list(self.ready[choice])
        waiting: dict[int, int] = {}
        for node in nodes:  # grows while it is walked
            for successor in self.successors[node]:
                if self.choices[successor] == choice:
                    left = waiting.get(successor, self.waiting[successor]) - 1
                    waiting[successor] = left
                    if left == 0:
                        nodes.append(successor)
        return nodes

    def take(self, choice: int, nodes: Sequence[int]) -> None:
        self.ready[choice] = []
        for node in nodes:
            for successor in self.successors[node]:
                self.waiting[successor] -= 1
                if self.waiting[successor] == 0 and self.choices[successor] != choice:
                    self.ready[self.choices[successor]].append(successor)
