# SPDX-License-Identifier: Apache-2.0
"""The code of the function that runs a kernel and writes down when; see `chunk_log`."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint64, c_void_p

from intarsia.native.chunk_log import ChunkRecord, LoggedCall, LogHead
from intarsia.native.routine import (
    KERNEL,
    Record,
    Register,
    Routine,
    declare,
    new_module,
)

_NANOSECONDS = 1_000_000_000


class _TimeSpec(ctypes.Structure):  # of 64-bit systems (time.h)
    _fields_ = (("seconds", c_int64), ("nanoseconds", c_int64))


def logged_kernel_text(name: str, clock: int) -> str:
    """Return the module of the function, which is called as a kernel is.

    Args:
        name: The function.
        clock: The system's number of the clock that it looks at.
    """
    module = new_module()
    get_time = declare(module, "clock_gettime", c_int32, c_int32, c_void_p)
    get_thread = declare(module, "pthread_self", c_uint64)
    code = Routine(module, name, *KERNEL, is_exported=True)
    table, first, last = code.parameters
    moment = Record(code.local(_TimeSpec), _TimeSpec)

    def now() -> Register:
        code.call(get_time, clock, moment)
        return moment["seconds"].load() * _NANOSECONDS + moment["nanoseconds"].load()

    kernel, arguments, log, number = Record(table, LoggedCall).load()
    start = now()
    code.call(kernel.function(*KERNEL), arguments, first, last)
    end = now()
    head = Record(log, LogHead)
    index = head["count"].update("add", 1, "monotonic")
    with code.when(index, "<", head["room"].load()):
        thread = code.call(get_thread)
        head.behind(ChunkRecord).item(index).store(number, thread, start, end, first, last)
    code.give_back()
    return str(module)
