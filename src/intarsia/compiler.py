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

A model with free dimensions goes the same way once for each sizes that come (`_FreeModel`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.accepted.programs import (
    KeptGeneric,
    Lookup,
    copy_package,
    keep,
    keep_generic,
    listening,
    look_up,
)
from intarsia.cost.storage import has_database
from intarsia.errors import (
    InputError,
    IntarsiaError,
    InternalError,
    ModelError,
    ReasonCode,
    UnsupportedError,
)
from intarsia.garbage import fewer_collections
from intarsia.place.machine import resolve_targets
from intarsia.place.request import BY_COST, PLACEMENTS, Progress, Request, quiet
from intarsia.target.fields import rename_target_host

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.accepted.choices import Accepted
    from intarsia.backends.registry import Backends
    from intarsia.cost.records import VerdictKey
    from intarsia.graph.free_sizes import FreeSignature, SizesLike
    from intarsia.place.build import Revise
    from intarsia.place.decide import PlanChoice
    from intarsia.place.request import Exclusions
    from intarsia.place.setting import Setting
    from intarsia.plan.by_sizes import PlansBySizes
    from intarsia.plan.lock import Lock
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.runtime.free import (
        FreeExecutable,
        GenericProgram,
        Program,
        ProgramSource,
        StoredModel,
    )
    from intarsia.runtime.loader import SharedConstants
    from intarsia.runtime.package import FreePart
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
    """

    program: Program
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
        _refuse_buckets(request)
        return Compiled(looked_up.program, looked_up.file)
    if looked_up.free is not None:
        return Compiled(_reopen_free(request, looked_up.free, tell, options))
    from intarsia.graph.free_sizes import FreeSizesError

    try:
        program, file, _ = _build(looked_up, tell, options)
    except FreeSizesError as error:
        if request.lock is not None:
            raise
        return Compiled(_compile_free(looked_up, error.signature, tell, options))
    if request.sizes:
        logger.warning("no dimension of the model is free: sizes have no effect")
    _refuse_buckets(request)
    return Compiled(program, file)


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
) -> tuple[PlanExecutable, Path | None, bool]:
    """Return a new program, where it is kept, and whether its plan was accepted.

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
        with _choose(request, setting, options) as (choice, accepted):
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
            return program, keep(looked_up, program, asked, warned), is_accepted


_MOST_KEPT = 4
"""Programs of one model with free dimensions that go among the caches: each has its weights."""


class _FreeModel:
    """Makes the programs of a model with free dimensions, one for each sizes.

    Args:
        request: What is asked for.
        signature: What the model takes and returns.
        tell: Told about the stages as they go.
        options: How plans are measured, if it comes to that.
        kept: What a package had of it; None if it is not from one.
        plans: Which plan is for which sizes, where a package says so.
        shared: The constants that its programs share.
        nominal: Sizes for which the program for all sizes is placed; None if there is none yet.

    Attributes:
        no_generic: Why there is no program for all sizes; empty if there is one.
    """

    def __init__(
        self,
        request: Request,
        signature: FreeSignature,
        tell: Progress = quiet,
        options: Options | None = None,
        *,
        kept: StoredModel | None = None,
        plans: PlansBySizes | None = None,
        shared: SharedConstants,
        nominal: Mapping[str, int] | None = None,
    ) -> None:
        self._request = replace(request, shapes=None, sizes=())
        self._said = request.shapes
        self._signature = signature
        self._plans = plans
        self._is_asked = kept is not None  # else the database is asked when plans matter
        self._asking = threading.Lock()
        self._tell = tell
        self._options = options
        self._kept = kept
        self._shared = shared
        self._state = _file_state(request.model)
        self._count = 0
        # Where nodes are meant by name, the model keeps those that it has.
        is_named = bool(request.pins or request.exclude or request.layers)
        self._nominal = None if is_named else nominal
        self.no_generic = ""

    def make(
        self, shapes: Mapping[str, tuple[int, ...]], generic: PlanExecutable | None
    ) -> PlanExecutable:
        """Return a new program.

        Args:
            shapes: Of the inputs.
            generic: The program for all sizes, if there is one.

        Raises:
            ModelError: The model's file has changed since it was compiled.
            PackageError: The model in the package is damaged.
            IntarsiaError: As `compile`.
        """
        request = self._at(shapes, generic)
        plans = None if request.placement == "collage" else self.plans()
        if plans is None:
            return self._make(request)[0]
        choice = plans.choose(self._signature.find_sizes(shapes))
        logger.info("a program for %s: %s", shapes, choice.why)
        return self._make(replace(request, regions=choice.regions))[0]

    def _at(
        self, shapes: Mapping[str, tuple[int, ...]], generic: PlanExecutable | None = None
    ) -> Request:
        """Return what is asked for at some shapes of the inputs.

        Args:
            shapes: Of the inputs.
            generic: The program for all sizes, whose order of sums is kept.

        Raises:
            ModelError: The model's file has changed since it was compiled.
            PackageError: The model in the package is damaged.
        """
        if self._state != _file_state(self._request.model):
            raise ModelError(
                f"{str(self._request.model)!r} has changed since it was compiled",
                hint="compile it again",
            )
        if self._kept is not None and self._request.model is None:
            from intarsia.graph.stored import join_model

            arrays = {tensor.name: tensor.data for tensor in self._kept.tensors}
            self._request = replace(self._request, model=join_model(self._kept.payload, arrays))
        from intarsia.backends.values import SUMS

        artifacts = () if generic is None else generic.artifacts
        sums = tuple(one.metadata[SUMS] for one in artifacts if SUMS in one.metadata)
        return replace(self._request, shapes=shapes, sums=sums)

    def _make(
        self, request: Request, options: Options | None = None
    ) -> tuple[PlanExecutable, bool]:
        """Return a new program, and whether its plan was accepted.

        Args:
            request: What is asked for at some sizes.
            options: How plans are measured, if not as for all sizes.
        """
        self._count += 1
        is_kept = request.is_kept and self._count <= _MOST_KEPT and self._nominal is None
        looked_up = look_up(replace(request, cache=is_kept), self._shared)
        if looked_up.program is not None:
            return looked_up.program, looked_up.program.plan.tuning is not None
        with fewer_collections():
            looked_up = replace(looked_up, request=self._prepared(looked_up.request))
            built = _build(looked_up, self._tell, options or self._options, self._shared)
        return built[0], built[2]

    def _prepared(self, request: Request) -> Request:
        """Return a request with the model as it is placed at some sizes."""
        if self._nominal is None:
            return request
        return replace(request, model=self._written_out(self._nominal))

    def _written_out(self, nominal: Mapping[str, int]) -> ir.Model:
        """Return the model with the shapes that it computes as constants.

        What exporters write to compute a shape has an answer for all sizes more often than
        `onnx.shape_inference` has one for some.
        """
        from intarsia.graph.load import load as load_model
        from intarsia.passes.free_shapes import prepare_free

        loaded = load_model(self._request.model, self._said, stays_free=True)
        return prepare_free(loaded, nominal)[0].graph.model

    def generic(self, signature: FreeSignature) -> GenericProgram | None:
        """Return the program for all sizes; None where there is none.

        Args:
            signature: What the model takes and returns.
        """
        from intarsia.backends.calling import failure_code
        from intarsia.graph.free_sizes import sizes_text
        from intarsia.place.assign import Policy
        from intarsia.place.build import build_program
        from intarsia.place.decide import PlanChoice
        from intarsia.place.setting import make_free_setting
        from intarsia.runtime.free import GenericProgram

        request = replace(self._request, shapes=self._said)
        if any(spec.shape is None for spec in signature.inputs):
            return None
        nominal = signature.nominal_sizes()
        try:
            with fewer_collections():
                setting, symbols = make_free_setting(
                    request, request.find_machine(), nominal, signature.bounds
                )
                policy = request.placement if request.placement == "manual" else "greedy"
                choice = PlanChoice(Policy(policy))
                program = build_program(setting, choice, tell=self._tell, shared=self._shared)
        except InternalError:
            raise
        except IntarsiaError as error:
            self._note_no_generic(error.message)
            if failure_code(error) is ReasonCode.INTERNAL_ERROR:
                logger.warning("internal error, please report it: %s", error.message)
            return None
        placement = program.placement
        others = [one for one in placement.regions if one.target not in placement.targets]
        if others:  # the host's: programs for sizes stay where the user wants them
            first = others[0].nodes[0]
            why = [str(one) for one in placement.refusals if one.node == first.name]
            self._note_no_generic(why[0] if why else f"it would need {others[0].target}")
            return None
        logger.info("a program for all sizes, placed for %s: %s", sizes_text(nominal), program)
        if setting.constraints.is_empty:  # else nodes are meant by the names that they had
            self._nominal = nominal
        bounds = {name: (symbol.low, symbol.high) for name, symbol in symbols.items()}
        multiples = {one.name: one.multiple for one in symbols.values() if one.multiple > 1}
        return GenericProgram(program, bounds, nominal, multiples)

    def _note_no_generic(self, reason: str) -> None:
        """Remember why there is no program for all sizes."""
        logger.info("no program for all sizes: %s", reason)
        self.no_generic = reason

    def plans(self) -> PlansBySizes | None:
        """Return which plan is for which sizes: as a package says, else the cost database."""
        with self._asking:
            if not self._is_asked:
                request = self._request
                if request.way == BY_COST and has_database(request.costs, request.settings):
                    self._plans = self._ask_plans(request)
                self._is_asked = True
            return self._plans

    def _ask_plans(self, request: Request) -> PlansBySizes | None:
        from intarsia.accepted.by_sizes import find_plans

        key = self._plans_key()
        return None if key is None else find_plans(key, request.costs, request.settings)

    def _plans_key(self) -> VerdictKey | None:
        """Return what plans by sizes are filed under; None if that cannot be told."""
        from intarsia.accepted.by_sizes import sizes_key
        from intarsia.place.setting import make_free_setting, make_setting

        signature = self._signature
        try:
            request = replace(self._at({}), shapes=self._said)
            machine, nominal = request.find_machine(), signature.nominal_sizes()
            try:
                setting = make_free_setting(request, machine, nominal, signature.bounds)[0]
            except UnsupportedError:
                shapes = signature.shapes_at(nominal)
                setting = make_setting(replace(request, shapes=shapes), machine)
            return sizes_key(setting, self._request.objective)
        except InternalError:
            raise
        except IntarsiaError as error:  # compiling says it, where it matters
            logger.info("plans by sizes have no name: %s", error.message)
            return None

    def tune(
        self, sizes: Sequence[Mapping[str, int]], generic: GenericProgram | None
    ) -> list[PlanExecutable]:
        """Return the programs of the plans that are fastest at sizes; measure them if need be.

        Later programs for other sizes have the plan that was measured for these.

        Args:
            sizes: Of free dimensions; nothing means those that were measured before, else nominal.
            generic: The program for all sizes, if there is one.

        Raises:
            InputError: A dimension is unknown, or a size out of bounds.
            CostDatabaseError: Nothing was accepted for these sizes, and nothing may be measured.
            IntarsiaError: As `tune`.
        """
        from intarsia.accepted.by_sizes import save_plans
        from intarsia.cost.database import CostDatabase
        from intarsia.tuning.by_sizes import SizesTuner
        from intarsia.tuning.options import Options

        request, options = self._request, self._options or Options()
        program = None if generic is None else generic.program
        known = None if request.is_resumed else self.plans()
        wanted = [self._signature.nominal_sizes(some) for some in sizes]
        if not wanted:
            wanted = [self._signature.nominal_sizes()]
            if known is not None:
                wanted = [point.sizes for point in known.points]
        shapes = [self._signature.shapes_at(some) for some in wanted]
        is_settled = known is not None and known.is_settled and known.has_sizes(wanted)
        if is_settled or not request.may_measure:
            programs = [self._make(self._at(each, program), options)[0] for each in shapes]
            self._stop_measuring(known)
            return programs
        key = self._plans_key()

        def tune_at(some: Mapping[str, int], how: Options) -> tuple[PlanExecutable, bool]:
            return self._make(self._at(self._signature.shapes_at(some), program), how)

        def setting_at(some: Mapping[str, int]) -> Setting:
            from intarsia.place.setting import make_setting

            at = self._prepared(self._at(self._signature.shapes_at(some), program))
            return make_setting(at, at.find_machine())

        with CostDatabase.open(request.costs, settings=request.settings) as database:

            def keep_plans(plans: PlansBySizes) -> None:
                is_all = len(plans.points) == len({tuple(some.items()) for some in wanted})
                if key is not None and is_all and all(point.is_proven for point in plans.points):
                    save_plans(database, key, plans)

            tuner = SizesTuner(tune_at, setting_at, options, database, keep_plans, generic)
            plans = tuner.run(wanted)
        self._stop_measuring(plans)
        return tuner.programs

    def _stop_measuring(self, plans: PlansBySizes | None) -> None:
        """Measure no plan any more: a run would wait for it."""
        self._request, self._options = replace(self._request, placement="auto"), None
        self._plans, self._is_asked = plans, True

    def stored(self) -> StoredModel:
        """Return what makes programs elsewhere.

        Raises:
            ModelError: The model's file has changed since it was compiled, or is gone.
        """
        from intarsia.backends.values import ArtifactConstant
        from intarsia.graph.load import parse
        from intarsia.graph.stored import split_model
        from intarsia.runtime.free import ProgramRecipe, StoredModel

        if self._kept is not None:
            return self._kept
        request = self._request
        if self._state != _file_state(request.model):
            raise ModelError(f"{str(request.model)!r} has changed since it was compiled")
        payload, arrays = split_model(parse(request.model))
        tensors = tuple(ArtifactConstant(name, array) for name, array in arrays.items())
        exclude = request.exclude
        recipe = ProgramRecipe(
            request.find_machine().config.without_tags().text,
            {
                name: one if isinstance(one, int | str) else list(one)
                for name, one in (self._said or {}).items()
            },
            dict(request.pins or {}),
            {key: one if isinstance(one, str) else list(one) for key, one in exclude.items()}
            if isinstance(exclude, Mapping)
            else list(exclude),
            dict(request.layers or {}),
            request.placement,
            request.strict,
        )
        return StoredModel(payload, tensors, recipe)


def _compile_free(
    looked_up: Lookup, signature: FreeSignature, tell: Progress, options: Options | None
) -> FreeExecutable:
    """Return what runs at any sizes; programs for those that were asked for are in it.

    Args:
        looked_up: The request and its machine.
        signature: What the model takes and returns.
        tell: Told about the stages as they go.
        options: How plans are measured, if it comes to that.

    Raises:
        InputError: Sizes that were asked for are out of bounds, or of an unknown dimension.
        IntarsiaError: As `compile`.
    """
    from intarsia.runtime.loader import SharedConstants

    request = looked_up.request
    own = replace(request, model=_own(request.model))
    for some in request.sizes:  # what is wrong is said before anything is compiled
        signature.shapes_at(signature.nominal_sizes(some))
    source = _FreeModel(own, signature, tell, options, shared=SharedConstants())
    with listening() as warnings:
        generic = source.generic(signature)
    targets = tuple(map(str, looked_up.machine.config.without_tags().targets))
    if generic is not None:
        keep_generic(looked_up, signature, targets, generic, tuple(warnings))
    return _free_program(request, source, signature, targets, generic)


def _reopen_free(
    request: Request, kept: KeptGeneric, tell: Progress, options: Options | None
) -> FreeExecutable:
    """Return what runs at any sizes, whose program for all sizes was kept.

    Args:
        request: What is asked for.
        kept: That program.
        tell: Told about the stages as they go.
        options: How plans are measured, if it comes to that.

    Raises:
        IntarsiaError: As `_compile_free`.
    """
    nominal = kept.generic.nominal
    signature, shared = kept.part.signature, kept.shared
    source = _FreeModel(request, signature, tell, options, shared=shared, nominal=nominal)
    return _free_program(request, source, signature, kept.part.targets, kept.generic)


def _free_program(
    request: Request,
    source: _FreeModel,
    signature: FreeSignature,
    targets: tuple[str, ...],
    generic: GenericProgram | None,
) -> FreeExecutable:
    """Return what runs at any sizes; programs for those that were asked for are made first.

    Raises:
        InputError: Sizes that were asked for are out of bounds, or of an unknown dimension.
        IntarsiaError: As `compile`.
    """
    from intarsia.graph.free_sizes import list_sizes
    from intarsia.runtime.buckets import make_buckets
    from intarsia.runtime.free import FreeExecutable

    buckets = None
    sizes = request.sizes
    if request.buckets:
        buckets = make_buckets(request.buckets, request.pad_values, signature)
        if request.is_fixed:  # later nothing may be compiled
            sizes = (*sizes, *list_sizes(buckets.sizes))
        elif request.placement == "collage":  # what is measured is what runs
            given = [signature.nominal_sizes({**buckets.largest, **some}) for some in sizes]
            padded = map(buckets.round_up, given)
            sizes = [*{str(some): some for some in padded}.values()] or list_sizes(buckets.sizes)
    if request.placement == "collage":
        programs = source.tune(sizes, generic)
    else:
        shapes = [signature.shapes_at(signature.nominal_sizes(some)) for some in sizes]
        program = None if generic is None else generic.program
        programs = [source.make(some, program) for some in shapes]
    executable = FreeExecutable(
        signature,
        source,
        targets=targets,
        max_shapes=request.max_shapes or request.settings.max_shapes,
        is_frozen=request.is_fixed,
        programs=programs,
        generic=generic,
        buckets=buckets,
    )
    executable.no_generic = source.no_generic
    return executable


def source_of(
    free: FreePart, num_threads: int, backends: Backends | None, shared: SharedConstants
) -> ProgramSource:
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
    return _FreeModel(
        request,
        free.signature,
        kept=free.model,
        plans=free.plans,
        shared=shared,
        nominal=None if free.generic is None else free.generic.nominal,
    )


def _own(model: Any) -> Any:
    """Return a model that its owner does not change; a file is not read yet."""
    if isinstance(model, str | os.PathLike | bytes):
        return model
    from intarsia.graph.load import parse

    return parse(model)


def _file_state(model: Any) -> tuple[int, ...]:
    """Return what tells one content of a model's file from another; nothing for other models."""
    if not isinstance(model, str | os.PathLike):
        return ()
    try:
        status = Path(model).stat()
    except OSError:  # whoever reads it says what is wrong
        return (-1,)
    return status.st_size, status.st_mtime_ns, status.st_ino


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
        if choice is None and request.regions is not None:  # accepted for other sizes
            choice = fitted_choice(setting, request.regions)
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
) -> Program:
    """Compile an ONNX model for a machine, or find the program that was compiled before.

    A model with free dimensions is compiled for sizes when they come for the first time.

    Args:
        model: A path, the bytes of a `ModelProto`, a `ModelProto`, or an `onnx_ir.Model`.
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

    Raises:
        ModelError: The model is malformed.
        InputError: `buckets` or `sizes` has a dimension that the model does not have, or that is
            out of bounds.
        TargetError: The target is unknown or malformed.
        PlacementError: A pin, exclusion or layer matches nothing, contradicts another, or is
            impossible.
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
        cache=cache,
        probe=probe,
        sizes=() if sizes is None else list_sizes(sizes),
        max_shapes=max_shapes,
        is_fixed=frozen is True,
        buckets=buckets or {},
        pad_values=pad_values or {},
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
    )
    return carry_out(request, options=Options(budget, aim, feeds, progress, asked.text)).program


def _open_lock(frozen: str | Path | Lock | bool | None) -> Lock | None:
    if frozen is None or isinstance(frozen, bool):
        return None
    from intarsia.plan.lock import Lock, read_lock

    return frozen if isinstance(frozen, Lock) else read_lock(frozen)
