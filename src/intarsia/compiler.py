# SPDX-License-Identifier: Apache-2.0
"""From a model and a description of a machine to a program: the whole pipeline.

load -> resolve targets -> pins -> prepare -> capability -> assign -> cut -> plan -> compile and
load regions; a region that fails is taken from its target, and the placement is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.backends.api import (
    Artifact,
    Device,
    Executable,
    ReasonCode,
    Refusal,
    RunOptions,
)
from intarsia.backends.candidate import Candidate
from intarsia.backends.registry import Backends, load_backends
from intarsia.errors import (
    BackendError,
    IntarsiaError,
    SettingError,
    TargetError,
    UnsupportedError,
)
from intarsia.graph.region import Region
from intarsia.place.assign import Assignment, Policy, assign_targets
from intarsia.place.capability import Capability, ask_backends
from intarsia.place.constraints import Exclusions, annotate_pins, resolve_constraints
from intarsia.place.order import cut_regions
from intarsia.place.schedule import ScheduledRegion, make_plan
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.plan.placement import NodePlacement, PlacedRegion, Placement
from intarsia.plan.plan import Plan
from intarsia.runtime.executor import PlanExecutable, RegionLoader
from intarsia.settings import Settings
from intarsia.target import CompilationConfig

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph

PLACEMENTS = ("auto", "greedy", "manual")
"""Values of `placement`; `auto` is greedy until costs are measured."""

Progress = Callable[[str, int, int], None]
"""Called with a stage, how many of its steps are done, and how many there are."""

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
    strict: bool = False,
    num_threads: int | None = None,
    backends: Backends | None = None,
    progress: Progress | None = None,
) -> PlanExecutable:
    """Compile an ONNX model for a machine.

    Args:
        model: A path, the bytes of a `ModelProto`, a `ModelProto`, or an `onnx_ir.Model`.
        target: The machine, in any form of a target; several targets are in order of priority.
            None means what is found on this machine.
        host: The target that runs shapes and the plan itself; None means what the targets say.
        shapes: Dimensions of inputs that the model leaves free, by name.
        placement: `auto`, `greedy` (each node on the first target that takes it) or `manual`
            (only what is pinned or annotated leaves the fallback).
        pins: From a glob over node names to the target that must run them.
        exclude: What must not run where: `{"openvino": "Resize"}` or `["openvino:Resize"]`.
        strict: Whether it is an error if a node does not go to the first target that could have
            had it, or if a backend fails on a region.
        num_threads: Threads that one run may use; None means the setting.
        backends: The backends to use; None means all that are installed.
        progress: Told about the stages as they go.

    Raises:
        ModelError: The model is malformed, or has a free dimension.
        TargetError: The target is unknown or malformed.
        PlacementError: A pin or exclusion matches nothing, contradicts another, or is impossible.
        UnsupportedError: A node has no target; or, if `strict`, one fell back.
        BackendError: A backend is missing; or, if `strict`, failed.
    """
    from intarsia.graph.load import load as load_model
    from intarsia.graph.snapshot import snapshot
    from intarsia.passes.prepare import prepare

    tell = progress or (lambda stage, done, total: None)
    policy = _policy(placement)
    threads = thread_count(num_threads)
    if backends is None:
        backends = load_backends()
    config = resolve_targets(target, host, backends)
    for placed in config.targets:
        assert placed.target is not None
        backends.for_target(placed.target).version()  # a missing runtime, before any work is done
    tell("load", 0, 1)
    loaded = load_model(model, shapes)
    names = [text or "" for node in loaded.graph for text in (node.name, node.op_type)]
    pinned = annotate_pins(loaded, pins or {}, config)
    tell("prepare", 0, 1)
    prepared = prepare(loaded)
    graph = snapshot(prepared.model)
    tell("place", 0, 1)
    constraints = resolve_constraints(graph, config, pinned, exclude, names)
    capabilities = list(ask_backends(graph, config, backends, threads))
    builder = _Builder(graph, backends, threads, strict, tell)
    while True:
        assignment = assign_targets(graph, config, capabilities, constraints, policy)
        draft = _draft(graph, config, capabilities, assignment, policy, prepared.rewrites)
        if strict and draft.plan.placement.shortfall is not None:
            raise _strict_error(draft.plan.placement)
        failed = builder.build(draft)
        if failed is None:
            break
        position, refusals = failed
        capabilities[position] = capabilities[position].without(refusals)
    if draft.plan.placement.shortfall is not None:
        logger.warning(draft.plan.placement.shortfall)
    return builder.finish(draft)


def load(
    path: str | Path, *, num_threads: int | None = None, backends: Backends | None = None
) -> PlanExecutable:
    """Load a package that `save` wrote.

    Args:
        path: The file.
        num_threads: Threads that one run may use; None means the setting.
        backends: The backends to use; None means all that are installed.

    Raises:
        PackageError: The file is no package, is damaged, or is of a newer format.
        BackendError: A backend that the package needs is missing, or refused it.
    """
    from intarsia.runtime.package import load_package

    return load_package(path, backends or load_backends(), thread_count(num_threads))


def resolve_targets(target: Any, host: Any, backends: Backends) -> CompilationConfig:
    """Return the canonical form of a machine; None means what the backends detect here.

    Raises:
        TargetError: The description is wrong, or nothing was detected.
    """
    if target is not None:
        return CompilationConfig.resolve(target, host=host)
    detected = [
        found
        for backend in backends.by_name.values()
        for found in backend.detect().targets
        if not found.kind.is_hidden
    ]
    if not any(found.kind.is_complete for found in detected):
        raise TargetError(
            "no target was given, and no complete one was found on this machine",
            hint="pip install 'intarsia[onnxruntime]', or pass target='reference' (slow)",
        )
    detected.sort(key=lambda found: found.kind.is_complete)  # partial ones first, else by name
    return CompilationConfig.resolve(detected, host=host)


def thread_count(num_threads: int | None) -> int:
    """Return the number of threads of one run.

    Raises:
        SettingError: It is below 1.
    """
    if num_threads is None:
        return Settings.from_environment().threads()
    if num_threads < 1:
        raise SettingError(f"num_threads={num_threads} is not a number of threads", hint="use 1")
    return num_threads


def _policy(placement: str) -> Policy:
    if placement not in PLACEMENTS:
        raise SettingError(
            f"placement {placement!r} is unknown",
            hint=f"use one of {', '.join(PLACEMENTS)}",
        )
    return Policy.GREEDY if placement == "auto" else Policy(placement)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A plan with the regions that are to be compiled for it."""

    plan: Plan
    regions: tuple[Region, ...]
    positions: tuple[int, ...]
    capabilities: tuple[Capability, ...]


