# SPDX-License-Identifier: Apache-2.0
"""`CompilationConfig`: the one canonical form of whatever the user said about targets.

It decides priority order, fallback, host, default device, and which complete target each partial
one refines. It says nothing about devices being present.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.errors import TargetError
from intarsia.target.device import DeviceType
from intarsia.target.fields import rename_target_host
from intarsia.target.forms import Given, read_forms, read_host
from intarsia.target.frozen import FrozenMap
from intarsia.target.hosts import check_host, choose_host, deduce_host
from intarsia.target.labels import Labels, as_labels, find_label
from intarsia.target.placed import PlacedTarget, VirtualDevice
from intarsia.target.priority import (
    Listed,
    Overrides,
    check_overrides,
    check_priorities,
    default_host,
    find_refined,
    flatten,
    is_complete,
    is_same,
    on_this_machine,
    overridden,
    override_attrs,
    resolve_machine,
    with_bases,
    without_host,
)
from intarsia.target.registry import REGISTRY
from intarsia.target.target import Target
from intarsia.target.text import suggest
from intarsia.target.toml import write_toml


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a config is as it is.

    Attributes:
        origins: How each target came into the list; empty where it was simply given.
        host: Why the host is the host.
        replaced: Hosts that targets carried and that another took the place of.
        is_detected: Whether the targets are what was found here, so that no user chose their order.
    """

    origins: tuple[str, ...] = ()
    host: str = "given"
    replaced: tuple[str, ...] = ()
    is_detected: bool = False


