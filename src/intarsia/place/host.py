# SPDX-License-Identifier: Apache-2.0
"""What runs the nodes that no target of a machine takes: its host, then what stands in for it.

The host runs shapes, control flow and whatever no target given takes. Where its kind refuses a
node, the next complete target in the host's memory has it, as a step of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.target import PlacedTarget, Target
from intarsia.target.hosts import deduce_host

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.target import CompilationConfig

STAND_INS = ("onnxruntime", "reference")
"""The kinds that stand in for the host, in the order in which they are asked."""


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
    stand_ins = (kind for kind in STAND_INS if kind in backends.by_kind and kind not in known)
    return (*found, *(PlacedTarget(target=Target(kind)) for kind in stand_ins))
