# SPDX-License-Identifier: Apache-2.0
"""From a setting to a program: place it, by whatever policy, and compile its regions."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.errors import ReasonCode, UnsupportedError
from intarsia.graph.model_info import read_model_info
from intarsia.place.assign import Policy
from intarsia.place.build import RegionBuilder, Store
from intarsia.place.decide import Calls, Decision, decide_as_chosen, decide_in_order
from intarsia.place.identity import make_identity
from intarsia.place.setting import Progress, Setting, quiet
from intarsia.plan.tuning import TuningReport
from intarsia.runtime.executor import PlanExecutable

if TYPE_CHECKING:
    from collections.abc import Callable

    from intarsia.place.schedule import Draft
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
) -> PlanExecutable:
    """Place a model by the user's order and compile its regions; what fails goes elsewhere.

    Args:
        setting: The model and the machine.
        policy: How nodes find their targets.
        strict: Whether it is an error if a node falls back or a backend fails.
        tell: Told about the stages as they go.
        choose: Given what was decided, returns what is built instead.

    Raises:
        PlacementError: A pinned node's target does not take it.
        UnsupportedError: A node has no target; or, if `strict`, one fell back.
        BackendError: If `strict`, a backend failed.
    """
    builder = make_builder(setting, tell=tell, is_strict=strict)
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
    return finish(builder, setting, draft, decision)


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
    builder = make_builder(setting, tell=tell, is_strict=strict, store=store)
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
    return finish(builder, setting, draft, decision)


def finish(
    builder: RegionBuilder, setting: Setting, draft: Draft, decision: Decision
) -> PlanExecutable:
    """Return the program of a draft whose regions were built; its plan says what it depends on."""
    about = read_model_info(setting.graph)
    draft = replace(draft, plan=replace(draft.plan, identity=make_identity(setting), model=about))
    return builder.finish(draft, (*setting.passes, *decision.passes))


def make_builder(
    setting: Setting,
    *,
    tell: Progress | None,
    is_strict: bool,
    store: Store | None = None,
) -> RegionBuilder:
    """Return what compiles the regions of a setting."""
    return RegionBuilder(
        setting.graph,
        setting.backends,
        setting.pipeline,
        setting.num_threads,
        is_strict,
        tell or quiet,
        store,
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
