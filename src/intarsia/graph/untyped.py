# SPDX-License-Identifier: Apache-2.0
"""Values whose type nobody knows, and the nodes that they tie together: no region ends there."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from intarsia.graph.graph import Graph


def tied_nodes(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Return the sets of nodes that one region has to have, each ascending; none is usual.

    What makes and what reads a value of unknown type belong together, and so does whatever lies
    between two of them, so that the region is convex and no two of them wait for each other: they
    are the components in which every node reaches every other one if such a value leads both ways.
    Linear in the graph.
    """
    after = [list(nodes) for nodes in graph.successors]
    before = [list(nodes) for nodes in graph.predecessors]
    is_tied = False
    for value in graph.values:
        if value.constant is not None or value.ir.type is not None:
            continue
        ends = [node for node in (value.producer, *value.consumers) if node >= 0]
        for one, other in pairwise(ends):
            is_tied = True
            for edges in (after, before):
                edges[one].append(other)
                edges[other].append(one)
    if not is_tied:
        return ()
    finished = [node for tree in _trees(range(len(after)), after) for node in tree]
    parts = _trees(reversed(finished), before)
    return tuple(sorted(tuple(sorted(part)) for part in parts if len(part) > 1))


def _trees(starts: Iterable[int], edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the trees of a search in depth from each start that is new, in order of leaving."""
    seen: set[int] = set()
    trees = []
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        tree: list[int] = []
        stack = [(start, iter(edges[start]))]
        while stack:
            node, others = stack[-1]
            other = next((each for each in others if each not in seen), None)
            if other is None:
                tree.append(node)
                stack.pop()
            else:
                seen.add(other)
                stack.append((other, iter(edges[other])))
        trees.append(tree)
    return trees
