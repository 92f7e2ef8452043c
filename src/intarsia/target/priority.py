# SPDX-License-Identifier: Apache-2.0
"""The priority list: composites flattened, bases added, partial targets tied to complete ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from intarsia.errors import TargetError
from intarsia.target import cpu
from intarsia.target.cpu_there import RUNNER, named_cpu, why_unnamed
from intarsia.target.device import DeviceType
from intarsia.target.kind import ANY_OF_DEVICE, BASE_ATTR
from intarsia.target.placed import PlacedTarget
from intarsia.target.registry import get_kind, list_stand_ins
from intarsia.target.target import Target

Overrides = Mapping[str, Mapping[str, Any]]
"""Attributes for each kind, as `Target.with_attrs` takes them."""

SAYS_WHICH_CPU = ("mcpu", "mtriple", "mabi", "mfloat-abi", "device", "model")
"""Attributes with which an `llvm` is not plain: it may mean another machine than this one."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A placed target of the priority list, and how it came to be there."""

    placed: PlacedTarget
    origin: str = ""

    @property
    def target(self) -> Target:
        """The target."""
        return self.placed.target

    @property
    def is_complete(self) -> bool:
        """Whether the target can run a whole graph."""
        return self.target.kind.is_complete


_ALWAYS_HERE = "llvm"
"""A complete kind whose compiler is installed with us: a hint to it leads to no other package."""


def default_host() -> str:
    """Return the kind of the host where nothing says which: what first stands in for one."""
    return list_stand_ins()[0]


def is_complete(placed: PlacedTarget) -> bool:
    """Tell whether a placed target can run a whole graph."""
    return placed.target.kind.is_complete


def is_composite(target: Target) -> bool:
    """Tell whether a target only lists others."""
    return target.kind.name == "composite"


def without_host(placed: PlacedTarget) -> PlacedTarget:
    """Return a placed target whose target carries no host, nor does what it refines."""
    target = placed.target
    base = target.attrs.get(BASE_ATTR.name)
    if base is not None and base.host is not None:
        target = target.with_attrs({BASE_ATTR.name: base.without_host()})
    return replace(placed, target=target.without_host())


def is_same(left: PlacedTarget, right: PlacedTarget) -> bool:
    """Compare what the user wrote: device types of partial targets are deduced."""
    return _identity(left) == _identity(right)


def _identity(placed: PlacedTarget) -> tuple[Target, int, str]:
    return placed.target, placed.device_id, placed.memory_scope


def flatten(
    items: Iterable[Listed], host: Target | None, *, is_followed: bool = False
) -> list[Listed]:
    """Replace composites by their devices, then their host.

    The host is left out if a complete target follows, or if it is listed by itself.

    Args:
        items: In priority order.
        host: For composites that carry none.
        is_followed: Whether a complete target comes after all of these.

    Raises:
        TargetError: A composite lists no devices, or has an ordinal.
    """
    items = tuple(items)
    others = [without_host(item.placed) for item in items if not is_composite(item.target)]
    reverse: list[Listed] = []
    for item in reversed(items):
        if not is_composite(item.target):
            reverse.append(replace(item, placed=without_host(item.placed)))
            is_followed = is_followed or item.is_complete
            continue
        inner = _flatten_composite(item, item.target.host or host, others, is_followed=is_followed)
        reverse.extend(reversed(inner))
        is_followed = is_followed or any(other.is_complete for other in inner)
    return reverse[::-1]


def _flatten_composite(
    item: Listed, host: Target | None, others: list[PlacedTarget], *, is_followed: bool
) -> list[Listed]:
    target = item.target
    if item.placed.device_id:
        raise TargetError(
            f"'{item.placed}': a composite has no device ordinal",
            target=str(target),
            hint='give its devices theirs: "arm_acl, opencl:1, llvm"',
        )
    if not target.attrs.get("devices"):
        raise TargetError(
            f"'{target}' lists no devices",
            target=str(target),
            hint="write composite -host=TARGET -devices=TARGET,TARGET",
        )
    name = f"composite {target.tags[0]!r}" if target.tags else "a composite"
    devices = (
        Listed(PlacedTarget.parse(device), f"device {index} of {name}")
        for index, device in enumerate(target.attrs["devices"])
    )
    inner = flatten(devices, host, is_followed=is_followed)
    if host is not None and host.kind.is_complete and not is_followed:
        last = PlacedTarget(target=host.without_host())
        if not any(is_same(last, other) for other in (*others, *(i.placed for i in inner))):
            inner.append(Listed(last, f"host of {name}"))
    return inner


