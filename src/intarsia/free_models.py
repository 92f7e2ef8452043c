# SPDX-License-Identifier: Apache-2.0
"""Programs of a model with free dimensions: one for all sizes, and one for each sizes that come."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from intarsia.accepted.programs import KeptGeneric, Lookup, keep_generic, listening, look_up
from intarsia.cost.storage import has_database
from intarsia.errors import (
    CostDatabaseError,
    IntarsiaError,
    InternalError,
    ModelError,
    ReasonCode,
    UnsupportedError,
)
from intarsia.garbage import fewer_collections
from intarsia.place.request import BY_COST, Progress, Request, quiet

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.cost.records import VerdictKey
    from intarsia.graph.free_sizes import FreeSignature
    from intarsia.graph.graph import Graph
    from intarsia.place.setting import Setting
    from intarsia.plan.by_sizes import PlansBySizes
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.runtime.free import FreeExecutable, GenericProgram, StoredModel
    from intarsia.runtime.loader import SharedConstants
    from intarsia.runtime.package import FreePart
    from intarsia.tuning.options import Options

__all__ = ["Build", "Built", "FreeModel", "compile_free", "reopen_free"]

logger = logging.getLogger("intarsia")


@dataclass(frozen=True, slots=True)
class Built:
    """A new program for known sizes.

    Attributes:
        program: It, ready to run.
        file: Where it is kept; None if it is not.
        is_accepted: Whether its plan was accepted by measurements.
        graph: The prepared model that it was made of.
    """

    program: PlanExecutable
    file: Path | None
    is_accepted: bool
    graph: Graph


class Build(Protocol):
    """The stages from a request and its machine to a program: the compiler's."""

    def __call__(
        self,
        looked_up: Lookup,
        tell: Progress,
        options: Options | None,
        shared: SharedConstants | None = None,
    ) -> Built:
        """Return a new program; `FreeSizesError` where the model has free dimensions."""


_MOST_KEPT = 4
"""Programs of one model with free dimensions that go among the caches: each has its weights."""


class FreeModel:
    """Makes the programs of a model with free dimensions, one for each sizes.

    Args:
        request: What is asked for.
        signature: What the model takes and returns.
        build: The stages that make a program for known sizes.
        tell: Told about the stages as they go.
        options: How plans are measured, if it comes to that.
        shared: The constants that its programs share.
        part: What a package has of it, with the model or without; None if it is not from one.

    Attributes:
        no_generic: Why there is no program for all sizes; empty if there is one.
    """

    def __init__(
        self,
        request: Request,
        signature: FreeSignature,
        build: Build,
        tell: Progress = quiet,
        options: Options | None = None,
        *,
        shared: SharedConstants,
        part: FreePart | None = None,
    ) -> None:
        self._request = replace(request, shapes=None, sizes=())
        self._said = request.shapes
        self._signature = signature
        self._kept = None if part is None else part.model
        self._plans = None if part is None else part.plans
        self._is_asked = self._kept is not None  # else the database is asked when plans matter
        self._asking = threading.Lock()
        self._build = build
        self._tell = tell
        self._options = options
        self._shared = shared
        self._state = file_state(request.model)
        self._count = 0
        # Where nodes are meant by name, the model keeps those that it has.
        is_named = bool(request.pins or request.exclude or request.layers)
        generic = None if part is None or is_named else part.generic
        self._nominal = None if generic is None else generic.nominal
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
        if self._state != file_state(self._request.model):
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
            built = self._build(looked_up, self._tell, options or self._options, self._shared)
        return built.program, built.is_accepted

    def _prepared(self, request: Request) -> Request:
        """Return a request with the model as it is placed at some sizes."""
        if self._nominal is None:
            return request
        model = self._written_out(self._nominal)
        return replace(request, model=model, is_rewritten=bool(request.sums))

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
                try:
                    if request.way == BY_COST and has_database(request.costs, request.settings):
                        self._plans = self._ask_plans(request)
                except CostDatabaseError as error:
                    logger.warning(
                        "the costs cannot be read, so placement is greedy: %s", error.message
                    )
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
        if self._kept is not None:
            return self._kept
        request = self._request
        if self._state != file_state(request.model):
            raise ModelError(f"{str(request.model)!r} has changed since it was compiled")
        return store_model(request, self._said)


