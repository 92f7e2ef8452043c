# SPDX-License-Identifier: Apache-2.0
"""From a request to a program: the whole pipeline, stage by stage, is `carry_out`.

Every entry point builds a `Request`: `compile` and `tune` here, the commands, the session, the
ONNX backend, `bench`, `export`. A stage is a function from value to value:

    Request -> look_up -> Lookup: the program, if it was kept; else the Machine
            -> make_setting -> Setting: the prepared model, its constraints, what targets take
            -> choose -> Choice: a policy, or regions that were measured, accepted or locked
            -> build_program: Decision -> Draft -> program; a region that fails is taken from its
               target, and the model is placed again
            -> keep -> Compiled
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.accepted.programs import copy_package, keep, listening, look_up
from intarsia.garbage import fewer_collections
from intarsia.place.machine import resolve_targets
from intarsia.place.request import BY_COST, PLACEMENTS, Progress, Request, quiet
from intarsia.target.fields import rename_target_host

if TYPE_CHECKING:
    from intarsia.accepted.choices import Accepted
    from intarsia.backends.registry import Backends
    from intarsia.place.build import Revise
    from intarsia.place.decide import PlanChoice
    from intarsia.place.request import Exclusions
    from intarsia.place.setting import Setting
    from intarsia.plan.lock import Lock
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.tuning.options import Options, TuningStatus

__all__ = [
    "PLACEMENTS",
    "Compiled",
    "carry_out",
    "compile",
    "read_setting",
    "resolve_targets",
    "tune",
]

logger = logging.getLogger("intarsia")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program that was asked for.

    Attributes:
        program: It, ready to run.
        file: Where it is kept; None if it is not.
    """

    program: PlanExecutable
    file: Path | None = None

    def save(self, path: Path) -> None:
        """Write its package; one that is kept is copied, so that equal requests give equal files.

        Raises:
            PackageError: It cannot be written.
        """
        if self.file is None or not copy_package(self.file, path):
            self.program.save(path)


@fewer_collections()
def carry_out(
    request: Request, tell: Progress = quiet, *, options: Options | None = None
) -> Compiled:
    """Return the program of a request: one that was kept, or else a new one, which is kept.

    Args:
        request: What is asked for.
        tell: Told about the stages as they go.
        options: How plans are measured, if it comes to that.

    Raises:
        IntarsiaError: As `compile` and `tune`.
    """
    looked_up = look_up(request)
    if looked_up.program is not None:
        return Compiled(looked_up.program, looked_up.file)
    from intarsia.place.build import build_program
    from intarsia.place.setting import make_setting

    with listening() as warnings:
        setting = make_setting(request, looked_up.machine, tell)
        with _choose(request, setting, options) as (choice, accepted):
            revise = _find_reviser(request, setting, choice)
            program = build_program(
                setting, choice, strict=request.strict, tell=tell, revise=revise
            )
            if choice.calls is None:  # of others the builder says it
                is_ordered = not setting.config.reasons.is_detected
                threads = setting.num_threads if request.may_run else None
                _say_shortfall(program, threads, is_ordered=is_ordered)
            asked = accepted if revise is None else accepted.with_key(setting)
            warned = None if request.placement == "collage" else tuple(warnings)
            return Compiled(program, keep(looked_up, program, asked, warned))


def read_setting(request: Request, tell: Progress = quiet) -> Setting:
    """Return the prepared model of a request on its machine, still to be placed.

    Raises:
        IntarsiaError: As `compile`.
    """
    from intarsia.place.setting import make_setting

    return make_setting(request, request.find_machine(), tell)


