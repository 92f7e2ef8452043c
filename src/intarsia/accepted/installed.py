# SPDX-License-Identifier: Apache-2.0
"""Which code runs here: a digest of all that is installed and decides a program; remembered.

The versions of all libraries are known once these are loaded, and what is found on a machine once
all were asked; that takes longer than loading many a program. They follow from what is installed,
and that shows in the times of folders and files. So the digest is remembered under these.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.cache import make_cache_folder, write_entry
from intarsia.cost.fingerprint import this_machine
from intarsia.errors import IntarsiaError, SettingError
from intarsia.hashing import digest
from intarsia.native.entries import prune
from intarsia.settings import Settings, driver_variables

if TYPE_CHECKING:
    from intarsia.backends.backend import RegisteredBackend
    from intarsia.place.machine import Machine

logger = logging.getLogger(__name__)

FOLDER_NAME = "installed"
"""Name of the folder of these notes inside the cache folder."""

_LIMIT_BYTES = 1 << 20
_DIGEST_DIGITS = 32

_DRIVERS = ("/etc/OpenCL/vendors", "/dev/dri", "/proc/driver/nvidia/gpus")
"""Where Linux lists devices and drivers that may be found; what is in them counts."""

_SOURCES = tuple(
    f"intarsia.{name}"
    for name in (
        "accepted",
        "backends",
        "codegen",
        "graph",
        "native",
        "passes",
        "place",
        "plan",
        "runtime",
        "search",
        "target",
        "tuning",
    )
)
"""Modules of ours that decide how a plan becomes a program."""

_LIBRARIES = ("ml_dtypes", "numpy", "onnx", "onnx_ir", "onnxscript")
"""Libraries that read and rewrite models, besides our own sources."""


def installation_digest(machine: Machine, num_threads: int) -> str | None:
    """Return a digest of a machine and of all code that serves it; None if it cannot be told.

    Libraries are loaded to say their versions.

    Args:
        machine: With its backends; what is not ours may be anything.
        num_threads: Threads that one run may use.
    """
    from importlib.metadata import version

    from intarsia.codegen.sources import source_digest
    from intarsia.place.machine import make_contexts
    from intarsia.plan.identity import machine_identity
    from intarsia.target import list_stand_ins

    config, backends = machine.config, machine.backends
    try:
        served = [
            (backends.for_target(placed.target), context)
            for placed, context in make_contexts(config, num_threads).items()
        ]
        if not all(is_ours(backend) for backend, _ in served):
            return None
        identity = machine_identity(config, served, num_threads, is_exact=True)
    except IntarsiaError:  # where it is needed, the error says what is wrong
        return None
    return digest(
        (
            *(repr(config.to_json()), str(config.reasons.is_detected)),
            identity.machine,
            *(identity.code or ()),
            source_digest(_SOURCES),
            *(f"{name} {version(name)}" for name in _LIBRARIES),
            *(f"{name} {_version_if_any(name)}" for name in list_stand_ins()),
            *_settings_that_count(backends.settings),
        )
    )


def _version_if_any(name: str) -> str:
    """Return the version of a package without loading it; nothing if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def is_ours(backend: RegisteredBackend) -> bool:
    """Tell whether a backend comes with Intarsia: the dependencies of others are unknown."""
    return type(backend.value).__module__.startswith("intarsia.")


def recall(key: str, settings: Settings) -> str | None:
    """Return the value stored under a key, unless something installed has changed since."""
    try:
        text = _file(key, settings).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return text if len(text) == _DIGEST_DIGITS else None


def remember(key: str, here: str, settings: Settings) -> None:
    """Remember the digest of what is here, as long as nothing changes that is installed."""
    file = _file(key, settings)
    try:
        if file.is_file() and file.read_text(encoding="ascii") == here:
            return
        make_cache_folder(settings.cache_folder())
        write_entry(file, here.encode())
        prune(file.parent, _LIMIT_BYTES)
    except (OSError, UnicodeDecodeError, SettingError) as error:
        logger.info("what is installed cannot be cached: %s", error)


def _file(key: str, settings: Settings) -> Path:
    name = digest((key, *_traces(settings)))
    return settings.cache_folder() / FOLDER_NAME / name


def _traces(settings: Settings) -> Iterator[str]:
    """Yield what changes when something is installed, removed, plugged in, set or tuned."""
    yield from (sys.version, sys.prefix, this_machine().digest)
    yield from _settings_that_count(settings)
    yield from driver_variables()
    for place in _import_folders():
        yield _status(place)
    yield _own_sources()
    for folder in (*map(Path, _DRIVERS), settings.schedules_folder()):
        yield f"{folder}"
        yield from sorted(map(_status, _entries(folder)))


def _import_folders() -> list[str]:
    """Return the folders of packages; not the one that the program or the shell is in."""
    return [place for place in sys.path[1:] if place and place != str(Path.cwd())]


@cache
def _own_sources() -> str:
    """Return a digest of the times of our own files."""
    return digest(sorted(_source_traces(str(Path(__file__).parents[1]))))


def _source_traces(folder: str) -> Iterator[str]:
    """Yield the status of each source in a folder; plain strings, as there are hundreds."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield _text(entry.path, entry.stat())
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _source_traces(entry.path)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _status(path: str | Path) -> str:
    try:
        return _text(str(path), Path(path).stat())
    except OSError:
        return f"{path} is not there"


def _text(path: str, status: os.stat_result) -> str:
    return f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _settings_that_count(settings: Settings) -> Iterator[str]:
    for spec in fields(settings):
        if spec.metadata["in_cache_keys"] and spec.name != "num_threads":  # that is a part already
            yield f"{spec.name}={getattr(settings, spec.name)!r}"
