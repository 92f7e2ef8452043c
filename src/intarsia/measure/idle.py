# SPDX-License-Identifier: Apache-2.0
"""Waits until the threads of this process sleep: those of an idle runtime spin for a while."""

from __future__ import annotations

from time import perf_counter, process_time, sleep

NAP_SECONDS = 0.01
"""A system may count a thread's time once in a tick of up to so long."""

MOST_SECONDS = 0.15
"""Whoever spins for longer never sleeps."""

_BUSY_PART = 0.25
"""What other threads may take of a nap; a pool that works in the background takes more."""


def wait_until_idle() -> float:
    """Sleep until no other thread of this process computes; return for how long, in seconds."""
    begin = perf_counter()
    while True:
        start, used = perf_counter(), process_time()
        sleep(NAP_SECONDS)
        end = perf_counter()
        is_idle = process_time() - used < _BUSY_PART * (end - start)
        if is_idle or end - begin >= MOST_SECONDS:
            return end - begin