def check_overrides(overrides: Overrides, targets: Iterable[Target]) -> None:
    """Refuse attributes for a kind that no target has.

    Raises:
        TargetError: No target is of that kind.
    """
    kinds = {target.kind.name for target in targets}
    for kind, attrs in overrides.items():
        if kind not in kinds:
            options = ", ".join(f"--target-{kind}-{name}" for name in attrs)
            raise TargetError(
                f"passed {options} but did not specify {kind} target",
                hint=f"kinds of the targets given: {', '.join(sorted(kinds))}",
            )


def override_attrs(items: Iterable[Listed], overrides: Overrides) -> list[Listed]:
    """Give every target of certain kinds other attributes.

    Raises:
        TargetError: An attribute is unknown or of the wrong type.
    """
    return [
        replace(item, placed=replace(item.placed, target=overridden(item.target, overrides)))
        if item.target.kind.name in overrides
        else item
        for item in items
    ]


def overridden(target: Target, overrides: Overrides) -> Target:
    """Return a target with the attributes that are overridden for its kind.

    Raises:
        TargetError: An attribute is unknown or of the wrong type.
    """
    attrs = overrides.get(target.kind.name)
    return target.with_attrs(attrs) if attrs else target


def on_this_machine(target: Target) -> Target:
    """Return what a plain `llvm` means: this machine's CPU, or that of the machine of its runner.

    So does what a target refines.

    Features in `mattr` come on top. One that says which CPU it is for, names features that only
    other architectures have, or carries keys of its own, is left as it is. So is every one
    where the CPU cannot be told; what makes native code refuses it then.
    """
    base = target.attrs.get(BASE_ATTR.name)
    if base is not None:
        known_base = on_this_machine(base)
        return target if known_base is base else target.with_attrs({BASE_ATTR.name: known_base})
    if not _is_plain(target) or why_elsewhere(target):
        return target
    named = _named_there(target)
    mattr = (*named.get("mattr", ()), *target.attrs.get("mattr", ()))
    return target.with_attrs({**named, **({"mattr": mattr} if mattr else {})})


def _named_there(target: Target) -> Mapping[str, Any]:
    """Return the attributes that name the CPU of a plain `llvm`."""
    runner = target.attrs.get(RUNNER)
    return named_cpu(runner).attrs if runner else {"mcpu": cpu.NATIVE}


def _is_plain(target: Target) -> bool:
    return (
        target.kind.is_native
        and target.keys == target.kind.default_keys
        and not any(name in target.attrs for name in SAYS_WHICH_CPU)
    )


def why_elsewhere(target: Target) -> str:
    """Say why an `llvm` that names no CPU does not mean this machine; nothing if it does."""
    if not _is_plain(target):
        return ""
    if not cpu.has_llvm():
        return "which CPU is not known without llvmlite"
    runner = target.attrs.get(RUNNER)
    if runner and named_cpu(runner).attrs.get("mcpu") != cpu.NATIVE:
        return why_unnamed(runner)
    foreign = cpu.foreign_features(target.attrs.get("mattr", ()))
    if foreign:
        return f"not this machine: only other architectures have {', '.join(foreign)}"
    return ""


def resolve_machine(items: Iterable[Listed]) -> list[Listed]:
    """Replace every plain `llvm` by this machine."""
    result = []
    for item in items:
        target = on_this_machine(item.target)
        if target is not item.target:
            item = _because(item, "this machine", "on ", target)  # noqa: PLW2901
        elif why_elsewhere(target):
            item = _because(item, why_elsewhere(target))  # noqa: PLW2901
        result.append(item)
    return result


def _because(item: Listed, reason: str, word: str = "", target: Target | None = None) -> Listed:
    origin = f"{item.origin}, {word}{reason}" if item.origin else reason
    return Listed(replace(item.placed, target=target or item.target), origin)


