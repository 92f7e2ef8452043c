# SPDX-License-Identifier: Apache-2.0
"""Threads for native code: which pool serves which caller, and when it ends.

A process has at most one pool for each number of threads and way of waiting. All executables share
it, and it ends with the last of them. Its threads start when a kernel first has work for them.
Calls from several threads take turns, or run each on its own thread alone (`pool_code`); this
changes no result. A child of `fork` has none of its parent's threads; its pools start their own.

If regions of native code and of a runtime on OpenMP take turns, two sets of threads would fight for
the CPUs: those of the one still spin when the other starts. So native code hands its chunks to the
team of the OpenMP runtime, through the entry point that GCC's compiled code uses and that GNU's,
LLVM's and Intel's runtimes have: `GOMP_parallel(function, data, threads, flags)` (GNU Offloading
and Multi Processing Runtime Library, "Implementing PARALLEL construct"). Within the team chunks are
claimed one by one, as in our pool.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import signal
import sys
import threading
import weakref
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.cpus import available_cpus
from intarsia.native import pool_code
from intarsia.native.loading import LoadedCode, load_routine
from intarsia.native.pool_code import PoolSlot, PoolState, has_futex, pool_text, team_text

logger = logging.getLogger(__name__)

_NAME = "intarsia_pool"
_TEAM_NAME = "intarsia_team"

MOST_THREADS = 1024
"""More are not started, whatever is asked for."""

_SPINS = 2000
"""Looks at a word before sleeping, some tens of microseconds: more than there are from one kernel
to the next, less than a wake-up of all is worth."""

_LINES = 128
"""Bytes at a multiple of which the state starts, see `PoolState`; numpy aligns to 16."""


class ThreadPool:
    """Threads that help the caller of a kernel.

    Attributes:
        threads: How many run a kernel at most, the caller included.
        address: Of its state.
        parallel_for: Address of what runs a kernel: (state, kernel, arguments, extent, chunks).
    """

    def __init__(
        self,
        threads: int,
        *,
        is_spinning: bool = True,
        is_on_futex: bool | None = None,
        caches: Path | None = None,
    ) -> None:
        """Make a pool; its threads start with the first job.

        Args:
            threads: The caller included.
            is_spinning: Whether a waiting thread may spin a little before sleeping.
            is_on_futex: How to sleep; None for what this system has.
            caches: The folder of all caches, where the pool's own code is kept.
        """
        if is_on_futex is None:
            is_on_futex = has_futex(sys.platform, platform.machine())
        self.threads = min(threads, MOST_THREADS)
        self._library = _library(caches, is_on_futex=is_on_futex)
        entries = (ctypes.c_void_p * 2).from_address(self._library.addresses[_NAME])
        self.parallel_for, stop_address = (int(entry or 0) for entry in entries)
        nbytes = ctypes.sizeof(PoolState) + self.threads * ctypes.sizeof(PoolSlot)
        block = np.zeros(nbytes + _LINES, np.uint8)
        self._memory = block[-block.ctypes.data % _LINES :][:nbytes]
        self.address = self._memory.ctypes.data
        self._state = PoolState.from_address(self.address)
        self._spins = _SPINS if is_spinning else 0
        self._configure()
        stop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(stop_address)
        # Workers run the library's code: it must stay loaded until they have ended.
        self._finalizer = weakref.finalize(self, _stop, stop, self._memory, self._library)

    @property
    def workers(self) -> int:
        """How many threads of its own are there now."""
        return int(self._state.workers)

    def close(self) -> None:
        """End the threads; later calls run alone."""
        self._finalizer()

    def forget(self) -> None:
        """Start anew, in a child of `fork`: the threads are gone, and so are their callers."""
        is_closed = self._state.is_closed
        # Only the thread that called `fork` lives on in the child (POSIX, fork): what others held,
        # a mutex among it, is never given back, so nothing of the state may stay.
        self._memory[:] = 0
        self._configure()
        self._state.is_closed = is_closed

    def _configure(self) -> None:
        self._state.wanted = self.threads - 1
        self._state.spins = self._spins


def _stop(stop: Any, memory: np.ndarray[Any, np.dtype[np.uint8]], _alive: LoadedCode) -> None:
    """End a pool's threads. Its library is named only to be alive until then."""
    stop(memory.ctypes.data)


