# SPDX-License-Identifier: Apache-2.0
"""From a model and a description of a machine to a program: the whole pipeline.

load -> resolve targets -> annotations -> passes before placement -> constraints, devices ->
capability -> assign -> passes after placement -> plan -> passes on regions, compile and load them;
a region that fails is taken from its target, and the placement is made again.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from intarsia.backends.api import Backend, Detection, ReasonCode
from intarsia.backends.registry import Backends, load_backends
from intarsia.errors import PlacementError, SettingError, TargetError, UnsupportedError
from intarsia.place.annotations import expand_functions, resolve_copies
from intarsia.place.assign import Policy, assign_targets
from intarsia.place.build import RegionBuilder
from intarsia.place.capability import ask_backends, make_contexts
from intarsia.place.constraints import Exclusions, annotate_pins, resolve_constraints
from intarsia.place.devices import memory_domains, plan_devices
from intarsia.place.draft import make_draft
from intarsia.place.foreign import annotate_foreign
from intarsia.place.pipeline import Pipeline
from intarsia.plan.placement import Placement
from intarsia.runtime.executor import PlanExecutable
from intarsia.settings import Settings
from intarsia.target import CompilationConfig
from intarsia.target.fields import rename_target_host
from intarsia.target.priority import Overrides

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
    layers: Mapping[str, str] | None = None,
    strict: bool = False,
    num_threads: int | None = None,
    backends: Backends | None = None,
    progress: Progress | None = None,
    target_host: Any = None,
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
        layers: From a layer's name in ONNX Runtime's `layer_ann`, or what it begins with, to the
            target of its nodes; `=name` means this name only. Device configurations of the model,
            annotations and pins win over it, in this order.
        strict: Whether it is an error if a node does not go to the first target that could have
            had it, or if a backend fails on a region.
        num_threads: Threads that one run may use; None means the setting.
        backends: The backends to use; None means all that are installed.
        progress: Told about the stages as they go.
        target_host: The old name of `host`; deprecated.

    Raises:
        ModelError: The model is malformed, or has a free dimension.
        TargetError: The target is unknown or malformed.
        PlacementError: A pin, exclusion or layer matches nothing, contradicts another, or is
            impossible.
        UnsupportedError: A node has no target; or, if `strict`, one fell back.
        BackendError: A backend is missing; or, if `strict`, failed.
    """
    from intarsia.graph.load import load as load_model
    from intarsia.graph.snapshot import snapshot

    if not isinstance(pins or {}, Mapping):
        raise PlacementError(
            f"pins are a mapping from pattern to target, not a {type(pins).__name__}",
            hint='write pins={"layer4/*": "onnxruntime"}',
        )
    tell = progress or (lambda stage, done, total: None)
    policy = _policy(placement)
    threads = thread_count(num_threads)
    if backends is None:
        backends = load_backends()
    config = resolve_targets(target, rename_target_host(host, target_host), backends)
    for placed in config.targets:
        assert placed.target is not None
        backends.for_target(placed.target).version()  # a missing runtime, before any work is done
    contexts = make_contexts(config, threads)
    pipeline = Pipeline.of(config, contexts, backends)
    tell("load", 0, 1)
    loaded = load_model(model, shapes)
    operators = {node.name or "": node.op_type for node in loaded.graph}
    pinned = annotate_pins(loaded, pins or {}, config, resolve_copies(loaded, config))
    pinned |= annotate_foreign(loaded, layers or {}, config)
    expand_functions(loaded)
    pinned |= resolve_copies(loaded, config)  # those that came in with functions
    tell("prepare", 0, 1)
    prepared, before = pipeline.prepare(loaded)
    rewrites = [f"{rewrite.name} x{rewrite.count}" for rewrite in prepared.rewrites]
    graph = snapshot(prepared.model)
    tell("place", 0, 1)
    constraints = resolve_constraints(graph, config, pinned, exclude, operators)
    devices = plan_devices(graph, constraints.pins, memory_domains(config, backends))
    capabilities = list(ask_backends(graph, contexts, backends))
    builder = RegionBuilder(graph, backends, pipeline, threads, strict, tell)
    while True:
        assignment = assign_targets(graph, config, capabilities, constraints, devices, policy)
        chosen = [config.targets[position] for position in assignment.choices]
        pieces, after = pipeline.arrange(graph, chosen)
        draft = make_draft(
            graph, config, capabilities, devices, assignment, pieces, policy, rewrites
        )
        if strict and draft.plan.placement.shortfall is not None:
            raise _strict_error(draft.plan.placement)
        failed = builder.build(draft)
        if failed is None:
            break
        position, refusals = failed
        capabilities[position] = capabilities[position].without(refusals)
    if draft.plan.placement.shortfall is not None:
        logger.warning(draft.plan.placement.shortfall)
    return builder.finish(draft, (*before, *after))


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


def resolve_targets(
    target: Any, host: Any, backends: Backends, overrides: Overrides | None = None
) -> CompilationConfig:
    """Return the canonical form of a machine; None means what the backends detect here.

    Args:
        target: The machine, in any form.
        host: The target that runs the plan itself; None means what the targets say.
        backends: Those that are asked what is here.
        overrides: Attributes for all targets of certain kinds.

    Raises:
        TargetError: The description is wrong, or nothing was detected.
    """
    if target is not None:
        return CompilationConfig.resolve(target, host=host, overrides=overrides)
    detected = [
        found
        for detection in map(_detect, backends.by_name.values())
        for found in detection.targets
        if detection.is_default and not found.kind.is_hidden
    ]
    if not any(found.kind.is_complete for found in detected):
        raise TargetError(
            "no target was given, and no complete one was found on this machine",
            hint="pip install 'intarsia[onnxruntime]', or pass target='reference' (slow)",
        )
    detected.sort(key=lambda found: found.kind.is_complete)  # partial ones first, else by name
    return CompilationConfig.resolve(detected, host=host, overrides=overrides)


def _detect(backend: Backend) -> Detection:
    try:
        return backend.detect()
    except Exception as error:  # a stranger's backend may raise anything
        logger.warning("backend %r failed to detect its targets: %s", backend.name, error)
        return Detection(reason=str(error))


def thread_count(num_threads: int | None) -> int:
    """Return the number of threads of one run.

    Raises:
        SettingError: It is below 1.
    """
    if num_threads is None:
        return Settings.from_environment().threads()
    try:
        count = operator.index(num_threads)
    except TypeError:
        count = 0
    if count < 1:
        raise SettingError(f"num_threads={num_threads!r} is not a number of threads", hint="use 1")
    return count


def _policy(placement: str) -> Policy:
    if placement not in PLACEMENTS:
        raise SettingError(
            f"placement {placement!r} is unknown",
            hint=f"use one of {', '.join(PLACEMENTS)}",
        )
    return Policy.GREEDY if placement == "auto" else Policy(placement)


def _strict_error(placement: Placement) -> UnsupportedError:
    first = next(item for item in placement.refusals if item.code is not ReasonCode.USER)
    return UnsupportedError(
        f"strict: {placement.shortfall}; first: {first}",
        refusals=placement.refusals,
        node=first.node,
        target=first.target,
        hint="leave strict off, or pin what may fall back",
    )
