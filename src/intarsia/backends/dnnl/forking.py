# SPDX-License-Identifier: Apache-2.0
"""OpenMP in a child made by `fork`: its threads are not there, but its main thread thinks they are.

GNU OpenMP keeps the team of a thread in that thread's own memory, which the child inherits: a
parallel loop would wait for threads that do not exist. A thread that the child starts has no team
yet and gets one, so in a child everything that may be parallel runs on such a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

T = TypeVar("T")


class _ForkState:
    """Whether this process is a child of one that had loaded the library."""

    is_child = False


def watch_forks() -> None:
    """Register a hook that marks child processes; once is enough."""
    _register()


@cache
def _register() -> None:
    os.register_at_fork(after_in_child=_mark)


def _mark() -> None:
    _ForkState.is_child = True
    _fresh.cache_clear()  # that of the parent has no thread here


@cache
def _fresh() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "intarsia-dnnl")


def run_safely(task: Callable[[], T]) -> T:
    """Return what a task returns; in a child it runs on a thread that may start a team."""
    return _fresh().submit(task).result() if _ForkState.is_child else task()


def guard(step: Callable[[], object]) -> Callable[[], object]:
    """Return a step that may also be run by children of this process."""

    def run() -> object:
        return _fresh().submit(step).result() if _ForkState.is_child else step()

    return run


SPINS = 3000
"""Some tens of microseconds: longer than the gap between two primitives.

GNU OpenMP's own default is a hundred times that. On two cores that others use too, ResNet-50 took
four times as long with it, because spinning threads kept the working ones off the cores.
"""

_OWN = "GOMP_SPINCOUNT"
_GIVEN = ("OMP_WAIT_POLICY", _OWN)


@contextmanager
def short_spins() -> Iterator[None]:
    """Make a GNU OpenMP that is loaded inside spin briefly, unless the environment sets how long.

    It reads its environment once, when it is loaded; what the process was given stays as it is.
    """
    if any(name in os.environ for name in _GIVEN):  # noqa: TID251 - another library's variables
        yield
        return
    os.putenv(_OWN, str(SPINS))
    try:
        yield
    finally:
        os.unsetenv(_OWN)
