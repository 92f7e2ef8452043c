# SPDX-License-Identifier: Apache-2.0
"""The backend under test: asked, built and run as the compiler does, and judged at each step."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from intarsia.backends.artifact import first_line
from intarsia.backends.backend import Backend, RegisteredBackend
from intarsia.backends.device import Device, HostDevice, ThreadOptions
from intarsia.backends.registry import Backends, collect, load_backends
from intarsia.backends.values import Artifact, BuildContext, Candidate, Refusal
from intarsia.errors import BackendError, SettingError, TargetError
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.place.machine import make_contexts
from intarsia.place.pipeline import Pipeline
from intarsia.plan.devices import HOST_DOMAIN
from intarsia.settings import Settings
from intarsia.target import CompilationConfig, PlacedTarget, Target, get_kind
from intarsia.target.cpu_there import RUNNER
from intarsia.testing.binding import Bound, Loaded, make_buffer, make_scratch
from intarsia.testing.blocks import blocks_of
from intarsia.testing.judging import (
    ConformanceError,
    NotApplicable,
    judge_artifact,
    judge_refusal,
)
from intarsia.testing.tolerance import EXACT, Tolerance, difference

if TYPE_CHECKING:
    import onnx

    from intarsia.backends.values import Border
    from intarsia.graph.graph import Graph


class Subject:
    """One backend with the target and the tolerances to test it with.

    Args:
        backend: The backend, or how it is found, as `resolve` takes it.
        target: The targets to compile for; None means the backend's first kind. To a partial
            kind alone a fallback is added.
        tolerances: By dtype of an output.
    """

    def __init__(
        self,
        backend: Backend | str | PathLike[str],
        target: str | None,
        tolerances: Mapping[str, Tolerance],
    ) -> None:
        self._settings = Settings.from_environment()
        resolved = resolve(backend) if isinstance(backend, str | PathLike) else backend
        self.backend: Backend = resolved
        if isinstance(resolved, Backend):
            self.backend = RegisteredBackend.of(resolved).configured(self._settings).value
        self.asked = target
        self.tolerances = tolerances

    @cached_property
    def registered(self) -> RegisteredBackend:
        """The backend as the registry reads it."""
        return RegisteredBackend.of(self.backend)

    @cached_property
    def backends(self) -> Backends:
        """Every installed backend, with this one in the place of its namesake."""
        installed = load_backends(self._settings).by_name
        every = collect({**installed, self.backend.name: self.registered}.values())
        return every.with_settings(self._settings)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds that the backend serves."""
        return self.registered.kind_names

    @cached_property
    def config(self) -> CompilationConfig:
        """The machine: the target asked for, and a fallback beside a partial kind."""
        backends = self.backends  # registers the kinds that the backend brings
        text = self.kinds[0] if self.asked is None else self.asked
        try:
            return CompilationConfig.resolve(text)
        except TargetError:
            if Target(text).kind.is_complete:
                raise
        return CompilationConfig.resolve(f"{text}, {self._fallback(text, backends)}")

    @cached_property
    def placed(self) -> PlacedTarget:
        """The first target that the backend serves."""
        for placed in self.config.targets:
            if placed.target.kind.name in self.kinds:
                return placed
        served = ", ".join(self.kinds)
        raise ConformanceError(
            f"no target of '{self.config.text}' is served by backend {self.backend.name!r}, "
            f"which serves {served}"
        )

    @cached_property
    def runner(self) -> str:
        """The way to the target's machine, as its backend finds it; empty if it is this one."""
        if self.asked is None:
            return ""
        try:
            refined = self.config.refined(self.placed)
            attrs = (self.placed.target.attrs, {} if refined is None else refined.attrs)
        except (ConformanceError, TargetError):  # which the checks say
            return ""
        return next((str(one[RUNNER]) for one in attrs if one.get(RUNNER)), "")

    @cached_property
    def context(self) -> BuildContext:
        """What the backend gets beside a candidate."""
        refined = self.config.refined(self.placed) or self.placed.target
        return BuildContext(self.placed, refined, self.config, num_threads=1)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The passes of the machine; those on regions run here as in the compiler."""
        contexts = make_contexts(self.config, num_threads=1)
        return Pipeline.of(self.config, contexts, self.backends)

    @cached_property
    def is_host(self) -> bool:
        """Whether the target's memory is the host's."""
        return self.config.device_of(self.placed).memory_domain == HOST_DOMAIN

    def open(self) -> Device:
        """Open the target's device as a plan does: host memory is shared by all backends."""
        options = ThreadOptions(num_threads=1)
        if self.is_host:
            return HostDevice(options)
        with self.calling("open", str(self.placed)):
            return self.backend.open(self.placed, options)

    def need_runtime(self) -> None:
        """Skip if the runtime is not installed."""
        try:
            self.backend.version()
        except BackendError as error:
            reason = f"the runtime is not here: {error.message}"
            raise NotApplicable(f"{reason} ({error.hint})" if error.hint else reason) from None

    @contextmanager
    def calling(self, member: str, title: str) -> Iterator[None]:
        """Turn whatever a member raises into a failure of the check."""
        try:
            yield
        except (ConformanceError, NotApplicable):
            raise
        except Exception as error:
            message = f"{member} raised {type(error).__name__}: {first_line(error)}"
            raise ConformanceError(f"{title}: {message}") from error

    def graph(self, model: onnx.ModelProto) -> Graph:
        """Return the snapshot of a model without rewriting it."""
        return snapshot(load(model))

    def refusals(self, graph: Graph, title: str) -> dict[int, Refusal]:
        """Return what the backend does not take: refused by every rule, for a stated reason."""
        with self.calling("rules", title):
            rules = self.backend.rules(self.context)
            answers = [dict(rule.refuse(graph, self.context)) for rule in rules]
        if not answers:
            raise NotApplicable("the backend proposes no rule for this target")
        for answer in answers:
            for node_id, refusal in answer.items():
                judge_refusal(graph.nodes, node_id, refusal, str(self.placed), title)
        common = answers[0]
        for answer in answers[1:]:
            common = {node: refusal for node, refusal in common.items() if node in answer}
        return common

    def take(self, graph: Graph, title: str) -> Region:
        """Return the region of all nodes; skip if the backend refuses one of them."""
        for refusal in self.refusals(graph, title).values():
            raise NotApplicable(f"refused: {refusal.code}: {refusal.reason}")
        return graph.whole

    def candidate(self, region: Region, border: Border | None = None) -> Candidate:
        """Return a region as a candidate; its border is plain if None."""
        plain = Candidate.plain(region, self.placed)
        return plain if border is None else replace(plain, inputs=border[0], outputs=border[1])

    def compile(self, region: Region, title: str, border: Border | None = None) -> Artifact:
        """Return what `compile` makes of a region that the rules took."""
        candidate = self.candidate(region, border)
        blocks = blocks_of(candidate)
        with self.calling("check", title):
            refusal = self.backend.check(candidate, self.context)
        if refusal is not None:
            if not isinstance(refusal, Refusal):
                raise ConformanceError(
                    f"{title}: check returned {refusal!r}, which is not a Refusal"
                )
            raise NotApplicable(f"refused by check: {refusal.code}: {refusal.reason}")
        with self.calling("the rules took it, but a pass", title):
            candidate, _ = self.pipeline.rewrite(candidate)
        with self.calling("the rules took it, but compile", title):
            artifact = self.backend.compile(candidate, self.context)
        judge_artifact(artifact, region, self.backend.name, title, blocks)
        return artifact

    def load(
        self, region: Region, artifact: Artifact, title: str, border: Border | None = None
    ) -> Loaded:
        """Return an artifact, loaded."""
        device = self.open()
        with self.calling("the rules took it, but load", title):
            executable = self.backend.load(artifact, device)
        blocks = blocks_of(self.candidate(region, border))
        return Loaded(region, artifact, device, executable, blocks)

    def build(self, region: Region, title: str, border: Border | None = None) -> Loaded:
        """Return a region, compiled and loaded."""
        return self.load(region, self.compile(region, title, border), title, border)

    def bind(self, loaded: Loaded, title: str) -> Bound:
        """Return a loaded region bound to fresh buffers."""
        with self.calling("bind", title):
            inputs = tuple(make_buffer(loaded.device, spec) for spec in loaded.artifact.inputs)
            outputs = tuple(make_buffer(loaded.device, spec) for spec in loaded.artifact.outputs)
            size = loaded.executable.scratch_bytes
            scratch = make_scratch(loaded.device, size) if size else None
            step = loaded.executable.bind(inputs, outputs, scratch)
        return Bound(loaded, inputs, outputs, step)

    def run(self, bound: Bound, values: Mapping[str, Any], title: str) -> dict[str, Any]:
        """Run a bound region once on these values and return its outputs; inputs stay as written.

        Args:
            bound: The region with its buffers.
            values: At least its inputs, by name.
            title: Names what is run in messages.
        """
        with self.calling("a step", title):
            bound.write(values)
            bound.spoil()
            bound.step()
            outputs, inputs = bound.read(), bound.read_inputs()
        for name, array in inputs.items():
            if difference(values[name], array, EXACT) is not None:
                raise ConformanceError(f"{title}: the step wrote to its input {name!r}")
        return outputs

    def verify(
        self,
        outputs: Mapping[str, Any],
        expected: Mapping[str, Any],
        title: str,
        factor: float = 1.0,
    ) -> None:
        """Compare outputs with what the reference says.

        Args:
            outputs: What the backend computed, by name.
            expected: At least the same names.
            title: Names what was run in messages.
            factor: How much wider than for one operator the tolerance is.
        """
        for name, array in outputs.items():
            dtype = getattr(expected[name], "dtype", None)
            key = "" if dtype is None else dtype.name
            tolerance = self.tolerances.get(key, EXACT).times(factor)
            problem = difference(expected[name], array, tolerance)
            if problem is not None:
                raise ConformanceError(f"{title}: output {name!r} ({key}): {problem}")

    def verify_region(
        self,
        region: Region,
        draws: Sequence[Mapping[str, Any]],
        title: str,
        factor: float = 1.0,
        border: Border | None = None,
    ) -> None:
        """Build a region and run it once per draw, on one set of buffers."""
        bound = self.bind(self.build(region, title, border), title)
        for position, values in enumerate(draws):
            again = f"{title}, run {position + 1} of one binding" if position else title
            self.verify(self.run(bound, values, again), values, again, factor)

    def _fallback(self, text: str, backends: Backends) -> str:
        """Return a complete kind that a partial one can stand beside, the reference if it can."""
        kind = Target(text).kind
        complete = [name for name in backends.by_kind if name != kind.name]
        complete.sort(key=lambda name: name != "reference")
        for name in complete:
            if kind.can_refine(get_kind(name)):
                return name
        raise ConformanceError(
            f"no installed backend can stand beside {text!r}; it refines {', '.join(kind.refines)}"
        )


