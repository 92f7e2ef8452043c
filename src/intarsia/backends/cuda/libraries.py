# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's libraries have in common: where they are, handles, and choosing by measuring.

A library is that of its wheel, else what the system has. A handle belongs to one stream.
"""

from __future__ import annotations

import ctypes
import statistics
import weakref
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, TypeVar

from intarsia.backends.cuda.device import CudaView, PrimaryContext, enter_to_release
from intarsia.backends.cuda.driver import CudaError, call
from intarsia.backends.device import Step
from intarsia.errors import BackendError

_RUNS = 5

Way = TypeVar("Way")
"""One of several ways to compute the same."""


class LibraryError(Exception):
    """What a library answered instead of success."""


def version_text(number: int) -> str:
    """Return a version that a library tells as one number: of 92800, `9.28.0`."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class LibraryHandle:
    """A library's handle, which lives as long as this does.

    Args:
        context: The current one, which the library has taken it from.
        value: The handle.
        destroy: Gives it back.
    """

    def __init__(
        self, context: PrimaryContext, value: Any, destroy: Callable[[Any], object]
    ) -> None:
        self.value = value
        weakref.finalize(self, _destroy, context, value, destroy)


def _destroy(context: PrimaryContext, value: Any, destroy: Callable[[Any], object]) -> None:
    enter_to_release(context)  # that of the thread may be another
    destroy(value)


def handle_of(view: CudaView, name: str, make: Callable[[], LibraryHandle]) -> Any:
    """Return a library's handle of a stream, made where the stream has none.

    Args:
        view: Whose stream; its context is the current one.
        name: Of the library.
        make: Makes one.

    Raises:
        LibraryError: The library does not start.
    """
    if name not in view.handles:
        view.handles[name] = make()
    return view.handles[name].value


def load_library(
    backend: str, title: str, files: Sequence[str], names: Sequence[str], install: str
) -> Any:
    """Return a library.

    Args:
        backend: The backend's name.
        title: Of the library, for people.
        files: Of its wheels.
        names: By which the system may have it.
        install: What brings it.

    Raises:
        BackendError: It is not installed.
    """
    problem = "it is not installed"
    for path in (*files, *names):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            if path in files:
                problem = str(error)
    raise BackendError(
        f"{backend}: {title} cannot be loaded: {problem}", backend=backend, hint=install
    )


def files_of_packages(packages: Sequence[str], beginnings: Sequence[str]) -> list[str]:
    """Return files of packages that are installed.

    Args:
        packages: Their names.
        beginnings: Of the names of the files.
    """
    found = []
    for name in packages:
        try:
            files = distribution(name).files or ()
        except PackageNotFoundError:
            continue
        found += [str(one.locate()) for one in files if one.name.startswith(tuple(beginnings))]
    return found


def fastest(view: CudaView, ways: Sequence[Way], queue_of: Callable[[Way], Step]) -> Way:
    """Return the way that takes the least time on a device.

    Args:
        view: The device.
        ways: At least one.
        queue_of: Returns what queues a way, on memory of its own; it may be refused then or later,
            as what a library proposes is no promise.

    Raises:
        LibraryError: All are refused.
        CudaError: The device failed.
    """
    if len(ways) == 1:
        return ways[0]
    times: dict[float, Way] = {}
    refused: list[Exception] = []
    for way in ways:
        try:
            times[_median_time(view, queue_of(way))] = way
        except LibraryError as error:
            refused.append(error)
        except CudaError as error:
            if not error.is_memory:
                raise
            refused.append(error)
    if not times:
        raise refused[0]
    return times[min(times)]


def _median_time(view: CudaView, queue: Step) -> float:
    """Return the milliseconds that something queued takes, after one run that does not count."""
    events = [call("cuEventCreate", 0)]
    try:
        events.append(call("cuEventCreate", 0))
        start, end = events
        times = []
        for _ in range(_RUNS + 1):
            call("cuEventRecord", start, view.stream)
            queue()
            call("cuEventRecord", end, view.stream)
            call("cuEventSynchronize", end)
            times.append(float(call("cuEventElapsedTime", start, end)))
        return statistics.median(times[1:])
    finally:
        for event in events:
            call("cuEventDestroy", event)
