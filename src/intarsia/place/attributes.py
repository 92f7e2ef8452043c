# SPDX-License-Identifier: Apache-2.0
"""Whether what the targets say is what is compiled: every attribute has an effect, or is named."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from intarsia.backends.api import Checking
from intarsia.errors import TargetError
from intarsia.place.hooks import calling

if TYPE_CHECKING:
    from intarsia.backends.api import Backend
    from intarsia.backends.candidate import BuildContext
    from intarsia.backends.registry import Backends
    from intarsia.target import PlacedTarget, Target, VirtualDevice

logger = logging.getLogger("intarsia")

LIBRARIES = "libs"
_LIBRARIES = '; list a library as a target of its own, before what it refines: "dnnl, llvm"'
_DESCRIBING = "model"
"""The attribute that only says what a device is called; a tag may say it unasked."""


def check_attributes(contexts: Mapping[PlacedTarget, BuildContext], backends: Backends) -> None:
    """Check the targets of a machine before a model is compiled for it here.

    Warns of attributes that change nothing.

    Raises:
        BackendError: A target has no backend, or its runtime is not installed.
        TargetError: An attribute cannot be carried out, or means another machine.
    """
    for placed, context in contexts.items():
        backend = backends.for_target(placed.target)
        backend.version()  # a missing runtime, before any work is done
        _check_device_type(placed.target, context.config.device_of(placed))
        with calling(backend.name, context, "to check its target"):
            in_vain = tuple(_without_effect(placed.target, backend))
        if in_vain:
            names = ", ".join(f"-{name}" for name in in_vain)
            note = _LIBRARIES if LIBRARIES in in_vain else ""
            logger.warning("no effect on what is compiled for '%s': %s%s", placed, names, note)


def _check_device_type(target: Target, device: VirtualDevice) -> None:
    number = target.attrs.get("target_device_type")
    if (
        number is None
        or device.device_type is None
        or device.device_type == target.kind.device_type
    ):
        return
    raise TargetError(
        f"target_device_type: programs of {target.kind.name} run on "
        f"{target.kind.device_type.name}, not on {device.device_type.name}",
        target=str(target),
        hint="leave it out: it describes devices that nothing is compiled for here",
    )


def _without_effect(target: Target, backend: Backend) -> Iterable[str]:
    if target.attrs.get(LIBRARIES):
        yield LIBRARIES
    if _DESCRIBING in target.attrs and not target.tags:
        yield _DESCRIBING
    if isinstance(backend, Checking):
        yield from backend.check_target(target)
