# SPDX-License-Identifier: Apache-2.0
"""Targets and whole machines as plain values, with what serves them on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from intarsia.backends.registry import Backends
from intarsia.errors import BackendError
from intarsia.place.pipeline import merge_pipelines
from intarsia.plan.devices import domain_text
from intarsia.target import (
    CompilationConfig,
    PlacedTarget,
)
from intarsia.target.priority import on_this_machine, why_elsewhere
from intarsia.target.schema import write

COMPOSITE = "composite"


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend serves a kind here.

    Attributes:
        backend: Its name, if one is installed.
        version: The version of what runs the code; None if it cannot run here.
        reason: Why it cannot; empty if it can.
        hint: One thing to do about it.
    """

    backend: str | None
    version: str | None
    reason: str = ""
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.backend} {self.version}" if self.version else self.reason


def availability(kind: str, backends: Backends) -> Availability:
    """Return what serves a kind on this machine."""
    backend = backends.by_kind.get(kind)
    if backend is None:
        broken = backends.broken.get(kind)
        if broken is not None:
            return Availability(kind, None, f"its plug-in failed to load: {broken}")
        if kind == COMPOSITE:
            return Availability(None, None, "stands for the targets that it lists")
        return Availability(None, None, "no backend: can be described, not compiled for")
    try:
        version = backend.version()
        if backend.require_kind is not None:
            backend.require_kind(kind)
        return Availability(backend.name, version)
    except BackendError as error:
        return Availability(backend.name, None, error.message, error.hint or "")


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a target's kind, and the value that the target has for it, if any.

    Attributes:
        name: As written after the dash.
        value: As in JSON.
        text: As written in the text form; None if the target has none.
        type: What its values are.
        help: What it is for.
    """

    name: str
    value: Any
    text: str | None
    type: str
    help: str


@dataclass(frozen=True, slots=True)
class TargetView:
    """One target with everything that follows from its kind.

    Attributes:
        text: Its canonical text.
        resolved: Text of what is compiled on this machine, if that says more (`llvm`).
        unresolved: Why an `llvm` that names no CPU is not resolved; else empty.
        json: The same as a dictionary that says everything.
        kind: Name of its kind.
        help: What the kind is.
        device_type: Where its programs run.
        ordinal: Which device of that type.
        is_complete: Whether it can run a whole model.
        refines: Kinds that a partial one can specialise.
        keys: Dispatch labels.
        attributes: What it has, and what else its kind has.
        host: Text of the host that it carries.
        tags: The tags that it was made from.
        features: What was derived from its attributes, once it is resolved.
        pipeline: The passes that `compile` runs for it, in order.
        availability: What serves it here.
    """

    text: str
    resolved: str | None
    unresolved: str
    json: dict[str, Any]
    kind: str
    help: str
    device_type: str
    ordinal: int
    is_complete: bool
    refines: tuple[str, ...]
    keys: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    host: str | None
    tags: tuple[str, ...]
    features: dict[str, Any]
    pipeline: tuple[str, ...]
    availability: Availability


_HEADER = ("keys", "tag", "host", "base")
_COMMON = frozenset(("device", "model", "libs", "from_device", "target_device_type", *_HEADER))


def view_target(placed: PlacedTarget, backends: Backends) -> TargetView:
    """Return all there is to say about one placed target."""
    target = placed.target
    kind, items = target.kind, target.to_json()
    resolved = on_this_machine(target)
    device_type = placed.device_type or target.device_type
    return TargetView(
        text=str(placed),
        resolved=None if resolved == target else str(replace(placed, target=resolved)),
        unresolved=why_elsewhere(target),
        json=placed.to_json(),
        kind=kind.name,
        help=kind.help,
        device_type=device_type.name.lower(),
        ordinal=placed.device_id or 0,
        is_complete=kind.is_complete,
        refines=kind.refines,
        keys=target.keys,
        attributes=tuple(
            Attribute(
                spec.name,
                items.get(spec.name),
                write(spec.type, target.attrs[spec.name]) if spec.name in target.attrs else None,
                spec.type,
                spec.help,
            )
            for spec in kind.attrs.values()
            if spec.name not in _COMMON or (spec.name in items and spec.name not in _HEADER[:3])
        ),
        host=None if target.host is None else str(target.host),
        tags=target.tags,
        features=dict(resolved.features),
        pipeline=kind.pipeline,
        availability=availability(kind.name, backends),
    )


@dataclass(frozen=True, slots=True)
class TargetRow:
    """One target of a machine.

    Attributes:
        text: Its text.
        kind: Name of its kind.
        device: Its run-time device.
        is_complete: Whether it can run a whole model.
        refines: Text of the complete target that it refines here, if it is partial.
        availability: What serves it here.
    """

    text: str
    kind: str
    device: str
    is_complete: bool
    refines: str | None
    availability: Availability


@dataclass(frozen=True, slots=True)
class ConfigView:
    """A machine: what a list of targets or a composite comes down to.

    Attributes:
        text: The list as one would type it.
        resolution: What was resolved and why, a line each.
        host: Text of the target that runs the plan itself.
        targets: In order of priority.
        fallback: Text of the target that takes what no other takes.
        default_device: The fallback's device.
        pipeline: The passes that `compile` runs for it, in order; those on a region, on regions of
            the targets that bring them.
        json: The machine as a dictionary that resolves to itself.
    """

    text: str
    resolution: tuple[str, ...]
    host: str
    targets: tuple[TargetRow, ...]
    fallback: str
    default_device: str
    pipeline: tuple[str, ...]
    json: dict[str, Any]


def view_config(config: CompilationConfig, backends: Backends) -> ConfigView:
    """Return all there is to say about a machine."""
    rows = []
    for placed in config.targets:
        refined = config.refined(placed)
        kind = placed.target.kind
        rows.append(
            TargetRow(
                str(placed),
                kind.name,
                domain_text(config.device_of(placed).memory_domain),
                kind.is_complete,
                None if refined is None else str(refined),
                availability(kind.name, backends),
            )
        )
    return ConfigView(
        config.text,
        tuple(str(config).splitlines()),
        str(config.host),
        tuple(rows),
        str(config.fallback),
        domain_text(config.device_of(config.default_device).memory_domain),
        tuple(entry.text for entry in merge_pipelines(config, backends)),
        config.to_json(),
    )


@dataclass(frozen=True, slots=True)
class Missing:
    """A backend that found nothing on this machine."""

    backend: str
    reason: str
    hint: str


def view_missing(backends: Backends) -> tuple[Missing, ...]:
    """Return the backends that found no target here, and why."""
    broken = (Missing(name, reason, "") for name, reason in backends.broken.items())
    detections = ((name, backend.detect()) for name, backend in backends.by_name.items())
    absent = (Missing(name, d.reason, d.hint) for name, d in detections if not d.targets)
    return (*broken, *absent)
