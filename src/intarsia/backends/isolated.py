# SPDX-License-Identifier: Apache-2.0
"""A backend whose regions run in a process of their own: what takes that, leaves this one alone.

Tensors go through memory that both processes map, and a byte over a socket says that it is time.
When the process dies, whoever waited for it gets one error; the next call starts it anew.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from weakref import finalize

import msgspec
import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.device import Buffer, Device, HostDevice, Step, ValueSlot
from intarsia.backends.registry import Backends, collect
from intarsia.errors import BackendError, ExecutionError, SettingError
from intarsia.graph.arena import ALIGNMENT
from intarsia.process.channel import new_file
from intarsia.process.workers import CallOutcome, Limits, Worker
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.backends.backend import Backend
    from intarsia.backends.values import Artifact

_THERE = "intarsia.backends.isolated_worker"
RUN, DONE, FAILED = b"r", b"d", b"f"
"""What is said over a socket: run; it is done; it failed, and why follows."""


def isolated(backends: Backends, names: Collection[str]) -> Backends:
    """Return backends of which some have their regions in processes of their own.

    Args:
        backends: All of them.
        names: Of those that have.

    Raises:
        SettingError: There is no such backend.
    """
    names = {names} if isinstance(names, str) else set(names)
    for name in sorted(names):
        if name not in backends.by_name:
            raise SettingError(
                f"there is no backend {name!r} to isolate",
                hint=f"backends here: {', '.join(backends.by_name)}",
            )
    values = (
        IsolatedBackend(one.value, backends.settings) if name in names else one
        for name, one in backends.by_name.items()
    )
    return replace(collect(values, backends.broken), settings=backends.settings)


@dataclass(frozen=True)
class IsolatedBackend:
    """A backend that loads in a process of its own; all else it does here.

    Attributes:
        inner: The backend.
        settings: What it follows.
        host: The process.
    """

    inner: Backend
    settings: Settings
    host: RegionHost = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", RegionHost(self.inner.name))

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not there yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def with_settings(self, settings: Settings) -> Self:
        """Return the backend as settings have it."""
        configure = getattr(self.inner, "with_settings", None)
        inner = self.inner if configure is None else configure(settings)
        return type(self)(inner, settings)

    def gomp_parallel(self) -> int:
        """Return that its threads cannot be shared."""
        return 0

    def load(self, artifact: Artifact, device: Device) -> IsolatedExecutable:
        """Load a region in the process.

        Raises:
            BackendError: The backend did not load it, or its memory is not the host's.
        """
        if not isinstance(device, HostDevice):
            raise BackendError(
                f"regions of {self.inner.name} cannot be isolated: they use a device's own memory",
                backend=self.inner.name,
                hint=f"leave {self.inner.name!r} out of isolate",
            )
        options = device.options
        call = [self.inner.name, self.settings, options.num_threads, options.is_shared]
        executable = IsolatedExecutable(self.host, artifact, call)
        if self.host.prepare(executable).is_resizable:
            executable = ResizableExecutable(self.host, artifact, call)
            self.host.prepare(executable)
        return executable


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A region in a process.

    Attributes:
        generation: Which process.
        number: By which it knows the region.
        is_resizable: Whether the region is given sizes before it runs.
    """

    generation: int
    number: int
    is_resizable: bool


