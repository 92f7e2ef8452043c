# SPDX-License-Identifier: Apache-2.0
"""The priority list: composites flattened, bases added, partial targets tied to complete ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from intarsia.errors import TargetError
from intarsia.target.kind import ANY_OF_DEVICE, BASE_ATTR
from intarsia.target.placed import VirtualDevice
from intarsia.target.target import Target

DEFAULT_HOST = "onnxruntime"


def is_complete(placed: VirtualDevice) -> bool:
    """Tell whether a placed target can run a whole graph."""
    return placed.target is not None and placed.target.kind.is_complete


def is_composite(target: Target) -> bool:
    """Tell whether a target only lists others."""
    return target.kind.name == "composite"


def without_host(placed: VirtualDevice) -> VirtualDevice:
    """Return a placed target whose target carries no host."""
    target = placed.target
    return replace(placed, target=target.without_host()) if target is not None else placed


def is_same(left: VirtualDevice, right: VirtualDevice) -> bool:
    """Compare what the user wrote: device types of partial targets are deduced."""
    return (left.target, left.device_id, left.memory_scope) == (
        right.target,
        right.device_id,
        right.memory_scope,
    )


def flatten(
    items: Sequence[VirtualDevice], host: Target | None, *, is_followed: bool = False
) -> list[VirtualDevice]:
    """Replace composites by their devices, then their host unless a complete target follows.

    Args:
        items: In priority order.
        host: For composites that carry none.
        is_followed: Whether a complete target comes after all of these.

    Raises:
        TargetError: A composite lists no devices, or has an ordinal.
    """
    flat: list[VirtualDevice] = []
    for item in reversed(items):
        target = item.target
        if target is None or not is_composite(target):
            flat.insert(0, without_host(item))
            continue
        if item.device_id or not target.attrs.get("devices"):
            problem = "no ordinal" if item.device_id else "to list its devices"
            raise TargetError(f"a composite has {problem}", target=str(target))
        follows = is_followed or any(is_complete(other) for other in flat)
        devices = [VirtualDevice.parse(device) for device in target.attrs["devices"]]
        own = target.host or host
        inner = flatten(devices, own, is_followed=follows)
        if own is not None and own.kind.is_complete and not follows:
            last = VirtualDevice(device_id=0, target=own.without_host())
            if not any(is_same(last, other) for other in inner):
                inner.append(last)
        flat = [*inner, *flat]
    return flat


def with_bases(items: Sequence[VirtualDevice]) -> list[VirtualDevice]:
    """Add the base that a partial target names, right after it, if it is not given."""
    result = list(items)
    for item in items:
        base = item.target.attrs.get(BASE_ATTR.name) if item.target is not None else None
        if base is not None:
            placed = VirtualDevice(device_id=item.device_id, target=base.without_host())
            if not any(is_same(placed, other) for other in result):
                result.insert(result.index(item) + 1, placed)
    return result


def check_priorities(items: Sequence[VirtualDevice]) -> tuple[VirtualDevice, ...]:
    """Return the list with every partial target on the device of what it refines.

    Raises:
        TargetError: A target is given twice, none is complete, or a partial one refines nothing.
    """
    for index, item in enumerate(items):
        if any(is_same(item, other) for other in items[:index]):
            raise TargetError(
                f"target '{item}' is given twice",
                target=str(item),
                hint="remove one, or give them different ordinals or attributes",
            )
    if not any(is_complete(item) for item in items):
        raise TargetError(
            f"no target given can run a whole model: '{', '.join(str(item) for item in items)}'",
            hint=f'add a fallback at the end: ", {_completing(items[-1])}"',
        )
    return tuple(_on_refined(item, items) for item in items)


def _on_refined(item: VirtualDevice, items: Sequence[VirtualDevice]) -> VirtualDevice:
    if is_complete(item):
        return item
    device_type = find_refined(item, items).device_type
    if item.device_type not in (None, device_type):
        raise TargetError(
            f"'{item}' is asked for on another device than that of the target that it refines",
            hint=f"write -{BASE_ATTR.name}=TARGET to say which one it refines",
        )
    return replace(item, device_type=device_type)


def find_refined(placed: VirtualDevice, items: Sequence[VirtualDevice]) -> VirtualDevice:
    """Return what a partial target refines: the next such target in the order, else the last.

    Raises:
        TargetError: There is none on its device.
    """
    index = next((i for i, item in enumerate(items) if is_same(item, placed)), 0)
    for item in (*items[index:], *reversed(items[:index])):
        if placed.target is None or item.target is None or item.device_id != placed.device_id:
            continue
        if placed.target.refines(item.target):
            return item
    ordinal = f":{placed.device_id}" if placed.device_id else ""
    raise TargetError(
        f"'{placed}' refines none of the complete targets given",
        target=str(placed),
        hint=f'add what it refines: ", {_completing(placed)}{ordinal}"',
    )


def _completing(placed: VirtualDevice) -> str:
    """Name a kind that a partial target refines."""
    names = placed.target.kind.refines if placed.target is not None else ()
    return names[0] if names and names[0] != ANY_OF_DEVICE else DEFAULT_HOST
