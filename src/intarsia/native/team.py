# SPDX-License-Identifier: Apache-2.0
"""Sharing kernels among the threads of an OpenMP runtime that is in the process already.

If regions of native code and of a runtime on OpenMP take turns, two sets of threads would fight for
the CPUs: those of the one still spin when the other starts. So native code hands its chunks to the
team of the OpenMP runtime, through the entry point that GCC's compiled code uses and that GNU's,
LLVM's and Intel's runtimes have: `GOMP_parallel(function, data, threads, flags)` (GNU Offloading
and Multi Processing Runtime Library, "Implementing PARALLEL construct"). Within the team chunks are
claimed one by one, as in our pool.
"""

from __future__ import annotations

import os
import threading
import weakref
from functools import cache
from pathlib import Path

import numpy as np

from intarsia.native.machine import LoadedCode, host_machine
from intarsia.native.objects import ObjectCache

_NAME = "intarsia_team"

_TEXT = f"""
; a job: kernel, arguments, extent, chunks, the next chunk
define internal void @work(ptr %job) {{
entry:
  %kernel = load ptr, ptr %job, align 8
  %arguments.at = getelementptr i8, ptr %job, i64 8
  %arguments = load ptr, ptr %arguments.at, align 8
  %extent.at = getelementptr i8, ptr %job, i64 16
  %extent = load i64, ptr %extent.at, align 8
  %chunks.at = getelementptr i8, ptr %job, i64 24
  %chunks = load i64, ptr %chunks.at, align 8
  %next.at = getelementptr i8, ptr %job, i64 32
  br label %claim
claim:
  %chunk = atomicrmw add ptr %next.at, i64 1 monotonic
  %got = icmp slt i64 %chunk, %chunks
  br i1 %got, label %run, label %done
run:
  %first = mul i64 %chunk, %extent
  %begin = udiv i64 %first, %chunks
  %last = add i64 %first, %extent
  %end = udiv i64 %last, %chunks
  call void %kernel(ptr %arguments, i64 %begin, i64 %end)
  br label %claim
done:
  ret void
}}

define void @{_NAME}(ptr %team, ptr %kernel, ptr %arguments, i64 %extent, i64 %chunks) {{
entry:
  %job = alloca [5 x i64], align 64
  %threads.at = getelementptr i8, ptr %team, i64 8
  %threads = load i32, ptr %threads.at, align 4
  %several = icmp ugt i32 %threads, 1
  br i1 %several, label %share, label %alone
share:
  %parallel = load ptr, ptr %team, align 8
  store ptr %kernel, ptr %job, align 8
  %arguments.at = getelementptr i8, ptr %job, i64 8
  store ptr %arguments, ptr %arguments.at, align 8
  %extent.at = getelementptr i8, ptr %job, i64 16
  store i64 %extent, ptr %extent.at, align 8
  %chunks.at = getelementptr i8, ptr %job, i64 24
  store i64 %chunks, ptr %chunks.at, align 8
  %next.at = getelementptr i8, ptr %job, i64 32
  store i64 0, ptr %next.at, align 8
  call void %parallel(ptr @work, ptr %job, i32 %threads, i32 0)
  ret void
alone:
  call void %kernel(ptr %arguments, i64 0, i64 %extent)
  ret void
}}
"""


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
        self._library = _library(caches)
        self.parallel_for = self._library.addresses[_NAME]
        self._state = np.array([gomp_parallel, threads], np.uint64)
        self.address = int(self._state.ctypes.data)

    def forget(self) -> None:
        """Run alone from now on: a child of `fork` has none of the runtime's threads."""
        self._state[1] = 1


@cache
def _library(caches: Path | None) -> LoadedCode:
    return LoadedCode({_NAME: ObjectCache(caches).object_of(_TEXT, host_machine(), level=2)})


_teams: weakref.WeakValueDictionary[tuple[int, int], Team] = weakref.WeakValueDictionary()
_lock = threading.Lock()


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
    """Leave the parent's teams alone, in a child of `fork`."""
    global _lock  # noqa: PLW0603 - another thread may have held it
    _lock = threading.Lock()
    for team in list(_teams.values()):
        team.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
