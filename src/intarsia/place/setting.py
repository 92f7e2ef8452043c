# SPDX-License-Identifier: Apache-2.0
"""From a request to a setting: a prepared model on its machine, and what each target takes of it.

load -> annotations -> types, passes before placement -> constraints -> capabilities.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, TypeAlias

from intarsia.backends.artifact import refuse
from intarsia.backends.calling import calling
from intarsia.backends.registry import Backends
from intarsia.backends.values import BuildContext, Refusal
from intarsia.errors import (
    BackendError,
    IntarsiaError,
    InternalError,
    ModelError,
    PlacementError,
    ReasonCode,
    UnsupportedError,
)
from intarsia.graph.infer import adopt_types, infer_shapes
from intarsia.graph.model_info import ModelInfo
from intarsia.hashing import digest
from intarsia.place.annotations import Annotations, annotate_model
from intarsia.place.assign import assign_targets
from intarsia.place.constraints import Constraints, resolve_constraints
from intarsia.place.machine import (
    Machine,
    asked_host,
    check_attributes,
    host_targets,
    make_contexts,
    memory_domains,
)
from intarsia.place.pipeline import Pipeline
from intarsia.place.request import Progress, Request, quiet
from intarsia.plan.checking import CheckFinding, CheckReport, CheckVerdict, check_runners
from intarsia.plan.identity import Identity, machine_identity
from intarsia.plan.plan import PassRun
from intarsia.target import CompilationConfig
from intarsia.target.cpu_there import RUNNER

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.backends.backend import RegisteredBackend
    from intarsia.extents import Symbol
    from intarsia.graph.graph import Graph
    from intarsia.passes.prepare import PreparedModel
    from intarsia.target import PlacedTarget
    from intarsia.target.placed import MemoryDomain


logger = logging.getLogger("intarsia")

Bounds: TypeAlias = Mapping[str, tuple[int, int | None]]
"""By free dimension, its smallest and its largest size."""

PrepareAll: TypeAlias = "Callable[[ir.Model], PreparedModel]"
"""Prepares a model whose dimensions stay free."""

Answer: TypeAlias = tuple[Mapping[int, Refusal], Mapping[int, str]]
"""By node id, why a target does not take it; and why it does, where a rule says so."""


@dataclass(frozen=True, slots=True)
class Capability:
    """What one placed target takes.

    Attributes:
        target: The placed target.
        backend: Serves it.
        context: What the backend is given for it.
        answer: Asks the backend, once, when somebody wants to know: its query may take seconds,
            and no node may be left when it is its turn. Without a query, it takes all.
    """

    target: PlacedTarget
    backend: RegisteredBackend
    context: BuildContext
    answer: Callable[[], Answer] = lambda: ({}, {})

    @property
    def refusals(self) -> Mapping[int, Refusal]:
        """By node id, why it is not taken; every other node is."""
        return self.answer()[0]

    @property
    def whys(self) -> Mapping[int, str]:
        """By node id, why it is taken, where a rule says so."""
        return self.answer()[1]

    def without(self, refusals: Mapping[int, Refusal]) -> Capability:
        """Return the capability less some more nodes."""
        answer = {**self.refusals, **refusals}, self.whys
        return replace(self, answer=lambda: answer)


@dataclass(frozen=True, slots=True)
class Bodies:
    """The bodies of an If, Loop or Scan.

    Attributes:
        settings: By the attribute that holds it, each body as a model to be placed.
    """

    settings: Mapping[str, Setting]

    @property
    def is_pinned(self) -> bool:
        """Whether the user said something of a node inside."""
        return any(
            each.constraints.said or any(one.is_pinned for one in each.bodies.values())
            for each in self.settings.values()
        )

    @property
    def digest(self) -> str:
        """Hash of what the user said of nodes inside; empty if nothing."""
        said = [each.constraints.digest for each in self.settings.values()]
        return digest(said) if any(said) else ""

    def has_work(self, target: PlacedTarget) -> bool:
        """Whether a target takes a node inside."""
        for setting in self.settings.values():
            of_target = [each for each in setting.capabilities if each.target == target]
            for node in setting.graph.nodes:
                inner = setting.bodies.get(node.id)
                if inner is not None and inner.has_work(target):
                    return True
                if any(node.id not in capability.refusals for capability in of_target):
                    return True
        return False


@dataclass(frozen=True, slots=True)
class Setting:
    """All that placing a model needs.

    Attributes:
        config: The machine.
        backends: Serve its targets.
        pipeline: The passes that the targets bring.
        num_threads: Threads that one run may use.
        graph: The prepared model.
        constraints: Where its nodes may run.
        capabilities: What each target takes, in the user's order; then, if the model needs it,
            the same of the host and of what stands in for it.
        hosts: What may run the nodes that no target takes, whether it is needed or not.
        rewrites: What was done to the model before placement, as `name xCOUNT`.
        passes: The passes that did it.
        info: What the model says of itself.
        bodies: By node id, what the plan can run itself: the bodies of If, Loop and Scan.
    """

    config: CompilationConfig
    backends: Backends
    pipeline: Pipeline
    num_threads: int
    graph: Graph
    constraints: Constraints
    capabilities: tuple[Capability, ...]
    hosts: tuple[Capability, ...] = ()
    rewrites: tuple[str, ...] = ()
    passes: tuple[PassRun, ...] = ()
    info: ModelInfo = field(default_factory=ModelInfo)
    bodies: Mapping[int, Bodies] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[PlacedTarget, ...]:
        """Every target that may have nodes; others refer to it by its position."""
        return tuple(capability.target for capability in self.capabilities)

    @property
    def whole(self) -> Setting:
        """The same, in which targets have If, Loop and Scan whole."""
        return replace(self, bodies={}).with_hosts() if self.bodies else self

    def identity(self, *, is_exact: bool = False) -> Identity:
        """Return all that a plan for it depends on.

        Args:
            is_exact: Whether with the exact parts. To hash the weights takes a twentieth of the
                time that compiling resnet50 does, so it is done for verdicts alone.

        Raises:
            BackendError: A runtime is not installed; or if it is to be exact, a device is not
                there.
        """
        served = [(each.backend, each.context) for each in self.capabilities]
        identity = machine_identity(self.config, served, self.num_threads, is_exact=is_exact)
        if is_exact:
            from intarsia.graph.hashes import content_hash

            identity = replace(identity, content=content_hash(self.graph.whole))
        said = self.constraints.digest
        return replace(identity, model=self.graph.structure, constraints=said)

    def without(self, target: PlacedTarget | None, refusals: Mapping[int, Refusal]) -> Setting:
        """Return the setting in which one target refuses some more nodes.

        Without a target, the plan does: it does not run their bodies.
        """
        if target is None:
            bodies = {node: one for node, one in self.bodies.items() if node not in refusals}
            return replace(self, bodies=bodies).with_hosts()
        capabilities, hosts = (
            tuple(one.without(refusals) if one.target == target else one for one in some)
            for some in (self.capabilities, self.hosts)
        )
        return replace(self, capabilities=capabilities, hosts=hosts).with_hosts()

    @property
    def complete(self) -> Setting:
        """The same with the host, and what stands in for it, whether a node needs them or not."""
        own = self.capabilities[: len(self.config.targets)]
        return replace(self, capabilities=(*own, *self.hosts))

    def with_hosts(self) -> Setting:
        """Return the setting with the host, and what stands in for it, where a node needs them."""
        own, every = self.capabilities[: len(self.config.targets)], self.complete
        try:
            choices = assign_targets(every).choices
        except (PlacementError, UnsupportedError):  # placing says it again
            return every
        used = max(choices, default=0) + 1
        return replace(self, capabilities=every.capabilities[: max(len(own), used)])


def make_setting(request: Request, machine: Machine, tell: Progress = quiet) -> Setting:
    """Read and prepare a model, and ask every backend what it takes of it.

    Args:
        request: What is asked for.
        machine: What it means.
        tell: Told about the stages as they go.

    Raises:
        ModelError: The model is malformed, or has a free dimension.
        TargetError: An attribute of a target cannot be carried out here.
        PlacementError: A pin, exclusion or layer matches nothing or contradicts another.
        BackendError: A backend is missing, or failed.
    """
    return _open(request, machine, tell)


def make_free_setting(
    request: Request, machine: Machine, nominal: Mapping[str, int], bounds: Bounds
) -> tuple[Setting, Mapping[str, Symbol]]:
    """Return the same of a model with free dimensions, which stay free, and their bounds.

    Args:
        request: What is asked for.
        machine: What it means.
        nominal: Sizes for which decisions are taken, by free dimension.
        bounds: The smallest and largest size of each.

    Raises:
        UnsupportedError: The shape of a value does not follow from those of the inputs.
        IntarsiaError: As `make_setting`.
    """
    from intarsia.extents import Symbol
    from intarsia.passes.free_shapes import prepare_free

    symbols = {name: Symbol(name, max(low, 1), high) for name, (low, high) in bounds.items()}

    def prepare_all(model: ir.Model) -> PreparedModel:
        prepared, shapes = prepare_free(model, nominal, symbols)
        for node, problem in shapes.problems.items():
            raise UnsupportedError(f"node {node.name!r} ({node.op_type}): {problem}")
        symbols.update(shapes.symbols)
        for symbol in shapes.symbols.values():
            if nominal[symbol.name] % symbol.multiple:
                raise UnsupportedError(
                    f"dimension {symbol.name!r} is to be a multiple of {symbol.multiple}, and the "
                    f"size that is taken for it is {nominal[symbol.name]}"
                )
        return prepared

    return _open(request, machine, quiet, prepare_all), symbols


def _open(
    request: Request, machine: Machine, tell: Progress, prepare_all: PrepareAll | None = None
) -> Setting:
    """Read and prepare a model; with `prepare_all` its free dimensions stay free."""
    from intarsia.graph.load import load

    config, backends, num_threads = machine.config, machine.backends, request.threads
    if request.is_here:
        check_attributes(make_contexts(config, num_threads, asked_host(config)), backends)
    untagged = config.without_tags()  # what is made may be read where a tag is not known
    hosts = host_targets(untagged, backends)
    contexts = make_contexts(untagged, num_threads, hosts, request.sums)
    pipeline = Pipeline.of(untagged, contexts, backends)
    tell("load", 0, 1)
    loaded = load(request.model, request.shapes, stays_free=prepare_all is not None)
    annotations = annotate_model(loaded, request, config)
    scene = _Scene(request, machine, untagged, contexts, pipeline, tell)
    return scene.set(loaded, annotations, prepare_all, is_rewritten=request.is_rewritten)


@dataclass(frozen=True, slots=True)
class _Scene:
    """What a model and all bodies in it have in common.

    Attributes:
        request: What is asked for.
        machine: What it means.
        config: The machine without tags.
        contexts: By target, what its backend is given.
        pipeline: The passes that the targets bring.
        tell: Told about the stages as they go.
    """

    request: Request
    machine: Machine
    config: CompilationConfig
    contexts: Mapping[PlacedTarget, BuildContext]
    pipeline: Pipeline
    tell: Progress

    def set(
        self,
        loaded: ir.Model,
        annotations: Annotations,
        prepare_all: PrepareAll | None = None,
        *,
        is_rewritten: bool = False,
    ) -> Setting:
        """Prepare a model, or a body, and ask every backend what it takes of it.

        Args:
            loaded: Ours to change; what was said of its nodes is written on them.
            annotations: That, for the whole model.
            prepare_all: Of a model with free dimensions, does all that `prepare` does.
            is_rewritten: Whether passes that round otherwise have run, and are not to again.
        """
        from intarsia.passes.free_shapes import with_late_sizes
        from intarsia.passes.prepare import ROUNDING, prepare

        backends = self.machine.backends
        self.tell("prepare", 0, 1)
        _fill_types(loaded, self.contexts, backends)
        passes: list[PassRun] = []
        said = annotations.of(loaded)
        if prepare_all is None:
            done = ROUNDING if is_rewritten else frozenset()
            prepared = prepare(loaded, self.pipeline.before(passes, without=done))
            # What is measured has known sizes, and so has exported code.
            if self.request.is_here and self.request.placement != "collage":
                prepared = with_late_sizes(prepared)
        else:
            prepared = prepare_all(loaded)
        self.tell("place", 0, 1)
        graph = prepared.graph
        # Where dimensions are free, a node with bodies goes whole to a backend that takes it.
        bodies = {} if prepare_all is not None else dict(self.bodies(graph, annotations))
        inner = {node: one.digest for node, one in bodies.items()}
        exclude = self.request.exclude
        constraints = resolve_constraints(graph, self.machine, said, exclude, inner)
        capabilities = [_capability(graph, backends, one) for one in self.contexts.values()]
        given = len(self.config.targets)
        return Setting(
            self.config,
            backends,
            self.pipeline,
            self.request.threads,
            graph,
            constraints,
            tuple(capabilities[:given]),
            tuple(capabilities[given:]),
            tuple(f"{rewrite.name} x{rewrite.count}" for rewrite in prepared.rewrites),
            tuple(passes),
            prepared.info,
            bodies,
        ).with_hosts()

    def bodies(self, graph: Graph, annotations: Annotations) -> Iterator[tuple[int, Bodies]]:
        """Yield the nodes that the plan can run itself, with their bodies.

        What was said of such a node holds for all of it, so it is none of them.
        """
        from intarsia.place.bodies import list_bodies

        for node, models in list_bodies(graph):
            if isinstance(models, str):
                logger.info("%s is not a step of the plan: %s", node.name, models)
            elif node.device is None:
                try:
                    settings = {name: self.set(one, annotations) for name, one in models.items()}
                except ModelError as error:  # a branch that is never taken may be impossible
                    logger.info("%s is not a step of the plan: %s", node.name, error.message)
                    continue
                yield node.id, Bodies(settings)


def open_setting(
    graph: Graph,
    machine: Machine,
    num_threads: int,
    hosts: Sequence[PlacedTarget] = (),
    borders: Mapping[int, MemoryDomain] | None = None,
) -> Setting:
    """Return a setting in which every target takes every node, for a plan that others decided.

    Args:
        graph: A prepared model, or a part of one.
        machine: Where it is to run.
        num_threads: Threads that one run may use.
        hosts: What runs nodes that no target of the machine takes.
        borders: By value id, the memory of each input and output that is not the host's.
    """
    config, backends = machine.config, machine.backends
    contexts = make_contexts(config, num_threads, hosts)
    return Setting(
        config,
        backends,
        Pipeline.of(config, contexts, backends),
        num_threads,
        graph,
        Constraints(memory_domains(config, backends), borders=borders or {}),
        tuple(
            Capability(placed, backends.for_target(placed.target), context)
            for placed, context in contexts.items()
        ),
    )


def _capability(graph: Graph, backends: Backends, context: BuildContext) -> Capability:
    """Return what a target takes.

    Raises:
        BackendError: A target that the user asked for has no backend here. It is also raised when
            the backend is asked and fails.
    """
    backend = backends.for_target(context.target.target)
    return Capability(
        context.target, backend, context, cache(partial(_ask, graph, backend, context))
    )


def _ask(graph: Graph, backend: RegisteredBackend, context: BuildContext) -> Answer:
    """Return the refusals of nodes that no rule takes, and what the rules say of the others."""
    missing = _why_missing(backend)
    if missing is not None:
        return {
            node.id: refuse(node, context, ReasonCode.UNAVAILABLE, missing.message, missing.hint)
            for node in graph.nodes
        }, {}
    if not backend.takes_free and any(value.is_free and value.is_static for value in graph.values):
        return {
            node.id: refuse(
                node,
                context,
                ReasonCode.DYNAMIC_SHAPE,
                "the model has free dimensions, and this is for all sizes",
                "it is taken in a program that is compiled for some sizes",
            )
            for node in graph.nodes
        }, {}
    with calling(backend.name, context, "when asked what it takes"):
        rules = tuple(backend.rules(context))
        answers = [dict(rule.refuse(graph, context)) for rule in rules]
    if not answers:
        return {
            node.id: refuse(node, context, ReasonCode.UNSUPPORTED_OP, "the backend has no rule")
            for node in graph.nodes
        }, {}
    first, *others = answers
    refusals = {
        node: refusal
        for node, refusal in first.items()
        if all(node in refused for refused in others)
    }
    whys: dict[int, str] = {}
    for rule, refused in zip(rules, answers, strict=True):
        for node in graph.nodes if rule.why else ():
            if node.id not in refused:
                whys.setdefault(node.id, rule.why)
    return refusals, whys


def _why_missing(backend: RegisteredBackend) -> BackendError | None:
    """Return why a backend cannot be used here: what stands in for the host may be missing."""
    try:
        backend.version()
    except BackendError as error:
        return error
    return None


def _fill_types(
    model: ir.Model, contexts: Mapping[PlacedTarget, BuildContext], backends: Backends
) -> None:
    """Ask the backends of a machine, in order, for the types that the model leaves open.

    What none of them knows stays open: no region begins or ends there.

    Args:
        model: Loaded; ours to change.
        contexts: By target, what its backend is given.
        backends: Serve the targets.
    """
    for placed, context in contexts.items():
        if not _has_open(model):
            return
        backend = backends.for_target(placed.target)
        if backend.infer_types is None:
            continue
        try:
            with calling(backend.name, context, "when asked for types"):
                types = backend.infer_types(model, context)
        except InternalError:
            raise
        except IntarsiaError as error:
            logger.info("%s reports no types: %s", placed, error.message)
            continue
        adopt_types(model, types)
        infer_shapes(model)


def _has_open(model: ir.Model) -> bool:
    return any(value.name and value.type is None for node in model.graph for value in node.outputs)


_MOST_NODES = 5


def check_setting(file: str, setting: Setting) -> CheckReport:
    """Return which targets take a model's nodes, without compiling.

    Args:
        file: Where the model came from.
        setting: The prepared model and the machine.
    """
    attrs = [capability.target.target.attrs for capability in setting.capabilities]
    runners = [one[RUNNER] for one in attrs if one.get(RUNNER)]
    return CheckReport.of(file, (*_model(setting), *_capable(setting), *check_runners(runners)))


def _capable(setting: Setting, place: str = "") -> Iterator[CheckFinding]:
    """Yield what each target takes of a model, then of the bodies that the plan can run itself.

    Args:
        setting: The model or a body.
        place: Of a body, where it is.
    """
    yield from _targets(setting, place)
    yield from _homeless(setting)
    for node, bodies in setting.bodies.items():
        for name, inner in bodies.settings.items():
            yield from _capable(inner, f"{place}{setting.graph.nodes[node].name}/{name}: ")


def _model(setting: Setting) -> Iterator[CheckFinding]:
    graph = setting.graph
    inputs = ", ".join(str(graph.values[value].name) for value in graph.inputs)
    message = f"{len(graph.nodes)} nodes after preparation; inputs {inputs or 'none'}"
    yield CheckFinding("model", CheckVerdict.OK, message)


def _targets(setting: Setting, place: str) -> Iterator[CheckFinding]:
    count = len(setting.graph.nodes)
    for capability in setting.capabilities:
        codes = Counter(str(refusal.code) for refusal in capability.refusals.values())
        why = ", ".join(f"{code} {number}" for code, number in codes.most_common())
        message = f"takes {count - len(capability.refusals)} of {count} nodes"
        yield CheckFinding(
            place + str(capability.target), CheckVerdict.OK, message + (f": {why}" if why else "")
        )


def _homeless(setting: Setting) -> Iterator[CheckFinding]:
    """Name nodes that every target refuses, with the reason of the last: that is the fallback."""
    homeless = [
        node
        for node in setting.graph.nodes
        if node.id not in setting.bodies
        and all(node.id in capability.refusals for capability in setting.capabilities)
    ]
    for node in homeless[:_MOST_NODES]:
        refusal = setting.capabilities[-1].refusals[node.id]
        message = f"{node.op_type} is not taken by any target: {refusal.reason}"
        hint = refusal.hint or "add a target that takes it, such as onnxruntime"
        yield CheckFinding(f"node {node.name}", CheckVerdict.INCOMPATIBLE, message, hint)
    if len(homeless) > _MOST_NODES:
        message = f"{len(homeless) - _MOST_NODES} more are not taken by any target"
        yield CheckFinding("nodes", CheckVerdict.INCOMPATIBLE, message)
