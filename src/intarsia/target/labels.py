# SPDX-License-Identifier: Apache-2.0
"""Labels: a user's own names for placed targets, kept in a file or a dictionary.

A label may inherit from another: `gpu2 = {inherits = "gpu", device_id = 1}`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from intarsia.errors import TargetError
from intarsia.target.fields import Fields, read_fields
from intarsia.target.placed import PlacedTarget, VirtualDevice, placed_from_fields
from intarsia.target.registry import REGISTRY
from intarsia.target.schema import fail
from intarsia.target.source import TargetEntry, TargetFile, read_source
from intarsia.target.text import suggest
from intarsia.target.user_files import LABEL_TABLES

Labels = Mapping[str, PlacedTarget]


def load_labels(path: str | os.PathLike[str]) -> dict[str, PlacedTarget]:
    """Read the labels of a `.toml` or `.json` file: its `labels` or `targets`, else all of it.

    Raises:
        TargetError: The file cannot be read, or a label is malformed; the message has the line.
    """
    source = read_source(path)
    tables = source.content if isinstance(source.content, Mapping) else {}
    for name in LABEL_TABLES:
        if isinstance(tables.get(name), Mapping):
            return read_labels(tables[name], source, (name,))
    return read_labels(source.content, source)


def read_labels(
    table: Any, source: TargetFile | None = None, names: tuple[str, ...] = ()
) -> dict[str, PlacedTarget]:
    """Make placed targets of a table from label to target.

    Args:
        table: The labels.
        source: The file that it stands in, for messages.
        names: What leads to it in the file.

    Raises:
        TargetError: A label is malformed, has the name of a kind or tag, or inherits from itself.
    """
    if not isinstance(table, Mapping):
        raise TargetError("labels have to be a table from name to target")
    entries = _entries(table, source, names)
    for name, entry in entries.items():
        try:
            REGISTRY.tags.check_new(name)
        except TargetError as error:
            _fail(entry, f"label {error.message}", error.hint)
    return {name: _resolve(name, entries) for name in entries}


def as_labels(table: Mapping[str, Any]) -> Labels:
    """Return a table whose values are placed targets, or else configurations as in a file.

    Raises:
        TargetError: As `read_labels`.
    """
    if isinstance(table, Mapping) and all(isinstance(v, VirtualDevice) for v in table.values()):
        return {name: device.placed() for name, device in table.items()}
    return read_labels(table)


def resolve_label(
    name: str,
    table: Mapping[str, Any],
    source: TargetFile | None = None,
    names: tuple[str, ...] = (),
) -> PlacedTarget:
    """Return what one label of a table means; the others may have any name.

    Raises:
        TargetError: The label is malformed, or inherits from itself.
    """
    return _resolve(name, _entries(table, source, names))


def find_label(name: str) -> PlacedTarget | None:
    """Return what a label of the user's files (`--target-file`, `intarsia.toml`) means, or None.

    Raises:
        TargetError: A file cannot be read or clashes with what is known, or the label is malformed.
    """
    if REGISTRY.tags.find_label(name) is None:
        return None
    return _resolve(name, REGISTRY.tags.files.tables.labels)


def list_labels() -> tuple[str, ...]:
    """Return the labels of the user's files, sorted.

    Raises:
        TargetError: A file cannot be read or clashes with what is known.
    """
    REGISTRY.tags.find_label("")
    return tuple(sorted(REGISTRY.tags.files.tables.labels))


def _entries(
    table: Mapping[Any, Any], source: TargetFile | None, names: tuple[str, ...]
) -> dict[str, TargetEntry]:
    return {
        name: TargetEntry(config, source, (*names, str(name))) for name, config in table.items()
    }


def _resolve(name: str, entries: Mapping[str, TargetEntry]) -> PlacedTarget:
    fields = _inherit(name, entries)
    try:
        return placed_from_fields(fields)
    except TargetError as error:
        _fail(entries[name], f"label {name!r}: {error.message}", error.hint)


def _inherit(name: str, entries: Mapping[str, TargetEntry]) -> Fields:
    """Return the fields of a label over those of the labels that it inherits from."""
    *heirs, root = _ancestors(name, entries)
    try:
        fields = read_fields(entries[root].config)
    except TargetError as error:
        _fail(entries[root], f"label {root!r}: {error.message}", error.hint)
    for heir in reversed(heirs):
        entry = entries[heir]
        overriding = {key: value for key, value in entry.config.items() if key != "inherits"}
        if "tag" in overriding:
            _fail(entry, f"label {heir!r} builds on a label and on a tag", "keep one", "tag")
        # The attributes that it inherits are those of the other kind.
        if overriding.get("kind", fields["kind"]) != fields["kind"]:
            parent = entry.config["inherits"]
            message = f"label {heir!r} has another kind than {parent!r}, which it inherits from"
            _fail(entry, message, "leave the kind out", "kind")
        fields |= overriding
    return fields


def _ancestors(name: str, entries: Mapping[str, TargetEntry]) -> list[str]:
    """Return the label, the one that it inherits from, and so on."""
    chain = [name]
    while True:
        entry = entries[chain[-1]]
        if not isinstance(entry.config, Mapping) or "inherits" not in entry.config:
            return chain
        parent = entry.config["inherits"]
        if parent in chain:
            message = f"label {name!r} inherits from itself: {' -> '.join((*chain, parent))}"
            _fail(entry, message, None, "inherits")
        if not isinstance(parent, str) or parent not in entries:
            message = f"there is no label {parent!r} for {chain[-1]!r} to inherit from"
            near = suggest(str(parent), map(str, entries), what="labels")
            _fail(entry, message, near, "inherits")
        chain.append(parent)


def _fail(entry: TargetEntry, message: str, hint: str | None, *names: str) -> NoReturn:
    """Raise an error at a label, or at a part of it."""
    fail(entry.place(*names), message, hint)
