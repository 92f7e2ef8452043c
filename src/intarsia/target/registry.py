# SPDX-License-Identifier: Apache-2.0
"""The one registry: kinds and tags, from the catalogue, from plug-ins and from the user.

The catalogue's TOML is read at the first look-up. Plug-ins are imported only when a kind's name is
not known otherwise.
"""

from __future__ import annotations

import copy
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from intarsia.errors import TargetError
from intarsia.process.foreign import is_foreign
from intarsia.target.canonical import CANONICALIZERS
from intarsia.target.device import DeviceType
from intarsia.target.kind import TargetKind
from intarsia.target.schema import AttrSpec
from intarsia.target.source import TargetEntry, TargetFile
from intarsia.target.text import suggest
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
            # The caller may change its dictionary afterwards.
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
        """Refuse the name of a kind, and names that the text form cannot hold."""
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
            # What the program has overridden stays. A new dictionary, since others may be walking
            # the old one.
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


ENTRY_POINTS = "intarsia.backends"
_KIND_FIELDS: dict[str, type] = {
    "device_type": str,
    "help": str,
    "attrs": dict,
    "default_keys": list,
    "canonicalizer": str,
    "is_complete": bool,
    "refines": list,
    "memory_scope": str,
    "is_hidden": bool,
    "is_native": bool,
    "is_source": bool,
    "is_slow": bool,
    "stands_in": int,
    "pipeline": list,
    "aliases": dict,
}
_ATTR_FIELDS: dict[str, type] = {
    "type": str,
    "help": str,
    "default": object,
    "order": str,
    "unit": str,
    "choices": list,
    "minimum": int,
    "maximum": int,
    "follows": str,
}


