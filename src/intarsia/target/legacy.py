# SPDX-License-Identifier: Apache-2.0
"""Dictionaries from a device to its target, as older programs write them: `{"gpu:1": "cuda"}`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from intarsia.errors import TargetError
from intarsia.target.device import DeviceType
from intarsia.target.placed import PlacedTarget, device_types
from intarsia.target.registry import REGISTRY

GPU = "gpu"
GPU_TYPES = (
    DeviceType.CUDA,
    DeviceType.ROCM,
    DeviceType.OPENCL,
    DeviceType.VULKAN,
    DeviceType.METAL,
    DeviceType.WEBGPU,
)
_SHORT = {"cl": DeviceType.OPENCL, "vk": DeviceType.VULKAN, "ext": DeviceType.EXT_DEV}


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """What a key of the dictionary says.

    Attributes:
        text: As given, for messages.
        types: The device types that it allows; empty means any.
        ordinal: Which device of the type, if it says so.
        is_label: Whether it is the user's own name for the target.
    """

    text: str
    types: tuple[DeviceType, ...]
    ordinal: int | None
    is_label: bool

    def apply(self, placed: PlacedTarget) -> PlacedTarget:
        """Return the target placed as the key says.

        Raises:
            TargetError: The target does not run on such a device.
        """
        if not self.types:
            return placed
        number = placed.device_id if self.ordinal is None else self.ordinal
        if placed.device_type in self.types:
            return replace(placed, device_id=number)
        possible = [item for item in device_types(placed.target) if item in self.types]
        try:
            return replace(placed, device_type=[*possible, *self.types][0], device_id=number)
        except TargetError as error:
            raise TargetError(f"{self.text!r}: {error.message}", hint=error.hint) from None


def read_device_key(device: object) -> DeviceKey:
    """Read a key: a number of DLPack, `cuda:1`, `gpu`, or any other name, which is then a label.

    Raises:
        TargetError: It is none of these.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        if device not in tuple(DeviceType):
            numbers = ", ".join(f"{item.value} {item.name}" for item in DeviceType)
            raise TargetError(f"{device} is not a device type", hint=f"device types: {numbers}")
        return DeviceKey(str(device), (DeviceType(device),), None, is_label=False)
    if not isinstance(device, str):
        raise TargetError(f"a device has to be a name or a number, not {device!r}")
    name, colon, ordinal = device.strip().partition(":")
    types = _types(name)
    if not types:
        return DeviceKey(device, (), None, is_label=True)
    if colon and not (ordinal.isascii() and ordinal.isdecimal() and len(ordinal) < 10):  # noqa: PLR2004
        raise TargetError(f"{ordinal!r} is not a device ordinal", hint=f"write it as in {name}:1")
    # `gpu` fits six device types, so it says little more than a name does; `gpu:1` is a place.
    is_label = name == GPU and not colon
    return DeviceKey(device, types, int(ordinal) if colon else None, is_label=is_label)


def _types(name: str) -> tuple[DeviceType, ...]:
    if name == GPU:
        return GPU_TYPES
    if name.upper() in DeviceType.__members__:
        return (DeviceType[name.upper()],)
    if name in _SHORT:
        return (_SHORT[name],)
    kind = REGISTRY.find_kind(name)
    return () if kind is None else (kind.device_type,)