@contextmanager
def _choose(
    request: Request, setting: Setting, options: Options | None
) -> Iterator[tuple[PlanChoice, Accepted]]:
    """Yield which plan is meant, and what it was accepted as.

    Raises:
        LockError: What a locked plan depends on has changed.
        CostDatabaseError: The cost database is damaged, or has no plan where none may be measured.
    """
    from intarsia.accepted.choices import Accepted, find_accepted, locked_choice
    from intarsia.place.assign import Policy
    from intarsia.place.decide import PlanChoice

    if request.lock is not None:
        yield locked_choice(setting, request.lock), Accepted()
    elif request.placement == "collage":
        from intarsia.tuning.options import Options
        from intarsia.tuning.tuner import accepted_choice, tuned_choice

        options = Options() if options is None else options
        if request.may_measure:
            again = request.is_resumed
            with tuned_choice(setting, options, costs=request.costs, again=again) as chosen:
                yield chosen
        else:
            yield accepted_choice(setting, options.objective, costs=request.costs)
    elif request.placement == "auto":
        accepted = find_accepted(setting)
        choice = accepted.choice(setting)
        _say_which(choice)
        yield choice or PlanChoice(), accepted
    else:
        yield PlanChoice(Policy(request.placement)), Accepted()


def _find_reviser(request: Request, setting: Setting, choice: PlanChoice) -> Revise | None:
    """Return what times a plan; None if that was forbidden, or nodes were pinned or excluded."""
    is_open = setting.config.reasons.is_detected and request.way == BY_COST and not request.strict
    is_free = is_open and setting.constraints.is_empty
    if choice.calls is not None or not (request.may_run and is_free):
        return None
    from intarsia.tuning.trial import choose_quicker

    return choose_quicker


def _say_shortfall(program: PlanExecutable, num_threads: int | None, *, is_ordered: bool) -> None:
    """Say what did not go where the user asked for, and the time that a slow backend takes.

    Args:
        program: What was compiled.
        num_threads: Threads to time it with; None means that it must not run.
        is_ordered: Whether the user gave the order of the targets.
    """
    placement = program.placement
    if placement.shortfall is None:
        return
    from intarsia.tuning.trial import time_slow_part

    is_asked = placement.stand_ins or is_ordered
    seconds = "" if num_threads is None else time_slow_part(program, num_threads)
    logger.log(logging.WARNING if is_asked else logging.INFO, "%s%s", placement.shortfall, seconds)


def _say_which(choice: PlanChoice | None) -> None:
    if choice is None or choice.report is None:
        logger.info("greedy placement: no plan was accepted for this; `intarsia tune` finds one")
    else:
        logger.info("collage placement: %s", choice.report.summary)


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
    request = Request(
        model=model,
        target=target,
        host=rename_target_host(host, target_host),
        shapes=shapes,
        pins=pins,
        exclude=exclude,
        layers=layers,
        placement=placement,
        strict=strict,
        num_threads=num_threads,
        backends=backends,
        lock=_open_lock(frozen),
        cache=cache,
        probe=probe,
    )
    return carry_out(request, progress or quiet).program


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
            means no limit.
        cache: As in `compile`.
        target_host: The old name of `host`; deprecated.

    Raises:
        IntarsiaError: As `compile`.
        CostDatabaseError: The cost database is damaged or out of reach.
    """
    from intarsia.tuning.objectives.objective import parse_objective
    from intarsia.tuning.options import Options

    aim = parse_objective(objective, slowdown)
    request = Request(
        model=model,
        target=target,
        host=rename_target_host(host, target_host),
        shapes=shapes,
        pins=pins,
        exclude=exclude,
        layers=layers,
        placement="collage",
        num_threads=num_threads,
        default_threads=aim.default_threads,
        backends=backends,
        objective=aim.describe(),
        costs=costs,
        is_resumed=resume,
        cache=cache,
    )
    return carry_out(request, options=Options(budget, aim, feeds, progress)).program


def _open_lock(frozen: str | Path | Lock | None) -> Lock | None:
    if frozen is None:
        return None
    from intarsia.plan.lock import Lock, read_lock

    return frozen if isinstance(frozen, Lock) else read_lock(frozen)
