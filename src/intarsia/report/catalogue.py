# SPDX-License-Identifier: Apache-2.0
"""Kinds, tags and labels as plain values, with what serves them on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.backends.registry import Backends
from intarsia.errors import TargetError
from intarsia.report.targets import Availability, availability
from intarsia.target import (
    CompilationConfig,
    PlacedTarget,
    Target,
    get_kind,
    get_tag,
    list_kinds,
    list_tags,
)
from intarsia.target.labels import find_label, list_labels


@dataclass(frozen=True, slots=True)
class KindRow:
    """A target kind, and what serves it here."""

    name: str
    device_type: str
    is_complete: bool
    is_hidden: bool
    help: str
    availability: Availability


@dataclass(frozen=True, slots=True)
class TagRow:
    """A tag, and the target that it names."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class LabelRow:
    """A label of the user's files, and the placed target that it names."""

    name: str
    target: str


def view_kinds(backends: Backends, *, hidden: bool, usable: bool = False) -> tuple[KindRow, ...]:
    """Return the kinds.

    Args:
        backends: What serves them.
        hidden: Whether those for tests and debugging are among them.
        usable: Whether only those are that can be compiled for here.
    """
    rows = (
        KindRow(
            kind.name,
            kind.device_type.name.lower(),
            kind.is_complete,
            kind.is_hidden,
            kind.help,
            availability(kind.name, backends),
        )
        for kind in map(get_kind, list_kinds(hidden))
    )
    return tuple(row for row in rows if row.availability.version or not usable)


def view_tags(backends: Backends, *, usable: bool = False) -> tuple[TagRow, ...]:
    """Return the tags; if asked for, only those that can be compiled for here."""
    tags = ((name, get_tag(name)) for name in list_tags())
    return tuple(
        TagRow(name, target.identity)
        for name, target in tags
        if not usable or _is_usable(target, backends)
    )


def view_labels(backends: Backends, *, usable: bool = False) -> tuple[LabelRow, ...]:
    """Return the labels; if asked for, only those that can be compiled for here."""
    found = ((name, find_label(name)) for name in list_labels())
    return tuple(
        LabelRow(name, str(placed))
        for name, placed in found
        if placed is not None and (not usable or _is_usable(placed, backends))
    )


def _is_usable(target: Target | PlacedTarget, backends: Backends) -> bool:
    try:
        config = CompilationConfig.resolve(target)
    except TargetError:  # a partial one alone
        return False
    return all(availability(placed.target.kind.name, backends).version for placed in config.targets)
