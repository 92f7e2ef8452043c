# SPDX-License-Identifier: Apache-2.0
"""Units: nodes that no backend would run apart, grown from single nodes.

A light operator (elementwise, view, reduction) joins the unit that makes its operand if nothing
else sees that operand, and if it runs wherever that unit does; a unit has at most one heavy
operator, so that a join takes one branch only. So every unit has one exit, and is convex; any cover
by units has an acyclic quotient (a cycle of single-exit regions would be a cycle of nodes).

Backends that say what they fuse (`Fusions`) correct this guess. What all of them run as one begins
as one; a softmax or reduction that all of them run by itself begins a unit of its own. Elementwise
operators and views join all the same: too little to be worth a call.

Backends are asked once for a model, and their groups are checked. A group is grown from the node
whose result leaves it, and each node that joins is read by members alone: so it has one exit, and
is convex, at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from intarsia.graph.ops import CallWeight, operator_named
from intarsia.graph.region import Region

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node


Nodes = tuple[int, ...]

MOST_NODES = 24
"""Most nodes of one unit or group; a longer chain becomes several."""


@dataclass(frozen=True, slots=True)
class Fusions:
    """Groups of nodes that run as one.

    Attributes:
        groups: By position of the target whose backend says so: disjoint, ascending. A target that
            is missing says nothing; one without groups runs each node by itself.
        left_out: What was not believed or is too large, a line each.
    """

    groups: Mapping[int, tuple[Nodes, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    _owners: dict[int, dict[int, int]] = field(default_factory=dict)

    def is_one(self, position: int, nodes: Sequence[int]) -> bool:
        """Whether all of some nodes are in one group of a target that has groups."""
        owner = self._owners.get(position)
        if owner is None:
            every = enumerate(self.groups.get(position, ()))
            owner = {node: number for number, group in every for node in group}
            self._owners[position] = owner
        numbers = {owner.get(node, -1) for node in nodes}
        return len(numbers) == 1 and -1 not in numbers

    def are_apart(self, one: int, other: int, positions: Sequence[int]) -> bool:
        """Whether some of these targets say how they run two nodes, and none runs them as one."""
        telling = [position for position in positions if position in self.groups]
        return bool(telling) and not any(self.is_one(at, (one, other)) for at in telling)


def has_one_exit(graph: Graph, nodes: Sequence[int]) -> bool:
    """Tell whether nodes grow from the last one: each before it is read by later members alone.

    Args:
        graph: Their graph.
        nodes: Ascending.
    """
    *others, last = nodes
    members = {last}
    for node in reversed(others):
        readers = graph.successors[node]
        is_seen = any(value in graph.output_set for value in graph.nodes[node].outputs)
        if is_seen or not readers or not members.issuperset(readers):
            return False
        members.add(node)
    return True


FEW_NODES = 24
"""Up to here every node is a unit of its own: there is nothing to be saved."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that are always placed together.

    Attributes:
        nodes: Node ids, ascending.
        targets: Positions of the targets that may have all of them, ascending.
    """

    nodes: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class UnitGraph:
    """The graph whose nodes are units, in a topological order.

    Attributes:
        graph: What the units are of.
        units: Every node is in exactly one.
        owner: By node id, the position of its unit.
    """

    graph: Graph
    units: tuple[Unit, ...]
    owner: tuple[int, ...]

    def nodes_of(self, units: Sequence[int]) -> tuple[int, ...]:
        """Return the nodes of some units, ascending."""
        return tuple(sorted(node for unit in units for node in self.units[unit].nodes))

    def region(self, units: Sequence[int]) -> Region:
        """Return the region of some units."""
        return Region.of(self.graph, self.nodes_of(units))

    def border_bytes(self, units: Sequence[int]) -> int:
        """Return the bytes that enter and leave a region of some units."""
        region = self.region(units)
        return sum(self.graph.values[value].nbytes for value in (*region.inputs, *region.outputs))


NONE = Fusions()


def make_units(
    graph: Graph, targets: Sequence[Sequence[int]], fusions: Fusions = NONE
) -> UnitGraph:
    """Contract what no backend separates.

    Args:
        graph: The prepared model.
        targets: By node id, the positions of the targets that may have it, ascending.
        fusions: What backends say that they run as one.
    """
    groups: list[tuple[int, ...]] = [(node.id,) for node in graph.nodes]
    if len(graph.nodes) > FEW_NODES:
        groups = grow_groups(graph, targets, fusions=fusions)
    groups.sort(key=lambda nodes: nodes[-1])  # its exit is its last node: a topological order
    owner = [0] * len(graph.nodes)
    for position, nodes in enumerate(groups):
        for node in nodes:
            owner[node] = position
    units = tuple(Unit(nodes, _common(nodes, targets)) for nodes in groups)
    return UnitGraph(graph, units, tuple(owner))


def grow_groups(
    graph: Graph,
    targets: Sequence[Sequence[int]],
    most: int = MOST_NODES,
    fusions: Fusions = NONE,
) -> list[tuple[int, ...]]:
    """Return disjoint groups of nodes with one exit each, which cover the graph.

    Args:
        graph: The prepared model.
        targets: By node id, the positions of the targets that may have it.
        most: Nodes of a group.
        fusions: What backends say that they run as one.
    """
    seeds = _agreed(graph, targets, most, fusions)
    inside = {node for nodes in seeds.values() for node in nodes} - seeds.keys()
    by_exit: dict[int, tuple[int, ...]] = {}  # by the node whose value leaves the group
    for node in graph.nodes:
        if node.id in inside:
            continue
        members = seeds.get(node.id, (node.id,))
        while is_light(node) and _is_single(node):
            joined = _producer(graph, members, by_exit, targets, most, fusions)
            if joined is None:
                break
            members = tuple(sorted((*by_exit.pop(joined), *members)))
        by_exit[node.id] = members
    return list(by_exit.values())


def _agreed(
    graph: Graph, targets: Sequence[Sequence[int]], most: int, fusions: Fusions
) -> dict[int, tuple[int, ...]]:
    """Return by exit the groups that all backends that say what they fuse run as one.

    All nodes of a group may be on the same targets: a target that takes most of them loses nothing.
    """
    agreed: dict[int, tuple[int, ...]] = {}
    used: set[int] = set()
    every = {group for groups in fusions.groups.values() for group in groups}
    # The smallest first: what one backend fuses more of holds what all of them fuse.
    for group in sorted(every, key=lambda nodes: (len(nodes), nodes)):
        telling = [at for at in targets[group[0]] if at in fusions.groups]
        heavy = [node for node in group if _weight(graph.nodes[node]) is CallWeight.HEAVY]
        if (
            len(group) <= most
            and len(heavy) <= 1
            and len({tuple(targets[node]) for node in group}) == 1
            and used.isdisjoint(group)
            and all(fusions.is_one(at, group) for at in telling)
        ):
            agreed[group[-1]] = group
            used.update(group)
    return agreed


def is_light(node: Node) -> bool:
    """Whether a node is placed with the node that makes its operand."""
    return _weight(node) in (CallWeight.LIGHT, CallWeight.LOOP)


def _weight(node: Node) -> CallWeight:
    """Return a node's call weight; other domains use ONNX's names for similar operators."""
    return operator_named(node.op_type).weight


def _is_single(node: Node) -> bool:
    return sum(output >= 0 for output in node.outputs) == 1


def _producer(
    graph: Graph,
    members: tuple[int, ...],
    by_exit: dict[int, tuple[int, ...]],
    targets: Sequence[Sequence[int]],
    most: int,
    fusions: Fusions,
) -> int | None:
    """Return the exit of the latest group of which only these nodes read."""
    inside = frozenset(members)
    may_have = set(targets[members[0]]).intersection(*(targets[node] for node in members))
    has_heavy = _has_heavy(graph, members)
    latest = -1
    for node in members:
        if not is_light(graph.nodes[node]):
            continue
        for before in graph.predecessors[node]:
            group = by_exit.get(before)
            if before in inside or group is None or len(group) + len(members) > most:
                continue
            if _weight(graph.nodes[node]) is CallWeight.LOOP and fusions.are_apart(
                before, node, [at for at in targets[node] if at in targets[before]]
            ):
                continue
            outputs = [value for value in graph.nodes[before].outputs if value >= 0]
            is_seen = any(value in graph.output_set for value in outputs)
            if has_heavy and _has_heavy(graph, group):
                continue
            if is_seen or not inside.issuperset(graph.successors[before]):
                continue
            if may_have.issuperset(_common(group, targets)) and _common(group, targets):
                latest = max(latest, before)
    return latest if latest >= 0 else None


def _has_heavy(graph: Graph, nodes: Sequence[int]) -> bool:
    return not all(is_light(graph.nodes[node]) for node in nodes)


def _common(nodes: Sequence[int], targets: Sequence[Sequence[int]]) -> tuple[int, ...]:
    first, *others = nodes
    return tuple(sorted(set(targets[first]).intersection(*(targets[node] for node in others))))
