# SPDX-License-Identifier: Apache-2.0
"""What may run where, as candidates: units, groups that a backend fuses, whole plans.

Candidates grow node by node and are valid at every step: one exit, hence convex
(`units`). What a backend runs as one is inside one unit, or a candidate beside its units; units
that the backend refuses by themselves are not candidates there. Larger regions are not listed: the
search joins neighbours of one target into calls, and the calls of its best plan become candidates
of their own when they have been measured (`costing`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.errors import PlacementError, UnsupportedError
from intarsia.place.assign import memory_limits, refusal_of
from intarsia.place.decide import Calls, decide_in_order, decide_single
from intarsia.plan.devices import HOST_DOMAIN
from intarsia.tuning.proposals.tensors import (
    HOST_ONLY,
    MOST_STATES,
    Blocked,
    Homes,
    ask_blocked,
    find_homes,
)
from intarsia.tuning.proposals.units import (
    Fusions,
    UnitGraph,
    ask_fusions,
    grow_groups,
    has_one_exit,
    make_units,
    refuses,
)

if TYPE_CHECKING:
    from intarsia.place.setting import Setting

MOST_GROUP_NODES = 8
"""Nodes of a group that is a candidate beside its single nodes."""

MOST_GROUP_UNITS = 12
"""Units of a group that is a candidate."""

MOST_TARGETS = MOST_STATES - 1
"""Targets that take part in the search: each has a tensor state of its own; one is plain."""


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

    What runs nodes that no target takes has those only that it must have.

    Raises:
        UnsupportedError: A node has none.
        PlacementError: A pinned node's target does not take it.
    """
    greedy = decide_in_order(setting)  # says what leaves a node without a target
    capabilities, devices = setting.capabilities, setting.devices
    target_count, choices = len(setting.config.targets), greedy.assignment.choices
    domains = [devices.domains[capability.target] for capability in capabilities]
    shared = {  # values that cannot be copied keep these in the memory that they have
        node: domains[choices[group.nodes[0]]] for group in devices.groups for node in group.nodes
    }
    allowed: list[tuple[int, ...]] = []
    for node in setting.graph.nodes:
        pin = devices.pins.get(node.id)
        may = [
            i
            for i, capability in enumerate(capabilities)
            if (i < target_count or i == choices[node.id])
            and (pin is None or capability.target in pin.targets)
            and shared.get(node.id, domains[i]) == domains[i]
            and refusal_of(node, capability, setting.constraints) is None
        ]
        if pin is None and node.id in devices.shapes:  # the host has to know them
            may = [i for i in may if domains[i] == HOST_DOMAIN] or may
        allowed.append(tuple(may))
    return tuple(allowed)


def single_plans(setting: Setting) -> tuple[PlanCandidate, ...]:
    """Return the plan of each target alone, and the greedy one, without repetitions.

    A target alone has all that it takes and may have; what is left goes to the fallback. A plan
    that several targets come to has the name of the first.
    """
    plans: list[PlanCandidate] = []
    seen: set[Calls] = set()
    names = short_names(setting)
    for position in range(len(setting.config.targets)):
        try:
            calls = decide_single(setting, position).calls(setting)
        except (PlacementError, UnsupportedError):
            continue
        if calls not in seen and any(at == position for at, _ in calls):
            seen.add(calls)
            plans.append(PlanCandidate(f"{names[position]} alone", calls, position))
    greedy = decide_in_order(setting).calls(setting)
    if greedy not in seen:
        plans.append(PlanCandidate("greedy", greedy))
    return tuple(plans)


def short_names(setting: Setting) -> tuple[str, ...]:
    """Return a name per target: its kind where no other target is of that kind, else its text."""
    targets = setting.targets
    kinds = [target.target.kind.name if target.target else "" for target in targets]
    return tuple(
        kind if kinds.count(kind) == 1 else str(target)
        for kind, target in zip(kinds, targets, strict=True)
    )


@dataclass(frozen=True, slots=True)
class GroupCandidate:
    """Several units that one target may run as one; they have one exit.

    Attributes:
        position: Of the target.
        units: Ascending.
        is_declared: Whether its backend says that it does; else it is a guess.
    """

    position: int
    units: tuple[int, ...]
    is_declared: bool


@dataclass(frozen=True, slots=True)
class Space:
    """What the search may choose from.

    Attributes:
        units: The graph that is searched.
        groups: What may run as one beside single units.
        targets: By node id, the positions of the targets that may have it.
        refused: Positions of targets, and units that these do not take by themselves, but as a
            part of a group.
        caps: What was left out, a line each.
        blocked: Which targets may exchange tensors in blocks of channels; None if no two targets
            can.
        devices: By position of a target, its device; empty if nothing is said of their memory.
        memory: By device, how many bytes of constants it may hold.
        homes: Which targets share a memory, and which inputs and outputs are not the host's.
    """

    units: UnitGraph
    groups: tuple[GroupCandidate, ...]
    targets: tuple[tuple[int, ...], ...]
    refused: frozenset[tuple[int, int]] = frozenset()
    caps: tuple[str, ...] = ()
    blocked: Blocked | None = None
    devices: tuple[int, ...] = ()
    memory: tuple[float, ...] = ()
    homes: Homes = HOST_ONLY