class RegionHost:
    """The process of a backend's regions; starts anew after it has died.

    Args:
        backend: The backend's name.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._lock = threading.RLock()
        self._worker = Worker()
        self._generation = 0
        self._dropped: list[int] = []
        finalize(self, self._worker.close)

    @property
    def pid(self) -> int | None:
        """The process's number, if it is there."""
        return self._worker.pid

    def prepare(self, executable: IsolatedExecutable) -> _Loaded:
        """Return a region as the living process has it; it is loaded if it is not there yet.

        Raises:
            BackendError: It could not be loaded.
        """
        with self._lock:
            if self._worker.pid is None:
                self._generation += 1
                self._dropped.clear()
            loaded = executable.loaded
            if loaded is None or loaded.generation != self._generation:
                dropped, self._dropped = self._dropped, []
                arguments = [dropped, *executable.call, executable.record]
                answer = self._call("load", arguments, arrays=executable.constants)
                loaded = _Loaded(self._generation, *answer.value)
                executable.loaded = loaded
                finalize(executable, self._drop, loaded)
            return loaded

    def is_current(self, loaded: _Loaded) -> bool:
        """Tell whether a region is in the process that is there now, as far as is known."""
        return loaded.generation == self._generation

    def bind(self, loaded: _Loaded, arguments: Sequence[Any], files: Sequence[int]) -> None:
        """Bind a region to memory.

        Raises:
            BackendError: It could not be.
        """
        with self._lock:
            self._call("bind", [loaded.number, *arguments], files=files)

    def run_loose(
        self,
        loaded: _Loaded,
        sizes: Mapping[str, int] | None,
        slots: Sequence[int],
        inputs: Mapping[str, Array],
        outputs: Sequence[Sequence[Any] | None],
    ) -> dict[str, Array]:
        """Run a region once; return its outputs by their number.

        Raises:
            ExecutionError: It failed.
        """
        known = None if sizes is None else dict(sizes)
        arguments = [loaded.number, known, slots, outputs]
        with self._lock:
            return dict(self._call("run_loose", arguments, arrays=inputs, is_run=True).arrays)

    def tell_end(self, loaded: _Loaded, *, is_late: bool = False) -> ExecutionError:
        """Return why the process of a region does not answer; it is ended.

        Args:
            loaded: The region.
            is_late: Whether it was waited for for too long.
        """
        with self._lock:
            why = "it has ended"
            if is_late:
                why = "a step took too long, so that it was ended"
            if self.is_current(loaded):
                if is_late:
                    self._worker.stop()
                ended = self._worker.autopsy()
                why = why if is_late else ended.message
                self._generation += 1
        return ExecutionError(
            f"the process of {self.backend}'s regions is gone: {why}",
            backend=self.backend,
            hint="the next run starts a new one; leave the backend out with --exclude if it goes "
            "on like this",
        )

    def _drop(self, loaded: _Loaded) -> None:
        if loaded.generation == self._generation:
            self._dropped.append(loaded.number)  # told with the next call: this may be any moment

    def _call(
        self,
        function: str,
        arguments: Sequence[Any],
        *,
        arrays: Mapping[str, Array] | None = None,
        files: Sequence[int] = (),
        is_run: bool = False,
    ) -> CallOutcome:
        kind = ExecutionError if is_run else BackendError
        limits = Limits(SECONDS)
        try:
            outcome = self._worker.call(
                f"{_THERE}:{function}", *arguments, arrays=arrays, files=files, limits=limits
            )
        except TypeError as error:
            raise kind(
                f"a region of {self.backend} cannot be isolated: {error}", backend=self.backend
            ) from error
        if not outcome.is_ok:
            if outcome.reason is not None:
                self._generation += 1
            raise kind(
                f"in a process of its own: {outcome.message}",
                backend=self.backend,
                hint=outcome.hint or None,
            )
        return outcome


SECONDS = 600.0
"""After which a process that does not answer is taken to hang."""


