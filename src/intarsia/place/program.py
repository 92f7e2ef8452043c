# SPDX-License-Identifier: Apache-2.0
"""From a setting to a program: place it, by whatever policy, and compile its regions."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.backends.api import ReasonCode
from intarsia.errors import UnsupportedError
from intarsia.graph.model_info import read_model_info
from intarsia.place.assign import Policy
from intarsia.place.build import RegionBuilder, Store
from intarsia.place.decide import Calls, Decision, decide_as_chosen, decide_in_order
from intarsia.place.frozen import check_layouts, locked_calls, make_world
from intarsia.place.setting import Progress, Setting, quiet
from intarsia.place.slow import time_slow_part
from intarsia.plan.lock import Lock
from intarsia.plan.tuning import TuningReport
from intarsia.runtime.executor import PlanExecutable

if TYPE_CHECKING:
    from collections.abc import Callable

    from intarsia.cost.records import Verdict, VerdictKey
    from intarsia.place.collage.options import Options
    from intarsia.place.draft import Draft
    from intarsia.plan.placement import Placement

    Choose = Callable[[Setting, Decision, RegionBuilder], Decision]

logger = logging.getLogger("intarsia")


def build(
    setting: Setting,
    policy: Policy,
    *,
    strict: bool = False,
    tell: Progress | None = None,
    choose: Choose | None = None,
    may_run: bool = False,
) -> PlanExecutable:
    """Place a model by the user's order and compile its regions; what fails goes elsewhere.

    Args:
        setting: The model and the machine.
        policy: How nodes find their targets.
        strict: Whether it is an error if a node falls back or a backend fails.
        tell: Told about the stages as they go.
        choose: Given what was decided, returns what is built instead.
        may_run: Whether the program may run once, to say what time a slow backend takes of it.

    Raises:
        PlacementError: A pinned node's target does not take it.
        UnsupportedError: A node has no target; or, if `strict`, one fell back.
        BackendError: If `strict`, a backend failed.
    """
    builder = _builder(setting, strict, tell)
    while True:
        decision = decide_in_order(setting, policy)
        if choose is not None:
            decision = choose(setting, decision, builder)
        draft = decision.draft(setting)
        if strict and draft.plan.placement.shortfall is not None:
            raise _strict_error(draft.plan.placement)
        failed = builder.build(draft)
        if failed is None:
            break
        setting = setting.without(*failed)
    executable = _finish(builder, setting, draft, decision)
    shortfall = draft.plan.placement.shortfall
    if shortfall is not None:
        asked = draft.plan.placement.stand_ins or not setting.config.reasons.is_detected
        taken = time_slow_part(executable, setting.num_threads) if may_run else ""
        logger.log(logging.WARNING if asked else logging.INFO, "%s%s", shortfall, taken)
    return executable


def build_plan(
    setting: Setting,
    calls: Calls,
    report: TuningReport,
    *,
    store: Store | None = None,
    strict: bool = False,
    tell: Progress | None = None,
) -> PlanExecutable:
    """Compile the regions of a plan that was found by cost.

    If one of them cannot be compiled any more, the model is placed greedily, with a warning.

    Args:
        setting: The model and the machine.
        calls: The plan's regions, in the order in which they run.
        report: How it was found; goes with the program.
        store: Artifacts that were compiled while it was found.
        strict: Whether it is an error if a backend fails.
        tell: Told about the stages as they go.

    Raises:
        BackendError: If `strict`, a backend failed.
    """
    builder = _builder(setting, strict, tell, store)
    decision = decide_as_chosen(setting, calls)
    draft = decision.draft(setting)
    draft = replace(draft, plan=replace(draft.plan, tuning=report))
    failed = builder.build(draft)
    if failed is not None:
        position, refusals = failed
        first = next(iter(refusals.values()))
        logger.warning("the tuned plan cannot be built, so placement is greedy: %s", first)
        return build(setting.without(position, refusals), Policy.GREEDY, strict=strict, tell=tell)
    if draft.plan.placement.shortfall is not None:
        logger.warning(draft.plan.placement.shortfall)
    return _finish(builder, setting, draft, decision)


def build_frozen(setting: Setting, lock: Lock, *, tell: Progress | None = None) -> PlanExecutable:
    """Compile the regions of a locked plan: those, or none.

    Args:
        setting: The model and the machine.
        lock: The plan.
        tell: Told about the stages as they go.

    Raises:
        LockError: What the plan depends on has changed, or it does not fit the model.
        UnsupportedError: A target refuses its region.
        BackendError: A backend failed.
    """
    builder = _builder(setting, True, tell)
    builder.is_frozen = True
    decision = decide_as_chosen(setting, locked_calls(setting, lock), "lock")
    decision = replace(decision, policy=Policy(lock.policy))
    draft = decision.draft(setting, is_frozen=True)
    check_layouts(lock, draft.plan.layouts)
    failed = builder.build(draft)
    if failed is not None:
        refusals = tuple(failed[1].values())
        raise UnsupportedError(
            f"the locked plan cannot be built: {refusals[0]}",
            refusals=refusals,
            node=refusals[0].node,
            target=refusals[0].target,
            hint="compile without --frozen, and lock the new plan",
        )
    return _finish(builder, setting, draft, decision)


def build_tuned(
    setting: Setting,
    options: Options,
    *,
    costs: str | None = None,
    again: bool = False,
    strict: bool = False,
    tell: Progress | None = None,
    keep: Callable[[PlanExecutable, VerdictKey, Verdict], object] | None = None,
) -> PlanExecutable:
    """Find the plan that is measured to be best, and compile it.

    Args:
        setting: The model and the machine.
        options: How to measure.
        costs: The cost database; None means the setting.
        again: Whether to go on measuring although a plan was accepted before.
        strict: Whether it is an error if a backend fails on the plan.
        tell: Told about compiling as it goes.
        keep: Given the program if the plan was accepted, now or before, with what it is recorded
            under and the record.

    Raises:
        CostDatabaseError: The cost database is damaged or out of reach.
        BackendError: Nothing here can run the model; or, if `strict`, a backend failed.
        UnsupportedError: A node has no target.
    """
    from intarsia.place.collage.door import tuned_plan

    with tuned_plan(setting, options, costs=costs, again=again) as found:
        executable = build_plan(
            *(setting, found.calls, found.report), store=found.store, strict=strict, tell=tell
        )
        if keep is not None and found.accepted is not None:
            keep(executable, *found.accepted)
        return executable


def _finish(
    builder: RegionBuilder, setting: Setting, draft: Draft, decision: Decision
) -> PlanExecutable:
    """Return the program; its plan says what it depends on."""
    about = read_model_info(setting.graph)
    draft = replace(draft, plan=replace(draft.plan, world=make_world(setting), model=about))
    return builder.finish(draft, (*setting.passes, *decision.passes))


def _builder(
    setting: Setting, strict: bool, tell: Progress | None, store: Store | None = None
) -> RegionBuilder:
    return RegionBuilder(
        *(setting.graph, setting.backends, setting.pipeline, setting.num_threads),
        *(strict, tell or quiet, store),
    )


def _strict_error(placement: Placement) -> UnsupportedError:
    first = next(item for item in placement.refusals if item.code is not ReasonCode.USER)
    return UnsupportedError(
        f"strict: {placement.shortfall}; first: {first}",
        refusals=placement.refusals,
        node=first.node,
        target=first.target,
        hint="leave strict off, or pin what may fall back",
    )
