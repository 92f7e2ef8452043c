# SPDX-License-Identifier: Apache-2.0
"""Which machine a description means, or which one is found here, and what its host is.

The host runs shapes, control flow and whatever no target given takes. Where its kind refuses a
node, the next complete target in the host's memory has it, as a step of its own.

Light: nothing of a model is imported.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from intarsia.backends.backend import RegisteredBackend
from intarsia.backends.registry import Backends
from intarsia.backends.values import Detection
from intarsia.errors import TargetError
from intarsia.target import CompilationConfig, PlacedTarget, Target, list_stand_ins
from intarsia.target.hosts import deduce_host
from intarsia.target.priority import Overrides

logger = logging.getLogger("intarsia")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, and what serves its targets.

    Attributes:
        config: Its canonical form.
        backends: Serve its targets.
    """

    config: CompilationConfig
    backends: Backends


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
    ranked = [
        (detection.rank, found.kind.is_complete, found)
        for backend in backends.by_name.values()
        if backend.is_default  # what is not a default is not looked for
        for detection in (detect_targets(backend),)
        for found in detection.targets
        if not found.kind.is_hidden
    ]
    ranked.sort(key=lambda item: item[:2])  # of one rank partial ones first, else by name
    detected = [found for *_, found in ranked]
    if not any(found.kind.is_complete for found in detected):
        raise TargetError(
            "no target was given, and no complete one was found on this machine",
            hint="pip install 'intarsia[onnxruntime]', or pass target='reference' (slow)",
        )
    return as_detected(CompilationConfig.resolve(detected, host=host, overrides=overrides))


def as_detected(config: CompilationConfig) -> CompilationConfig:
    """Return a machine that was found here, perhaps written as text: the user gave no order."""
    return replace(config, reasons=replace(config.reasons, is_detected=True))


def detect_targets(backend: RegisteredBackend) -> Detection:
    """Return what a backend finds on this machine; nothing, with a warning, if it fails."""
    try:
        return backend.detect()
    except Exception as error:  # a plug-in may raise anything
        logger.warning("backend %r failed to detect its targets: %s", backend.name, error)
        return Detection(reason=str(error))


def asked_host(config: CompilationConfig) -> tuple[PlacedTarget, ...]:
    """Return the host if it is not among the targets, and somebody named it."""
    host = config.placed_host
    is_deduced = config.host == deduce_host(config.fallback)
    return () if is_deduced or host in config.targets else (host,)


def host_targets(config: CompilationConfig, backends: Backends) -> tuple[PlacedTarget, ...]:
    """Return what may run the nodes that no target of a machine takes, in order.

    That is the host unless it is among the targets, and what stands in for it.

    Raises:
        BackendError: No backend serves the host that was asked for, or its runtime is missing.
    """
    host = config.placed_host
    found = []
    if host not in config.targets:
        if asked_host(config):
            backends.for_target(config.host).version()
        if config.host.kind.name in backends.by_kind:
            found.append(host)
    known = {item.target.kind.name for item in (*config.targets, *found)}
    stand_ins = (
        kind for kind in list_stand_ins() if kind in backends.by_kind and kind not in known
    )
    return (*found, *(PlacedTarget(target=Target(kind)) for kind in stand_ins))
