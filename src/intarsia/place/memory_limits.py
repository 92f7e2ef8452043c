# SPDX-License-Identifier: Apache-2.0
"""How many bytes of constants a plan may keep on a device: `opencl -max_memory=2000000000`.

The limit is of a device, and several targets may share one: then the smallest that is given counts.
Constants are counted once for each device, by their size in the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from intarsia.errors import PlacementError
from intarsia.plan.devices import domain_text

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.target import PlacedTarget
    from intarsia.target.placed import MemoryDomain

ATTRIBUTE = "max_memory"


def memory_limits(domains: Mapping[PlacedTarget, MemoryDomain]) -> dict[MemoryDomain, int]:
    """Return by memory domain how many bytes a plan may keep there, where that is limited.

    Args:
        domains: Of every target of a machine.
    """
    found: dict[MemoryDomain, int] = {}
    for placed, domain in domains.items():
        limit = placed.target.attrs.get(ATTRIBUTE)
        if limit is not None:
            found[domain] = min(int(limit), found.get(domain, int(limit)))
    return found


def constants_of(graph: Graph, nodes: Iterable[int]) -> dict[int, int]:
    """Return the constants that nodes read, by value id, with their bytes."""
    reads = {read for node in nodes for read in graph.nodes[node].reads}
    return {
        read: graph.values[read].nbytes for read in reads if graph.values[read].constant is not None
    }


@dataclass(slots=True)
class Held:
    """What devices of limited memory hold already.

    Attributes:
        graph: The model.
        limits: By memory domain, in bytes.
    """

    graph: Graph
    limits: Mapping[MemoryDomain, int]
    _held: dict[MemoryDomain, dict[int, int]] = field(default_factory=dict)

    def overfull(self, node: int, domain: MemoryDomain) -> str:
        """Return why a node's constants do not fit any more; empty if they do."""
        limit = self.limits.get(domain)
        if limit is None:
            return ""
        held = self._held.get(domain, {})
        more = {v: n for v, n in constants_of(self.graph, (node,)).items() if v not in held}
        left = limit - sum(held.values())
        if not more or sum(more.values()) <= left:
            return ""
        return (
            f"its constants take {sum(more.values())} B, and {ATTRIBUTE}={limit} leaves {left} on "
            f"{domain_text(domain)}"
        )

    def hold(self, node: int, domain: MemoryDomain) -> None:
        """Note that a node's constants are on a device."""
        if domain in self.limits:
            self._held.setdefault(domain, {}).update(constants_of(self.graph, (node,)))


def check_memory(
    graph: Graph, choices: Sequence[MemoryDomain], limits: Mapping[MemoryDomain, int]
) -> None:
    """Check that all constants fit where a placement needs them.

    Args:
        graph: The model.
        choices: By node id, the memory in which it runs.
        limits: By memory domain, in bytes.

    Raises:
        PlacementError: They do not.
    """
    for domain, limit in limits.items():
        nodes = [node for node, at in enumerate(choices) if at == domain]
        nbytes = sum(constants_of(graph, nodes).values())
        if nbytes > limit:
            raise PlacementError(
                f"{len(nodes)} nodes on {domain_text(domain)} have {nbytes} B of constants; "
                f"{ATTRIBUTE}={limit} allows less",
                hint=f"raise {ATTRIBUTE}, or pin fewer nodes to it",
            )