def _draft(
    graph: Graph,
    config: CompilationConfig,
    capabilities: Sequence[Capability],
    assignment: Assignment,
    policy: Policy,
    rewrites: Sequence[Any],
) -> _Draft:
    cut = cut_regions(graph, assignment.choices)
    domains = [HOST_DOMAIN]
    scheduled: list[ScheduledRegion] = []
    placed: list[PlacedRegion] = []
    for position, nodes in cut:
        capability = capabilities[position]
        domain = config.device_of(capability.target).memory_domain
        if domain not in domains:
            domains.append(domain)
        scheduled.append(ScheduledRegion(Region.of(graph, nodes), domains.index(domain)))
        members = (graph.nodes[node] for node in nodes)
        placed.append(
            PlacedRegion(
                str(capability.target),
                domain_text(domain),
                capability.backend.name,
                tuple(
                    NodePlacement(node.name, node.op_type, assignment.whys[node.id], node.origins)
                    for node in members
                ),
            )
        )
    placement = Placement(
        policy.value,
        tuple(str(target) for target in config.targets),
        str(config.fallback),
        tuple(placed),
        assignment.refusals,
    )
    plan = make_plan(
        graph,
        scheduled,
        placement,
        [domain_text(domain) for domain in domains],
        [f"{rewrite.name} x{rewrite.count}" for rewrite in rewrites],
    )
    regions = tuple(item.region for item in scheduled)
    return _Draft(plan, regions, tuple(position for position, _ in cut), tuple(capabilities))


def _strict_error(placement: Placement) -> UnsupportedError:
    first = next(item for item in placement.refusals if item.code is not ReasonCode.USER)
    return UnsupportedError(
        f"strict: {placement.shortfall}; first: {first}",
        refusals=placement.refusals,
        node=first.node,
        target=first.target,
        hint="leave strict off, or pin what may fall back",
    )


