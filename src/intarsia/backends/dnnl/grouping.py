# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a region become one primitive, for who places them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.backends.dnnl.chains import chains_of
from intarsia.backends.dnnl.fusion import Fusion
from intarsia.backends.dnnl.table import find_alone
from intarsia.backends.values import FusedGroup
from intarsia.graph.region import Region

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph


def fused_groups(region: Region) -> tuple[FusedGroup, ...]:
    """Return the nodes of every primitive that computes two or more.

    A DequantizeLinear of which only one primitive reads, and only the integers, is a part of that.

    Args:
        region: Nodes that the table takes.
    """
    graph = region.graph
    region = Region.of(graph, [node for node in region.nodes if _is_computed(graph, node, region)])
    ids = {graph.nodes[node].name: node for node in region.nodes}
    members: list[set[int]] = []
    kinds: list[str] = []
    owner: dict[int, int] = {}
    for call in Fusion(region).run().calls:
        nodes = {ids[name] for name in call.nodes} - owner.keys()  # a Split is several calls
        owner.update(dict.fromkeys(nodes, len(members)))
        members.append(nodes)
        kinds.append(call.kind)
    for node in region.nodes:
        if node in owner:
            continue
        readers = {owner.get(after, -1) for after in graph.successors[node]}
        if len(readers) == 1 and -1 not in readers:
            (at,) = readers
            owner[node] = at
            members[at].add(node)
    return tuple(
        FusedGroup(tuple(sorted(nodes)), kind)
        for nodes, kind in zip(members, kinds, strict=True)
        if len(nodes) > 1
    )


def _is_computed(graph: Graph, node: int, region: Region) -> bool:
    """Tell whether a node can be computed in a region: not if only its whole chain could."""
    chain = chains_of(graph).get(node)
    if chain is None or all(member in region for member in chain.nodes):
        return True
    return find_alone(graph, graph.nodes[node]) is None
