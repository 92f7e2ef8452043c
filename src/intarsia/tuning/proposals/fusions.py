# SPDX-License-Identifier: Apache-2.0
"""What backends say that they run as one, asked once for a model, and checked.

A group is grown from the node whose result leaves it: each node that joins is read by members
alone. So the group has one exit, and is convex, at every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from intarsia.backends.values import Candidate, FusedGroup
from intarsia.errors import IntarsiaError
from intarsia.graph.hashes import shape_hash
from intarsia.graph.region import Region
from intarsia.place.capability import calling

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.place.setting import Setting

Nodes = tuple[int, ...]

MOST_NODES = 24
"""Of one unit or group; a longer chain is several."""


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


def ask_fusions(setting: Setting, targets: Sequence[Sequence[int]]) -> Fusions:
    """Ask the backends of a machine which nodes they run as one.

    A backend that does not say, or fails, is left out.

    Args:
        setting: The model and the machine.
        targets: By node id, the positions of the targets that may have it.
    """
    groups: dict[int, tuple[Nodes, ...]] = {}
    left_out: list[str] = []
    for position, capability in enumerate(setting.capabilities):
        nodes = [node for node, every in enumerate(targets) if position in every]
        backend, context = capability.backend, capability.context
        if not nodes or backend.groups is None:
            continue
        try:
            with calling(backend.name, context, "when asked what it fuses"):
                answer = backend.groups(Region.of(setting.graph, nodes), context)
                groups[position], problems = check_groups(setting.graph, answer, nodes)
        except IntarsiaError as error:
            left_out.append(f"{context.target}: what it fuses is not known: {error.message}")
            continue
        left_out += [
            f"{context.target}: {count} fused groups are left out: {problem}"
            for problem, count in problems.items()
        ]
    return Fusions(groups, tuple(left_out))


def check_groups(
    graph: Graph, groups: Sequence[FusedGroup], nodes: Sequence[int]
) -> tuple[tuple[Nodes, ...], Counter[str]]:
    """Return the groups that can be candidates, and how many cannot, by what is wrong with them.

    Args:
        graph: The prepared model.
        groups: What a backend says.
        nodes: Those that it may have.
    """
    own, taken = frozenset(nodes), set[int]()
    found: list[Nodes] = []
    problems: Counter[str] = Counter()
    for group in groups:
        members = tuple(sorted(set(group.nodes)))
        problem = ""
        if not own.issuperset(members):
            problem = "the target may not have all of their nodes"
        elif not taken.isdisjoint(members):
            problem = "they share nodes"
        elif len(members) > MOST_NODES:
            problem = f"they have more than {MOST_NODES} nodes"
        elif not has_one_exit(graph, members):
            problem = "more than one of their nodes is read outside"
        taken.update(members)
        if problem:
            problems[problem] += 1
        elif len(members) > 1:
            found.append(members)
    return tuple(sorted(found)), problems


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


def refuses(setting: Setting, position: int, nodes: Nodes, known: dict[object, bool]) -> bool:
    """Whether a target refuses nodes as a region of their own; one that fails does.

    Args:
        setting: The model and the machine.
        position: Of the target.
        nodes: Ascending.
        known: What was asked before: alike regions are asked about once.
    """
    capability = setting.capabilities[position]
    region = Region.of(setting.graph, nodes)
    key = (position, shape_hash(region))
    if key not in known:
        candidate = Candidate.plain(region, capability.target)
        known[key] = True
        with (
            suppress(IntarsiaError),
            calling(capability.backend.name, capability.context, "when asked about a region"),
        ):
            known[key] = capability.backend.check(candidate, capability.context) is not None
    return known[key]
