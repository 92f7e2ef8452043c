# SPDX-License-Identifier: Apache-2.0
"""Where backends are: entry points, which are our own as long as nobody installs another.

Reading what is installed takes a tenth of a start. What it comes to is remembered while no folder
of packages changes, if all of it is ours; of plug-ins more is wanted than their names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from intarsia.cache import make_cache_folder, write_entry
from intarsia.errors import SettingError
from intarsia.hashing import digest
from intarsia.process.foreign import InstalledEntry, is_foreign
from intarsia.settings import Settings

GROUP = "intarsia.backends"

FOLDER_NAME = "installed"
"""Name of the folder of these notes inside the cache folder; others on what is installed too."""


_METADATA = (".dist-info", ".egg-info", ".egg")
"""How the names of folders end that say what is installed."""


class BackendEntry(InstalledEntry, Protocol):
    """An entry point of a backend."""

    def load(self) -> Any:
        """Return the backend."""


class OwnEntry(NamedTuple):
    """An entry point of ours."""

    name: str
    value: str
    group: str = GROUP

    def load(self) -> Any:
        """Return the backend."""
        module, _, attribute = self.value.partition(":")
        return getattr(import_module(module), attribute)


def list_entries(settings: Settings) -> Sequence[BackendEntry]:
    """Return the entry points of all backends, in no order.

    Args:
        settings: Say where it is remembered which there are.
    """
    try:
        note = settings.cache_folder() / FOLDER_NAME / f"entries-{digest(_traces())}"
    except SettingError:
        return _read_entries()
    with suppress(OSError, ValueError):
        return [OwnEntry(*line.split()) for line in note.read_text("utf-8").splitlines()]
    entries = _read_entries()
    if entries and not any(map(is_foreign, entries)):
        with suppress(OSError, SettingError):
            make_cache_folder(settings.cache_folder())
            lines = "".join(f"{entry.name} {entry.value}\n" for entry in entries)
            write_entry(note, lines.encode())
    return entries


def _read_entries() -> Sequence[BackendEntry]:
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _traces() -> Iterator[str]:
    """Yield what changes when a package is installed or removed."""
    yield sys.version
    for place in sys.path:
        yield place
        with suppress(OSError), os.scandir(place or ".") as entries:  # or it is a file, or missing
            yield from sorted(
                f"{entry.name} {entry.stat().st_mtime_ns}"
                for entry in entries
                if entry.name.endswith(_METADATA)
            )