def store_model(
    request: Request, said: Mapping[str, Sequence[int] | int | str] | None
) -> StoredModel:
    """Return what makes the programs of a request elsewhere.

    Args:
        request: What was asked for.
        said: Of free dimensions.
    """
    from intarsia.backends.values import ArtifactConstant
    from intarsia.graph.load import parse
    from intarsia.graph.stored import split_model
    from intarsia.runtime.free import ProgramRecipe, StoredModel

    payload, arrays = split_model(parse(request.model))
    tensors = tuple(ArtifactConstant(name, array) for name, array in arrays.items())
    exclude = request.exclude
    recipe = ProgramRecipe(
        request.find_machine().config.without_tags().text,
        {
            name: one if isinstance(one, int | str) else list(one)
            for name, one in (said or {}).items()
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


def compile_free(
    looked_up: Lookup,
    signature: FreeSignature,
    build: Build,
    tell: Progress,
    options: Options | None,
) -> FreeExecutable:
    """Return what runs at any sizes; programs for those that were asked for are in it.

    Args:
        looked_up: The request and its machine.
        signature: What the model takes and returns.
        build: The stages that make a program for known sizes.
        tell: Told about the stages as they go.
        options: How plans are measured, if it comes to that.

    Raises:
        InputError: Sizes that were asked for are out of bounds, or of an unknown dimension.
        IntarsiaError: As `compile`.
    """
    from intarsia.runtime.loader import SharedConstants

    request = looked_up.request
    own = replace(request, model=_own(request.model), sharing=_shapes_kept(request))
    for some in request.sizes:  # what is wrong is said before anything is compiled
        signature.shapes_at(signature.nominal_sizes(some))
    source = FreeModel(own, signature, build, tell, options, shared=SharedConstants())
    with listening() as warnings:
        # The program for all sizes needs as much memory as the next sizes ask for; it is tried in
        # no worker before, but tuning has measured its targets there.
        is_tried = options is not None or not request.careful
        is_generic = request.max_memory is None and is_tried
        generic = source.generic(signature) if is_generic else None
    targets = tuple(map(str, looked_up.machine.config.without_tags().targets))
    if generic is not None:
        keep_generic(looked_up, signature, targets, generic, tuple(warnings))
    return _free_program(request, source, signature, targets, generic)


def reopen_free(
    request: Request, kept: KeptGeneric, build: Build, tell: Progress, options: Options | None
) -> FreeExecutable:
    """Return what runs at any sizes, whose program for all sizes was kept.

    Args:
        request: What is asked for.
        kept: That program.
        build: The stages that make a program for known sizes.
        tell: Told about the stages as they go.
        options: How plans are measured, if it comes to that.

    Raises:
        IntarsiaError: As `compile_free`.
    """
    part = kept.part
    source = FreeModel(request, part.signature, build, tell, options, shared=kept.shared, part=part)
    return _free_program(request, source, part.signature, part.targets, kept.generic)


def _free_program(
    request: Request,
    source: FreeModel,
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
        max_shapes=_shapes_kept(request),
        is_frozen=request.is_fixed,
        programs=programs,
        generic=generic,
        buckets=buckets,
    )
    executable.no_generic = source.no_generic
    return executable


def _shapes_kept(request: Request) -> int:
    """Return how many programs are kept, one for each sizes: with a memory limit as few as can."""
    few = 1 if request.max_memory is not None else request.settings.max_shapes
    return max(request.max_shapes or few, len(request.sizes))


def _own(model: Any) -> Any:
    """Return a model that its owner does not change; a file is not read yet."""
    if isinstance(model, str | os.PathLike | bytes):
        return model
    from intarsia.graph.load import parse

    return parse(model)


def file_state(model: Any) -> tuple[int, ...]:
    """Return what tells one content of a model's file from another; nothing for other models."""
    if not isinstance(model, str | os.PathLike):
        return ()
    try:
        status = Path(model).stat()
    except OSError:  # whoever reads it says what is wrong
        return (-1,)
    return status.st_size, status.st_mtime_ns, status.st_ino
