# SPDX-License-Identifier: Apache-2.0
"""From a model and a description of a machine to a program: the whole pipeline.

load -> resolve targets -> annotations -> passes before placement -> constraints, devices ->
capability -> assign -> passes after placement -> plan -> passes on regions, compile and load them;
a region that fails is taken from its target, and the placement is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.accepted.programs import BY_COST, Found, Kept, Slot, Wanted, listening, look_up
from intarsia.errors import BackendError, PackageError, SettingError
from intarsia.garbage import fewer_collections
from intarsia.place.machine import resolve_targets
from intarsia.settings import Settings, thread_count
from intarsia.target.fields import rename_target_host

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.place.constraints import Exclusions
    from intarsia.place.decide import Calls
    from intarsia.place.program import Choose
    from intarsia.place.setting import Progress, Setting
    from intarsia.plan.lock import Lock
    from intarsia.plan.tuning import TuningReport
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.tuning.options import TuningStatus

__all__ = ["PLACEMENTS", "compile", "resolve_targets", "tune"]

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
    cache: bool | None = None,
    probe: bool | None = None,
) -> PlanExecutable:
    """Compile an ONNX model for a machine, or find the program that was compiled before.

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
            target is given, it is the lock file's; so are the threads.
        target_host: The old name of `host`; deprecated.
        cache: Whether the program is looked for and kept among the caches, if the model is a path
            or bytes; None means the setting.
        probe: Whether a small model may be run where no target and no placement is given, so that
            a library gives way that takes twice as long as another; and any model, once, that
            falls back to `reference`, to say how long that takes. None means the setting.

    Raises:
        ModelError: The model is malformed, or has a free dimension.
        TargetError: The target is unknown or malformed.
        PlacementError: A pin, exclusion or layer matches nothing, contradicts another, or is
            impossible.
        UnsupportedError: A node has no target; or, if `strict`, one fell back.
        BackendError: A backend is missing; or, if `strict`, failed.
        LockError: The lock file is damaged, or what the plan depends on has changed.
    """
    lock = None if frozen is None else _open_lock(frozen, placement)
    _check_placement(placement)
    if lock is not None:
        from intarsia.accepted.lock import locked_threads

        target = lock.identity.targets if target is None else target
        num_threads = locked_threads(lock, num_threads)
    way = str(lock or (placement if placement in ("greedy", "manual") else BY_COST))
    said = (shapes, pins, exclude, layers)
    threads = thread_count(num_threads)
    wanted = Wanted(model, said, threads, way=way, strict=strict, probe=probe)
    machine = (target, rename_target_host(host, target_host), backends)
    is_measured = placement == "collage"
    found, executable = _find(
        wanted, machine, lambda slot: slot.find(is_accepted=is_measured), cache=cache
    )
    if executable is not None:
        return executable
    return _compile(wanted, found, lock, placement, progress)


@fewer_collections()
def _compile(
    wanted: Wanted,
    found: Found,
    lock: Lock | None,
    placement: str,
    progress: Progress | None,
) -> PlanExecutable:
    """Compile a model, and keep the program."""
    from intarsia.accepted.lock import build_frozen
    from intarsia.place.assign import Policy
    from intarsia.place.program import build, build_plan
    from intarsia.place.setting import Wishes, make_setting, quiet
    from intarsia.tuning.tuned import Asked, ask_costs, build_tuned

    config, backends = found.machine
    tell, strict = progress or quiet, wanted.strict
    with listening() as heard:
        setting = make_setting(
            *(wanted.model, config, backends, Wishes(*wanted.said)),
            num_threads=wanted.num_threads,
            tell=tell,
        )
        if placement == "collage":
            from intarsia.tuning.options import Options

            keep = None if found.slot is None else found.slot.keep
            return build_tuned(setting, Options(), strict=strict, tell=tell, keep=keep)
        asked, plan = Asked(), None
        if placement == "auto" and lock is None:
            asked = ask_costs(setting)
            plan = asked.plan(setting)
            _say_which(plan)
        if lock is not None:
            executable = build_frozen(setting, lock, tell=tell)
        elif plan is not None:
            executable = build_plan(setting, *plan, strict=strict, tell=tell)
        else:
            policy = Policy.GREEDY if placement == "auto" else Policy(placement)
            choose = _chooser(wanted, setting)
            executable = build(setting, policy, strict=strict, tell=tell, choose=choose)
            _say_shortfall(executable, setting, may_run=_may_run(wanted))
            asked = asked if choose is None else asked.after_storing(setting)
    if found.slot is not None:
        found.slot.keep(executable, asked.key, asked.verdict, tuple(heard))
    return executable


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
    progress: Callable[[TuningStatus], None] | None = None,
    slowdown: float | None = 2.0,
    cache: bool | None = None,
    target_host: Any = None,
) -> PlanExecutable:
    """Find the fastest plan by measuring, and compile it.

    Whatever is measured goes into the cost database at once: a second run goes on where the first
    one stopped, and returns at once if that one was done. The plan that ships is remembered, so
    that `compile` finds it, and its program is kept among the caches. `explain().tuning` of the
    result says how it was found.

    Args:
        model: As in `compile`.
        target: As in `compile`; several targets, of which the plan may mix any.
        budget: Seconds that measuring may take, roughly.
        objective: `latency`, `throughput` (then a run has one thread unless `num_threads` says
            otherwise) or `memory`.
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
        slowdown: For `memory`: how many times as long as the fastest plan the plan may take; None
            means as long as it likes.
        cache: As in `compile`.
        target_host: The old name of `host`; deprecated.

    Raises:
        IntarsiaError: As `compile`.
        CostDatabaseError: The cost database is damaged or out of reach.
    """
    from intarsia.tuning.objectives.objective import parse_objective
    from intarsia.tuning.options import Options, threads_for

    aim = parse_objective(objective, slowdown)
    threads = threads_for(aim, num_threads)
    options = Options(budget, aim, feeds, progress)
    wanted = Wanted(model, (shapes, pins, exclude, layers), threads, aim.describe())

    def find(slot: Slot) -> Kept | None:
        return None if resume else slot.find(costs, is_accepted=True)

    machine = (target, rename_target_host(host, target_host), backends)
    found, executable = _find(wanted, machine, find, cache=cache)
    if executable is not None:
        return executable
    from intarsia.place.setting import Wishes, make_setting, quiet
    from intarsia.tuning.tuned import build_tuned

    setting = make_setting(
        model, *found.machine, Wishes(*wanted.said), num_threads=threads, tell=quiet
    )
    keep = None if found.slot is None else found.slot.keep
    return build_tuned(setting, options, costs=costs, again=resume, keep=keep)


@fewer_collections()
def _find(
    wanted: Wanted,
    machine: tuple[Any, Any, Backends | None],
    find: Callable[[Slot], Kept | None],
    *,
    cache: bool | None,
) -> tuple[Found, PlanExecutable | None]:
    """Return the program of a request if it was kept, and where it is to be kept.

    Args:
        wanted: The request.
        machine: Target, host and backends, as they were given.
        find: Looks into a slot.
        cache: Whether programs are kept; None means the setting.
    """
    is_kept = Settings.from_environment().programs if cache is None else cache
    found = look_up(wanted, *machine, find=find if is_kept else None)
    if found.kept is None:
        return found, None
    try:
        executable = found.kept.load(machine[2], wanted.num_threads)
    except (BackendError, PackageError) as error:  # a driver may be gone since
        logger.info("a kept program is made anew: %s", error.message)
        found.kept.remove()
        return look_up(wanted, *machine, find=lambda slot: None), None
    logger.info("the program was compiled before: %s", found.kept.file)
    return found, executable


def _chooser(wanted: Wanted, setting: Setting) -> Choose | None:
    """Return what times a plan; None if that was forbidden, or something said of the placement."""
    is_open = setting.config.reasons.is_detected and wanted.way == BY_COST and not wanted.strict
    said = setting.constraints.pins or setting.constraints.exclusions or setting.devices.borders
    if said or not (_may_run(wanted) and is_open):
        return None
    from intarsia.tuning.trial import choose_quicker

    return choose_quicker


def _may_run(wanted: Wanted) -> bool:
    """Tell whether a program may run while it is compiled."""
    return Settings.from_environment().probe if wanted.probe is None else wanted.probe


def _say_shortfall(executable: PlanExecutable, setting: Setting, *, may_run: bool) -> None:
    """Say what did not go where the user asked for, and the time that a slow backend takes."""
    from intarsia.tuning.trial import time_slow_part

    placement = executable.placement
    if placement.shortfall is None:
        return
    is_asked = placement.stand_ins or not setting.config.reasons.is_detected
    taken = time_slow_part(executable, setting.num_threads) if may_run else ""
    logger.log(logging.WARNING if is_asked else logging.INFO, "%s%s", placement.shortfall, taken)


def _say_which(plan: tuple[Calls, TuningReport] | None) -> None:
    if plan is None:
        logger.info("greedy placement: no plan was accepted for this; `intarsia tune` finds one")
    else:
        logger.info("collage placement: %s", plan[1].summary)


def _open_lock(frozen: str | Path | Lock, placement: str) -> Lock:
    if placement != "auto":
        raise SettingError(
            f"placement {placement!r} contradicts a frozen plan", hint="give one of them"
        )
    from intarsia.plan.lock import Lock, read_lock

    return frozen if isinstance(frozen, Lock) else read_lock(frozen)


def _check_placement(placement: str) -> None:
    if placement not in PLACEMENTS:
        raise SettingError(
            f"placement {placement!r} is unknown",
            hint=f"use one of {', '.join(PLACEMENTS)}",
        )
