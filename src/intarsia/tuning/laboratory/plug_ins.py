# SPDX-License-Identifier: Apache-2.0
"""Backends that were given as objects and are not installed: how workers come by them.

A worker is a fresh interpreter and knows entry points only. A module-level object is imported there
by its name; any other is pickled, which needs a class that can be imported. Both come from this
process and go to children of it, so that nothing is trusted that was not before.
"""

from __future__ import annotations

import pickle  # noqa: TID251 - no package and no cache: between a process and its child
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from intarsia.backends.backend import RegisteredBackend
from intarsia.backends.registry import collect, load_backends
from intarsia.errors import BackendError
from intarsia.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from intarsia.backends.backend import Backend
    from intarsia.backends.registry import Backends

_HINT = (
    "define its class in a module that can be imported, not in a script or a function, or install "
    "it under the entry-point group 'intarsia.backends'"
)


@dataclass(frozen=True, slots=True)
class PlugIn:
    """A backend as a worker can get it.

    Attributes:
        name: The backend's.
        place: `module:attribute` of the object itself; empty if it is pickled.
        pickled: The object otherwise.
    """

    name: str
    place: str = ""
    pickled: bytes = b""


@dataclass(frozen=True, slots=True)
class PlugIns:
    """All of them, and where their modules are.

    Attributes:
        backends: In order of their names.
        path: `sys.path` of the process that has them.
    """

    backends: tuple[PlugIn, ...] = ()
    path: tuple[str, ...] = ()


def describe_plug_ins(backends: Backends) -> PlugIns:
    """Return those backends that are not what is installed under their name.

    Raises:
        BackendError: One of them cannot be handed to another process.
    """
    installed = load_backends(backends.settings).with_settings(DEFAULTS).by_name
    plug_ins = [
        _describe(name, backends.by_name[name].value)
        for name, backend in sorted(backends.with_settings(DEFAULTS).by_name.items())
        if name not in installed or installed[name].value != backend.value  # whatever settings
    ]
    return PlugIns(tuple(plug_ins), tuple(sys.path) if plug_ins else ())


def _describe(name: str, backend: object) -> PlugIn:
    module = type(backend).__module__
    attributes = vars(sys.modules[module]) if module in sys.modules else {}
    if module != "__main__":
        for attribute, value in attributes.items():
            if value is backend:
                return PlugIn(name, f"{module}:{attribute}")
        try:
            return PlugIn(name, pickled=pickle.dumps(backend))
        except Exception as error:
            raise _unreachable(name, str(error)) from error
    raise _unreachable(name, "its class is defined in the program's main module")


def _unreachable(name: str, reason: str) -> BackendError:
    return BackendError(
        f"backend {name!r} was given as an object, and another process cannot get it: {reason}",
        backend=name,
        hint=_HINT,
    )


def load_all(plug_ins: PlugIns, settings: Settings) -> Backends:
    """Return the installed backends and the plug-ins, which come first where both serve a kind.

    Args:
        plug_ins: What another process has beside what is installed.
        settings: What all of them follow.

    Raises:
        BackendError: A plug-in cannot be had here.
    """
    if not plug_ins.backends:
        return load_backends(settings)
    sys.path += [entry for entry in plug_ins.path if entry not in sys.path]
    added = [RegisteredBackend.of(_load(plug_in)) for plug_in in plug_ins.backends]
    names = {backend.name for backend in added} | {
        kind for backend in added for kind in backend.kind_names
    }
    installed = load_backends(settings)
    others = [
        backend
        for backend in installed.by_name.values()
        if names.isdisjoint((backend.name, *backend.kind_names))
    ]
    return collect((*added, *others), installed.broken).with_settings(settings)


def _load(plug_in: PlugIn) -> Backend:
    try:
        if plug_in.place:
            module, _, attribute = plug_in.place.partition(":")
            backend: Backend = getattr(import_module(module), attribute)
        else:
            backend = pickle.loads(plug_in.pickled)
    except Exception as error:
        raise BackendError(
            f"backend {plug_in.name!r} was given as an object, and another process cannot get it: "
            f"{type(error).__name__}: {error}",
            backend=plug_in.name,
            hint=_HINT,
        ) from error
    return backend
