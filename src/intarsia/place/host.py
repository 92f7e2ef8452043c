# SPDX-License-Identifier: Apache-2.0
"""What runs the nodes that no target of a machine takes: its host, then what stands in for it.

The host runs shapes, control flow and whatever no target given takes. Where its kind refuses a
node, the next complete target in the host's memory has it, as a step of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.target import Target, VirtualDevice
from intarsia.target.hosts import deduce_host
from intarsia.target.priority import is_same

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.target import CompilationConfig

STAND_INS = ("onnxruntime", "reference")
"""The kinds that stand in for the host, in the order in which they are asked."""


def place_host(config: CompilationConfig) -> VirtualDevice:
    """Return the host of a machine as a placed target."""
    listed = VirtualDevice(device_id=0, target=config.host)
    return next((item for item in config.targets if is_same(item, listed)), listed)


def asked_host(config: CompilationConfig) -> tuple[VirtualDevice, ...]:
    """Return the host if it is not among the targets, and somebody named it."""
    host = place_host(config)
    is_deduced = config.host == deduce_host(config.fallback)
    return () if is_deduced or host in config.targets else (host,)


def host_targets(config: CompilationConfig, backends: Backends) -> tuple[VirtualDevice, ...]:
    """Return what may run the nodes that no target of a machine takes, in order.

    That is the host unless it is among the targets, and what stands in for it.

    Raises:
        BackendError: No backend serves the host that was asked for, or its runtime is missing.
    """
    host = place_host(config)
    found = []
    if host not in config.targets:
        if asked_host(config):
            backends.for_target(config.host).version()
        if config.host.kind.name in backends.by_kind:
            found.append(host)
    known = {item.target.kind.name for item in (*config.targets, *found) if item.target is not None}
    stand_ins = (kind for kind in STAND_INS if kind in backends.by_kind and kind not in known)
    return (*found, *(VirtualDevice(device_id=0, target=Target(kind)) for kind in stand_ins))
