# SPDX-License-Identifier: Apache-2.0
"""From a setting to a decision: a target for each node, then regions."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from intarsia.backends.calling import calling
from intarsia.backends.values import Piece
from intarsia.errors import IntarsiaError, InternalError, ReasonCode
from intarsia.graph.late_sizes import ends_regions
from intarsia.place.assign import (
    Assignment,
    Policy,
    assign_as_chosen,
    assign_targets,
    target_order,
)
from intarsia.place.pipeline import MERGE_REGIONS, broken_by
from intarsia.place.setting import Capability, Setting
from intarsia.plan.plan import PassRun
from intarsia.target.pipeline import Stage

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.place.build import RegionStore
    from intarsia.plan.lock import Lock
    from intarsia.plan.tuning import TuningReport
    from intarsia.target import PlacedTarget

FEW_REGIONS, WHOLE = 4, 0.75
"""A model is cut into few pieces if there are no more regions than this, or one of them has such a
part of all nodes. With seven regions borders ate what a target gained that was a fifth faster, as
measured by `benchmarks/orders.py`."""

logger = logging.getLogger("intarsia")

Calls = tuple[tuple[int, tuple[int, ...]], ...]
"""What runs one after another: the position of a target, and ascending node ids."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Where every node runs, and in which regions.

    Attributes:
        assignment: The target of each node.
        pieces: The regions, in the order in which they run.
        passes: The passes after placement that ran.
        policy: How it was found.
    """

    assignment: Assignment
    pieces: tuple[Piece, ...]
    passes: tuple[PassRun, ...]
    policy: Policy

    def calls(self, targets: Sequence[PlacedTarget]) -> Calls:
        """Return its regions with positions of targets."""
        positions = {target: i for i, target in enumerate(targets)}
        return tuple((positions[piece.target], tuple(sorted(piece.nodes))) for piece in self.pieces)


class RegionTrial(Protocol):
    """Compiles and runs a region in another process, or knows what came of that."""

    def refusal(self, capability: Capability, region: Region) -> tuple[ReasonCode, str] | None:
        """Return why the region must not be compiled and run here; None if it may be."""


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """Which plan is meant: one that was found before, or what a policy finds.

    Attributes:
        policy: How nodes find their targets, or how the regions were found.
        calls: The regions of a plan that was found; None: nodes find their targets by the policy.
        report: How a tuner found them.
        lock: The lock file that has them: this plan, or an error.
        store: Artifacts that were compiled while they were found, if any were.
        steps: Of a plan with regions, ids of the nodes that it runs itself.
        trial: Tries regions elsewhere before they are compiled here; None tries nothing.
    """

    policy: Policy = Policy.GREEDY
    calls: Calls | None = None
    report: TuningReport | None = None
    lock: Lock | None = None
    store: RegionStore | None = None
    steps: frozenset[int] = frozenset()
    trial: RegionTrial | None = None

    def reused(self) -> PlanChoice:
        """Return the choice with a report that says that it was accepted before."""
        if self.report is None:
            return self
        return replace(self, report=replace(self.report, is_reused=True))


def decide(setting: Setting, choice: PlanChoice) -> Decision:
    """Place a model as was chosen.

    Raises:
        PlacementError: A pinned node's target does not take it.
        UnsupportedError: No target takes some node.
    """
    if choice.calls is None:
        return decide_in_order(setting, choice.policy)
    why = "cost" if choice.lock is None else "lock"
    decision = decide_as_chosen(setting, choice.calls, why, choice.steps)
    return replace(decision, policy=choice.policy)


def decide_in_order(
    setting: Setting,
    policy: Policy = Policy.GREEDY,
    order: Sequence[int] | None = None,
    *,
    last: int | None = None,
) -> Decision:
    """Place each node on the first target that takes it.

    Args:
        setting: The model and the machine.
        policy: `GREEDY`: in the user's order, or if there is none, in one that cuts the model into
            few pieces; `MANUAL`: the fallback comes first.
        order: Positions of the targets in another order.
        last: Without any order, the position of the target that is asked after all others.

    Raises:
        PlacementError: A pinned node's target does not take it.
        UnsupportedError: No target takes some node.
    """
    config = setting.config
    if order is None and policy is Policy.GREEDY and config.reasons.is_detected:
        return _decide_by_lead(setting, last)
    if order is None and policy is Policy.MANUAL:
        order = target_order(config, config.targets.index(config.fallback))
    assignment = assign_targets(setting, order)
    targets = [setting.targets[position] for position in assignment.choices]
    pieces, passes = arrange(setting, targets, steps=assignment.steps)
    return Decision(assignment, pieces, passes, policy)


def _decide_by_lead(setting: Setting, last: int | None = None) -> Decision:
    """Place by the first order that cuts the model into few pieces; each target leads in turn.

    A target that refuses an operator in every block of a network would have as many regions as
    there are blocks, each with a call of its own and nothing fused across: several times slower
    than another target alone. Nor does one lead whose backend says that others are faster. If none
    is left, the order with the fewest regions. What pins cut counts for none: they cut every order
    but that of the target that they name, and mean their own nodes only.
    """
    least = WHOLE * len(setting.graph.nodes)
    found: list[tuple[int, Decision]] = []
    passed_over: list[str] = []
    ranks = sorted(range(len(setting.config.targets)), key=lambda position: position == last)
    for position in ranks:
        decision = _decide_led(setting, position, ranks)
        pieces = _unpinned_pieces(setting, decision, position)
        count = len(pieces)
        if count > FEW_REGIONS and max(len(piece.nodes) for piece in pieces) < least:
            why: str | None = f"there would be {count} regions"
        else:
            why = _yields(setting, position)
        found.append((count, decision))
        if why is None:
            break
        passed_over.append(f"{setting.config.targets[position]} does not go first: {why}")
        logger.info(passed_over[-1])
    else:
        _, decision = min(found, key=lambda item: item[0])
    assignment = replace(decision.assignment, passed_over=tuple(passed_over))
    return replace(decision, assignment=assignment)


def _decide_led(setting: Setting, position: int, ranks: Sequence[int]) -> Decision:
    """Place in an order with one target first, also what is pinned to a device of several."""
    order = [position, *(other for other in ranks if other != position)]
    first = setting.targets[position]
    pins = {
        node: replace(pin, targets=tuple(sorted(pin.targets, key=lambda target: target != first)))
        for node, pin in setting.constraints.pins.items()
    }
    led = replace(setting, constraints=replace(setting.constraints, pins=pins))
    return decide_in_order(led, order=order)


def _unpinned_pieces(setting: Setting, decision: Decision, position: int) -> tuple[Piece, ...]:
    """Return the regions of a decision as if its first target had what pins keep from it."""
    targets = setting.targets
    first = targets[position]
    kept = {node for node, pin in setting.constraints.pins.items() if first not in pin.targets}
    if not kept:
        return decision.pieces
    choices = [
        first if node in kept else targets[choice]
        for node, choice in enumerate(decision.assignment.choices)
    ]
    return arrange(setting, choices, steps=decision.assignment.steps)[0]


def _yields(setting: Setting, position: int) -> str | None:
    """Return why a backend leaves a model to others; if it fails here, it does not."""
    capability = setting.capabilities[position]
    backend = capability.backend
    if backend.yields is None:
        return None
    try:
        with calling(backend.name, capability.context, "when asked whether others go first"):
            return backend.yields(setting.graph)
    except InternalError:
        raise
    except IntarsiaError as error:
        logger.warning("%s may go first: %s", capability.target, error.message)
        return None


def decide_single(setting: Setting, position: int) -> Decision:
    """Place on one target all that it takes and may have; on the fallback what is left.

    Raises:
        PlacementError: A pinned node's target does not take it.
        UnsupportedError: No target takes some node.
    """
    config = setting.config
    fallback = config.targets.index(config.fallback)
    order = target_order(config, *dict.fromkeys((position, fallback)))
    return replace(decide_in_order(setting, order=order), policy=Policy.COLLAGE)


def decide_as_chosen(
    setting: Setting, calls: Calls, why: str = "cost", steps: frozenset[int] = frozenset()
) -> Decision:
    """Carry out regions that a search has formed.

    Args:
        setting: The model and the machine.
        calls: In an order in which they can run; every node in exactly one.
        why: The reason of every node without a pin.
        steps: Ids of the nodes that the plan runs itself.

    Raises:
        PlacementError: A choice bends a pin.
        UnsupportedError: A target does not take what was chosen for it.
        InternalError: A node is in no call or in two.
    """
    choices = [-1] * len(setting.graph.nodes)
    for position, nodes in calls:
        for node in nodes:
            if choices[node] >= 0:
                raise InternalError(f"node {setting.graph.nodes[node].name!r} is in two calls")
            choices[node] = position
    if -1 in choices:
        missing = setting.graph.nodes[choices.index(-1)].name
        raise InternalError(f"node {missing!r} is in no call")
    assignment = assign_as_chosen(setting, choices, why, steps)
    targets = setting.targets
    pieces, passes = arrange(
        setting,
        [targets[position] for position in choices],
        [Piece(targets[position], nodes) for position, nodes in calls],
        steps,
    )
    return Decision(assignment, pieces, passes, Policy.COLLAGE)


def arrange(
    setting: Setting,
    choices: Sequence[PlacedTarget],
    pieces: Sequence[Piece] | None = None,
    steps: Collection[int] = (),
) -> tuple[tuple[Piece, ...], tuple[PassRun, ...]]:
    """Run the passes after placement, which make regions of single nodes.

    Args:
        setting: The model and the machine.
        choices: By node id, its target.
        pieces: Regions that a search has formed, in an order in which they can run: what they
            begin with instead of single nodes. `merge-regions` is then left out.
        steps: Ids of the nodes that the plan runs itself: each is a piece alone.

    Raises:
        BackendError: A backend's pass failed, or its pieces cannot run as they are.
    """
    graph, pipeline = setting.graph, setting.pipeline
    runs: list[PassRun] = []
    is_formed = pieces is not None
    if pieces is None:
        pieces = tuple(Piece(choices[node.id], (node.id,)) for node in graph.nodes)
    for entry in pipeline.of_stage(Stage.AFTER):
        if entry.text == MERGE_REGIONS:
            if is_formed:
                continue
            takers = {one.target for one in setting.capabilities if one.backend.takes_late}
            sized = [node for node, choice in enumerate(choices) if choice in takers]
            ends = ends_regions(graph, set(sized).difference(steps))
            pieces = merge_regions(graph, pieces, steps, ends)
        else:
            context = pipeline.contexts[entry.target]
            with calling(entry.owner, context, f"in its pass {entry.name!r}"):
                pieces = tuple(pipeline.functions[entry](graph, pieces, context))
            problem = _pieces_problem(graph, pieces, choices, steps) if entry.owner else ""
            if problem:
                raise broken_by(entry, problem)
        runs.append(entry.ran)
    return tuple(pieces), tuple(runs)


def merge_regions(
    graph: Graph,
    pieces: Sequence[Piece],
    steps: Collection[int] = (),
    ends: Collection[int] = (),
) -> list[Piece]:
    """Return the fewest pieces with the same targets.

    Args:
        graph: The nodes and their order.
        pieces: What is merged.
        steps: Nodes that stay alone.
        ends: Nodes whose readers are in later pieces.
    """
    targets = list(dict.fromkeys(piece.target for piece in pieces))
    choices = [0] * len(graph.nodes)
    for piece in pieces:
        for node in piece.nodes:
            choices[node] = targets.index(piece.target)
            if node in steps:  # a choice of its own merges with nothing
                choices[node] = len(targets)
                targets.append(piece.target)
    return [Piece(targets[i], tuple(nodes)) for i, nodes in cut_regions(graph, choices, ends)]


def _pieces_problem(
    graph: Graph,
    pieces: Sequence[Piece],
    choices: Sequence[PlacedTarget],
    steps: Collection[int] = (),
) -> str:
    done: set[int] = set()
    for piece in pieces:
        for node in piece.nodes:
            if node in done or not 0 <= node < len(graph.nodes):
                return f"node {node} is in two pieces, or not in the graph"
            if choices[node] != piece.target:
                return f"it moved node {graph.nodes[node].name!r} to another target"
            if node in steps and len(piece.nodes) > 1:
                return f"node {graph.nodes[node].name!r} is to be alone"
        done.update(piece.nodes)
        if not piece.nodes or not all(done.issuperset(graph.predecessors[n]) for n in piece.nodes):
            return "a piece is empty, or comes before what it reads"
    return "" if len(done) == len(graph.nodes) else "it left nodes out"


def cut_regions(
    graph: Graph, choices: Sequence[int], ends: Collection[int] = ()
) -> list[tuple[int, list[int]]]:
    """Return regions in the order in which they run, as (choice, ascending node ids).

    Each region takes every node of its target whose inputs are there, so for two targets the
    number of regions is the least possible for the target that starts; each start is tried.
    With more targets, the one that can take the most nodes comes next. Linear in the graph for
    each start. What reads nothing, such as weights that are dequantised, is with its first reader:
    nothing crosses a border that need not, and an integer layer has all of its nodes in one region.

    Args:
        graph: The nodes and their order.
        choices: By node id, the position of its target.
        ends: Nodes whose readers are in later regions.
    """
    units, before, after = _units(graph)
    last = frozenset(i for i, nodes in enumerate(units) if not frozenset(ends).isdisjoint(nodes))
    of_units = [choices[nodes[0]] for nodes in units]
    starts = sorted({choice for choice, those in zip(of_units, before, strict=True) if not those})
    cuts = (_Cutter(of_units, before, after, last).cut(start) for start in starts)
    regions = _with_readers(min(cuts, key=len, default=[]), before, after, last)
    return [
        (choice, sorted(node for unit in found for node in units[unit]))
        for choice, found in regions
    ]


def _with_readers(
    regions: list[tuple[int, list[int]]],
    before: _Neighbours,
    after: _Neighbours,
    last: Collection[int],
) -> list[tuple[int, list[int]]]:
    """Return regions in which what reads nothing is with its first reader, on the same target."""
    place = {unit: at for at, (_, found) in enumerate(regions) for unit in found}
    for at, (choice, found) in enumerate(regions):
        for unit in found:
            first = min((place[one] for one in after[unit]), default=at)
            if not before[unit] and unit not in last and regions[first][0] == choice:
                place[unit] = first
    moved: list[list[int]] = [[] for _ in regions]
    for unit, at in place.items():
        moved[at].append(unit)
    return [(choice, found) for (choice, _), found in zip(regions, moved, strict=True) if found]


_Neighbours: TypeAlias = Sequence[Sequence[int]]


def _units(graph: Graph) -> tuple[_Neighbours, _Neighbours, _Neighbours]:
    """Return the nodes of each unit that no cut may part, and the units before and after it."""
    tied = graph.tied
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

    def __init__(
        self,
        choices: Sequence[int],
        before: _Neighbours,
        after: _Neighbours,
        last: Collection[int] = (),
    ) -> None:
        self.successors = after
        self.last = last
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
            if node in self.last:
                continue
            for successor in self.successors[node]:
                if self.choices[successor] == choice:
                    left = waiting.get(successor, self.waiting[successor]) - 1
                    waiting[successor] = left
                    if left == 0:
                        nodes.append(successor)
        return nodes

    def take(self, choice: int, nodes: Sequence[int]) -> None:
        self.ready[choice] = []
        taken = frozenset(nodes)
        for node in nodes:
            for successor in self.successors[node]:
                self.waiting[successor] -= 1
                if self.waiting[successor] == 0 and successor not in taken:
                    self.ready[self.choices[successor]].append(successor)