@dataclass(frozen=True, slots=True)
class CompilationConfig:
    """Host and placed targets, resolved and checked; made by `resolve`.

    `str` tells what was resolved and why, a fact a line; `text` is the list as one would type it.

    Attributes:
        host: Runs shapes, control flow and the plan itself.
        targets: In the user's priority order; composites are flattened, no target carries a host.
        labels: The user's names for placed targets; they do not count for equality.
        reasons: Why; they do not count either.
    """

    host: Target
    targets: tuple[PlacedTarget, ...]
    labels: Labels = field(default_factory=lambda: FrozenMap({}), compare=False)
    reasons: Reasons = field(default_factory=Reasons, compare=False, repr=False)

    @classmethod
    def resolve(
        cls,
        spec: object,
        host: object = None,
        labels: Mapping[str, Any] | None = None,
        *,
        overrides: Overrides | None = None,
        target_host: object = None,
    ) -> CompilationConfig:
        """Resolve any form of one target or of several; a config resolves to itself.

        Args:
            spec: A target, placed target, text (also `"acl, llvm -mattr=+neon"`), tag, label,
                dictionary (a target; or `targets`, `host`, `labels`; or device to target), JSON
                text, path of a `.json` or `.toml` file, or a list of these.
            host: The host, in any form of one target, or a label.
            labels: Names for placed targets, as `load_labels` returns them or as a file has them.
            overrides: From the name of a kind to attributes for all its targets, the host's too:
                `{"llvm": {"mcpu": "cortex-a72"}}`.
            target_host: The old name of `host`; deprecated.

        Raises:
            TargetError: Something is malformed, unknown, missing or given twice.
        """
        host = rename_target_host(host, target_host)
        changes, labels = overrides or {}, as_labels(labels or {})
        if isinstance(spec, CompilationConfig):
            all_labels = {**spec.labels, **labels}
            if not changes and (
                host is None or spec.host == _asked_host(host, all_labels, changes)
            ):
                return replace(spec, labels=FrozenMap(all_labels))
            given, before = Given(spec.targets, spec.host, all_labels), spec.reasons
        elif spec is None:
            raise TargetError("no target is given", hint=f"give one, such as {default_host()}")
        else:
            given, before = read_forms(spec, labels), None
        host_asked = given.host if host is None else read_host(host, given.labels)
        origins = (before.origins if before is not None else ()) or ("",) * len(given.targets)
        pairs = zip(given.targets, origins, strict=True)
        listed = flatten([Listed(item, origin) for item, origin in pairs], host_asked)
        listed = resolve_machine(override_attrs(listed, changes))
        carriers = [item.target for item in given.targets]
        named = (host_asked, *(target.host for target in carriers))
        named_host = next((target for target in named if target is not None), None)
        listed = check_priorities(with_bases(listed), named_host)
        targets = tuple(item.placed for item in listed)
        fallback = next(item for item in reversed(targets) if is_complete(item))
        chosen, why, replaced = choose_host(host_asked, carriers, fallback, changes)
        # Resolved again, a config is the same (row 108), its reasons too.
        if before is not None and host is None:
            why = before.host
        check_overrides(changes, [item.target for item in listed] + [chosen])
        is_detected = before is not None and before.is_detected
        origins = tuple(item.origin for item in listed)
        reasons = Reasons(origins, why, replaced, is_detected)
        return cls(chosen, targets, FrozenMap(given.labels), reasons)

    @property
    def fallback(self) -> PlacedTarget:
        """The last complete target given: it takes what no other took."""
        return next(item for item in reversed(self.targets) if is_complete(item))

    @property
    def placed_host(self) -> PlacedTarget:
        """The host as a placed target: the one of the list that it is, if it is listed."""
        alone = PlacedTarget(target=self.host)
        return next((item for item in self.targets if is_same(item, alone)), alone)

    @property
    def default_device(self) -> PlacedTarget:
        """Where work without annotation goes when no cost decides: the fallback's device."""
        return self.fallback

    def refined(self, placed: PlacedTarget) -> Target | None:
        """Return the complete target that a partial one refines here; None for a complete one.

        Raises:
            TargetError: It refines no target of this config on its device.
        """
        if placed.target.kind.is_complete:
            return None
        return find_refined(placed, self.targets).target

    def device_of(self, placed: PlacedTarget) -> VirtualDevice:
        """Return the device that a placed target runs on, without a target.

        Raises:
            TargetError: It is partial and refines no target of this config on its device.
        """
        base = placed
        if not placed.target.kind.is_complete:
            base = find_refined(placed, self.targets)
        scope = placed.memory_scope or placed.target.kind.memory_scope
        return VirtualDevice(base.device_type, base.device_id, None, scope)

    def least_specialised(self, device_type: DeviceType, device_id: int = 0) -> PlacedTarget:
        """Return the target that can take anything on a device: its last complete one.

        Raises:
            TargetError: No complete target is on that device.
        """
        wanted = VirtualDevice(device_type, device_id)
        for item in reversed(self.targets):
            if is_complete(item) and (item.device_type, item.device_id) == (
                wanted.device_type,
                wanted.device_id,
            ):
                return item
        devices = ", ".join(dict.fromkeys(self.device_of(item).short_text for item in self.targets))
        raise TargetError(
            f"no complete target is on {wanted.short_text}", hint=f"devices: {devices}"
        )

    def canonical(self, device: VirtualDevice) -> VirtualDevice:
        """Return a virtual device with the target that this config has for its device.

        One that has a partial target gets the device type of what that refines here. One that has
        neither a target nor a device type is returned as it is.

        Raises:
            TargetError: No complete target is on that device.
        """
        if device.target is not None:
            placed = replace(device, target=on_this_machine(device.target))
            if placed.device_type is not None:
                return placed
            domain = self.device_of(placed.placed())
            return replace(placed, device_type=domain.device_type)
        if device.device_type is None:
            return device
        complete = self.least_specialised(device.device_type, device.device_id or 0)
        return replace(device, target=complete.target)

    def without_tags(self) -> CompilationConfig:
        """Return an equal config that can be read where the user's tags are not known."""
        return replace(
            self,
            host=self.host.without_tags(),
            targets=tuple(item.without_tags() for item in self.targets),
            labels=FrozenMap({name: item.without_tags() for name, item in self.labels.items()}),
        )

    def find(self, text: str | Target | VirtualDevice) -> PlacedTarget:
        """Return the one placed target meant by a label, a full text, a kind or a tag.

        A kind or tag may have an ordinal: `opencl:1`. A full text wins over a kind.

        Raises:
            TargetError: None is meant, or several are.
        """
        name = str(text).strip()
        if name in self.labels:
            return self._member(self.labels[name], name)
        exact = self._equal(text)
        if exact:
            return exact[0]
        family, _, ordinal = name.partition(":")
        matching = [
            item
            for item in self.targets
            if family in (item.target.kind.name, *item.target.tags)
            and ordinal in ("", str(item.device_id))
        ]
        if len(matching) == 1:
            return matching[0]
        label = None if matching or not REGISTRY.tags.is_name(name) else find_label(name)
        if label is not None:
            return self._member(label, name)
        choices = (*self.labels, *(str(item) for item in self.targets))
        kinds = (item.target.kind.name for item in self.targets)
        near = () if matching else (*choices, *kinds)
        hint = suggest(name, near, what="choices", listed=choices)
        problem = f"{len(matching)} of the targets" if matching else "none of the targets"
        raise TargetError(f"{name!r} means {problem}", target=name, hint=hint)

    def _equal(self, spec: object) -> list[PlacedTarget]:
        try:
            wanted = _as_listed(PlacedTarget.parse(spec))
        except TargetError:
            return []
        return [item for item in self.targets if is_same(item, wanted)]

    def _member(self, placed: PlacedTarget, name: str) -> PlacedTarget:
        members = [item for item in self.targets if is_same(item, _as_listed(placed))]
        if not members:
            listed = "; ".join(str(item) for item in self.targets)
            raise TargetError(f"label {name!r} is not among the targets", hint=f"given: {listed}")
        return members[0]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON from which `from_json` makes an equal config."""
        return {
            "host": self.host.to_json(),
            "targets": [item.to_json() for item in self.targets],
            "labels": {name: item.to_json() for name, item in self.labels.items()},
        }

    @classmethod
    def from_json(cls, items: Mapping[str, Any]) -> CompilationConfig:
        """Make a config of what `to_json` returned.

        Raises:
            TargetError: Something in it is unknown or of the wrong type.
        """
        return cls.resolve(items)

    def to_toml(self) -> str:
        """Return a TOML document; a file of it is a form of this config."""
        return write_toml(self.to_json())

    @property
    def text(self) -> str:
        """The list as one would type it; it resolves to an equal config."""
        first, *rest = self.targets
        if self.host != deduce_host(self.fallback):
            first = replace(first, target=first.target.with_host(self.host))
        return ", ".join(str(item) for item in (first, *rest))

    def __str__(self) -> str:
        origins = self.reasons.origins or ("",) * len(self.targets)
        lines = [
            f"target {item}: {self._role(item)}{f'; {origin}' if origin else ''}"
            for item, origin in zip(self.targets, origins, strict=True)
        ]
        lines.append(f"fallback {self.fallback}: the last complete target given")
        lines.append(f"host {self.host}: {self.reasons.host}")
        lines.extend(f"replaced {text}" for text in self.reasons.replaced)
        device = self.device_of(self.default_device)
        lines.append(f"default device {device.short_text}: the fallback's")
        lines.extend(f"label {name}: {placed}" for name, placed in self.labels.items())
        return "\n".join(lines)

    def _role(self, item: PlacedTarget) -> str:
        device = self.device_of(item).short_text
        refined = self.refined(item)
        if refined is None:
            return f"complete, on {device}"
        return f"partial, refines {refined} on {device}"


def _as_listed(placed: PlacedTarget) -> PlacedTarget:
    """Return a placed target as a config lists it."""
    return replace(without_host(placed), target=on_this_machine(placed.target.without_host()))


def _asked_host(host: object, labels: Labels, overrides: Overrides) -> Target:
    return check_host(overridden(read_host(host, labels), overrides))
