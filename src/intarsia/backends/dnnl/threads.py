# SPDX-License-Identifier: Apache-2.0
"""OpenMP's threads: how many a primitive is made for, and whose they are."""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from intarsia.backends.dnnl.library import OneDnn

SET = "omp_set_num_threads"
GET = "omp_get_max_threads"
_RUNTIME = re.compile(r"/(lib(?:gomp|iomp5|omp)\b[^/]*\.so[^/]*)$")
logger = logging.getLogger(__name__)


@contextmanager
def thread_count(library: OneDnn, count: int) -> Iterator[None]:
    """Set this thread's number of OpenMP threads: a primitive is made for as many as run it."""
    set_address, get_address = library.address(SET), library.address(GET)
    if not set_address or not get_address:
        yield
        return
    set_threads = ctypes.CFUNCTYPE(None, ctypes.c_int)(set_address)
    before = ctypes.CFUNCTYPE(ctypes.c_int)(get_address)()
    set_threads(count)
    try:
        yield
    finally:
        set_threads(before)


def openmp_runtimes(maps: str | None = None) -> tuple[str, ...]:
    """Return the files of the OpenMP runtimes in this process.

    Args:
        maps: The process's memory map as Linux prints it; None reads that of this process.
    """
    if maps is None:
        try:
            maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:  # not Linux
            return ()
    # A dict, not a set: one file is mapped several times, and the order in the message should not
    # change.
    runtimes: dict[str, None] = {}
    for line in maps.splitlines():
        path = line.rpartition(" ")[2]
        if _RUNTIME.search(path):
            runtimes[path] = None
    return tuple(runtimes)


@cache
def warn_of_several() -> None:
    """Say once if several OpenMP runtimes share this process: their idle threads spin."""
    runtimes = openmp_runtimes()
    if len(runtimes) > 1:
        logger.warning(
            "%d OpenMP runtimes are in this process, and their idle threads may slow each other "
            "down: %s; set OMP_WAIT_POLICY=passive before the start",
            len(runtimes),
            ", ".join(runtimes),
        )
