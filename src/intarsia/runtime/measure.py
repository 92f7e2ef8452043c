# SPDX-License-Identifier: Apache-2.0
"""Times calls: in blocks, interleaved, by the median.

The idle threads of one runtime may spin for a while and slow the next one down; therefore calls
are timed in blocks, and the first third of each block is not counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter


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


def time_runs(call: Callable[[], object], runs: int) -> Timing:
    """Time a number of runs, all of which count; warming up is left to the caller."""
    return _timing(_block(call, runs))


def time_interleaved(
    calls: Mapping[str, Callable[[], object]], *, rounds: int = 7, runs: int = 10
) -> dict[str, Timing]:
    """Time several calls against each other.

    Args:
        calls: What to time, by name.
        rounds: How often each call gets a block; every round begins with another call.
        runs: Runs of a block; the first third of them is not counted.
    """
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds[name] += _block(calls[name], runs)[runs // 3 :]
    return {name: _timing(values) for name, values in seconds.items()}


def _block(call: Callable[[], object], runs: int) -> list[float]:
    seconds = []
    for _ in range(runs):
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return seconds


def _timing(seconds: list[float]) -> Timing:
    return Timing(statistics.median(seconds), min(seconds), len(seconds))
