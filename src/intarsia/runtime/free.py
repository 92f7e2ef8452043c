# SPDX-License-Identifier: Apache-2.0
"""A model with free dimensions, ready to run: programs for the sizes that came last."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from intarsia.backends.values import Artifact, ArtifactConstant, TensorSpec
from intarsia.errors import InputError, IntarsiaError, PackageError
from intarsia.extents import Symbol
from intarsia.graph.free_sizes import FreeSignature, FreeSpec, describe_free, sizes_text
from intarsia.runtime.buckets import Buckets, cut_back, output_shapes
from intarsia.runtime.executor import PlanExecutable, not_pickled
from intarsia.runtime.feeds import as_array, check_array, check_names

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from intarsia.arrays import Array
    from intarsia.backends.device import Step
    from intarsia.graph.model_info import ModelInfo
    from intarsia.plan.by_sizes import PlansBySizes
    from intarsia.plan.explanation import Explanation
    from intarsia.plan.placement import Placement
    from intarsia.plan.plan import Plan
    from intarsia.plan.profile import Profile
    from intarsia.runtime.context import Context
    from intarsia.runtime.limited import Cancellation, IsOver


@dataclass(frozen=True, slots=True)
class ProgramRecipe:
    """What was asked for when a model was compiled, for programs that are made from its package.

    Attributes:
        target: The machine, in text.
        shapes: What was said of free dimensions.
        pins: From a glob over node names to the target that must run them.
        exclude: What must not run where.
        layers: From a layer's name to the target of its nodes.
        placement: The policy.
        strict: Whether what fails or falls back is an error.
    """

    target: str
    shapes: dict[str, list[int] | int | str]
    pins: dict[str, str]
    exclude: dict[str, str | list[str]] | list[str]
    layers: dict[str, str]
    placement: str
    strict: bool


@dataclass(frozen=True, slots=True)
class StoredModel:
    """What a package needs to make programs elsewhere.

    Attributes:
        payload: The model's ONNX without big tensors.
        tensors: These.
        recipe: What else was asked for when it was compiled.
    """

    payload: bytes
    tensors: tuple[ArtifactConstant, ...]
    recipe: ProgramRecipe


class ProgramSource(Protocol):
    """What makes programs of a model for sizes: the compiler."""

    def make(
        self, shapes: Mapping[str, tuple[int, ...]], generic: PlanExecutable | None
    ) -> PlanExecutable:
        """Return a new program, given the shape of each input that is a tensor, by name.

        Where there is a program for all sizes (`generic`), native code sums as that does.
        """

    def stored(self) -> StoredModel:
        """Return what makes programs elsewhere."""

    def plans(self) -> PlansBySizes | None:
        """Return which plan is for which sizes, if that was measured."""


logger = logging.getLogger("intarsia")

_Key: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of the inputs that have free dimensions, in their order."""


@dataclass(frozen=True, slots=True)
class GenericProgram:
    """A program for all sizes.

    Attributes:
        program: Its plan has free dimensions.
        bounds: The smallest and largest size of each free dimension for which it is right.
        nominal: The sizes that its plan has now.
        multiples: What the size of a free dimension is to be a multiple of, where it is.
    """

    program: PlanExecutable
    bounds: Mapping[str, tuple[int, int | None]]
    nominal: Mapping[str, int]
    multiples: Mapping[str, int] = field(default_factory=dict)

    def takes(self, sizes: Mapping[str, int]) -> bool:
        """Tell whether it is right for sizes."""
        return all(
            low <= sizes.get(name, -1) <= (sizes[name] if high is None else high)
            for name, (low, high) in self.bounds.items()
        ) and not any(sizes[name] % number for name, number in self.multiples.items())


RUNS_BEFORE = 3
"""Runs of the generic program at some sizes before a program is compiled for these."""


@dataclass(slots=True)
class _Kept:
    """A program for some sizes.

    Attributes:
        program: It.
        sizes: By free dimension.
        used: When it was used last.
        is_generic: Whether it is the generic program.
        left: Runs of that until a program of its own is compiled.
    """

    program: PlanExecutable
    sizes: Mapping[str, int]
    used: int
    is_generic: bool = False
    left: int = RUNS_BEFORE


