# SPDX-License-Identifier: Apache-2.0
"""When each thread ran which part of which kernel: kernels behind a function that takes the time.

In a list of calls, each kernel gives its place to one function of ours, whose arguments say which
kernel it is and where the log is. It reads the clock, runs the kernel, reads it again, and writes
both down. So the pool, or the team of another runtime, hands out the same chunks to the same
threads as in any other run; each takes two looks at the clock longer, some 50 ns.
"""

from __future__ import annotations

import ctypes
import platform
import time
from ctypes import c_byte, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.arrays import address_of
from intarsia.native.loading import LoadedCode, load_routine

_NAME = "intarsia_logged_kernel"
_WRITER = "intarsia.native.chunk_log_code"


class ChunkRecord(ctypes.Structure):
    """A part of a kernel: its call in the list, when, on which thread, from and to which turn."""

    _fields_ = (
        ("call", c_uint64),
        ("thread", c_uint64),
        ("start", c_int64),
        ("end", c_int64),
        ("first", c_uint64),
        ("last", c_uint64),
    )


class LogHead(ctypes.Structure):
    """How many records there are, and how many there is room for; they follow."""

    _fields_ = (("count", c_uint64), ("room", c_uint64), ("_line", c_byte * 112))


class LoggedCall(ctypes.Structure):
    """What takes the place of a kernel's arguments."""

    _fields_ = (
        ("kernel", c_void_p),
        ("arguments", c_void_p),
        ("log", c_void_p),
        ("call", c_uint64),
    )


@dataclass(frozen=True, slots=True)
class ChunkTime:
    """When a thread ran a part of a kernel.

    Attributes:
        call: Position of the call in the list.
        thread: As `threading.get_ident` numbers them.
        start: By `time.perf_counter`.
        seconds: How long.
        first: The first turn of the kernel's parallel loop.
        last: The turn behind the last.
    """

    call: int
    thread: int
    start: float
    seconds: float
    first: int
    last: int


class ChunkLog:
    """The parts of kernels that the calls of one list ran.

    Args:
        rows: `u64[calls, 4]`, as of `callpath.make_step_of`.
        caches: The folder of all caches, where the function's own code is kept.

    Attributes:
        rows: The same calls, each of which writes down when it runs.
    """

    def __init__(self, rows: np.ndarray[Any, Any], caches: Path | None) -> None:
        self._library = _library(caches)
        room = int(rows[:, 3].sum())
        head, record = ctypes.sizeof(LogHead), ctypes.sizeof(ChunkRecord)
        self._memory = np.zeros(head + room * record, np.uint8)
        self._head = LogHead.from_address(address_of(self._memory))
        self._head.room = room
        self._records = self._memory[head:].view(np.int64).reshape(room, -1)
        calls = np.zeros((len(rows), 4), np.uint64)
        calls[:, :2], calls[:, 3] = rows[:, :2], np.arange(len(rows))
        calls[:, 2] = address_of(self._memory)
        self._calls = calls
        self.rows = rows.copy()
        self.rows[:, 0] = self._library.addresses[_NAME]
        self.rows[:, 1] = address_of(calls) + calls.strides[0] * np.arange(len(rows))

    def take(self) -> list[ChunkTime]:
        """Return the parts that ran since the last time, in no order, and forget them."""
        count = min(int(self._head.count), len(self._records))
        # Records are by the system's clock, which `perf_counter` may count from another moment.
        shift = time.perf_counter_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if abs(shift) < _SAME_CLOCK:
            shift = 0
        found = [
            ChunkTime(call, thread, (start + shift) / 1e9, (end - start) / 1e9, first, last)
            for call, thread, start, end, first, last in self._records[:count].tolist()
        ]
        self._head.count = 0
        return found


_SAME_CLOCK = 1_000_000
"""Nanoseconds between two looks at clocks that are the same one, at most."""


def can_log() -> bool:
    """Tell whether this system has what the function calls: the clock and threads of POSIX."""
    return hasattr(time, "CLOCK_MONOTONIC")


@cache
def _library(caches: Path | None) -> LoadedCode:
    variant = (platform.machine(), int(time.CLOCK_MONOTONIC))
    return load_routine(_NAME, _text, (_WRITER,), *variant, caches=caches)


def _text() -> str:
    from intarsia.native.chunk_log_code import logged_kernel_text  # once for each machine

    return logged_kernel_text(_NAME, int(time.CLOCK_MONOTONIC))