class IsolatedExecutable:
    """A region in another process.

    Args:
        host: The process.
        artifact: The region.
        call: What it is loaded with there.

    Attributes:
        loaded: It as the last process had it.
        record: The artifact without its constants.
        constants: These, by their number.
        call: What it is loaded with there.
    """

    scratch_bytes = 0

    def __init__(self, host: RegionHost, artifact: Artifact, call: Sequence[Any]) -> None:
        self.host = host
        self.loaded: _Loaded | None = None
        self.call = [msgspec.to_builtins(one) for one in call]
        names = [one.name for one in artifact.constants]
        self.record = [msgspec.to_builtins(replace(artifact, constants=(), payload=b"")), names]
        self.constants = {str(i): one.data for i, one in enumerate(artifact.constants)}
        self.constants["payload"] = np.frombuffer(artifact.payload, np.uint8)

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that runs the region there, on copies of these arrays."""
        del scratch
        return self._bind(inputs, outputs, None)

    def _bind(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        sizes: Mapping[str, int] | None,
    ) -> Step:
        if any(isinstance(one, ValueSlot) or one.dtype == object for one in (*inputs, *outputs)):
            return partial(self._run_loose, inputs, outputs, sizes)
        return _Line(self, inputs, outputs, sizes)

    def _run_loose(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        sizes: Mapping[str, int] | None,
    ) -> None:
        values = [one.value if isinstance(one, ValueSlot) else one for one in inputs]
        for value in values:
            if not isinstance(value, np.ndarray | np.generic) or value.dtype == object:
                raise ExecutionError(
                    f"a region of {self.host.backend} cannot be isolated: it reads text, or a "
                    "value that is no tensor",
                    backend=self.host.backend,
                )
        arrays = {str(i): np.asarray(one) for i, one in enumerate(values)}
        slots = [i for i, one in enumerate(inputs) if isinstance(one, ValueSlot)]
        shapes = [
            None if isinstance(one, ValueSlot) else [one.dtype.name, *one.shape] for one in outputs
        ]
        loaded = self.host.prepare(self)
        found = self.host.run_loose(loaded, sizes, slots, arrays, shapes)
        for i, one in enumerate(outputs):
            if isinstance(one, ValueSlot):
                one.value = np.array(found[str(i)])
            else:
                np.copyto(one, found[str(i)])


class ResizableExecutable(IsolatedExecutable):
    """One that is given the sizes of free dimensions before it runs."""

    def at(self, sizes: Mapping[str, int]) -> _SizedExecutable:
        """Return it for sizes of the free dimensions, by name."""
        return _SizedExecutable(self, sizes)


@dataclass(frozen=True, slots=True)
class _SizedExecutable:
    """A region in another process at sizes of its free dimensions."""

    region: ResizableExecutable
    sizes: Mapping[str, int]
    scratch_bytes: int = 0

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that runs the region there, on copies of these arrays."""
        del scratch
        return self.region._bind(inputs, outputs, self.sizes)  # noqa: SLF001 - of one kind


class _Line:
    """A bound region there: memory that is shared, and the socket over which it is told to run."""

    def __init__(
        self,
        region: IsolatedExecutable,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        sizes: Mapping[str, int] | None,
    ) -> None:
        self._region = region
        self._sizes = None if sizes is None else dict(sizes)
        self._places: list[tuple[str, list[int], int]] = []
        end = 0
        for array in (*inputs, *outputs):
            self._places.append((array.dtype.name, list(array.shape), end))
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        self._count = len(inputs)
        self._file = new_file(max(end, 1))
        finalize(self, os.close, self._file)
        views = shared_views(self._file, self._places)
        self._inputs = list(zip(views[: len(inputs)], inputs, strict=True))
        self._outputs = list(zip(outputs, views[len(inputs) :], strict=True))
        self._loaded: _Loaded | None = None
        self._socket: socket.socket | None = None
        self._close_socket: Callable[[], object] = int

    def __call__(self) -> None:
        """Run the region."""
        if self._loaded is None or not self._region.host.is_current(self._loaded):
            self._connect()
        line, loaded = self._socket, self._loaded
        assert line is not None
        assert loaded is not None
        for there, here in self._inputs:
            there[...] = here
        try:
            line.send(RUN)
            answer = line.recv(1)
        except TimeoutError:
            raise self._region.host.tell_end(loaded, is_late=True) from None
        except OSError:
            answer = b""
        if answer == DONE:
            for here, there in self._outputs:
                here[...] = there
            return
        if answer == FAILED:
            text = line.recv(1 << 16)
            raise ExecutionError(text.decode(errors="replace"), backend=self._region.host.backend)
        raise self._region.host.tell_end(loaded)

    def _connect(self) -> None:
        """Bind the region in the living process."""
        host = self._region.host
        loaded = host.prepare(self._region)
        ours, theirs = socket.socketpair()
        with theirs:
            files = (self._file, theirs.fileno())
            try:
                host.bind(loaded, [self._sizes, self._places, self._count], files)
            except BaseException:
                ours.close()
                raise
        ours.settimeout(SECONDS)
        self._close_socket()  # of a process that is gone
        self._close_socket = finalize(self, ours.close)
        self._socket, self._loaded = ours, loaded


def shared_views(file: int, places: Sequence[tuple[str, Sequence[int], int]]) -> list[Array]:
    """Return arrays in a file that is mapped.

    Args:
        file: Its descriptor.
        places: For each its dtype, its shape, and where it begins.
    """
    pages = mmap.mmap(file, 0)
    views: list[Array] = []
    for dtype, shape, begin in places:
        count = int(np.prod(shape, dtype=np.int64))
        view: Array = np.frombuffer(pages, np_dtype(dtype), count, begin)
        views.append(view.reshape(tuple(shape)))
    return views