@dataclass(slots=True)
class _Builder:
    """Compiles and loads regions; what is done stays done while others are placed anew."""

    graph: Graph
    backends: Backends
    num_threads: int
    strict: bool
    tell: Progress
    done: dict[tuple[bool, str, int], tuple[Artifact, Executable]] = field(default_factory=dict)
    loaders: dict[bool, RegionLoader] = field(default_factory=dict)

    def build(self, draft: _Draft) -> tuple[int, dict[int, Refusal]] | None:
        """Compile every region; return the target position and nodes of the first that fails."""
        total = len(draft.regions)
        for index, (region, position) in enumerate(
            zip(draft.regions, draft.positions, strict=True)
        ):
            self.tell("compile", index, total)
            capability = draft.capabilities[position]
            key = (draft.plan.is_mixed, str(capability.target), region.bits)
            if key in self.done:
                continue
            device = draft.plan.placement.regions[index].device
            try:
                self.done[key] = self.compile_region(draft, capability, region, device)
            except BackendError as error:
                if self.strict:
                    raise
                logger.info("%s failed on a region: %s", capability.target, error.message)
                return position, self.blame(draft, capability, region, device, error)
        self.tell("compile", total, total)
        return None

    def compile_region(
        self, draft: _Draft, capability: Capability, region: Region, device: str
    ) -> tuple[Artifact, Executable]:
        candidate = Candidate.plain(region, capability.target)
        backend = capability.backend
        try:
            refusal = backend.check(candidate, capability.context)
            if refusal is None:
                artifact = backend.compile(candidate, capability.context)
                return artifact, self.loader(draft).load(artifact, device)
        except IntarsiaError:
            raise
        except Exception as error:  # a stranger's backend may raise anything
            raise BackendError(
                f"backend {backend.name!r} failed on a region: {type(error).__name__}: {error}",
                backend=backend.name,
                target=str(capability.target),
            ) from error
        raise BackendError(str(refusal), backend=backend.name, node=refusal.node)

    def blame(
        self,
        draft: _Draft,
        capability: Capability,
        region: Region,
        device: str,
        error: BackendError,
    ) -> dict[int, Refusal]:
        """Return refusals for the nodes that fail alone, or for all if none does."""
        from intarsia.graph.hashes import shape_hash

        failures: dict[str, str | None] = {}
        refused: dict[int, str] = {}
        nodes = region.nodes
        for node_id in nodes if len(nodes) > 1 else ():
            single = Region.of(self.graph, (node_id,))
            key = shape_hash(single)
            if key not in failures:
                try:
                    self.compile_region(draft, capability, single, device)
                    failures[key] = None
                except BackendError as alone:
                    failures[key] = alone.message
            message = failures[key]
            if message is not None:
                refused[node_id] = message
        if not refused:
            refused = dict.fromkeys(nodes, error.message)
        return {
            node_id: Refusal(
                self.graph.nodes[node_id].name,
                self.graph.nodes[node_id].op_type,
                str(capability.target),
                ReasonCode.COMPILE_FAILED,
                message,
            )
            for node_id, message in refused.items()
        }

    def loader(self, draft: _Draft) -> RegionLoader:
        is_mixed = draft.plan.is_mixed
        if is_mixed not in self.loaders:
            options = RunOptions(self.num_threads, is_mixed)
            self.loaders[is_mixed] = RegionLoader(self.backends, options)
        return self.loaders[is_mixed]

    def finish(self, draft: _Draft) -> PlanExecutable:
        from intarsia.graph.extract import constant_array

        keys = [
            (draft.plan.is_mixed, str(draft.capabilities[position].target), region.bits)
            for region, position in zip(draft.regions, draft.positions, strict=True)
        ]
        loader = self.loader(draft)
        devices: list[Device] = [loader.device(text) for text in draft.plan.devices]
        constants = {
            value.name: constant_array(value)
            for value in (self.graph.values[i] for i in self.graph.outputs)
            if value.constant is not None
        }
        return PlanExecutable(
            draft.plan,
            [self.done[key][0] for key in keys],
            [self.done[key][1] for key in keys],
            devices,
            constants,
        )
