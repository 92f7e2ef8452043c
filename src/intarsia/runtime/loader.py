# SPDX-License-Identifier: Apache-2.0
"""Loads the regions of a plan on the devices where their tensors lie."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from mmap import mmap
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, ref

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.backend import RegisteredBackend
from intarsia.backends.device import Device, Executable, HostDevice, ThreadOptions
from intarsia.backends.values import Artifact, ArtifactConstant
from intarsia.errors import BackendError, IntarsiaError
from intarsia.graph.arena import LARGE_ARRAY_BYTES, on_large_pages
from intarsia.plan.devices import HOST_DOMAIN, domain_text, parse_domain
from intarsia.target import DeviceType

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.target import VirtualDevice


def run_options(
    num_threads: int, backends: Iterable[RegisteredBackend], *, is_shared: bool
) -> ThreadOptions:
    """Return how the code of a plan may use the machine.

    Args:
        num_threads: That one run may use.
        backends: Those whose regions take turns.
        is_shared: Whether there are several.
    """
    teams = (
        backend.gomp_parallel()
        for backend in backends
        if is_shared and backend.gomp_parallel is not None
    )
    return ThreadOptions(num_threads, is_shared, next(filter(None, teams), 0))


class SharedConstants:
    """Constants of several programs of one model: equal ones are one array.

    It keeps none alive that no program has any more. What lies in the first file that was mapped
    is told by its place: nothing is hashed until a constant comes from elsewhere.
    """

    def __init__(self) -> None:
        self._by_content: WeakValueDictionary[tuple[str, tuple[int, ...], bytes], Array] = (
            WeakValueDictionary()
        )
        self._by_place: WeakValueDictionary[tuple[str, tuple[int, ...], int], Array] = (
            WeakValueDictionary()
        )
        self._file: ref[mmap] | None = None

    def share(self, artifact: Artifact) -> Artifact:
        """Return an artifact whose constants are those of others where they are equal.

        New ones are moved: see `_moved`.
        """
        shared = [replace(one, data=self._shared(one.data)) for one in artifact.constants]
        copies = _moved(
            one
            for one, before in zip(shared, artifact.constants, strict=True)
            if one.data is before.data
        )
        for key, array in list(self._by_content.items()):
            if id(array) in copies:
                self._by_content[key] = copies[id(array)]
        return _with_copies(replace(artifact, constants=tuple(shared)), copies)

    def _shared(self, array: Array) -> Array:
        if array.dtype == object or not array.flags.c_contiguous:
            return array
        file = _mapped_file(array)
        if file is not None:
            if self._file is None:
                self._file = ref(file)
            if self._file() is file:
                place = array.__array_interface__["data"][0]
                return self._by_place.setdefault((array.dtype.str, array.shape, place), array)
        while self._by_place:
            self._by_content_of(self._by_place.popitem()[1])
        return self._by_content_of(array)

    def _by_content_of(self, array: Array) -> Array:
        content = hashlib.sha256(array.reshape(-1).view(np.uint8).data).digest()
        return self._by_content.setdefault((array.dtype.str, array.shape, content), array)


def _moved(constants: Iterable[ArtifactConstant]) -> dict[int, Array]:
    """Copy what backends packed onto large pages; return the copies by the arrays' `id`."""
    arrays = [one.data for one in constants if one.is_packed]
    small = [array for array in arrays if array.nbytes < LARGE_ARRAY_BYTES]
    return dict(zip(map(id, small), on_large_pages(small), strict=True))


def _with_copies(artifact: Artifact, copies: Mapping[int, Array]) -> Artifact:
    return replace(
        artifact,
        constants=tuple(
            replace(one, data=copies.get(id(one.data), one.data)) for one in artifact.constants
        ),
    )


