# SPDX-License-Identifier: Apache-2.0
"""What a plan may be: whole plans of one target, and what may run where and as one.

Candidates grow node by node and are valid at every step: one exit, hence convex
(`units`). What a backend runs as one is inside one unit, or a candidate beside its units; units
that the backend refuses by themselves are not candidates there. Larger regions are not listed: the
search joins neighbours of one target into calls, and the calls of its best plan become candidates
of their own when they have been measured (`costing`).

A plan copies a value from where it is made, or given, to each other memory in which it is read, or
wanted, once; between two devices by way of the host. An input or output is the host's, unless the
user said otherwise (`place.constraints`).

The search tells states of tensors apart: one is a plain tensor in the host's memory, one is private
to each target, and where at least two targets know layouts in blocks of channels (`states`), one
is the layout that they share. It is asked of units as they are alone; larger regions may answer
otherwise, so plans are priced by what was measured at their borders.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from intarsia.backends.calling import calling
from intarsia.backends.values import Candidate, FusedGroup
from intarsia.errors import IntarsiaError, PlacementError, UnsupportedError
from intarsia.graph.hashes import shape_hash
from intarsia.graph.region import Region
from intarsia.place.assign import memory_limits, refusal_of
from intarsia.place.decide import Calls, Decision, decide_in_order, decide_single
from intarsia.place.schedule import list_layouts, may_block
from intarsia.plan.devices import HOST_DOMAIN
from intarsia.tuning.proposals.units import (
    MOST_NODES,
    Fusions,
    Nodes,
    UnitGraph,
    grow_groups,
    has_one_exit,
    make_units,
)

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.place.setting import Setting
    from intarsia.target import PlacedTarget
    from intarsia.tuning.costing.model import Units

MOST_STATES = 6
"""Most tensor states: the tables of the search double with each."""

HOST = -1
"""Stands for the host where the position of a target is asked for."""

CopySeconds = Callable[[int, int], float]
"""Seconds to copy so many bytes between the host's memory and that of a target."""

Targets = frozenset[int]
"""Positions of targets."""

