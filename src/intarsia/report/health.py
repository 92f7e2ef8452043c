# SPDX-License-Identifier: Apache-2.0
"""Whether each backend can be used here, and what the others lack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points

from intarsia.backends.backend import RegisteredBackend
from intarsia.backends.registry import GROUP, Backends
from intarsia.errors import BackendError
from intarsia.target import get_kind, list_kinds

_LIBRARY = re.compile(r"([\w.+-]+\.(?:so(?:\.\d+)*|dylib|dll))\b")
_MODULE = re.compile(r"No module named '([\w.]+)'")


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """Whether a backend can be used here.

    Attributes:
        name: Its name.
        kinds: The target kinds that it serves.
        is_complete: Whether one of them can run whole models.
        is_hidden: Whether it is for tests and debugging only.
        version: Of what runs the code; None if that cannot be found out.
        is_usable: Whether it found a device.
        targets: What it found, as text.
        devices: The run-time devices of those, each with its name where a backend tells it.
        reason: Why it cannot be used.
        missing: The package, library or file that it lacks, where that is known.
        fix: What to do about it.
        notes: What it says of itself: the file that is used and why, for one.
    """

    name: str
    kinds: tuple[str, ...]
    is_complete: bool
    is_hidden: bool
    version: str | None
    is_usable: bool
    targets: tuple[str, ...]
    devices: tuple[str, ...]
    reason: str = ""
    missing: str = ""
    fix: str = ""
    notes: tuple[str, ...] = ()


def check_backends(backends: Backends) -> tuple[BackendHealth, ...]:
    """Return whether each backend can be used here, those that failed to load first."""
    return (*_broken(backends), *map(backend_health, backends.by_name.values()))


def backend_health(backend: RegisteredBackend) -> BackendHealth:
    """Return whether a backend can be used here; whatever it raises is an answer."""
    kinds = backend.kind_names
    known = [get_kind(kind) for kind in kinds]
    is_complete = any(kind.is_complete for kind in known)
    is_hidden = all(kind.is_hidden for kind in known)
    number, reason, missing, fix = None, "", "", ""
    try:
        number = backend.version()
    except Exception as error:  # a plug-in may raise anything
        reason = error.message if isinstance(error, BackendError) else str(error)
        missing, fix = _missing(error)
        fix = fix or getattr(error, "hint", None) or "reinstall the package that provides it"
    found = backend.detect()
    if not reason and not found.targets:
        reason = found.reason or "it found no device"
        missing, fix = _missing_in(reason)
        fix = found.hint or fix or "see the runtime's own documentation"
    devices = found.devices or tuple(
        dict.fromkeys(f"{target.device_type.name.lower()}:0" for target in found.targets)
    )
    return BackendHealth(
        backend.name,
        kinds,
        is_complete,
        is_hidden,
        number,
        is_usable=not reason,
        targets=tuple(map(str, found.targets)),
        devices=devices,
        reason=reason,
        missing=missing,
        fix=fix,
        notes=() if reason else _notes(backend),
    )


def _notes(backend: RegisteredBackend) -> tuple[str, ...]:
    try:
        return () if backend.notes is None else tuple(backend.notes())
    except Exception as error:  # a plug-in may raise anything
        return (f"it cannot describe itself: {error}",)


def _broken(backends: Backends) -> Iterator[BackendHealth]:
    owners = {
        entry.name: entry.dist.metadata["Name"] if entry.dist is not None else entry.value
        for entry in entry_points(group=GROUP)
    }
    for name, reason in backends.broken.items():
        missing, fix = _missing_in(reason)
        fix = fix or f"pip install --force-reinstall {owners.get(name, name)}, or uninstall it"
        why = f"its plug-in failed to load: {reason}"
        kinds = (name,) if name in list_kinds(True) else ()
        is_complete = any(get_kind(kind).is_complete for kind in kinds)
        yield BackendHealth(name, kinds, is_complete, False, None, False, (), (), why, missing, fix)


def _missing(error: BaseException) -> tuple[str, str]:
    """Return what an error or one of its causes says is missing, and the command for it."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, FileNotFoundError) and link.filename:
            return f"file {link.filename}", ""
        missing, fix = _missing_in(getattr(link, "message", str(link)))  # without its hint
        if missing:
            hint = getattr(error, "hint", None)
            is_known = link is error or missing.startswith("package")  # the backend knows better
            return missing, (hint or fix) if is_known else fix
        link = link.__cause__
    return "", ""


def _missing_in(text: str) -> tuple[str, str]:
    module = _MODULE.search(text)
    if module is not None:
        name = module[1].partition(".")[0]
        return f"package {name}", f"pip install {name}"
    library = _LIBRARY.search(text)
    if library is not None:
        return f"library {library[1]}", (
            f"install the system package that has {library[1]} (apt-file search {library[1]})"
        )
    return "", ""
