# SPDX-License-Identifier: Apache-2.0
"""From a model and a description of a machine to a program: the whole pipeline.

load -> resolve targets -> annotations -> passes before placement -> constraints, devices ->
capability -> assign -> passes after placement -> plan -> passes on regions, compile and load them;
a region that fails is taken from its target, and the placement is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.backends.api import Backend, Detection, ReasonCode
from intarsia.backends.registry import Backends, load_backends
from intarsia.errors import SettingError, TargetError, UnsupportedError
from intarsia.place.assign import Policy
from intarsia.place.build import RegionBuilder, Store
from intarsia.place.constraints import Exclusions
from intarsia.place.decide import Calls, Decision, decide_as_chosen, decide_in_order
from intarsia.place.frozen import locked_calls, make_world
from intarsia.place.setting import Progress, Setting, Wishes, make_setting, quiet
from intarsia.plan.lock import Lock, read_lock
from intarsia.plan.placement import Placement
from intarsia.plan.tuning import TuningReport
from intarsia.runtime.executor import PlanExecutable
from intarsia.settings import thread_count
from intarsia.target import CompilationConfig
from intarsia.target.fields import rename_target_host
from intarsia.target.priority import Overrides

if TYPE_CHECKING:
    from intarsia.place.collage.tuner import Moment, Options
    from intarsia.place.draft import Draft

PLACEMENTS = ("auto", "greedy", "manual", "collage")
"""Values of `placement`; `auto` is collage where a plan was accepted before, else greedy."""

logger = logging.getLogger("intarsia")


def compile(  # noqa: A001, PLR0913 - the name and the options that users expect
    model: Any,
    target: Any = None,
    *,
    host: Any = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    placement: str = "auto",
    pins: Mapping[str, str] | None = None,
    exclude: Exclusions = (),
    layers: Mapping[str, str] | None = None,
    strict: bool = False,
    num_threads: int | None = None,
    backends: Backends | None = None,
    progress: Progress | None = None,
    frozen: str | Path | Lock | None = None,
    target_host: Any = None,
) -> PlanExecutable:
    """Compile an ONNX model for a machine.

    Args:
        model: A path, the bytes of a `ModelProto`, a `ModelProto`, or an `onnx_ir.Model`.
        target: The machine, in any form of a target; several targets are in order of priority.
            None means what is found on this machine.
        host: The target that runs shapes and the plan itself; None means what the targets say.
        shapes: Dimensions of inputs that the model leaves free, by name.
        placement: `greedy` (each node on the first target that takes it), `manual` (only what is
            pinned or annotated leaves the fallback), `collage` (the plan that is measured to be
            fastest; if none was accepted before, it is measured now) or `auto` (the plan that was
            accepted by measurements before, else greedy).
        pins: From a glob over node names to the target that must run them.
        exclude: What must not run where: `{"openvino": "Resize"}` or `["openvino:Resize"]`.
        layers: From a layer's name in ONNX Runtime's `layer_ann`, or what it begins with, to the
            target of its nodes; `=name` means this name only. Device configurations of the model,
            annotations and pins win over it, in this order.
        strict: Whether it is an error if a node does not go to the first target that could have
            had it, or if a backend fails on a region.
        num_threads: Threads that one run may use; None means the setting.
        backends: The backends to use; None means all that are installed.
        progress: Told about the stages as they go.
        frozen: A lock file: exactly this plan, or an error that says what has changed since. If no
            target is given, it is the lock file's.
        target_host: The old name of `host`; deprecated.

    Raises:
        ModelError: The model is malformed, or has a free dimension.
        TargetError: The target is unknown or malformed.
        PlacementError: A pin, exclusion or layer matches nothing, contradicts another, or is
            impossible.
        UnsupportedError: A node has no target; or, if `strict`, one fell back.
        BackendError: A backend is missing; or, if `strict`, failed.
        LockError: The lock file is damaged, or what the plan depends on has changed.
    """
    tell = progress or quiet
    lock = None if frozen is None else _open_lock(frozen, placement)
    _check_placement(placement)
    threads = thread_count(num_threads)
    if backends is None:
        backends = load_backends()
    if target is None and lock is not None:
        target = lock.world.targets
    config = resolve_targets(target, rename_target_host(host, target_host), backends)
    wishes = Wishes(shapes, pins, exclude, layers)
    setting = make_setting(model, config, backends, wishes, num_threads=threads, tell=tell)
    if lock is not None:
        return build_frozen(setting, lock, tell=tell)
    if placement == "collage":
        from intarsia.place.collage.tuner import Options

        return build_tuned(setting, Options(), strict=strict, tell=tell)
    found = _accepted(setting) if placement == "auto" else None
    if found is not None:
        return build_plan(setting, *found, strict=strict, tell=tell)
    policy = Policy.GREEDY if placement == "auto" else Policy(placement)
    return build(setting, policy, strict=strict, tell=tell)


def tune(  # noqa: PLR0913 - as `compile`
    model: Any,
    target: Any = None,
    *,
    budget: float = 120.0,
    objective: str = "latency",
    host: Any = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    pins: Mapping[str, str] | None = None,
    exclude: Exclusions = (),
    layers: Mapping[str, str] | None = None,
    feeds: Mapping[str, Any] | None = None,
    num_threads: int | None = None,
    costs: str | None = None,
    resume: bool = False,
    backends: Backends | None = None,
    progress: Callable[[Moment], None] | None = None,
) -> PlanExecutable:
    """Find the fastest plan by measuring, and compile it.

    Whatever is measured goes into the cost database at once: a second run goes on where the first
    one stopped, and returns at once if that one was done. The plan that ships is remembered, so
    that `compile` finds it. `explain().tuning` of the result says how it was found.

    Args:
        model: As in `compile`.
        target: As in `compile`; several targets, of which the plan may mix any.
        budget: Seconds that measuring may take, roughly.
        objective: `latency`, `memory` or `throughput`.
        host: As in `compile`, and so are `shapes`, `pins`, `exclude`, `layers`, `num_threads` and
            `backends`.
        shapes: Dimensions of inputs that the model leaves free, by name.
        pins: From a glob over node names to the target that must run them.
        exclude: What must not run where.
        layers: From a layer's name in ONNX Runtime's `layer_ann` to the target of its nodes.
        feeds: An array per input, by name, to measure with; what is missing is made up.
        num_threads: Threads that one run may use; None means the setting.
        costs: The cost database: a file or a URL; None means the setting.
        resume: Whether to go on measuring although a plan was accepted before.
        backends: The backends to use; None means all that are installed.
        progress: Told what is being measured.

    Raises:
        IntarsiaError: As `compile`.
        CostDatabaseError: The cost database is damaged or out of reach.
    """
    from intarsia.place.collage.tuner import Options, check_objective

    threads = thread_count(num_threads)
    backends = load_backends() if backends is None else backends
    config = resolve_targets(target, host, backends)
    wishes = Wishes(shapes, pins, exclude, layers)
    setting = make_setting(model, config, backends, wishes, num_threads=threads, tell=quiet)
    options = Options(budget, check_objective(objective), feeds, progress)
    return build_tuned(setting, options, costs=costs, again=resume)


def build_tuned(
    setting: Setting,
    options: Options,
    *,
    costs: str | None = None,
    again: bool = False,
    strict: bool = False,
    tell: Progress | None = None,
) -> PlanExecutable:
    """Find the plan that is measured to be best, and compile it.

    Args:
        setting: The model and the machine.
        options: How to measure.
        costs: The cost database; None means the setting.
        again: Whether to go on measuring although a plan was accepted before.
        strict: Whether it is an error if a backend fails on the plan.
        tell: Told about compiling as it goes.

    Raises:
        CostDatabaseError: The cost database is damaged or out of reach.
        BackendError: Nothing here can run the model; or, if `strict`, a backend failed.
        UnsupportedError: A node has no target.
    """
    from intarsia.place.collage.door import tuned_plan

    with tuned_plan(setting, options, costs=costs, again=again) as found:
        return build_plan(
            *(setting, found.calls, found.report), store=found.store, strict=strict, tell=tell
        )


def _accepted(setting: Setting) -> tuple[Calls, TuningReport] | None:
    """Return the plan that was accepted for a setting before; says which placement it is."""
    from intarsia.place.collage.door import accepted_plan

    found = accepted_plan(setting)
    if found is None:
        logger.info("greedy placement: no plan was accepted for this; `intarsia tune` finds one")
    else:
        logger.info("collage placement: %s", found[1].summary)
    return found


def build(
    setting: Setting, policy: Policy, *, strict: bool = False, tell: Progress | None = None
) -> PlanExecutable:
    """Place a model by the user's order and compile its regions; what fails goes elsewhere.

    Args:
        setting: The model and the machine.
        policy: How nodes find their targets.
        strict: Whether it is an error if a node falls back or a backend fails.
        tell: Told about the stages as they go.

    Raises:
        PlacementError: A pinned node's target does not take it.
        UnsupportedError: A node has no target; or, if `strict`, one fell back.
        BackendError: If `strict`, a backend failed.
    """
    builder = _builder(setting, strict, tell)
    while True:
        decision = decide_in_order(setting, policy)
        draft = decision.draft(setting)
        if strict and draft.plan.placement.shortfall is not None:
            raise _strict_error(draft.plan.placement)
        failed = builder.build(draft)
        if failed is None:
            break
        setting = setting.without(*failed)
    if draft.plan.placement.shortfall is not None:
        logger.warning(draft.plan.placement.shortfall)
    return _finish(builder, setting, draft, decision)


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
    decision = decide_as_chosen(setting, locked_calls(setting, lock), "lock")
    decision = replace(decision, policy=Policy(lock.policy))
    draft = decision.draft(setting)
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


def _open_lock(frozen: str | Path | Lock, placement: str) -> Lock:
    if placement != "auto":
        raise SettingError(
            f"placement {placement!r} contradicts a frozen plan", hint="give one of them"
        )
    return frozen if isinstance(frozen, Lock) else read_lock(frozen)


def _finish(
    builder: RegionBuilder, setting: Setting, draft: Draft, decision: Decision
) -> PlanExecutable:
    """Return the program; its plan says what it depends on."""
    draft = replace(draft, plan=replace(draft.plan, world=make_world(setting)))
    return builder.finish(draft, (*setting.passes, *decision.passes))


def _builder(
    setting: Setting, strict: bool, tell: Progress | None, store: Store | None = None
) -> RegionBuilder:
    return RegionBuilder(
        *(setting.graph, setting.backends, setting.pipeline, setting.num_threads),
        *(strict, tell or quiet, store),
    )


def resolve_targets(
    target: Any, host: Any, backends: Backends, overrides: Overrides | None = None
) -> CompilationConfig:
    """Return the canonical form of a machine; None means what the backends detect here.

    Args:
        target: The machine, in any form.
        host: The target that runs the plan itself; None means what the targets say.
        backends: Those that are asked what is here.
        overrides: Attributes for all targets of certain kinds.

    Raises:
        TargetError: The description is wrong, or nothing was detected.
    """
    if target is not None:
        return CompilationConfig.resolve(target, host=host, overrides=overrides)
    detected = [
        found
        for detection in map(_detect, backends.by_name.values())
        for found in detection.targets
        if detection.is_default and not found.kind.is_hidden
    ]
    if not any(found.kind.is_complete for found in detected):
        raise TargetError(
            "no target was given, and no complete one was found on this machine",
            hint="pip install 'intarsia[onnxruntime]', or pass target='reference' (slow)",
        )
    detected.sort(key=lambda found: found.kind.is_complete)  # partial ones first, else by name
    return CompilationConfig.resolve(detected, host=host, overrides=overrides)


def _detect(backend: Backend) -> Detection:
    try:
        return backend.detect()
    except Exception as error:  # a stranger's backend may raise anything
        logger.warning("backend %r failed to detect its targets: %s", backend.name, error)
        return Detection(reason=str(error))


def _check_placement(placement: str) -> None:
    if placement not in PLACEMENTS:
        raise SettingError(
            f"placement {placement!r} is unknown",
            hint=f"use one of {', '.join(PLACEMENTS)}",
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
