# SPDX-License-Identifier: Apache-2.0
"""From a setting to a draft: by the user's order, or as a search found."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.backends.values import Piece
from intarsia.errors import IntarsiaError, InternalError
from intarsia.place.assign import (
    Assignment,
    Policy,
    assign_as_chosen,
    assign_targets,
    target_order,
)
from intarsia.place.capability import calling
from intarsia.place.schedule import PlanDraft, make_draft
from intarsia.place.setting import Setting
from intarsia.plan.plan import PassRun

if TYPE_CHECKING:
    from intarsia.place.build import RegionStore
    from intarsia.plan.lock import Lock
    from intarsia.plan.tuning import TuningReport

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

    def calls(self, setting: Setting) -> Calls:
        """Return its regions with positions of targets."""
        positions = {target: i for i, target in enumerate(setting.targets)}
        return tuple((positions[piece.target], tuple(sorted(piece.nodes))) for piece in self.pieces)

    def draft(self, setting: Setting, *, is_frozen: bool = False) -> PlanDraft:
        """Return the plan that carries it out, still to be compiled.

        Args:
            setting: The model and the machine.
            is_frozen: Whether nothing that was measured on this machine may change its layouts.
        """
        capabilities = [
            replace(one, context=replace(one.context, is_frozen=is_frozen))
            for one in setting.capabilities
        ]
        return make_draft(
            setting.graph,
            setting.config,
            capabilities,
            setting.devices,
            self.assignment,
            self.pieces,
            self.policy,
            setting.rewrites,
        )


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """Which plan is meant: one that was found before, or what a policy finds.

    Attributes:
        policy: How nodes find their targets, or how the regions were found.
        calls: The regions of a plan that was found; None: nodes find their targets by the policy.
        report: How a tuner found them.
        lock: The lock file that has them: this plan, or an error.
        store: Artifacts that were compiled while they were found, if any were.
    """

    policy: Policy = Policy.GREEDY
    calls: Calls | None = None
    report: TuningReport | None = None
    lock: Lock | None = None
    store: RegionStore | None = None

    def reused(self) -> PlanChoice:
        """Return the choice with a report that says that it was accepted before."""
        if self.report is None:
            return self
        return replace(self, report=replace(self.report, is_reused=True))

    def decide(self, setting: Setting) -> Decision:
        """Place a model.

        Raises:
            PlacementError: A pinned node's target does not take it.
            UnsupportedError: A node has no target.
        """
        if self.calls is None:
            return decide_in_order(setting, self.policy)
        decision = decide_as_chosen(setting, self.calls, "cost" if self.lock is None else "lock")
        return replace(decision, policy=self.policy)


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
    assignment = assign_targets(
        setting.graph,
        config,
        setting.capabilities,
        setting.constraints,
        setting.devices,
        order,
    )
    targets = [setting.targets[position] for position in assignment.choices]
    pieces, passes = setting.pipeline.arrange(setting.graph, targets)
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
        for node, pin in setting.devices.pins.items()
    }
    led = replace(setting, devices=replace(setting.devices, pins=pins))
    return decide_in_order(led, order=order)


def _unpinned_pieces(setting: Setting, decision: Decision, position: int) -> tuple[Piece, ...]:
    """Return the regions of a decision as if its first target had what pins keep from it."""
    targets = setting.targets
    first = targets[position]
    kept = {node for node, pin in setting.devices.pins.items() if first not in pin.targets}
    if not kept:
        return decision.pieces
    choices = [
        first if node in kept else targets[choice]
        for node, choice in enumerate(decision.assignment.choices)
    ]
    return setting.pipeline.arrange(setting.graph, choices)[0]


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


def decide_as_chosen(setting: Setting, calls: Calls, why: str = "cost") -> Decision:
    """Carry out regions that a search has formed.

    Args:
        setting: The model and the machine.
        calls: In an order in which they can run; every node in exactly one.
        why: The reason of every node without a pin.

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
    assignment = assign_as_chosen(
        setting.graph,
        setting.capabilities,
        setting.constraints,
        setting.devices,
        choices,
        why,
    )
    targets = setting.targets
    pieces, passes = setting.pipeline.arrange(
        setting.graph,
        [targets[position] for position in choices],
        [Piece(targets[position], nodes) for position, nodes in calls],
    )
    return Decision(assignment, pieces, passes, Policy.COLLAGE)