def make_space(setting: Setting) -> Space:
    """Return the search space of a model on a machine.

    Raises:
        UnsupportedError: A node has no target.
        PlacementError: A pinned node's target does not take it.
    """
    targets = allowed_targets(setting)
    caps = []
    if len(setting.targets) > MOST_TARGETS:
        left_out = ", ".join(map(str, setting.targets[MOST_TARGETS:]))
        caps.append(f"the search knows the first {MOST_TARGETS} targets; not {left_out}")
        targets = tuple(_first_targets(every) for every in targets)
    fusions = ask_fusions(setting, targets)
    units = make_units(setting.graph, targets, fusions)
    declared, too_large = _declared_groups(units, fusions)
    caps += [
        f"{setting.targets[at]}: {count} fused groups are left out: they have more than "
        f"{MOST_GROUP_UNITS} units"
        for at, count in too_large.items()
    ]
    guessed: list[GroupCandidate] = []
    if len(units.units) == len(setting.graph.nodes):  # else each unit is such a group
        guessed = _guessed_groups(units, targets, fusions)
    blocked, cap = ask_blocked(setting, units)
    caps += [cap] if cap else []
    return Space(
        units,
        (*declared, *guessed),
        targets,
        _refused_units(setting, units, fusions),
        (*caps, *fusions.left_out),
        blocked,
        *_memory(setting),
        find_homes(setting),
    )


def _memory(setting: Setting) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return by target its device, and by device what may be kept there; nothing if any may."""
    limits = memory_limits(setting.devices.domains)
    if not limits:
        return (), ()
    domains = [setting.devices.domains[target] for target in setting.targets]
    places = list(dict.fromkeys(domains))
    return (
        tuple(places.index(domain) for domain in domains),
        tuple(float(limits.get(domain, math.inf)) for domain in places),
    )


def _declared_groups(
    units: UnitGraph, fusions: Fusions
) -> tuple[list[GroupCandidate], Counter[int]]:
    """Return what backends run as one and is several units, and how many are too large."""
    declared: dict[GroupCandidate, None] = {}
    too_large: Counter[int] = Counter()
    for position, groups in fusions.groups.items():
        for nodes in groups:
            touched = _touched(units, nodes)
            if len(touched) < 2 or not _may_run(units, position, touched):  # noqa: PLR2004
                continue
            if len(touched) > MOST_GROUP_UNITS:
                too_large[position] += 1
            elif has_one_exit(units.graph, units.nodes_of(touched)):
                declared[GroupCandidate(position, touched, is_declared=True)] = None
    return list(declared), too_large


def _guessed_groups(
    units: UnitGraph, targets: Sequence[Sequence[int]], fusions: Fusions
) -> list[GroupCandidate]:
    """Return what targets whose backends do not say may run as one."""
    silent = {position for every in targets for position in every} - fusions.groups.keys()
    return [
        GroupCandidate(position, group, is_declared=False)
        for nodes in grow_groups(units.graph, targets, MOST_GROUP_NODES)
        for group in (_touched(units, nodes),)
        for position in sorted(silent)
        if len(group) > 1 and _may_run(units, position, group)
    ]


def _refused_units(
    setting: Setting, units: UnitGraph, fusions: Fusions
) -> frozenset[tuple[int, int]]:
    """Return the targets and units of larger groups that a target does not take in pieces."""
    answers: dict[object, bool] = {}
    return frozenset(
        (position, unit)
        for position, groups in fusions.groups.items()
        for nodes in groups
        for touched in (_touched(units, nodes),)
        if len(touched) > 1
        for unit in touched
        if position in units.units[unit].targets
        and refuses(setting, position, units.units[unit].nodes, answers)
    )


def _touched(units: UnitGraph, nodes: Sequence[int]) -> tuple[int, ...]:
    """Return the units that have some of these nodes, ascending."""
    return tuple(sorted({units.owner[node] for node in nodes}))


def _may_run(units: UnitGraph, position: int, group: Sequence[int]) -> bool:
    return all(position in units.units[unit].targets for unit in group)


def _first_targets(every: tuple[int, ...]) -> tuple[int, ...]:
    """Leave out what the search cannot tell apart, unless a node would be left with nothing."""
    return tuple(position for position in every if position < MOST_TARGETS) or every[:1]
