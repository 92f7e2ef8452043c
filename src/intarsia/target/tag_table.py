# SPDX-License-Identifier: Apache-2.0
"""Tags by name: of the catalogue, of the program (`register_tag`) and of the user's files.

Of the catalogue only the file of the vendor that a name begins with is read, and the user's files
only when a name is not known otherwise.
"""

from __future__ import annotations

import copy
import os
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from intarsia.errors import TargetError
from intarsia.target.source import TargetEntry, TargetFile
from intarsia.target.user_files import UserFiles, UserTables

if TYPE_CHECKING:
    from pathlib import Path

ALIASES = "aliases"
"""The catalogue's file of the tags without a vendor."""
_TAG_NAME = re.compile(r"""[^\s'"\\:{}\[\]=-][^\s'"\\:{}\[\]=]*""")
_VENDOR = re.compile(r"[a-z0-9-]+")


class TagTable:
    """Configurations by tag.

    Args:
        is_kind: Tells whether a name is that of a kind; such a name is never a tag.
    """

    def __init__(self, is_kind: Callable[[str], bool]) -> None:
        self._is_kind = is_kind
        self._lock = threading.RLock()
        self._tags: dict[str, Any] = {}
        self._added: set[str] = set()
        self._vendors: set[str] = set()
        self.files = UserFiles(self.check_new)

    def find(self, name: str) -> TargetEntry | None:
        """Return what the tag names, or None if there is no such tag."""
        if self._is_kind(name):
            return None
        entry = self._find_own(name)
        if entry is not None:
            return entry
        with self._lock:
            self.files.find()
        return self.files.tables.tags.get(name)

    def is_defined(self, name: str) -> bool:
        """Tell whether there is such a tag, without looking for files of the user's."""
        return self._find_own(name) is not None or name in self.files.tables.tags

    def find_label(self, name: str) -> TargetEntry | None:
        """Return what a label of the user's files names, or None if there is no such label."""
        with self._lock:
            self.files.find()
        return self.files.tables.labels.get(name)

    def names(self) -> tuple[str, ...]:
        """Return the names of all tags, sorted."""
        with self._lock:
            for file in _folder().glob("*.toml"):
                self._read(file.stem)
            self.files.find()
        return tuple(sorted({*self._tags, *self.files.tables.tags}))

    def given(self) -> dict[str, Any]:
        """Return what names mean that are not of the catalogue: of the program, and of files."""
        with self._lock:
            self.files.find()
        own = {name: self._tags[name] for name in self._added}
        tables = self.files.tables
        return own | {name: each.config for name, each in (tables.tags | tables.labels).items()}

    def names_with_comma(self, start: str) -> tuple[str, ...]:
        """Return the tags with a comma in their names that begin with the text before it.

        The names in the user's files have none.
        """
        if "/" in start:
            self._find_own(start)  # reads the vendor's file
        return tuple(name for name in self._tags if name.startswith(f"{start},"))

    def add(self, name: str, config: Any, *, override: bool = False) -> None:
        """Add a tag without looking into its configuration."""
        with self._lock:
            self.check_name(name)
            if self.find(name) is not None and not override:
                raise TargetError(
                    f"tag {name!r} has been defined before", hint="pass override=True to replace it"
                )
            label = self.files.tables.labels.get(name)
            if label is not None:
                raise TargetError(f"{name!r} is a label, defined at {label.place()}")
            self._tags[name] = copy.deepcopy(config)
            self._added.add(name)

    def add_file(self, path: str | os.PathLike[str]) -> UserTables:
        """Read a file of the user's; see `UserFiles.add`."""
        with self._lock:
            return self.files.add(path)

    def add_tags(self, source: TargetFile) -> None:
        """Take the tags of a file of the user's that has been read."""
        with self._lock:
            self.files.add_tags(source)

    @staticmethod
    def is_name(name: object) -> bool:
        """Tell whether the text form can hold this as a tag or label."""
        return isinstance(name, str) and _TAG_NAME.fullmatch(name) is not None

    def check_name(self, name: str) -> None:
        """Refuse a name that is that of a kind, or that the text form cannot hold."""
        if not self.is_name(name):
            raise TargetError(
                f"{name!r} cannot be a name", hint="avoid blanks, quotes, \\ : = { } [ ] and a dash"
            )
        if self._is_kind(name):
            raise TargetError(f"{name!r} is the name of a target kind", hint="choose another name")

    def check_new(self, name: str) -> None:
        """Refuse a name for a file's tag or label that is taken, or that a list cannot hold.

        A list is split at commas before any file of the user's is looked for.
        """
        self.check_name(name)
        if "," in name:
            raise TargetError(f"{name!r} cannot be a name", hint="avoid commas, which end a target")
        if self._find_own(name) is not None:
            raise TargetError(f"{name!r} is the name of a tag", hint="choose another name")

    def _find_own(self, name: str) -> TargetEntry | None:
        """Look among the tags of the catalogue and of the program."""
        if name not in self._tags:
            vendor, slash, _ = name.partition("/")
            with self._lock:
                self._read(vendor if slash else ALIASES)
        return TargetEntry(self._tags[name]) if name in self._tags else None

    def _read(self, vendor: str) -> None:
        if vendor in self._vendors or not _VENDOR.fullmatch(vendor):
            return
        file = _folder() / f"{vendor}.toml"
        if file.is_file():
            self._tags = {**read_catalogue(file), **self._tags}
        self._vendors.add(vendor)


def read_catalogue(file: Path) -> dict[str, Any]:
    """Return the tags of a file of the catalogue.

    It has `[tags]`, and `[[families]]`: `names` that share the rest of the table. The names leave
    out the vendor, which is that of the file.
    """
    import tomllib  # only the first tag of a vendor pays for it

    content = tomllib.loads(file.read_text(encoding="utf-8"))
    start = "" if file.stem == ALIASES else f"{file.stem}/"
    tags = {f"{start}{name}": config for name, config in content.get("tags", {}).items()}
    for family in content.get("families", ()):
        shared = {name: value for name, value in family.items() if name != "names"}
        for name in (f"{start}{name}" for name in family["names"]):
            if name in tags:
                raise TargetError(f"{file}: tag {name!r} is defined twice")
            tags[name] = shared
    return tags


def _folder() -> Path:
    from pathlib import Path

    return Path(__file__).parent / "catalogue" / "tags"
