# SPDX-License-Identifier: Apache-2.0
"""Finds backends by entry points, built-in ones and plug-ins alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from intarsia.backends.backend import Backend, RegisteredBackend
from intarsia.backends.entries import list_entries
from intarsia.errors import BackendError, words
from intarsia.process.foreign import is_foreign
from intarsia.settings import DEFAULTS, Settings
from intarsia.target.pipeline import STANDARD_PIPELINE

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.backends.device import Baseline
    from intarsia.target import Target

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backends:
    """The backends of one process.

    Attributes:
        by_name: Backend by its name, in the order of names.
        by_kind: Backend by the name of each target kind that it serves.
        broken: Why an entry point could not be loaded, by its name.
        settings: What they follow.
    """

    by_name: Mapping[str, RegisteredBackend]
    by_kind: Mapping[str, RegisteredBackend]
    broken: Mapping[str, str] = field(default_factory=dict)
    settings: Settings = DEFAULTS

    def with_settings(self, settings: Settings) -> Backends:
        """Return the backends as settings have them."""
        by_name = {name: backend.configured(settings) for name, backend in self.by_name.items()}
        by_kind = {kind: by_name[backend.name] for kind, backend in self.by_kind.items()}
        return Backends(by_name, by_kind, self.broken, settings)

    def for_target(self, target: Target) -> RegisteredBackend:
        """Return the backend that serves a target.

        Raises:
            BackendError: None does, or the one that does failed to load.
        """
        kind = target.kind.name
        backend = self.by_kind.get(kind)
        if backend is None:
            broken = self.broken.get(kind)
            because = f": its plug-in failed to load: {broken}" if broken else _needs(kind)
            raise BackendError(
                f"no backend generates code for target kind {kind!r}{because}",
                backend=kind,
                target=str(target),
                hint=f"kinds with a backend here: {', '.join(sorted(self.by_kind))}; `intarsia "
                "plan absent` plans for others",
            )
        return backend

    def named(self, name: str) -> RegisteredBackend:
        """Return a backend by its name.

        Raises:
            BackendError: It is not installed, or failed to load.
        """
        backend = self.by_name.get(name)
        if backend is None:
            because = self.broken.get(name, "no entry point of that name is installed")
            raise BackendError(
                f"backend {name!r} is not available: {because}",
                backend=name,
                hint=f"install the package that provides it; here: {', '.join(self.by_name)}",
            )
        return backend

    def baseline_of(self, name: str) -> Callable[[bytes | str, Mapping[str, Array], int], Baseline]:
        """Return what makes a model's baseline in the plain API of a backend's own runtime.

        Raises:
            BackendError: It is not installed, failed to load, or has no runtime of its own.
        """
        backend = self.named(name)
        if backend.baseline is None:
            able = [
                other for other, candidate in self.by_name.items() if candidate.baseline is not None
            ]
            raise BackendError(
                f"backend {name!r} has no baseline to compare with",
                backend=name,
                hint=f"these have: {', '.join(able) or 'none'}",
            )
        return backend.baseline


def _needs(kind: str) -> str:
    """Say what compiling for a kind needs, where it is declared."""
    from intarsia.backends.declared import known_declarations  # only an error asks

    declaration = known_declarations().get(kind)
    return f"; it needs {declaration.needs}" if declaration is not None else ""


def collect(
    backends: Iterable[Backend | RegisteredBackend], broken: Mapping[str, str] | None = None
) -> Backends:
    """Index backends by name and by kind, and register the kinds that they bring.

    Raises:
        BackendError: Two backends claim one name or one kind, or one brings two passes of a name,
            or one with the name of ours.
    """
    by_name: dict[str, RegisteredBackend] = {}
    by_kind: dict[str, RegisteredBackend] = {}
    for backend in sorted(map(RegisteredBackend.of, backends), key=lambda backend: backend.name):
        if backend.name in by_name:
            raise BackendError(
                f"two installed backends are named {backend.name!r}",
                backend=backend.name,
                hint="uninstall one of the packages",
            )
        by_name[backend.name] = backend
        _check_passes(backend)
        for kind, kind_name in zip(backend.kinds, backend.kind_names, strict=True):
            if kind_name in by_kind:
                raise BackendError(
                    f"target kind {kind_name!r} is claimed by the backends "
                    f"{by_kind[kind_name].name!r} and {backend.name!r}",
                    backend=backend.name,
                    hint="uninstall one of the packages",
                )
            if not isinstance(kind, str):
                from intarsia.target import register_kind  # the catalogue has those of ours

                register_kind(kind)
            by_kind[kind_name] = backend
    return Backends(by_name, by_kind, dict(broken or {}))


def _check_passes(backend: RegisteredBackend) -> None:
    taken = set(STANDARD_PIPELINE)
    for brought in backend.passes:
        text = f"{brought.stage}: {brought.name}"
        if text in taken:
            raise BackendError(
                f"backend {backend.name!r} brings a pass {text!r}, which exists already",
                backend=backend.name,
                hint="give the pass another name",
            )
        taken.add(text)


def _outdated_import(error: Exception) -> str:
    """Return what a plug-in imports of ours that has moved, and where to; "" for other errors."""
    module = error.name or "" if isinstance(error, ImportError) else ""
    if not module.startswith("intarsia.backends"):
        return ""
    problem = (
        f"it imports {module}, which this version of Intarsia does not have"
        if isinstance(error, ModuleNotFoundError)
        else str(error)
    )
    return (
        f"{problem}; the contract of backends is in intarsia.backends.backend (Backend), "
        "intarsia.backends.values (Artifact, ...) and intarsia.backends.device (HostDevice, ...): "
        "update the plug-in"
    )


def load_backends(settings: Settings, names: Collection[str] | None = None) -> Backends:
    """Load every backend that is installed; a broken plug-in is a warning that names it.

    Args:
        settings: What the backends follow.
        names: Load only entry points of these names; None loads all.
    """
    caches = settings.cache_folder()
    loaded: list[Backend] = []
    broken: dict[str, str] = {}
    # Sorted: the order in which packages are found on the disk is nobody's.
    for entry in sorted(list_entries(settings), key=lambda entry: (entry.name, entry.value)):
        if names is not None and entry.name not in names:
            continue
        try:
            if is_foreign(entry):
                from intarsia.process.selftest import is_inside, require_plugin

                if is_inside():  # another one is tried in this process
                    continue
                require_plugin(entry, caches)
            backend = entry.load()
        except Exception as error:
            broken[entry.name] = _outdated_import(error) or words(error)
            problem = _outdated_import(error) or error
            logger.warning("backend plug-in %r failed to load: %s", entry.name, problem)
            continue
        if not isinstance(backend, Backend):
            broken[entry.name] = f"{entry.value} is not a Backend"
            logger.warning("backend plug-in %r is not a Backend (%s)", entry.name, entry.value)
            continue
        loaded.append(backend)
    return collect(loaded, broken).with_settings(settings)