def with_bases(items: Sequence[Listed]) -> list[Listed]:
    """Add the base that a partial target names, right after it, if it is not given."""
    listed = {_identity(item.placed) for item in items}
    result: list[Listed] = []
    for item in items:
        result.append(item)
        base = item.target.attrs.get(BASE_ATTR.name)
        if base is not None:
            placed = PlacedTarget(device_id=item.placed.device_id, target=base.without_host())
            if _identity(placed) not in listed:
                listed.add(_identity(placed))
                result.append(Listed(placed, f"what {item.target.kind.name} refines"))
    return result


def check_priorities(items: Sequence[Listed], host: Target | None) -> list[Listed]:
    """Return the list with every partial target on the device of what it refines.

    Args:
        items: In priority order.
        host: What was named as a host: it may be meant as the fallback.

    Raises:
        TargetError: A target is given twice, none is complete, or a partial one refines nothing.
    """
    seen = set()
    for item in items:
        # Two of one kind are legal if they differ in ordinal or attributes (row 102 in another
        # form).
        if _identity(item.placed) in seen:
            raise TargetError(
                f"target '{item.placed}' is given twice",
                target=str(item.placed),
                hint="remove one, or give them different ordinals or attributes",
            )
        seen.add(_identity(item.placed))
    placed = [item.placed for item in items]
    if not any(item.is_complete for item in items):
        raise TargetError(
            f"no target given can run a whole model: '{', '.join(str(item) for item in placed)}'",
            hint=f'add a fallback at the end: ", {_fallback_for(placed[-1], host)}"',
        )
    return [
        item if item.is_complete else replace(item, placed=_on_refined(index, placed))
        for index, item in enumerate(items)
    ]


def _on_refined(index: int, items: Sequence[PlacedTarget]) -> PlacedTarget:
    item = items[index]
    device_type = _find_refined(item, index, items).device_type
    if item.device_type not in (None, device_type):
        name = "target_device_type"
        if name in item.target.attrs:
            raise TargetError(
                f"{name}: '{item}' is on another device than what it refines",
                target=str(item),
                hint="leave it out, or list a target on that device after it",
            )
        raise TargetError(
            f"'{item}' is asked for on another device than that of the target that it refines",
            hint=f"write -{BASE_ATTR.name}=TARGET to say which one it refines",
        )
    return replace(item, device_type=device_type)


def find_refined(placed: PlacedTarget, items: Sequence[PlacedTarget]) -> PlacedTarget:
    """Return what a partial target refines: the next such target in the order, else the last.

    Raises:
        TargetError: There is none on its device.
    """
    index = next((i for i, item in enumerate(items) if is_same(item, placed)), 0)
    return _find_refined(placed, index, items)


def _find_refined(placed: PlacedTarget, index: int, items: Sequence[PlacedTarget]) -> PlacedTarget:
    # What follows is tried first, as in `acl, llvm`; a fallback that stands before it will do (row
    # 105).
    for item in (*items[index:], *reversed(items[:index])):
        if item.device_id == placed.device_id and placed.target.refines(item.target):
            return item
    raise TargetError(
        f"'{placed}' refines none of the complete targets given",
        target=str(placed),
        hint=_refined_hint(placed),
    )


def _refined_hint(placed: PlacedTarget) -> str:
    """Say what would let a partial target refine something."""
    if not placed.device_id:
        return f'add what it refines: ", {_completing(placed)}"'
    for name in placed.target.kind.refines:
        if name != ANY_OF_DEVICE and get_kind(name).device_type is not DeviceType.CPU:
            return f'add what it refines: ", {name}:{placed.device_id}"'
    return f"there is one CPU, and its number is 0: write '{placed.target}'"


def _fallback_for(placed: PlacedTarget, host: Target | None) -> str:
    """Name a target that would complete a list that ends with a partial one."""
    is_fallback = host is not None and host.kind.is_complete and not is_composite(host)
    return str(host) if is_fallback else _completing(placed)


def _completing(placed: PlacedTarget) -> str:
    """Name a kind that a partial target refines."""
    names = placed.target.kind.refines
    return names[0] if names and names[0] != ANY_OF_DEVICE else _ALWAYS_HERE
