# SPDX-License-Identifier: Apache-2.0
"""Which machine a description means, or which one is found here. Light: nothing of a model."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from intarsia.backends.api import Backend, Detection
from intarsia.backends.registry import Backends
from intarsia.errors import TargetError
from intarsia.target import CompilationConfig
from intarsia.target.priority import Overrides

logger = logging.getLogger("intarsia")


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
        if getattr(backend, "is_default", True)  # what nobody gets unasked is not looked for
        for detection in (detect_targets(backend),)
        for found in detection.targets
        if detection.is_default and not found.kind.is_hidden
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
    """Return a machine whose order nobody gave: what was found here, perhaps written as text."""
    return replace(config, reasons=replace(config.reasons, is_detected=True))


def detect_targets(backend: Backend) -> Detection:
    """Return what a backend finds on this machine; nothing, with a warning, if it fails."""
    try:
        return backend.detect()
    except Exception as error:  # a stranger's backend may raise anything
        logger.warning("backend %r failed to detect its targets: %s", backend.name, error)
        return Detection(reason=str(error))
