# SPDX-License-Identifier: Apache-2.0
"""Whether regions can run one after another, by the definition: what plans are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from intarsia.errors import InternalError
from intarsia.graph.graph import Graph
from intarsia.graph.region import Region


def is_convex(region: Region) -> bool:
    """Whether no path leaves the region and enters it again."""
    if not region.nodes:
        return True
    successors, members, last = region.graph.successors, set(region.nodes), region.nodes[-1]
    seen = {
        after
        for node in region.nodes
        for after in successors[node]
        if after < last and after not in members
    }
    stack = [*seen]
    while stack:
        for after in successors[stack.pop()]:
            if after in members:
                return False
            if after < last and after not in seen:
                seen.add(after)
                stack.append(after)
    return True


def is_acyclic_quotient(graph: Graph, regions: Sequence[Region]) -> bool:
    """Whether these disjoint regions can run one after another, each as a whole.

    Nodes in none of the regions count as regions of their own.

    Raises:
        InternalError: Two regions share a node.
    """
    return _order(graph, regions) is not None


def order_quotient(graph: Graph, regions: Sequence[Region]) -> tuple[int, ...]:
    """Return the positions of the regions in an order in which they can run.

    Of the regions that are ready, the one with the smallest node id is first.

    Raises:
        InternalError: The regions depend on one another in a circle, or two share a node.
    """
    order = _order(graph, regions)
    if order is None:
        raise InternalError("the quotient graph of the regions has a cycle")
    return order


def _order(graph: Graph, regions: Sequence[Region]) -> tuple[int, ...] | None:
    owner = [-1] * len(graph.nodes)
    parts: list[tuple[int, ...]] = []
    for position, region in enumerate(regions):
        parts.append(region.nodes)
        for node in region.nodes:
            if owner[node] >= 0:
                raise InternalError(f"node {graph.nodes[node].name!r} lies in two regions")
            owner[node] = position
    for node, position in enumerate(owner):
        if position < 0:
            owner[node] = len(parts)
            parts.append((node,))
    after, waiting = _quotient(graph, owner, parts)
    first = [nodes[0] if nodes else -1 for nodes in parts]
    ready = [(first[part], part) for part, count in enumerate(waiting) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, part = heappop(ready)
        order.append(part)
        for later in after[part]:
            waiting[later] -= 1
            if not waiting[later]:
                heappush(ready, (first[later], later))
    if len(order) < len(parts):
        return None
    return tuple(part for part in order if part < len(regions))


def _quotient(
    graph: Graph, owner: Sequence[int], parts: Sequence[tuple[int, ...]]
) -> tuple[list[list[int]], list[int]]:
    """Return per part the parts after it, and how many come before it."""
    after: list[list[int]] = []
    waiting = [0] * len(parts)
    for part, nodes in enumerate(parts):
        later = {owner[successor] for node in nodes for successor in graph.successors[node]}
        later.discard(part)
        after.append(sorted(later))
        for other in later:
            waiting[other] += 1
    return after, waiting
