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

from intarsia.backends.registry import Backends, load_backends
from intarsia.errors import SettingError
from intarsia.place.assign import Policy
from intarsia.place.constraints import Exclusions
from intarsia.place.decide import Calls
from intarsia.place.frozen import locked_threads
from intarsia.place.machine import resolve_targets
from intarsia.place.program import build, build_frozen, build_plan, build_tuned
from intarsia.place.setting import Progress, Setting, Wishes, make_setting, quiet
from intarsia.plan.lock import Lock, read_lock
from intarsia.plan.tuning import TuningReport
from intarsia.runtime.executor import PlanExecutable
from intarsia.settings import thread_count
from intarsia.target.fields import rename_target_host

if TYPE_CHECKING:
    from intarsia.place.collage.options import Moment

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
            target is given, it is the lock file's; so are the threads.
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
    if lock is not None:
        target = lock.world.targets if target is None else target
        num_threads = locked_threads(lock, num_threads)
    threads = thread_count(num_threads)
    if backends is None:
        backends = load_backends()
    config = resolve_targets(target, rename_target_host(host, target_host), backends)
    wishes = Wishes(shapes, pins, exclude, layers)
    setting = make_setting(model, config, backends, wishes, num_threads=threads, tell=tell)
    if lock is not None:
        return build_frozen(setting, lock, tell=tell)
    if placement == "collage":
        from intarsia.place.collage.options import Options

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
    slowdown: float | None = 2.0,
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

    Raises:
        IntarsiaError: As `compile`.
        CostDatabaseError: The cost database is damaged or out of reach.
    """
    from intarsia.place.collage.kept import program_slot
    from intarsia.place.collage.options import (
        Options,
        check_objective,
        check_slowdown,
        threads_for,
    )

    aim = check_objective(objective)
    threads = threads_for(aim, num_threads)
    backends = load_backends() if backends is None else backends
    config = resolve_targets(target, host, backends)
    options = Options(budget, aim, feeds, progress, check_slowdown(slowdown, aim))
    said = (shapes, pins, exclude, layers)
    slot = program_slot(
        *(model, config, backends), said=said, num_threads=threads, objective=options.aim
    )
    kept = None if slot is None or resume else slot.find(costs)
    if kept is not None:
        return kept.load(backends, threads)
    wishes = Wishes(*said)
    setting = make_setting(model, config, backends, wishes, num_threads=threads, tell=quiet)
    keep = None if slot is None else slot.keep
    return build_tuned(setting, options, costs=costs, again=resume, keep=keep)


def _accepted(setting: Setting) -> tuple[Calls, TuningReport] | None:
    """Return the plan that was accepted for a setting before; says which placement it is."""
    from intarsia.place.collage.door import accepted_plan

    found = accepted_plan(setting)
    if found is None:
        logger.info("greedy placement: no plan was accepted for this; `intarsia tune` finds one")
    else:
        logger.info("collage placement: %s", found[1].summary)
    return found


def _open_lock(frozen: str | Path | Lock, placement: str) -> Lock:
    if placement != "auto":
        raise SettingError(
            f"placement {placement!r} contradicts a frozen plan", hint="give one of them"
        )
    return frozen if isinstance(frozen, Lock) else read_lock(frozen)


def _check_placement(placement: str) -> None:
    if placement not in PLACEMENTS:
        raise SettingError(
            f"placement {placement!r} is unknown",
            hint=f"use one of {', '.join(PLACEMENTS)}",
        )