NOBODY: Targets = frozenset()

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
    """

    name: str
    calls: Calls
    single: int = -1


@dataclass(frozen=True, slots=True)
class GroupCandidate:
    """Several units that one target may run as one; they have one exit.

    Attributes:
        position: Of the target.
        units: Ascending.
        is_declared: Whether its backend says that it does; else it is a guess.
    """

    position: int
    units: Units
    is_declared: bool


@dataclass(frozen=True, slots=True)
class Blocked:
    """Who may exchange which tensors in a layout in blocks of channels.

    Attributes:
        makers: By value id, targets that would make it in that layout.
        readers: By value id, targets on which all units that read it would take it so.
    """

    makers: Mapping[int, Targets] = field(default_factory=dict)
    readers: Mapping[int, Targets] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Space:
    """What the search may choose from, and what else is run whole.

    Attributes:
        plans: That of each target alone, and the greedy one, without repetitions. A target alone
            has all that it takes and may have; what is left goes to the fallback. A plan that
            several targets come to has the name of the first.
        units: The graph that is searched.
        groups: What may run as one beside single units.
        targets: By node id, the positions of the targets that may have it.
        refused: Positions of targets, and units that these do not take by themselves, but as a
            part of a group.
        caps: What was left out, a line each.
        blocked: Which targets may exchange tensors in blocks of channels; None if no two targets
            can.
        memories: By position of a target, the number of its memory; 0 is the host's.
        limits: By number of a memory, how many bytes of constants it may hold; empty if nothing
            is said of any.
        borders: By value id, the position of a target in whose memory an input is given or an
            output is wanted.
    """

    plans: tuple[PlanCandidate, ...]
    units: UnitGraph
    groups: tuple[GroupCandidate, ...]
    targets: tuple[tuple[int, ...], ...]
    refused: frozenset[tuple[int, int]]
    caps: tuple[str, ...]
    blocked: Blocked | None
    memories: tuple[int, ...]
    limits: tuple[float, ...]
    borders: Mapping[int, int]

    @property
    def pieces(self) -> tuple[tuple[int, Units], ...]:
        """Every unit, then every group, with the position of each target that may have it."""
        units = (
            (position, (unit,))
            for unit, every in enumerate(self.units.units)
            for position in every.targets
        )
        return (*units, *((group.position, group.units) for group in self.groups))

    def memory(self, position: int) -> int:
        """Return the number of the memory of a target, or of the host."""
        return 0 if position == HOST else self.memories[position]

    def copied_between(self, one: int, other: int, nbytes: int, copy: CopySeconds) -> float:
        """Return the seconds of a copy between the memories of two targets, or of the host."""
        if self.memory(one) == self.memory(other):
            return 0.0
        return sum(copy(position, nbytes) for position in (one, other) if position != HOST)

    def copied_around(self, position: int, members: Units, copy: CopySeconds) -> float:
        """Return the seconds that it takes to bring a region's tensors from and to their homes.

        What is neither an input nor an output of the model is taken to be at home on the host.
        """
        region, values = self.units.region(members), self.units.graph.values
        return sum(
            self.copied_between(self.borders.get(value, HOST), position, values[value].nbytes, copy)
            for value in (*region.inputs, *region.outputs)
        )

    def copied_in(self, plan: Sequence[tuple[int, Units]], copy: CopySeconds) -> float:
        """Return the seconds of all copies of a plan: positions of targets and their units."""
        graph = self.units.graph
        origins: dict[int, int] = {value: self.borders.get(value, HOST) for value in graph.inputs}
        readers: dict[int, list[int]] = {}
        for position, members in plan:
            region = self.units.region(members)
            origins.update(dict.fromkeys(region.outputs, position))
            for value in region.inputs:
                readers.setdefault(value, []).append(position)
        for value in graph.outputs:
            readers.setdefault(value, []).append(self.borders.get(value, HOST))
        total = 0.0
        for value, positions in readers.items():
            if value not in origins:  # a constant
                continue
            places = {self.memory(position): position for position in positions}
            nbytes = graph.values[value].nbytes
            total += sum(
                self.copied_between(origins[value], at, nbytes, copy) for at in places.values()
            )
        return total


def make_space(setting: Setting) -> Space:
    """Return what a plan of a model on a machine may be.

    Raises:
        UnsupportedError: A node has no target.
        PlacementError: A pinned node's target does not take it.
    """
    plans, greedy = _whole_plans(setting)
    targets = _allowed_targets(setting, greedy.assignment.choices)
    caps = []
    if len(setting.targets) > MOST_TARGETS:
        left_out = ", ".join(map(str, setting.targets[MOST_TARGETS:]))
        caps.append(f"the search considers only the first {MOST_TARGETS} targets, not {left_out}")
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
    blocked, cap = _ask_blocked(setting, units)
    caps += [cap] if cap else []
    domains = [setting.constraints.domains[target] for target in setting.targets]
    numbers = {domain: i for i, domain in enumerate(dict.fromkeys((HOST_DOMAIN, *domains)))}
    limits = memory_limits(setting.constraints.domains)
    return Space(
        plans=plans,
        units=units,
        groups=(*declared, *guessed),
        targets=targets,
        refused=_refused_units(setting, units, fusions),
        caps=(*caps, *fusions.left_out),
        blocked=blocked,
        memories=tuple(numbers[domain] for domain in domains),
        limits=tuple(float(limits.get(each, math.inf)) for each in numbers) if limits else (),
        borders={
            value: domains.index(domain)
            for value, domain in setting.constraints.borders.items()
            if domain in domains
        },
    )


def _whole_plans(setting: Setting) -> tuple[tuple[PlanCandidate, ...], Decision]:
    """Return the plan of each target alone, and the greedy one, which is the last one too."""
    plans: dict[Calls, PlanCandidate] = {}
    names = short_names(setting.targets)
    for position, name in enumerate(names[: len(setting.config.targets)]):
        try:
            calls = decide_single(setting, position).calls(setting.targets)
        except (PlacementError, UnsupportedError):  # this target does not take all of the model
            continue
        if any(at == position for at, _ in calls):
            plans.setdefault(calls, PlanCandidate(f"{name} alone", calls, position))
    greedy = decide_in_order(setting)  # says what leaves a node without a target
    calls = greedy.calls(setting.targets)
    plans.setdefault(calls, PlanCandidate("greedy", calls))
    return tuple(plans.values()), greedy


def short_names(targets: Sequence[PlacedTarget]) -> tuple[str, ...]:
    """Return a name per target: its kind where no other target is of that kind, else its text."""
    kinds = [target.target.kind.name if target.target else "" for target in targets]
    return tuple(
        kind if kinds.count(kind) == 1 else str(target)
        for kind, target in zip(kinds, targets, strict=True)
    )


def _allowed_targets(setting: Setting, greedy: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return by node id the positions of the targets that may have it, ascending.

    What runs nodes that no target takes has those only that it must have.

    Args:
        setting: The model and the machine.
        greedy: By node id, the position of the target that has it in the greedy plan.
    """
    capabilities, constraints = setting.capabilities, setting.constraints
    target_count = len(setting.config.targets)
    domains = [constraints.domains[capability.target] for capability in capabilities]
    shared = {  # values that cannot be copied keep these in the memory that they have
        node: domains[greedy[group.nodes[0]]]
        for group in constraints.groups
        for node in group.nodes
    }
    allowed: list[tuple[int, ...]] = []
    for node in setting.graph.nodes:
        pin = constraints.pins.get(node.id)
        may = [
            i
            for i, capability in enumerate(capabilities)
            if (i < target_count or i == greedy[node.id])
            and (pin is None or capability.target in pin.targets)
            and shared.get(node.id, domains[i]) == domains[i]
            and refusal_of(node, capability, constraints) is None
        ]
        if pin is None and node.id in constraints.shapes:  # the host has to know them
            may = [i for i in may if domains[i] == HOST_DOMAIN] or may
        allowed.append(tuple(may))
    return tuple(allowed)


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
    """Return the targets and units of larger groups that a target does not take in pieces.

    A target that fails when it is asked refuses. Alike regions are asked about once.
    """
    answers: dict[object, bool] = {}
    refused: set[tuple[int, int]] = set()
    for position, groups in fusions.groups.items():
        capability = setting.capabilities[position]
        touched = (_touched(units, nodes) for nodes in groups)
        for unit in {unit for group in touched if len(group) > 1 for unit in group}:
            if position not in units.units[unit].targets:
                continue
            region = units.region((unit,))
            key = (position, shape_hash(region))
            if key not in answers:
                candidate = Candidate.plain(region, capability.target)
                answers[key] = True
                with (
                    suppress(IntarsiaError),
                    calling(
                        capability.backend.name, capability.context, "when asked about a region"
                    ),
                ):
                    answers[key] = (
                        capability.backend.check(candidate, capability.context) is not None
                    )
            if answers[key]:
                refused.add((position, unit))
    return frozenset(refused)


