# SPDX-License-Identifier: Apache-2.0
"""Times calls: in blocks, interleaved, by the median.

The idle threads of one runtime may spin for a while and slow the next one down; therefore calls
are timed in blocks, and the first third of each block is not counted; or else whoever measures
waits until all threads sleep.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain
from math import ceil
from threading import Barrier, BrokenBarrierError
from time import perf_counter, process_time, sleep

from intarsia.measure.racing import take_turns

NAP_SECONDS = 0.01
"""A system may count a thread's time once in a tick of up to so long."""

MOST_SECONDS = 0.15
"""A thread that spins for longer never sleeps."""

_BUSY_PART = 0.25
"""What other threads may take of a nap; a pool that works in the background takes more."""

# The same orders in every measurement: a repetition differs by the machine alone.
_SEED = 1


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one call takes.

    Attributes:
        median_seconds: The median of the runs that count.
        min_seconds: The fastest of them.
        runs: How many count.
    """

    median_seconds: float
    min_seconds: float
    runs: int


@dataclass(frozen=True, slots=True)
class Spread:
    """How long runs took that went on at once, and how many there were.

    Attributes:
        p50_seconds: What half of all runs took at most.
        p90_seconds: What nine in ten took at most.
        p99_seconds: What 99 in a hundred took at most.
        runs_per_second: Of all streams together.
        streams: Runs at once.
    """

    p50_seconds: float
    p90_seconds: float
    p99_seconds: float
    runs_per_second: float
    streams: int = 1


def percentiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return what 50, 90 and 99 in a hundred runs took at most."""
    ordered = sorted(seconds)
    p50, p90, p99 = (ordered[ceil(len(ordered) * share) - 1] for share in (0.5, 0.9, 0.99))
    return p50, p90, p99


def measure_streams(calls: Sequence[Callable[[], object]], seconds: float) -> Spread:
    """Run calls for a while, each in a thread of its own, after one run that does not count.

    Args:
        calls: Each with buffers of its own.
        seconds: Wall-clock time; every call runs once at least.
    """
    barrier = Barrier(len(calls))

    def work(call: Callable[[], object]) -> tuple[list[float], float, float]:
        try:
            call()
        except BaseException:
            barrier.abort()  # the others would wait for ever
            raise
        # All begin at once, or the first stream would run alone for a while.
        barrier.wait()
        begin = perf_counter()
        samples = _block(call, 1)
        while perf_counter() - begin < seconds:
            samples += _block(call, 1)
        return samples, begin, perf_counter()

    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(work, call) for call in calls]
        wait(futures)
    for future in futures:
        error = future.exception()
        if error is not None and not isinstance(error, BrokenBarrierError):
            raise error
    parts = [future.result() for future in futures]
    every = [one for part, _, _ in parts for one in part]
    wall = max(end for _, _, end in parts) - min(begin for _, begin, _ in parts)
    return Spread(*percentiles(every), len(every) / wall, len(calls))


def time_runs(call: Callable[[], object], runs: int) -> Timing:
    """Time a number of runs, all of which count; warming up is left to the caller."""
    return _timing(_block(call, runs))


def time_interleaved(
    calls: Mapping[str, Callable[[], object]], *, rounds: int = 7, runs: int = 10
) -> dict[str, Timing]:
    """Time several calls against each other.

    Args:
        calls: What to time, by name.
        rounds: How often each call gets a block; every round has an order of its own.
        runs: Runs of a block; the first third of them is not counted.
    """

    def take(name: str) -> list[float]:
        # The first runs of a block still meet another runtime's spinning threads (34 to 100 ms,
        # docs/measuring.md).
        return _block(calls[name], runs)[runs // 3 :]

    blocks = take_turns(list(calls), take, rounds, seed=_SEED)
    return {name: _timing(list(chain.from_iterable(taken))) for name, taken in blocks.items()}


def _block(call: Callable[[], object], runs: int) -> list[float]:
    seconds = []
    for _ in range(runs):
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return seconds


def _timing(seconds: list[float]) -> Timing:
    return Timing(statistics.median(seconds), min(seconds), len(seconds))


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
