# SPDX-License-Identifier: Apache-2.0
"""The part of an identity that is known before a model is read: the machine, and its code."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from msgspec import UNSET

from intarsia.backends.sources import code_identity, code_version
from intarsia.cost.fingerprint import this_machine
from intarsia.errors import BackendError
from intarsia.plan.identity import Identity

if TYPE_CHECKING:
    from intarsia.backends.backend import RegisteredBackend
    from intarsia.backends.values import BuildContext
    from intarsia.target import CompilationConfig


def machine_identity(
    config: CompilationConfig,
    served: Sequence[tuple[RegisteredBackend, BuildContext]],
    num_threads: int,
    *,
    is_exact: bool = False,
) -> Identity:
    """Return what results depend on beside the model: the machine, and the code that serves it.

    Args:
        config: The machine.
        served: Of each target that may have nodes, its backend and what that is given.
        num_threads: Threads that one run may use.
        is_exact: Whether with `code`.

    Raises:
        BackendError: A runtime is not installed; or if it is to be exact, a device is not there.
    """
    own, machine = version("intarsia"), this_machine()
    devices = {str(context.target): _device_of(backend, context) for backend, context in served}
    code = (*(code_version(*each) for each in served), f"intarsia {own}") if is_exact else UNSET
    return Identity(
        model="",
        targets=config.text,
        versions={"intarsia": own} | {backend.name: backend.version() for backend, _ in served},
        machine=machine.digest,
        machine_text=machine.text,
        threads=num_threads,
        devices={target: device for target, device in devices.items() if device is not None},
        code=code,
    )


def _device_of(backend: RegisteredBackend, context: BuildContext) -> str | None:
    """Return which device a target is, "" if it is not there; None if all of a kind are alike."""
    try:
        return code_identity(backend, context).device or None
    except BackendError:  # running on it raises the same again
        return ""