class Registry:
    """Kinds and tags by name."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_loaded = False
        self._has_plugins = False
        self._kinds: dict[str, TargetKind] = {}
        self._aliases: dict[str, TargetKind] = {}
        self.tags = TagTable(self._is_kind)

    def find_kind(self, name: str) -> TargetKind | None:
        """Return a kind by its name or an alias, loading plug-ins if necessary, or None."""
        kind = self._kinds.get(name)
        if kind is not None and self._is_loaded:
            return kind
        if not self._is_kind(name) and self.tags.find(name) is None:
            self._load_plugins()
        return self._kinds.get(name) or self._aliases.get(name)

    def alias_names(self) -> tuple[str, ...]:
        """Return the aliases of all kinds known so far, sorted."""
        self._load()
        return tuple(sorted(self._aliases))

    def kind_names(self, *, hidden: bool = True) -> tuple[str, ...]:
        """Return the names of all kinds known so far, sorted."""
        self._load()
        return tuple(sorted(k.name for k in self._kinds.values() if hidden or not k.is_hidden))

    def stand_ins(self) -> tuple[str, ...]:
        """Return the kinds that stand in for the host, in the order in which they are asked."""
        self._load()
        kinds = sorted(self._kinds.values(), key=lambda kind: (kind.stands_in, kind.name))
        return tuple(kind.name for kind in kinds if kind.stands_in)

    def add_kind(self, kind: TargetKind) -> None:
        """Add a kind; the same kind again changes nothing."""
        with self._lock:
            self._load()
            if self._kinds.get(kind.name, kind) != kind:
                raise TargetError(
                    f"a different target kind {kind.name!r} is registered already",
                    hint="give the kind another name",
                )
            for name in (kind.name, *kind.aliases):
                if self.tags.is_defined(name):
                    raise TargetError(f"{name!r} is the name of a tag already")
            self._store(kind)

    def _store(self, kind: TargetKind) -> None:
        for name in (kind.name, *kind.aliases):
            other = self._aliases.get(name, self._kinds.get(name, kind))
            if other.name != kind.name:
                raise TargetError(f"{name!r} means the kind {other.name!r} already")
        self._kinds[kind.name] = kind
        self._aliases.update(dict.fromkeys(kind.aliases, kind))

    def _is_kind(self, name: str) -> bool:
        self._load()
        return name in self._kinds or name in self._aliases

    def _load(self) -> None:
        if self._is_loaded:
            return
        with self._lock:
            if self._is_loaded:
                return
            for name, table in _kind_tables():
                self._store(read_kind(name, table))
            self._is_loaded = True

    def _load_plugins(self) -> None:
        from importlib.metadata import entry_points  # only an unknown name pays for it

        with self._lock:
            if self._has_plugins:
                return
            # Before loading: a plug-in that is loaded asks for kinds itself.
            self._has_plugins = True
            from intarsia.process.selftest import is_inside, require_plugin
            from intarsia.settings import Settings

            caches, failures = Settings.from_environment().cache_folder(), []
            for entry in sorted(entry_points(group=ENTRY_POINTS)):
                if is_inside() and is_foreign(entry):  # another one is tried in this process
                    continue
                try:
                    require_plugin(entry, caches)
                    for kind in entry.load().kinds:
                        if isinstance(kind, TargetKind):
                            self.add_kind(kind)
                except Exception as error:  # foreign code may raise anything
                    failures.append(f"backend plug-in {entry.name!r} ({entry.value}): {error!r}")
        # Without the lock: what shows a warning may be anybody's code.
        for failure in failures:
            warnings.warn(f"{failure}; it is left out", RuntimeWarning, stacklevel=2)


def read_kind(name: str, table: Mapping[str, Any]) -> TargetKind:
    """Make a kind of a table of the catalogue.

    Raises:
        TargetError: A field is unknown, missing or of the wrong type.
    """
    fields = _check_fields(f"kind {name}", table, _KIND_FIELDS)
    for required in ("device_type", "is_complete", "help"):
        if required not in fields:
            raise TargetError(f"kind {name}: {required} is missing")
    if fields["device_type"] not in DeviceType.__members__:
        raise TargetError(f"kind {name}: no device type {fields['device_type']!r}")
    canonicalizer = fields.pop("canonicalizer", None)
    if canonicalizer is not None and canonicalizer not in CANONICALIZERS:
        raise TargetError(f"kind {name}: no canonicaliser {canonicalizer!r}")
    attrs = [
        AttrSpec(attr, **_check_fields(f"kind {name}, attribute {attr}", spec, _ATTR_FIELDS))
        for attr, spec in fields.pop("attrs", {}).items()
    ]
    return TargetKind(
        name,
        DeviceType[fields.pop("device_type")],
        attrs=attrs,
        canonicalizer=CANONICALIZERS[canonicalizer] if canonicalizer else None,
        **fields,
    )


def _check_fields(place: str, table: object, schema: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise TargetError(f"{place}: expects a table")
    for field, value in table.items():
        if field not in schema:
            raise TargetError(f"{place}: no field {field!r}", hint=f"fields: {', '.join(schema)}")
        if not isinstance(value, schema[field]):
            raise TargetError(f"{place}: {field} has to be of type {schema[field].__name__}")
    return dict(table)


def _kind_tables() -> Iterator[tuple[str, Any]]:
    import tomllib  # only the first look-up pays for these
    from pathlib import Path

    for path in sorted((Path(__file__).parent / "catalogue" / "kinds").glob("*.toml")):
        yield from tomllib.loads(path.read_text(encoding="utf-8")).items()


REGISTRY = Registry()


def get_kind(name: str) -> TargetKind:
    """Return the target kind of that name.

    Raises:
        TargetError: There is none, in the catalogue nor among the installed plug-ins.
    """
    kind = REGISTRY.find_kind(name)
    if kind is None:
        listed = REGISTRY.kind_names(hidden=False)
        hint = suggest(name, REGISTRY.kind_names(), what="kinds", listed=listed)
        raise TargetError(f"target kind {name!r} is not known", hint=hint)
    return kind


def list_kinds(all: bool = False) -> tuple[str, ...]:  # noqa: A002 - reads as the flag
    """Return the names of the target kinds, sorted; hidden ones only if `all`."""
    return REGISTRY.kind_names(hidden=all)


def list_stand_ins() -> tuple[str, ...]:
    """Return the kinds that run, in the host's place, what no target takes, best first.

    They also compute what results are compared with: the first is fast, the last always there.
    """
    return REGISTRY.stand_ins()


def register_kind(kind: TargetKind) -> None:
    """Make a kind known by its name; the same kind again changes nothing.

    Raises:
        TargetError: Another kind, or a tag, has the name.
    """
    REGISTRY.add_kind(kind)
