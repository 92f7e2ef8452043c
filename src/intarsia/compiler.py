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

A model with free dimensions goes the same way once for each sizes that come (`free_models.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.accepted.programs import Lookup, copy_package, keep, listening, look_up
from intarsia.errors import InputError, SettingError
from intarsia.free_models import (
    Built,
    FreeModel,
    compile_free,
    file_state,
    reopen_free,
    store_model,
)
from intarsia.garbage import fewer_collections
from intarsia.place.machine import resolve_targets
from intarsia.place.request import BY_COST, PLACEMENTS, Progress, Request, quiet
from intarsia.target import CompilationConfig
from intarsia.target.fields import rename_target_host

if TYPE_CHECKING:
    from intarsia.accepted.choices import Accepted
    from intarsia.backends.registry import Backends
    from intarsia.backends.values import Artifact
    from intarsia.graph.free_sizes import SizesLike
    from intarsia.graph.graph import Graph
    from intarsia.place.build import Revise
    from intarsia.place.decide import PlanChoice, RegionTrial
    from intarsia.place.request import Exclusions
    from intarsia.place.setting import Setting
    from intarsia.plan.lock import Lock
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.runtime.free import (
        Program,
        StoredModel,
    )
    from intarsia.runtime.loader import SharedConstants
    from intarsia.runtime.package import FreePart, Package
    from intarsia.tuning.options import Options, TuningStatus
    from intarsia.tuning.requests import RequestsLike

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
        graph: The prepared model that it was made of; None if it was found, or its sizes are free.
    """

    program: Program
    file: Path | None = None
    graph: Graph | None = None

    def save(self, path: Path, *, has_model: bool = True) -> None:
        """Write its package; one that is kept is copied, so that equal requests give equal files.

        Args:
            path: The file.
            has_model: Whether the model is in it where it has code.

        Raises:
            PackageError: It cannot be written.
            SettingError: It needs the model.
        """
        program = self.program.latest
        if not has_model:
            if program is not self.program:
                raise SettingError(
                    "a package of a model with free dimensions needs the model, for other sizes",
                    hint="fix the dimensions (--shape), or leave --no-model out",
                )
            program.source = None
        if program is self.program and program.source is not None:
            stored = program.source(program)
            if stored is not None:  # which no kept package has
                from intarsia.runtime.package import save_package

                save_package(program, path, stored)
                return
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
        _refuse_buckets(request)
        looked_up.program.source = _source(request)
        return Compiled(looked_up.program, looked_up.file)
    if looked_up.free is not None:
        return Compiled(reopen_free(request, looked_up.free, _build, tell, options))
    from intarsia.graph.free_sizes import FreeSizesError

    try:
        built = _build(looked_up, tell, options)
    except FreeSizesError as error:
        if request.lock is not None:
            raise
        return Compiled(compile_free(looked_up, error.signature, _build, tell, options))
    if request.sizes:
        logger.warning("no dimension of the model is free: sizes have no effect")
    _refuse_buckets(request)
    built.program.source = _source(request)
    return Compiled(built.program, built.file, built.graph)


def _source(request: Request) -> Callable[[PlanExecutable], StoredModel | None]:
    """Return what returns what a program's package has of the model: nothing where it has no code.

    Nor has it anything, with a warning, if the model's file has changed since.
    """
    state = file_state(request.model)

    def find(program: PlanExecutable) -> StoredModel | None:
        from intarsia.runtime.trust import describe_code

        backends = request.find_machine().backends
        if not describe_code(_all_artifacts(program), backends):
            return None
        if file_state(request.model) != state:
            logger.warning(
                "%r has changed since it was compiled: the package has no model, so that it runs "
                "only where somebody vouches for it",
                str(request.model),
            )
            return None
        return store_model(request, request.shapes)

    return find


def _all_artifacts(program: PlanExecutable) -> Iterator[Artifact]:
    yield from program.artifacts
    for body in program.bodies:
        yield from _all_artifacts(body)


def _refuse_buckets(request: Request) -> None:
    """Refuse buckets of a model without free dimensions.

    Raises:
        InputError: There are some.
    """
    if request.buckets:
        raise InputError(
            f"there is no free dimension {next(iter(request.buckets))!r} to pad",
            hint="leave out --bucket: all sizes are known",
        )


def _build(
    looked_up: Lookup,
    tell: Progress,
    options: Options | None,
    shared: SharedConstants | None = None,
) -> Built:
    """Return a new program.

    Args:
        looked_up: The request and its machine.
        tell: Told about the stages as they go.
        options: How plans are measured, if it comes to that.
        shared: The constants that it shares with other programs of the same model.

    Raises:
        FreeSizesError: The model has free dimensions.
        IntarsiaError: As `compile` and `tune`.
    """
    from intarsia.place.build import build_program
    from intarsia.place.setting import make_setting

    request = looked_up.request
    with listening() as warnings:
        setting = make_setting(request, looked_up.machine, tell)
        if request.max_memory is not None:
            return _build_within(request, setting, request.max_memory, tell, shared)
        with (
            _choose(request, setting, options) as (chosen, accepted),
            _trials(request, setting, chosen) as trial,
        ):
            choice = replace(chosen, trial=trial)
            revise = _find_reviser(request, setting, choice)
            program = build_program(
                setting, choice, strict=request.strict, tell=tell, revise=revise, shared=shared
            )
            if choice.calls is None:  # of others the builder says it
                is_ordered = not setting.config.reasons.is_detected
                threads = setting.num_threads if request.may_run else None
                _say_shortfall(program, threads, is_ordered=is_ordered)
            asked = accepted if revise is None else accepted.with_key(setting)
            warned = None if request.placement == "collage" else tuple(warnings)
            is_accepted = accepted.verdict is not None
            kept = keep(looked_up, program, asked, warned)
            return Built(program, kept, is_accepted, setting.graph)


def _build_within(
    request: Request,
    setting: Setting,
    limit: int,
    tell: Progress,
    shared: SharedConstants | None,
) -> Built:
    """Return a program that needs no more memory than so many bytes: of one target, if need be.

    Raises:
        PlacementError: There is none; it says what each would need.
        IntarsiaError: As `compile`.
    """
    from intarsia.place.build import build_program
    from intarsia.place.memory_limit import check_weights, first_that_fits, mebibytes
    from intarsia.place.setting import make_setting
    from intarsia.target import DeviceType

    targets = setting.config.without_tags().targets
    narrows = any(
        target.target.attrs.get("precision") == "bf16"
        or target.target.attrs.get("weights") == "f16"
        for target in targets
    )
    if not narrows and all(target.device_type == DeviceType.CPU for target in targets):
        check_weights(setting.graph, limit)
    graphs: dict[str | None, Graph] = {}

    def build(target: str | None) -> tuple[PlanExecutable, Graph]:
        asked, at = request, setting
        if target is not None:
            asked = replace(request, target=target)
            at = make_setting(asked, asked.find_machine(), tell)
        with (
            _choose(asked, at, None) as (chosen, _),
            _trials(asked, at, chosen) as trial,
        ):
            choice = replace(chosen, trial=trial)
            program = build_program(at, choice, strict=asked.strict, tell=tell, shared=shared)
        graphs[target] = at.graph
        return program, at.graph

    is_open = setting.constraints.is_empty and request.lock is None and len(targets) > 1
    whole = [str(target) for target in targets if target.target.kind.is_complete]
    program, need = first_that_fits(build, whole if is_open else (), limit, request.sharing)
    used = next(reversed(graphs))
    if used is None:
        is_ordered = not setting.config.reasons.is_detected
        _say_shortfall(program, None, is_ordered=is_ordered)
    else:
        logger.warning("%s runs everything, to stay within %s: %s", used, mebibytes(limit), need)
    return Built(program, None, False, graphs[used])


def source_of(
    free: FreePart, num_threads: int, backends: Backends | None, shared: SharedConstants
) -> FreeModel:
    """Return what makes more programs of a package's model, as the first ones were made.

    Args:
        free: What the package has of it; the model is there.
        num_threads: Threads that one run may use.
        backends: The backends to use; None means all that are installed.
        shared: The constants that its programs share.
    """
    assert free.model is not None
    recipe = free.model.recipe
    request = Request(
        model=None,
        target=recipe.target,
        shapes=recipe.shapes,
        pins=recipe.pins,
        exclude=recipe.exclude,
        layers=recipe.layers,
        placement=recipe.placement,
        strict=recipe.strict,
        num_threads=num_threads,
        backends=backends,
        cache=False,
    )
    return FreeModel(request, free.signature, _build, shared=shared, part=free)


def rebuild(
    package: Package,
    stored: StoredModel,
    num_threads: int,
    max_shapes: int,
    backends: Backends | None,
) -> Program:
    """Compile the model of a package whose code is not to be run, for the same plan if it can be.

    Args:
        package: It.
        stored: Its model.
        num_threads: Threads that one run may use.
        max_shapes: Most programs of a model with free dimensions.
        backends: The backends to use; None means all that are installed.

    Raises:
        PackageError: Its model is damaged, or its targets name files or commands.
        IntarsiaError: As `compile`.
    """
    from intarsia.graph.stored import join_model
    from intarsia.plan.lock import placed_regions
    from intarsia.runtime.free import FreeExecutable
    from intarsia.runtime.loader import SharedConstants
    from intarsia.runtime.trust import check_targets

    config = CompilationConfig.resolve(stored.recipe.target)
    check_targets(config)
    if package.free is not None:
        part = replace(package.free, programs=(), generic=None)
        shared = SharedConstants()
        source = source_of(part, num_threads, backends, shared)
        return FreeExecutable(
            part.signature,
            source,
            targets=part.targets,
            max_shapes=max_shapes,
            programs=[],
            generic=source.generic(part.signature),
            plans=part.plans,
            buckets=part.buckets,
        )
    recipe = stored.recipe
    request = Request(
        model=join_model(stored.payload, {one.name: one.data for one in stored.tensors}),
        target=config,
        shapes=recipe.shapes,
        pins=recipe.pins,
        exclude=recipe.exclude,
        layers=recipe.layers,
        placement="auto" if recipe.placement == "collage" else recipe.placement,
        num_threads=num_threads,
        backends=backends,
        cache=False,
        regions=placed_regions(package.plan),
        is_rebuilt=True,
    )
    program = _build(look_up(request), quiet, None).program
    program.source = lambda _: stored
    return program


def read_setting(request: Request, tell: Progress = quiet) -> Setting:
    """Return the prepared model of a request on its machine, still to be placed.

    Free dimensions have the first sizes that are asked for, padded up to buckets if there are any;
    those that are missing are nominal.

    Raises:
        IntarsiaError: As `compile`.
    """
    from intarsia.graph.free_sizes import FreeSizesError, sizes_text
    from intarsia.place.setting import make_setting

    machine = request.find_machine()
    try:
        setting = make_setting(request, machine, tell)
    except FreeSizesError as error:
        asked = next(iter(request.sizes), {})
        if request.buckets:
            from intarsia.runtime.buckets import make_buckets

            buckets = make_buckets(request.buckets, request.pad_values, error.signature)
            sizes = error.signature.nominal_sizes({**buckets.largest, **asked})
            sizes = buckets.round_up(sizes)
        else:
            sizes = error.signature.nominal_sizes(asked)
        logger.info("free dimensions: %s", sizes_text(sizes))
        shapes = error.signature.shapes_at(sizes)
        return make_setting(replace(request, shapes=shapes), machine, tell)
    _refuse_buckets(request)
    return setting


@contextmanager
def _choose(
    request: Request, setting: Setting, options: Options | None
) -> Iterator[tuple[PlanChoice, Accepted]]:
    """Yield which plan is meant, and what it was accepted as.

    Raises:
        LockError: What a locked plan depends on has changed.
        CostDatabaseError: The cost database is damaged, or has no plan where none may be measured.
    """
    from intarsia.accepted.choices import Accepted, find_accepted, fitted_choice, locked_choice
    from intarsia.place.assign import Policy
    from intarsia.place.decide import PlanChoice

    rebuilt = None
    if request.is_rebuilt and request.regions is not None:
        rebuilt = fitted_choice(setting, request.regions)
    if rebuilt is not None:
        yield rebuilt, Accepted()
    elif request.lock is not None:
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
        if choice is None and request.regions is not None:  # accepted for other sizes
            choice = fitted_choice(setting, request.regions)
        _say_which(choice)
        yield choice or PlanChoice(), accepted
    else:
        yield PlanChoice(Policy(request.placement)), Accepted()


@contextmanager
def _trials(request: Request, setting: Setting, choice: PlanChoice) -> Iterator[RegionTrial | None]:
    """Yield what tries regions in a worker before this process compiles them, if that is wanted."""
    if not request.careful:
        yield None
    elif choice.trial is not None:  # of the tuner, which has tried most of them
        yield choice.trial
    else:
        from intarsia.tuning.laboratory.trials import RegionTrials

        with RegionTrials(setting.whole) as trials:
            yield trials


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
    if choice is not None and choice.report is None:
        logger.info("collage placement: the plan that was measured for other sizes")
    elif choice is None or choice.report is None:
        logger.info("greedy placement: no plan was accepted for this; `intarsia tune` finds one")
    else:
        logger.info("collage placement: %s", choice.report.summary)


def compile(  # noqa: A001, PLR0913 - the name and the options that users expect
    model: Any,
    target: Any = None,
    *,
    host: Any = None,
    shapes: Mapping[str, Sequence[int] | int | str] | None = None,
    placement: str = "auto",
    pins: Mapping[str, str] | None = None,
    exclude: Exclusions = (),
    layers: Mapping[str, str] | None = None,
    strict: bool = False,
    num_threads: int | None = None,
    backends: Backends | None = None,
    progress: Progress | None = None,
    frozen: str | Path | Lock | bool | None = None,
    target_host: Any = None,
    cache: bool | None = None,
    probe: bool | None = None,
    sizes: SizesLike | None = None,
    max_shapes: int | None = None,
    buckets: Mapping[str, int | Sequence[int]] | None = None,
    pad_values: Mapping[str, bool | int | float] | None = None,
    isolate: Collection[str] = (),
    max_memory: int | None = None,
    careful: bool = False,
) -> Program:
    """Compile an ONNX model for a machine, or find the program that was compiled before.

    A model with free dimensions is compiled for sizes when they come for the first time.

    Args:
        model: A path, the bytes of a `ModelProto`, a `ModelProto`, or an `onnx_ir.Model`; with
            external data outside of its folder, an `intarsia.ModelFile`.
        target: The machine, in any form of a target; several targets are in order of priority.
            None means what is found on this machine.
        host: The target that runs shapes and the plan itself; None means what the targets say.
        shapes: The shape of an input that the model leaves free, by name; or of a free dimension
            its size (`{"seq": 128}`), or its bounds (`{"batch": "1..8"}`).
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
            target is given, it is the lock file's; so are the threads. True: nothing is compiled
            later, for other sizes than `sizes`.
        target_host: The old name of `host`; deprecated.
        cache: Whether the program is looked for and kept among the caches, if the model is a path
            or bytes; None means the setting.
        probe: Whether a small model may be run where no target and no placement is given, so that
            a library gives way that takes twice as long as another; and any model, once, that
            falls back to `reference`, to say how long that takes. None means the setting.
        sizes: Of free dimensions, that are compiled at once: `{"seq": [16, 128]}` stands for each
            with each, a list of mappings for these; dimensions that are missing are nominal (a
            batch of 1, else 128).
        max_shapes: Most programs of a model with free dimensions, one for each sizes, of which
            the least recently used one goes; None means the setting.
        buckets: Sizes of free dimensions (`{"seq": [64, 128]}`) that inputs are padded up to, so
            that a run has the program of the next one: only where the model is right with padded
            inputs.
        pad_values: What an input is padded with, by name; 0 where it is not said.
        isolate: Backends whose regions run in processes of their own (docs/isolation.md): what
            takes such a process is an error of one run. No such program is kept among the caches.
        max_memory: Bytes of the host's memory that weights, tensors and workspace may take, as far
            as they are known (docs/guide.md): the first plan that fits is built, and no more runs
            go on at once than there is memory for.
        careful: Whether each region is compiled and run for the first time in a worker, so that a
            library that aborts, hangs or computes nonsense costs its region a place; remembered.

    Raises:
        ModelError: The model is malformed.
        InputError: `buckets` or `sizes` has a dimension that the model does not have, or that is
            out of bounds.
        TargetError: The target is unknown or malformed.
        PlacementError: A pin, exclusion or layer matches nothing, contradicts another, or is
            impossible; or no plan fits into `max_memory`.
        UnsupportedError: A node has no target; or, if `strict`, one fell back.
        BackendError: A backend is missing; or, if `strict`, failed.
        LockError: The lock file is damaged, or what the plan depends on has changed.
    """
    from intarsia.graph.free_sizes import list_sizes

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
        cache=False if isolate else cache,
        probe=probe,
        isolate=isolate,
        sizes=() if sizes is None else list_sizes(sizes),
        max_shapes=max_shapes,
        is_fixed=frozen is True,
        buckets=buckets or {},
        pad_values=pad_values or {},
        max_memory=max_memory,
        careful=careful,
    )
    return carry_out(request, progress or quiet).program


def tune(  # noqa: PLR0913 - as `compile`
    model: Any,
    target: Any = None,
    *,
    budget: float = 120.0,
    objective: str = "latency",
    host: Any = None,
    shapes: Mapping[str, Sequence[int] | int | str] | None = None,
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
    sizes: SizesLike | None = None,
    requests: RequestsLike | None = None,
    careful: bool = True,
) -> Program:
    """Find the fastest plan by measuring, and compile it.

    Whatever is measured goes into the cost database at once: a second run goes on where the first
    one stopped, and returns at once if that one was done. The plan that ships is remembered, so
    that `compile` finds it, and its program is kept among the caches. `explain().tuning` of the
    result says how it was found.

    A model with free dimensions is tuned at some sizes; then both plans of two neighbours run at
    sizes between them, to find where one gives way to the other (`plans` of the result).

    Args:
        model: As in `compile`.
        target: As in `compile`; several targets, of which the plan may mix any.
        budget: Seconds that measuring may take, roughly.
        objective: `latency`, `throughput` (then a run has one thread unless `num_threads` says
            otherwise) or `memory`.
        host: As in `compile`, and so are `shapes`, `pins`, `exclude`, `layers`, `num_threads` and
            `backends`.
        shapes: What is said of free dimensions.
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
        sizes: Of free dimensions, at which plans are measured, as in `compile`; nominal ones
            unless given. The budget is for all of them together.
        requests: Instead of `sizes` a file of real requests, one a line as JSON, or these as
            mappings: `{"batch": 1, "seq": 37, "count": 12}`. A few sizes stand for all.
        careful: As in `compile`: what was not measured is tried in a worker too.

    Raises:
        IntarsiaError: As `compile`.
        InputError: A request is no sizes.
        SettingError: Both sizes and requests are given.
        CostDatabaseError: The cost database is damaged or out of reach.
    """
    from intarsia.tuning.objectives.objective import parse_objective
    from intarsia.tuning.options import Options
    from intarsia.tuning.requests import ask_sizes

    aim = parse_objective(objective, slowdown)
    asked = ask_sizes(sizes, requests)
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
        sizes=asked.sizes,
        careful=careful,
    )
    return carry_out(request, options=Options(budget, aim, feeds, progress, asked.text)).program


def _open_lock(frozen: str | Path | Lock | bool | None) -> Lock | None:
    if frozen is None or isinstance(frozen, bool):
        return None
    from intarsia.plan.lock import Lock, read_lock

    return frozen if isinstance(frozen, Lock) else read_lock(frozen)
