# SPDX-License-Identifier: Apache-2.0
"""What may run where, as candidates: units, groups that a backend may fuse, whole plans.

Candidates grow node by node and are valid at every step: one exit, hence convex (`units`). Larger
regions are not listed: the search joins neighbours of one target into calls, and the calls of its
best plan become candidates of their own when they have been measured (`costing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.errors import PlacementError, UnsupportedError
from intarsia.place.assign import refusal_of
from intarsia.place.collage.units import UnitGraph, grow_groups, make_units
from intarsia.place.decide import Calls, decide_in_order, decide_single
from intarsia.plan.devices import HOST_DOMAIN

if TYPE_CHECKING:
    from intarsia.place.setting import Setting

MOST_GROUP_NODES = 8
"""Nodes of a group that is a candidate beside its single nodes."""

MOST_TARGETS = 6
"""Targets that take part in the search: each has a tensor state of its own."""


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """A whole plan that takes part in the final comparison.

    Attributes:
        name: For people: `greedy`, `openvino alone`, `search 1`.
        calls: What runs one after another.
        single: The position of the target whose plan it is, for a plan with one backend; else -1.
        predicted_seconds: What the search says of it; None if it did not find it.
    """

    name: str
    calls: Calls
    single: int = -1
    predicted_seconds: float | None = None


def allowed_targets(setting: Setting) -> tuple[tuple[int, ...], ...]:
    """Return by node id the positions of the targets that may have it, ascending.

    Raises:
        UnsupportedError: A node has none.
        PlacementError: A pinned node's target does not take it.
    """
    greedy = decide_in_order(setting)  # says what leaves a node without a target
    capabilities, devices = setting.capabilities, setting.devices
    domains = [devices.domains[capability.target] for capability in capabilities]
    shared = {  # values that cannot be copied keep these in the memory that they have
        node: domains[greedy.assignment.choices[group.nodes[0]]]
        for group in devices.groups
        for node in group.nodes
    }
    found: list[tuple[int, ...]] = []
    for node in setting.graph.nodes:
        pin = devices.pins.get(node.id)
        may = [
            i
            for i, capability in enumerate(capabilities)
            if (pin is None or capability.target in pin.targets)
            and shared.get(node.id, domains[i]) == domains[i]
            and refusal_of(node, capability, setting.constraints) is None
        ]
        if pin is None and node.id in devices.shapes:  # the host has to know them
            may = [i for i in may if domains[i] == HOST_DOMAIN] or may
        found.append(tuple(may))
    return tuple(found)


def single_plans(setting: Setting) -> tuple[PlanCandidate, ...]:
    """Return the plan of each target alone, and the greedy one, without repetitions.

    A target alone has all that it takes and may have; what is left goes to the fallback. A plan
    that several targets come to has the name of the first.
    """
    found: list[PlanCandidate] = []
    seen: set[Calls] = set()
    names = short_names(setting)
    for position in range(len(names)):
        try:
            calls = decide_single(setting, position).calls(setting)
        except (PlacementError, UnsupportedError):
            continue
        if calls not in seen and any(at == position for at, _ in calls):
            seen.add(calls)
            found.append(PlanCandidate(f"{names[position]} alone", calls, position))
    greedy = decide_in_order(setting).calls(setting)
    if greedy not in seen:
        found.append(PlanCandidate("greedy", greedy))
    return tuple(found)


def short_names(setting: Setting) -> tuple[str, ...]:
    """Return a name per target: its kind where no other target is of that kind, else its text."""
    targets = setting.config.targets
    kinds = [target.target.kind.name if target.target else "" for target in targets]
    return tuple(
        kind if kinds.count(kind) == 1 else str(target)
        for kind, target in zip(kinds, targets, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Space:
    """What the search may choose from.

    Attributes:
        units: The graph that is searched.
        groups: Sets of several units, ascending, that may run as one; each has one exit.
        targets: By node id, the positions of the targets that may have it.
        caps: What was left out, a line each.
    """

    units: UnitGraph
    groups: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...]
    caps: tuple[str, ...] = ()

    def may_run(self, position: int, units: Sequence[int]) -> bool:
        """Whether a target may have all of some units."""
        return all(position in self.units.units[unit].targets for unit in units)


def make_space(setting: Setting) -> Space:
    """Return the search space of a model on a machine.

    Raises:
        UnsupportedError: A node has no target.
        PlacementError: A pinned node's target does not take it.
    """
    targets = allowed_targets(setting)
    caps = []
    if len(setting.config.targets) > MOST_TARGETS:
        left_out = ", ".join(map(str, setting.config.targets[MOST_TARGETS:]))
        caps.append(f"the search knows the first {MOST_TARGETS} targets; not {left_out}")
        targets = tuple(_first_targets(every) for every in targets)
    units = make_units(setting.graph, targets)
    groups: list[tuple[int, ...]] = []
    if len(units.units) == len(setting.graph.nodes):  # else each unit is such a group
        grown = grow_groups(setting.graph, targets, MOST_GROUP_NODES)
        groups = [
            tuple(sorted(units.owner[node] for node in nodes)) for nodes in grown if len(nodes) > 1
        ]
    return Space(units, tuple(groups), targets, tuple(caps))


def _first_targets(every: tuple[int, ...]) -> tuple[int, ...]:
    """Leave out what the search cannot tell apart, unless a node would be left with nothing."""
    return tuple(position for position in every if position < MOST_TARGETS) or every[:1]
