# SPDX-License-Identifier: Apache-2.0
"""`CompilationConfig`: the one canonical form of whatever the user said about targets.

It decides priority order, fallback, host, default device, and which complete target each partial
one refines. It says nothing about devices being present.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.errors import TargetError
from intarsia.target.device import DeviceType
from intarsia.target.forms import Given, read_forms
from intarsia.target.labels import Labels
from intarsia.target.placed import VirtualDevice
from intarsia.target.priority import (
    DEFAULT_HOST,
    check_priorities,
    find_refined,
    flatten,
    is_complete,
    is_composite,
    is_same,
    with_bases,
    without_host,
)
from intarsia.target.schema import FrozenMap
from intarsia.target.target import Target
from intarsia.target.text import suggest


@dataclass(frozen=True, slots=True)
class CompilationConfig:
    """Host and placed targets, resolved and checked; made by `resolve`.

    Attributes:
        host: Runs shapes, control flow and the plan itself.
        targets: In the user's priority order; composites are flattened, no target carries a host.
        labels: The user's names for placed targets; they do not count for equality.
    """

    host: Target
    targets: tuple[VirtualDevice, ...]
    labels: Labels = field(default_factory=lambda: FrozenMap({}), compare=False)

    @classmethod
    def resolve(
        cls, spec: object, host: object = None, labels: Labels | None = None
    ) -> CompilationConfig:
        """Resolve any form of one target or of several; a config resolves to itself.

        Args:
            spec: A target, placed target, text (also `"acl, llvm -mattr=+neon"`), tag, label,
                dictionary (a target; or `targets`, `host`, `labels`; or device to target), JSON
                text, path of a `.json` or `.toml` file, or a list of these.
            host: The host, in any form of one target.
            labels: Names for placed targets, as `load_labels` returns them.

        Raises:
            TargetError: Something is malformed, unknown, missing or given twice.
        """
        if isinstance(spec, CompilationConfig):
            if host is None or spec.host == _checked_host(host):
                return replace(spec, labels=FrozenMap({**spec.labels, **(labels or {})}))
            labels, spec = {**spec.labels, **(labels or {})}, spec.targets
        if spec is None:
            raise TargetError("no target is given", hint=f"give one, such as {DEFAULT_HOST}")
        given = read_forms(spec, labels or {})
        asked = Target(host) if host is not None else given.host
        targets = check_priorities(with_bases(flatten(given.targets, asked)))
        fallback = next(item for item in reversed(targets) if is_complete(item))
        chosen = _choose_host(asked, given, fallback)
        return cls(chosen, targets, FrozenMap(given.labels))

    @property
    def fallback(self) -> VirtualDevice:
        """The last complete target given: it takes what no other took."""
        return next(item for item in reversed(self.targets) if is_complete(item))

    @property
    def default_device(self) -> VirtualDevice:
        """Where work without annotation goes when no cost decides: the fallback's device."""
        return self.fallback

    def refined(self, placed: VirtualDevice) -> Target | None:
        """Return the complete target that a partial one refines here; None for a complete one.

        Raises:
            TargetError: It refines no target of this config on its device.
        """
        if placed.target is None or placed.target.kind.is_complete:
            return None
        return find_refined(placed, self.targets).target

    def device_of(self, placed: VirtualDevice) -> VirtualDevice:
        """Return the device that a placed target runs on, without a target.

        Raises:
            TargetError: It is partial and refines no target of this config on its device.
        """
        base = placed
        if placed.target is not None and not placed.target.kind.is_complete:
            base = find_refined(placed, self.targets)
        return VirtualDevice(base.device_type, base.device_id, None, placed.memory_scope)

    def find(self, text: str | Target | VirtualDevice) -> VirtualDevice:
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
        found = [
            item
            for item in self.targets
            if item.target is not None
            and family in (item.target.kind.name, *item.target.tags)
            and ordinal in ("", str(item.device_id))
        ]
        if len(found) == 1:
            return found[0]
        choices = (*self.labels, *(str(item) for item in self.targets))
        kinds = (item.target.kind.name for item in self.targets if item.target is not None)
        near = () if found else (*choices, *kinds)
        hint = suggest(name, near, what="choices", listed=choices)
        problem = f"{len(found)} of the targets" if found else "none of the targets"
        raise TargetError(f"{name!r} means {problem}", target=name, hint=hint)

    def _equal(self, spec: object) -> list[VirtualDevice]:
        try:
            wanted = without_host(VirtualDevice.parse(spec))
        except TargetError:
            return []
        return [item for item in self.targets if is_same(item, wanted)]

    def _member(self, placed: VirtualDevice, name: str) -> VirtualDevice:
        found = [item for item in self.targets if is_same(item, without_host(placed))]
        if not found:
            listed = "; ".join(str(item) for item in self.targets)
            raise TargetError(f"label {name!r} is not among the targets", hint=f"given: {listed}")
        return found[0]

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

    def __str__(self) -> str:
        first, *rest = self.targets
        if first.target is not None and self.host != _deduced_host(self.fallback):
            first = replace(first, target=first.target.with_host(self.host))
        return ", ".join(str(item) for item in (first, *rest))


def _choose_host(asked: Target | None, given: Given, fallback: VirtualDevice) -> Target:
    carried = [host for item in given.targets for host in _carried(item.target, fallback)]
    chosen = asked or (carried[0] if carried else _deduced_host(fallback))
    chosen = _checked_host(chosen)
    for host in carried:
        if host.without_host() != chosen:
            warnings.warn(f"host '{host}' is replaced by '{chosen}'", UserWarning, stacklevel=4)
    return chosen


def _carried(target: Target | None, fallback: VirtualDevice) -> list[Target]:
    """Return the hosts of a target and of what it lists.

    A composite's host says what its fallback is; a fallback of the same kind that the user gives
    after it (`acl, llvm -mattr=+neon`) takes its place.
    """
    if target is None:
        return []
    hosts = [] if target.host is None else [target.host]
    if not is_composite(target):
        return hosts
    if fallback.target is not None:
        hosts = [host for host in hosts if host.kind != fallback.target.kind]
    return hosts + [
        host for device in target.attrs["devices"] for host in _carried(device, fallback)
    ]


def _deduced_host(fallback: VirtualDevice) -> Target:
    target = fallback.target
    if target is not None and target.device_type == DeviceType.CPU:
        return target
    return Target(DEFAULT_HOST)


def _checked_host(host: object) -> Target:
    target = Target(host).without_host()
    if not target.kind.is_complete or target.device_type != DeviceType.CPU or is_composite(target):
        raise TargetError(
            f"'{target}' cannot be the host: it has to run a whole model on a CPU",
            target=str(target),
            hint=f"use {DEFAULT_HOST}",
        )
    return target