class FreeExecutable:
    """A model whose inputs have free dimensions; what `compile` and `load` return for one.

    Where there is a program for all sizes, it runs what comes; for sizes that come often a program
    of their own is compiled in another thread meanwhile, and takes over. Else one is compiled when
    sizes come for the first time. The least recently used one goes when there are too many. It may
    be run from many threads at once.

    Args:
        signature: What the model takes and returns.
        source: Makes programs, slowly; None only if it is frozen.
        targets: Texts of the targets, in the user's order.
        max_shapes: Most programs that are kept, at least 1.
        is_frozen: Whether no program may be made any more.
        programs: Those that are made already; they may be more than `max_shapes`.
        generic: The program for all sizes, if there is one.
        plans: Which plan is for which sizes, where no source knows it.
        buckets: What inputs are padded up to, if the user says so.

    Attributes:
        signature: What the model takes and returns.
        targets: Texts of the targets, in the user's order.
        buckets: What inputs are padded up to, if the user says so.
        no_generic: Why there is no program for all sizes, if that is known.
    """

    def __init__(  # noqa: PLR0913 - each is one fact of the program
        self,
        signature: FreeSignature,
        source: ProgramSource | None,
        *,
        targets: tuple[str, ...],
        max_shapes: int,
        is_frozen: bool = False,
        programs: Iterable[PlanExecutable] = (),
        generic: GenericProgram | None = None,
        plans: PlansBySizes | None = None,
        buckets: Buckets | None = None,
    ) -> None:
        self.signature = signature
        self.buckets = buckets
        self.no_generic = ""
        self.targets = targets
        self._source = source
        self._is_frozen = is_frozen or source is None
        self._free = tuple(spec.name for spec in signature.inputs if spec.is_free)
        alike: dict[str, list[str]] = {}
        for spec in signature.inputs:
            if spec.shape is not None:
                alike.setdefault(str(spec.shape), []).append(spec.name)
        self._alike = tuple(map(tuple, alike.values()))
        self._kept: dict[_Key, _Kept] = {}
        self._clock = count()
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._generic = generic
        self._plans = plans
        given = tuple(programs)
        self._max_shapes = max(max_shapes, len(given), 0 if buckets is None else buckets.count)
        if buckets is not None:  # refuse what cannot be cut back before anything runs
            self._output_shapes(self._nominal_sizes())
        for program in given:
            shapes = _shapes_of(program)
            self._keep(self._key(shapes), self._find_sizes(shapes), program)

    @property
    def inputs(self) -> tuple[FreeSpec, ...]:
        """The model's inputs, in its order."""
        return self.signature.inputs

    @property
    def outputs(self) -> tuple[FreeSpec, ...]:
        """The model's outputs, in its order."""
        return self.signature.outputs

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The free dimensions, with their bounds."""
        return self.signature.symbols

    @property
    def info(self) -> ModelInfo:
        """What the model says of itself."""
        return self.signature.info

    @property
    def programs(self) -> tuple[PlanExecutable, ...]:
        """The programs that are there, the least recently used first."""
        return tuple(one.program for one in sorted(self._kept.values(), key=_last_use))

    @property
    def sizes(self) -> tuple[dict[str, int], ...]:
        """The sizes that there are programs for, the least recently used first."""
        return tuple(dict(one.sizes) for one in sorted(self._kept.values(), key=_last_use))

    @property
    def latest(self) -> PlanExecutable:
        """The program that was used last; if there is none yet, that for nominal sizes."""
        programs = self.programs
        if programs:
            return programs[-1]
        return self._find(self.signature.shapes_at(self._nominal_sizes()))

    @property
    def generic(self) -> PlanExecutable | None:
        """The program for all sizes, if there is one; it has no sizes, and does not run."""
        return None if self._generic is None else self._generic.program

    @property
    def plans(self) -> PlansBySizes | None:
        """Which plan is for which sizes, as `tune` measured it; None if it did not."""
        return self._plans if self._source is None else self._source.plans()

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """The thread that compiles for sizes that come often."""
        from concurrent.futures import ThreadPoolExecutor  # the first runs make no program

        return ThreadPoolExecutor(1, thread_name_prefix="intarsia-sizes")

    @property
    def plan(self) -> Plan:
        """The plan of `latest`."""
        return self.latest.plan

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts of `latest`."""
        return self.latest.artifacts

    @property
    def placement(self) -> Placement:
        """What runs where in `latest`; printing it gives a table."""
        return self.latest.placement

    def specialise(self, sizes: Mapping[str, int]) -> PlanExecutable:
        """Return the program for sizes, which is made if it is not there.

        Args:
            sizes: By free dimension; those that are missing are nominal: 1 for a batch, else 128.

        Raises:
            InputError: There is no such dimension, a size is out of bounds, or no program may be
                made any more.
            IntarsiaError: As `intarsia.compile`.
        """
        shapes = self.signature.shapes_at(self._nominal_sizes(sizes))
        return self._find(shapes, is_own=True)

    def program_for(self, feeds: Mapping[str, Any]) -> PlanExecutable:
        """Return the program for the sizes of arrays, which is made if it is not there.

        Args:
            feeds: An array per input, by name.

        Raises:
            InputError: A name, dtype or shape is wrong, or no program may be made any more.
            IntarsiaError: As `intarsia.compile`.
        """
        try:  # the usual case first: each call comes by here
            kept = self._kept[tuple([feeds[name].shape for name in self._free])]
        except (KeyError, AttributeError, TypeError):
            kept = None
        if kept is None:
            return self._find(self._check_feeds(feeds))
        kept.used = next(self._clock)
        if kept.is_generic:
            self._count(kept)
        return kept.program

    def _check_feeds(self, feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each input that is a tensor.

        Raises:
            InputError: A name or dtype is wrong, or an input has no shape.
        """
        check_names(self.inputs, feeds)
        shapes = {}
        for spec in self.inputs:
            if spec.dtype:
                array = as_array(spec, feeds[spec.name])
                shapes[spec.name] = tuple(array.shape)
                check_array(TensorSpec(spec.name, spec.dtype, shapes[spec.name]), array)
        return shapes

    def _find(
        self, shapes: Mapping[str, tuple[int, ...]], *, is_own: bool = False
    ) -> PlanExecutable:
        """Return the program for the shapes of all tensors.

        Args:
            shapes: By input.
            is_own: Whether the generic program will not do.

        Raises:
            InputError: Shapes disagree, or no program may be made any more.
            IntarsiaError: As `intarsia.compile`.
        """
        sizes = self._find_sizes(shapes)
        key = self._key(shapes)
        with self._lock:
            kept, generic = self._kept.get(key), self._generic
            if kept is None and not is_own and generic is not None and generic.takes(sizes):
                kept = self._keep(key, sizes, generic.program.at(sizes), is_generic=True)
            if kept is not None and not (is_own and kept.is_generic):
                kept.used = next(self._clock)
                return kept.program
        with self._making:  # others may run meanwhile
            kept = self._kept.get(key)
            if kept is not None and not kept.is_generic:
                return kept.program
            if self._is_frozen or self._source is None:
                there = "; ".join(map(sizes_text, self.sizes)) or "none"
                raise InputError(
                    f"there is no program for {sizes_text(sizes) or key}, and none may be made: "
                    "the program is frozen",
                    hint=f"there are programs for {there}; compile with sizes= (or --sizes) for "
                    "more, or leave out frozen",
                )
            program = self._source.make(shapes, self.generic)
        with self._lock:
            return self._keep(key, sizes, program).program

    def _find_sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the size of each free dimension; see `FreeSignature.find_sizes`.

        A decoder has some dozen caches of one shape, of which one says as much as all.
        """
        first: dict[str, tuple[int, ...]] = {}
        for names in self._alike:
            given = [shapes[name] for name in names if name in shapes]
            if given and given.count(given[0]) != len(given):
                return self.signature.find_sizes(shapes)  # which says who disagrees
            first |= {name: shapes[name] for name in names[:1] if name in shapes}
        return self.signature.find_sizes(first)

    def _count(self, kept: _Kept) -> None:
        """Count a run of the generic program; have one compiled for its sizes if it is time."""
        kept.left -= 1
        if kept.left == 0 and not self._is_frozen:
            self._pool.submit(self._make_own, _shapes_of(kept.program))

    def _make_own(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make a program for some sizes in another thread; the generic one stays if that fails."""
        if self._key(shapes) not in self._kept:  # others have taken its place
            return
        plans, sizes = self.plans, self.signature.find_sizes(shapes)
        if plans is not None and not plans.points[plans.choose(sizes).point].needs_own:
            return
        try:
            self._find(shapes, is_own=True)
        except IntarsiaError as error:
            logger.info("there is no program for %s alone: %s", shapes, error.message)

    def _key(self, shapes: Mapping[str, tuple[int, ...]]) -> _Key:
        return tuple(shapes[name] for name in self._free)

    def _keep(
        self,
        key: _Key,
        sizes: Mapping[str, int],
        program: PlanExecutable,
        *,
        is_generic: bool = False,
    ) -> _Kept:
        """Keep a program in the place of another for the same sizes, and of what is used least."""
        kept = self._kept[key] = _Kept(program, sizes, next(self._clock), is_generic)
        while len(self._kept) > self._max_shapes:
            del self._kept[min(self._kept, key=lambda one: self._kept[one].used)]
        return kept

    def run(
        self,
        feeds: Mapping[str, Any],
        *,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> dict[str, Any]:
        """Run the model once; as `PlanExecutable.run`, at any sizes.

        Args:
            feeds: An array per input, by name.
            timeout: Seconds after which the caller goes on, with an error; making a program for
                new sizes is a part of them. None means no limit.
            cancellation: By which another thread ends the run; None means that none does.

        Returns:
            A fresh array per output, by name.

        Raises:
            InputError: A name, dtype or shape is wrong; names the dimension and both inputs that
                disagree.
            RunTimeoutError: It took longer.
            RunCancelledError: It was cancelled.
            ExecutionError: A backend failed.
            IntarsiaError: As `intarsia.compile`, at sizes that are new.
        """
        if timeout is not None or cancellation is not None:
            from intarsia.runtime.limited import run_limited  # few runs are limited

            return run_limited(partial(self.run_until, feeds), timeout, cancellation)
        if self.buckets is not None:
            return self._run_padded(self.buckets, feeds)
        return self.program_for(feeds).run(feeds)

    def run_until(self, feeds: Mapping[str, Any], is_over: IsOver) -> dict[str, Any]:
        """Run the model once, as long as somebody waits for it; as `PlanExecutable.run_until`.

        Args:
            feeds: As of `run`.
            is_over: Asked before each step of the plan whether nobody does any more.

        Raises:
            RunCancelledError: Nobody did any more.
            IntarsiaError: As of `run`.
        """
        if self.buckets is not None:
            return self._run_padded(self.buckets, feeds, is_over)
        return self.program_for(feeds).run_until(feeds, is_over)

    def _run_padded(
        self, buckets: Buckets, feeds: Mapping[str, Any], is_over: IsOver | None = None
    ) -> dict[str, Any]:
        """Run the program of the next larger sizes that are buckets."""
        sizes = self.signature.find_sizes(self._check_feeds(feeds))
        rounded = buckets.round_up(sizes)
        shapes = self.signature.shapes_at(rounded)
        program = self._find(shapes, is_own=not self._is_frozen)
        run = program.run if is_over is None else partial(program.run_until, is_over=is_over)
        if rounded == sizes:
            return run(feeds)
        padded = {
            spec.name: buckets.pad(spec, feeds[spec.name], shapes[spec.name])
            if spec.name in shapes
            else feeds[spec.name]
            for spec in self.inputs
        }
        cut, whole = self._output_shapes(sizes), self._output_shapes(rounded)
        return cut_back(run(padded), whole, cut)

    def _nominal_sizes(self, sizes: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return a size for each free dimension: what is given, else a bucket, else nominal."""
        largest = {} if self.buckets is None else self.buckets.largest
        return self.signature.nominal_sizes({**largest, **(sizes or {})})

    def _output_shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        plan = None if self._generic is None else self._generic.program.plan
        return output_shapes(self.signature, plan, sizes)

    def __call__(self, *arrays: Any, out: Array | Sequence[Array] | None = None) -> Any:
        """Run the model on arrays in the order of its inputs; as `PlanExecutable.__call__`.

        Args:
            arrays: One for each input.
            out: Arrays that are filled and returned: one, or one for each output.

        Raises:
            InputError: There are too few or too many arrays, or one does not fit.
        """
        if len(arrays) != len(self.inputs):
            raise InputError(
                f"the model takes {len(self.inputs)} inputs, {len(arrays)} were given",
                hint=f"it takes {', '.join(map(str, self.inputs))}",
            )
        names = (spec.name for spec in self.inputs)
        feeds = dict(zip(names, arrays, strict=True))
        if self.buckets is None:
            return self.program_for(feeds)(*arrays, out=out)
        if out is not None:
            raise InputError(
                "outputs of a padded run cannot be written to arrays of the caller",
                hint="leave out the argument `out`",
            )
        outputs = self.run(feeds)
        results = tuple(outputs[spec.name] for spec in self.outputs)
        return results[0] if len(results) == 1 else results

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Step:
        """Return a function that runs the model on the caller's arrays in place.

        It is for exactly the sizes of these arrays, which are never padded; see
        `PlanExecutable.bind`.

        Args:
            inputs: C-contiguous arrays that each call reads, by name; all of them.
            outputs: C-contiguous arrays that each call writes, by name.

        Raises:
            InputError: An array is missing, unknown, not contiguous, or does not fit.
        """
        return self.program_for(inputs).bind(inputs, outputs)

    def context(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
    ) -> Context:
        """Return a context for the sizes of arrays; see `PlanExecutable.context`.

        Args:
            inputs: C-contiguous arrays that each run reads in place, by name; all of them.
            outputs: C-contiguous arrays that each run writes in place, by name.

        Raises:
            InputError: An array is missing, unknown, not contiguous, or does not fit.
        """
        return self.program_for(inputs).context(inputs, outputs)

    def sample_feeds(self, seed: int = 0, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Return made-up values for every input that the model can do with.

        Args:
            seed: For what is drawn.
            sizes: By free dimension; those that are missing are nominal, as of `specialise`.

        Raises:
            InputError: As of `specialise`, or the seed is negative.
        """
        return self._find(self.signature.shapes_at(self._nominal_sizes(sizes))).sample_feeds(seed)

    def profile(self, feeds: Mapping[str, Any], runs: int = 5) -> Profile:
        """Time each region and each copy by itself, at the sizes of arrays.

        Args:
            feeds: An array per input, by name.
            runs: How many runs are timed, after one that is not.

        Raises:
            InputError: A name, dtype or shape is wrong, or `runs` is below 1.
            ExecutionError: A backend failed.
        """
        return self.program_for(feeds).profile(feeds, runs)

    def explain(self, profile: Profile | None = None) -> Explanation:
        """Return what runs where and why in `latest`, and which sizes there are programs for.

        Args:
            profile: What `profile` returned, for the times of regions and copies.
        """
        explanation = self.latest.explain(profile)
        kept = sorted(self._kept.values(), key=_last_use)
        sizes = [one.sizes for one in kept]
        has_generic = self._generic is not None
        text = describe_free(self.signature, sizes[-1], sizes, is_generic=has_generic)
        if self._generic is not None and self._generic.multiples:
            every = (f"{name} a multiple of {n}" for name, n in self._generic.multiples.items())
            text += f" ({', '.join(every)})"
        if self._generic is not None:
            text += _tell_moved(explanation.placement, self._generic.program.placement)
        if self.no_generic and not self._is_frozen:
            text += (
                f" (at most {self._max_shapes}, each compiled when its sizes come for the first "
                f"time); there is none for all sizes: {self.no_generic}"
            )
        if self.buckets is not None:
            text = f"{text}; {self.buckets}"
        return explanation.with_free(text, self.plans, sizes[-1], is_generic=kept[-1].is_generic)

    def save(self, path: str | Path) -> None:
        """Write a self-contained package: the model, the programs that there are, weights once.

        If there is none, for all sizes or for some, that for nominal sizes is made.

        Args:
            path: File to write; by custom it ends in `.intarsia`.

        Raises:
            PackageError: The file cannot be written, or the model is not there.
            IntarsiaError: As `intarsia.compile`.
        """
        from intarsia.runtime.package import save_free_package

        if self._source is None:
            raise PackageError(
                f"{str(path)!r} cannot be written: the model was not loaded with its package",
                hint="copy the package",
            )
        kept = sorted(self._kept.values(), key=_last_use)
        programs = [one.program for one in kept if not one.is_generic]
        if self._generic is None and not programs:
            programs = [self.specialise({})]
        stored = self._source.stored()
        save_free_package(
            self.signature,
            self.targets,
            programs[::-1],
            stored,
            path,
            self._generic,
            self.plans,
            self.buckets,
        )

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: code and threads are of this process."""
        raise not_pickled()

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.symbols))
        return f"<intarsia executable: free {names}, programs for {len(self._kept)} sizes>"


def _shapes_of(program: PlanExecutable) -> dict[str, tuple[int, ...]]:
    return {spec.name: spec.shape for spec in program.inputs if spec.shape is not None}


def _last_use(kept: _Kept) -> int:
    return kept.used


Program: TypeAlias = PlanExecutable | FreeExecutable
"""What `compile` and `load` return."""


def _tell_moved(placement: Placement, generic: Placement) -> str:
    """Say which nodes of a program are on other targets in that for all sizes; "" if none are."""
    own, other = (
        {node.name: region.target for region in one.regions for node in region.nodes}
        for one in (placement, generic)
    )
    moved = [name for name, target in own.items() if other.get(name, target) != target]
    if not moved:
        return ""
    first, many = moved[0], len(moved) > 1
    return (
        f"; {len(moved)} node{'s have' if many else ' has'} another target in the program for all "
        f"sizes ({first}: {other[first]}, not {own[first]}{', ...' * many}), so last digits may "
        "differ"
    )
