# SPDX-License-Identifier: Apache-2.0
"""Memory domains in text: `cpu:0`, `ext_dev:1`, `opencl:0/texture`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.errors import PackageError
from intarsia.target import DeviceType

if TYPE_CHECKING:
    from intarsia.target import VirtualDevice

HOST_DOMAIN = (int(DeviceType.CPU), 0, "")
"""The memory domain of the host."""


def domain_text(domain: tuple[int, int, str]) -> str:
    """Return the text of a memory domain."""
    device_type, device_id, scope = domain
    return f"{DeviceType(device_type).name.lower()}:{device_id}" + (f"/{scope}" if scope else "")


def parse_domain(text: str) -> VirtualDevice:
    """Return the virtual device, without a target, of a memory domain's text.

    Raises:
        PackageError: It is not such a text.
    """
    from intarsia.target import VirtualDevice  # the host's memory needs none

    place, _, scope = text.partition("/")
    name, _, ordinal = place.partition(":")
    try:
        device_type = DeviceType[name.upper()]
        device_id = int(ordinal)
    except (KeyError, ValueError) as error:
        raise PackageError(f"{text!r} is not a device") from error
    return VirtualDevice(device_type=device_type, device_id=device_id, memory_scope=scope)