def _mapped_file(array: Array) -> mmap | None:
    """Return the mapping of a file that an array lies in; None if it lies elsewhere."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    owner = base.obj if isinstance(base, memoryview) else None
    return owner if isinstance(owner, mmap) else None


class RegionLoader:
    """Loads artifacts, opening each memory domain once.

    Args:
        backends: Load the artifacts.
        options: How their code may use the machine.
        shared: The constants that the program shares with others; None means that it is alone.
    """

    def __init__(
        self, backends: Backends, options: ThreadOptions, shared: SharedConstants | None = None
    ) -> None:
        self._backends = backends
        self._options = options
        self._shared = shared
        self._opened: dict[str, Device] = {}

    def with_shared(self, artifact: Artifact) -> Artifact:
        """Return an artifact that shares its constants with those of other programs.

        Those that its backend packed lie on large pages then.
        """
        if self._shared is None:
            return _with_copies(artifact, _moved(artifact.constants))
        return self._shared.share(artifact)

    def device(self, text: str) -> Device:
        """Return an opened memory domain; host memory needs no backend to open it.

        No region may run there: an input or output may be on a device that nothing else uses.

        Raises:
            BackendError: No backend opens it, or the one that does failed.
        """
        opened = self._opened.get(text)
        if opened is None:
            is_host = text == domain_text(HOST_DOMAIN)
            opened = HostDevice(self._options) if is_host else self._open(parse_domain(text), text)
            self._opened[text] = opened
        return opened

    def _open(self, place: VirtualDevice, text: str) -> Device:
        """Open a device on which no region runs."""
        from intarsia.target import get_kind  # the host's memory needs no target

        for name, backend in self._backends.by_kind.items():
            kind = get_kind(name)
            vendor, scope = "", place.memory_scope
            if place.device_type == DeviceType.EXT_DEV:
                vendor, _, scope = scope.partition("/")
            is_its = kind.memory_scope == scope and (kind.is_complete or bool(scope))
            if is_its and kind.device_type == place.device_type and vendor in ("", backend.name):
                with _opening(backend, text):
                    return backend.open(place, self._options)
        raise BackendError(
            f"no backend here opens the device {text!r}, which has an input or output",
            hint="install the backend of its kind, or leave the tensor in the host's memory",
        )

    def load(self, artifact: Artifact, device_text: str) -> Executable:
        """Load one region.

        Raises:
            BackendError: Its backend is missing, or failed.
        """
        backend = self._backends.named(artifact.backend)
        is_host = device_text == domain_text(HOST_DOMAIN)
        device = self.device(device_text) if is_host else self._opened.get(device_text)
        try:
            if device is None:
                place = parse_domain(device_text)
                opener = self._opener(artifact, backend, place)
                device = opener.open(place, self._options)
                self._opened[device_text] = device
            return backend.load(artifact, device)
        except IntarsiaError:
            raise
        except Exception as error:  # a plug-in may raise anything
            raise BackendError(
                f"backend {backend.name!r} failed to load a region: "
                f"{type(error).__name__}: {error}",
                backend=f"{backend.name} {artifact.version}",
                target=artifact.target,
            ) from error

    def _opener(
        self, artifact: Artifact, backend: RegisteredBackend, domain: VirtualDevice
    ) -> RegisteredBackend:
        """Return the backend that opens a device: of the complete kind, if a partial one is on it.

        Targets on one device share its memory, so that all of them get what one backend opened. A
        kind with a memory of its own opens that itself.
        """
        from intarsia.target import PlacedTarget, get_kind

        target = PlacedTarget.parse(artifact.target).target
        if target.kind.is_complete or target.kind.memory_scope:
            return backend
        base = target.attrs.get("base")
        names = (base.kind.name,) if base is not None else tuple(self._backends.by_kind)
        for name in names:
            owner, kind = self._backends.by_kind.get(name), get_kind(name)
            is_there = kind.is_complete and kind.device_type == domain.device_type
            if owner is None or not is_there or not target.kind.can_refine(kind):
                continue
            if domain.device_type != DeviceType.EXT_DEV or _vendor(domain) == owner.name:
                return owner
        return backend


@contextmanager
def _opening(backend: RegisteredBackend, text: str) -> Iterator[None]:
    try:
        yield
    except IntarsiaError:
        raise
    except Exception as error:  # a plug-in may raise anything
        raise BackendError(
            f"backend {backend.name!r} failed to open {text!r}: {type(error).__name__}: {error}",
            backend=backend.name,
        ) from error


def _vendor(domain: VirtualDevice) -> str:
    """Return the backend whose accelerators have this memory."""
    return domain.memory_scope.partition("/")[0]