@cache
def _library(caches: Path | None, *, is_on_futex: bool) -> LoadedCode:
    variant = (platform.machine(), int(signal.SIG_SETMASK), is_on_futex)
    write = partial(pool_text, _NAME, *variant)
    return load_routine(_NAME, write, (pool_code.__name__,), *variant, caches=caches)


_pools: weakref.WeakValueDictionary[tuple[int, bool], ThreadPool] = weakref.WeakValueDictionary()
_teams: weakref.WeakValueDictionary[tuple[int, int], Team] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def find_pool(threads: int, *, is_shared: bool, caches: Path | None = None) -> ThreadPool | None:
    """Return the pool for a number of threads; None if one thread, the caller, is all there is.

    Args:
        threads: Asked for, the caller included.
        is_shared: Whether other runtimes' threads take turns with these, which must not spin then.
        caches: The folder of all caches, where the code of a new pool is kept.
    """
    if threads <= 1:
        return None
    if not has_threads():
        _warn()
        return None
    # With more threads than CPUs, one that spins keeps another from its chunk.
    key = (min(threads, MOST_THREADS), not is_shared and threads <= available_cpus())
    with _lock:
        pool = _pools.get(key)
        if pool is None:
            pool = _pools[key] = ThreadPool(key[0], is_spinning=key[1], caches=caches)
    return pool


@cache
def _warn() -> None:
    logger.warning("native code runs on one thread: %s has no POSIX threads", sys.platform)


def has_threads() -> bool:
    """Tell whether native code can use several threads on this system."""
    return os.name == "posix"


class Team:
    """The threads of an OpenMP runtime.

    Attributes:
        threads: How many run a kernel at most, the caller included.
        address: Of its state: where `GOMP_parallel` is, and how many threads there are.
        parallel_for: Address of what runs a kernel: (state, kernel, arguments, extent, chunks).
    """

    def __init__(self, threads: int, gomp_parallel: int, caches: Path | None = None) -> None:
        """Use a runtime's threads.

        Args:
            threads: The caller included.
            gomp_parallel: Address of the runtime's `GOMP_parallel`.
            caches: The folder of all caches, where the code that does it is kept.
        """
        self.threads = threads
        self._library = _team_library(caches)
        self.parallel_for = self._library.addresses[_TEAM_NAME]
        self._state = np.array([gomp_parallel, threads], np.uint64)
        self.address = int(self._state.ctypes.data)

    def forget(self) -> None:
        """Run alone from now on: a child of `fork` has none of the runtime's threads."""
        self._state[1] = 1


@cache
def _team_library(caches: Path | None) -> LoadedCode:
    write = partial(team_text, _TEAM_NAME)
    return load_routine(_TEAM_NAME, write, (pool_code.__name__,), caches=caches)


def find_team(threads: int, gomp_parallel: int, caches: Path | None = None) -> Team | None:
    """Return the team for a number of threads; None if one thread, the caller, is all there is.

    Args:
        threads: The caller included.
        gomp_parallel: Address of the runtime's `GOMP_parallel`.
        caches: The folder of all caches, where the code of a new team is kept.
    """
    if threads <= 1:
        return None
    with _lock:
        team = _teams.get((threads, gomp_parallel))
        if team is None:
            team = _teams[threads, gomp_parallel] = Team(threads, gomp_parallel, caches)
    return team


def _forget_all() -> None:
    """Start anew in a child of `fork`."""
    global _lock  # noqa: PLW0603 - another thread may have held it
    _lock = threading.Lock()
    for pool in list(_pools.values()):
        pool.forget()
    for team in list(_teams.values()):
        team.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
