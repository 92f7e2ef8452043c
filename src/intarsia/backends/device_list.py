# SPDX-License-Identifier: Apache-2.0
"""Devices as targets count them: those that pass their self-test, one of them by its number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from intarsia.errors import BackendError
from intarsia.process import selftest


class NamedDevice(Protocol):
    """What the devices that drivers list have in common."""

    @property
    def name(self) -> str:
        """For people."""


Named = TypeVar("Named", bound=NamedDevice)


def numbered(kind: str, devices: Sequence[NamedDevice]) -> tuple[str, ...]:
    """Return a line for each device, as targets count."""
    return tuple(f"{kind}:{number} {one.name}" for number, one in enumerate(devices))


def pick_device(
    devices: Sequence[Named],
    number: int,
    kind: str,
    title: str,
    target: str,
    backend: str,
    others: Callable[[], Sequence[str]] = tuple,
) -> Named:
    """Return a device by its number.

    Args:
        devices: Those that there are.
        number: Which one.
        kind: Of the target.
        title: What one is: `OpenCL device`.
        target: Text of the target that is on it.
        backend: Name of the backend.
        others: Returns what else the hint says.

    Raises:
        BackendError: There is no such device; the hint lists those that there are.
    """
    if number < len(devices):
        return devices[number]
    hint = "; ".join((*say_devices(kind, devices), *others()))
    raise BackendError(f"there is no {title} {number}", backend=backend, target=target, hint=hint)


def say_devices(kind: str, devices: Sequence[NamedDevice]) -> list[str]:
    """Return for each device which one it is, as targets count."""
    return [f"{kind}:{number} is {one.name}" for number, one in enumerate(devices)]


def those_that_passed(
    devices: Callable[[], Sequence[Named]],
    tried: Callable[[], selftest.TriedDevices],
    backend: str,
    title: str,
    hint: str,
) -> tuple[Named, ...]:
    """Return the devices that pass their self-test; in a process of a trial, all.

    Args:
        devices: Lists them in this process; not asked before one has passed.
        tried: Tries them.
        backend: Name of the backend.
        title: What one is.
        hint: What brings one.

    Raises:
        BackendError: There is none.
    """
    if selftest.is_inside():
        return tuple(devices())
    found = tried()
    passed = set(found.passed) - {name for name, _ in found.failed}
    offered = tuple(one for one in devices() if one.name in passed) if passed else ()
    if not offered:
        failures = "; ".join(f"{name}: {problem}" for name, problem in found.failed)
        raise BackendError(
            f"no {title} passes its self-test: {failures}" if failures else f"there is no {title}",
            backend=backend,
            hint=f"{hint}; {selftest.FORGET}" if failures else hint,
        )
    return offered