def _touched(units: UnitGraph, nodes: Sequence[int]) -> tuple[int, ...]:
    """Return the units that have some of these nodes, ascending."""
    return tuple(sorted({units.owner[node] for node in nodes}))


def _may_run(units: UnitGraph, position: int, group: Sequence[int]) -> bool:
    return all(position in units.units[unit].targets for unit in group)


def _first_targets(every: tuple[int, ...]) -> tuple[int, ...]:
    """Leave out what the search cannot tell apart, unless a node would be left with nothing."""
    return tuple(position for position in every if position < MOST_TARGETS) or every[:1]


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
    allowed, used = frozenset(nodes), set[int]()
    sound: list[Nodes] = []
    problems: Counter[str] = Counter()
    for group in groups:
        members = tuple(sorted(set(group.nodes)))
        problem = ""
        if not allowed.issuperset(members):
            problem = "the target may not have all of their nodes"
        elif not used.isdisjoint(members):
            problem = "they share nodes"
        elif len(members) > MOST_NODES:
            problem = f"they have more than {MOST_NODES} nodes"
        elif not has_one_exit(graph, members):
            problem = "more than one of their nodes is read outside"
        used.update(members)
        if problem:
            problems[problem] += 1
        elif len(members) > 1:
            sound.append(members)
    return tuple(sorted(sound)), problems


def _ask_blocked(setting: Setting, units: UnitGraph) -> tuple[Blocked | None, str]:
    """Return which targets may exchange what in blocks; None where no two can.

    Of several layouts of a value, the one that most targets know is meant.

    Args:
        setting: The model and the machine.
        units: What may run where.

    Returns:
        That, and a line about what was left out; empty if nothing was.
    """
    used = {position for unit in units.units for position in unit.targets}
    bordered = tuple(
        position
        for position, one in enumerate(setting.capabilities)
        if position in used
        and one.backend.states is not None
        and setting.constraints.domains[one.target] == HOST_DOMAIN
    )
    if len(bordered) < 2:  # noqa: PLR2004 - it takes two to exchange
        return None, ""
    has_homes = bool(setting.constraints.borders)  # which take a state of their own
    if len(used) + 2 + has_homes > MOST_STATES:
        names = ", ".join(str(setting.capabilities[position].target) for position in bordered)
        return None, (
            f"the search tells {MOST_STATES} states of tensors apart: with {len(used)} targets it "
            f"does not know the blocked layouts that {names} may share"
        )
    makers: dict[int, Targets] = {}
    readers: dict[int, Targets] = {}
    for value in units.graph.values:
        if value.producer < 0 or value.id in units.graph.output_set:
            continue
        maker = units.owner[value.producer]
        others = sorted({units.owner[reader] for reader in value.consumers} - {maker})
        if not others or not may_block(value):
            continue
        layouts_made = _answers(setting, units, bordered, [maker], value.id)
        read = _answers(setting, units, bordered, others, value.id)
        both = [
            (len(layouts_made[x] | read[x]), x) for x in sorted(layouts_made.keys() & read.keys())
        ]
        if both and max(both)[0] > 1:
            layout = max(both)[1]
            makers[value.id], readers[value.id] = layouts_made[layout], read[layout]
    return (Blocked(makers, readers) if makers else None), ""


def _answers(
    setting: Setting,
    units: UnitGraph,
    bordered: Sequence[int],
    members: Sequence[int],
    value: int,
) -> dict[str, Targets]:
    """Return by layout the targets on which all of some units list it for a value."""
    targets_by_layout: dict[str, set[int]] = {}
    for position in bordered:
        every = [
            set(list_layouts(units.region((unit,)), setting.capabilities[position]).get(value, ()))
            for unit in members
            if position in units.units[unit].targets
        ]
        if len(every) == len(members):
            for layout in set.intersection(*every):
                targets_by_layout.setdefault(layout, set()).add(position)
    return {layout: frozenset(positions) for layout, positions in targets_by_layout.items()}
