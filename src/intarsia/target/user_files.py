# SPDX-License-Identifier: Apache-2.0
"""The files that add names to the catalogue: `INTARSIA_TARGETS`, a project's `intarsia.toml`.

A file has `[tags]`, names of targets, and `[targets]`, labels. It only adds names: one that a kind,
a tag or another file has already is an error, so that no file changes what a target means.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from intarsia.errors import TargetError
from intarsia.target.source import TargetEntry, TargetFile, read_source
from intarsia.target.text import suggest

if TYPE_CHECKING:
    from pathlib import Path

PROJECT_FILE = "intarsia.toml"
LABEL_TABLES = ("targets", "labels")
"""Tables of labels; `labels` is the name for a file whose `targets` lists a machine."""
_TABLES = ("tags", *LABEL_TABLES)


@dataclass(frozen=True, slots=True)
class UserTables:
    """Tags and labels as written, by name; of one file or of several."""

    tags: dict[str, TargetEntry] = field(default_factory=dict)
    labels: dict[str, TargetEntry] = field(default_factory=dict)

    def find(self, name: str) -> TargetEntry | None:
        """Return what has the name, or None."""
        return self.tags.get(name) or self.labels.get(name)

    def __or__(self, other: UserTables) -> UserTables:
        return UserTables(self.tags | other.tags, self.labels | other.labels)


class UserFiles:
    """What the files of the user's define.

    Args:
        check_name: Refuses a name that is malformed or taken.

    Attributes:
        tables: The tags and labels of all files read so far.
    """

    def __init__(self, check_name: Callable[[str], None]) -> None:
        self._check_name = check_name
        self._by_file: dict[Path, UserTables] = {}
        self._has_found = False
        self.tables = UserTables()

    def find(self) -> None:
        """Read, once per process, the files of the environment and the project.

        Raises:
            TargetError: A file cannot be read, or clashes with what is known.
        """
        if self._has_found:
            return
        from intarsia.settings import Settings  # only an unknown name pays for it

        for path in Settings.from_environment().target_files:
            self.add(path)
        project = find_project_file()
        if project is not None:
            self.add(project)
        # At the end: a file that cannot be read is an error each time, not the first time alone.
        self._has_found = True

    def add(self, path: str | os.PathLike[str]) -> UserTables:
        """Read a file, again if it has been read before, and return what it defines.

        Raises:
            TargetError: The file cannot be read, or clashes with what is known.
        """
        source = read_source(path)
        _check_tables(source)
        return self._add(source, _entries(source, LABEL_TABLES))

    def add_tags(self, source: TargetFile) -> None:
        """Take the tags of a file that lists a machine, unless the file has been read.

        Raises:
            TargetError: A tag clashes with what is known.
        """
        if source.file.resolve() not in self._by_file:
            self._add(source, {})

    def _add(self, source: TargetFile, labels: dict[str, TargetEntry]) -> UserTables:
        file = source.file.resolve()
        others = {other: tables for other, tables in self._by_file.items() if other != file}
        defined = functools.reduce(operator.or_, others.values(), UserTables())
        tables = UserTables(_entries(source, ("tags",)), labels)
        for name, entry in tables.tags.items():
            self._check(name, entry, defined)
        for name, entry in tables.labels.items():
            self._check(name, entry, defined | UserTables(tables.tags))
        self._by_file = {**others, file: tables}
        self.tables = defined | tables
        return tables

    def _check(self, name: str, entry: TargetEntry, defined: UserTables) -> None:
        what = "tag" if entry.names[0] == "tags" else "label"
        other = defined.find(name)
        if other is not None:
            raise TargetError(
                f"{entry.place()}: {what} {name!r} is defined at {other.place()} already",
                hint="give one of them another name",
            )
        try:
            self._check_name(name)
        except TargetError as error:
            raise TargetError(f"{entry.place()}: {what} {error.message}", hint=error.hint) from None


def add_label(path: Path, name: str, items: Mapping[str, Any]) -> None:
    """Add a label to the end of a TOML file, which is made if it is missing.

    Args:
        path: The file.
        name: The label.
        items: Its target, as `PlacedTarget.to_json` writes it.

    Raises:
        TargetError: The file defines the name already, is not TOML, or cannot be written.
    """
    from intarsia.files import whole_file, writing_hint
    from intarsia.target.registry import REGISTRY
    from intarsia.target.toml import read_toml, write_toml

    REGISTRY.tags.check_new(name)
    key = write_toml({name: 0}).partition(" = ")[0]
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        tables = read_toml(before)
        if any(name in tables.get(table, {}) for table in _TABLES):
            raise TargetError(
                f"{path}: {name!r} is defined there already", hint="choose another name"
            )
        after = f"{before.rstrip()}\n\n[targets.{key}]\n{write_toml(items)}".lstrip()
        read_toml(after)  # or the file would be none any more
        with whole_file(path) as draft:
            draft.write_text(after, encoding="utf-8")
    except OSError as error:
        raise TargetError(
            f"{path}: cannot be written: {error.strerror or error}",
            hint=writing_hint(error, "name another file: --file FILE"),
        ) from error


def find_project_file() -> Path | None:
    """Return the nearest `intarsia.toml` in the working directory or above it."""
    from pathlib import Path

    try:
        folder = Path.cwd()
    except FileNotFoundError:  # the working directory has been removed
        return None
    candidates = (parent / PROJECT_FILE for parent in (folder, *folder.parents))
    return next((file for file in candidates if file.is_file()), None)


def _check_tables(source: TargetFile) -> None:
    content = source.content
    if not isinstance(content, Mapping):
        raise TargetError(f"{source.file}: expects tables {', '.join(_TABLES)}")
    for name in content:
        if name not in _TABLES:
            hint = suggest(str(name), _TABLES, what="tables")
            raise TargetError(f"{source.place(str(name))}: there is no table {name!r}", hint=hint)


def _entries(source: TargetFile, tables: tuple[str, ...]) -> dict[str, TargetEntry]:
    entries: dict[str, TargetEntry] = {}
    for table in tables:
        items: Any = source.content.get(table, {})
        if not isinstance(items, Mapping):
            raise TargetError(
                f"{source.place(table)}: {table!r} has to be a table from name to target",
                hint=f"a list of targets belongs into a file of its own: --target {source.file}",
            )
        for name, config in items.items():
            if name in entries:
                place = source.place(table, name)
                raise TargetError(f"{place}: label {name!r} is in [targets] and in [labels]")
            entries[name] = TargetEntry(config, source, (table, name))
    return entries
