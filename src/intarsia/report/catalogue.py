# SPDX-License-Identifier: Apache-2.0
"""Kinds, tags and labels with what serves them here, and targets, as plain values and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.backends.registry import Backends
from intarsia.errors import TargetError
from intarsia.report.differences import Difference
from intarsia.report.tables import facts_table, make_table
from intarsia.report.targets import Availability, ConfigView, TargetView, availability
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
    labels = ((name, find_label(name)) for name in list_labels())
    return tuple(
        LabelRow(name, str(placed))
        for name, placed in labels
        if placed is not None and (not usable or _is_usable(placed, backends))
    )


def _is_usable(target: Target | PlacedTarget, backends: Backends) -> bool:
    try:
        config = CompilationConfig.resolve(target)
    except TargetError:  # a partial one alone
        return False
    return all(availability(placed.target.kind.name, backends).version for placed in config.targets)


_TOLD_APART = ("isa", "cpu_known", "missing")


def target_view(view: TargetView) -> RenderableType:
    """Return one target with its attributes and its pipeline."""
    role = "complete" if view.is_complete else f"partial, refines {_refined(view.refines)}"
    facts = [
        ("target", view.text),
        *([("resolved", f"{view.resolved}, as on this machine")] if view.resolved else []),
        *([("unresolved", view.unresolved)] if view.unresolved else []),
        ("kind", f"{view.kind}: {view.help}"),
        ("role", role),
        ("device", f"{view.device_type}:{view.ordinal}"),
        ("keys", view.keys or None),
        ("host", view.host),
        ("tags", view.tags or None),
        *_features(view.features),
        ("backend", view.availability),
        *([("hint", view.availability.hint)] if view.availability.hint else []),
    ]
    parts: list[RenderableType] = [facts_table(facts)]
    if view.attributes:
        parts.append(
            make_table(
                "attributes",
                ("name", "value", "type", "meaning"),
                ((a.name, a.text, a.type, a.help) for a in view.attributes),
            )
        )
    return Group(*parts, *_pipeline(view.pipeline))


def _features(features: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a target has, what it lacks, and what is not known of it."""
    facts = {name: value for name, value in features.items() if name not in _TOLD_APART}
    has = [name if value is True else f"{name}={value}" for name, value in facts.items() if value]
    yield "features", has or None
    lacks = [name for name, value in facts.items() if value is False or value == 0]
    if lacks:
        yield "without", lacks
    if features.get("isa"):
        yield "isa", features["isa"]
    if features.get("cpu_known") is False:
        yield "unknown", "no table has this CPU, so nothing is assumed of it"
    if features.get("missing"):
        options = ", ".join(f"-{name}=" for name in features["missing"])
        yield "missing", f"{options} is needed before code can be generated"


def _pipeline(pipeline: Sequence[str]) -> list[RenderableType]:
    title = "pipeline" if pipeline else "pipeline: empty"
    return [Text(title), *(Text(f"  {text}") for text in pipeline)]


def _refined(refines: tuple[str, ...]) -> str:
    return "every complete kind of its device" if refines == ("*",) else ", ".join(refines)


def config_view(view: ConfigView) -> RenderableType:
    """Return a machine: its targets in order, host, fallback and default device."""
    rows = (
        (
            index,
            row.text,
            row.device,
            "complete" if row.is_complete else f"partial, refines {row.refines}",
            row.availability,
        )
        for index, row in enumerate(view.targets, 1)
    )
    return Group(
        facts_table([("targets", view.text)]),
        make_table("", ("priority>", "target", "device", "role", "backend here"), rows),
        Text("resolved"),
        *(Text(f"  {line}") for line in view.resolution),
        *_pipeline(view.pipeline),
    )


def kinds_table(kinds: Iterable[KindRow]) -> RenderableType:
    """Return a row per kind."""
    return make_table(
        "kinds",
        ("kind", "device", "role", "backend here", "meaning"),
        (
            (
                kind.name,
                kind.device_type,
                "complete" if kind.is_complete else "partial",
                kind.availability,
                kind.help,
            )
            for kind in kinds
        ),
    )


def tags_table(tags: Iterable[TagRow]) -> RenderableType:
    """Return a row per tag."""
    return make_table("tags", ("tag", "target"), ((tag.name, tag.target) for tag in tags))


def labels_table(labels: Iterable[LabelRow]) -> RenderableType:
    """Return a row per label."""
    return make_table("labels", ("label", "target"), ((row.name, row.target) for row in labels))


def differences_table(differences: Iterable[Difference], left: str, right: str) -> RenderableType:
    """Return a row per attribute; the columns have the names of the two sides.

    Of two lists with different elements, only those are shown that the other lacks.
    """
    rows = (
        (
            difference.name,
            _beyond(difference.left, difference.right),
            _beyond(difference.right, difference.left),
        )
        for difference in differences
    )
    return make_table("", ("attribute", left, right), rows)


def _beyond(value: Any, other: Any) -> Any:
    if not isinstance(value, list | tuple) or not isinstance(other, list | tuple):
        return value
    is_permuted = all(item in other for item in value) and all(item in value for item in other)
    return value if is_permuted else [item for item in value if item not in other] or None