def resolve(spelling: str | PathLike[str]) -> Backend:
    """Return the backend that a spelling names.

    Args:
        spelling: `module:attribute`, or `folder/file.py:attribute`, which is imported as a module
            of its folder; without an attribute it is `BACKEND`.

    Raises:
        SettingError: There is no such file, module or attribute, or it is not a backend.
    """
    text = fspath(spelling)
    place, colon, attribute = text.rpartition(":")
    if not colon or attribute.endswith(".py"):  # `C:\\file.py` has a colon too
        place, attribute = text, "BACKEND"
    module = _import_file(Path(place)) if place.endswith(".py") else _import(place)
    backend: Any = getattr(module, attribute, None)
    if not _is_backend(backend):
        backends = [name for name, value in vars(module).items() if _is_backend(value)]
        names = f"one of {', '.join(backends)}" if backends else "the name of a backend, as BACKEND"
        raise SettingError(
            f"{attribute!r} of {place!r} is not a backend", hint=f"give {place}:NAME with {names}"
        )
    return backend  # type: ignore[no-any-return]


def _is_backend(value: object) -> bool:
    return hasattr(value, "kinds") and not isinstance(value, type)


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise SettingError(
            f"there is no module {name!r}", hint="give a module or the path of a .py file"
        ) from error


def _import_file(path: Path) -> ModuleType:
    """Import a file by its name from its folder, so that another process can do so too."""
    if not path.is_file():
        raise SettingError(f"there is no file {str(path)!r}", hint="check the path")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    module = _import(path.stem)
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise SettingError(
            f"{str(path)!r} has the name of another module, {module.__file__}",
            hint="rename the file",
        )
    return module
