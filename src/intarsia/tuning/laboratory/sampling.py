# SPDX-License-Identifier: Apache-2.0
"""Takes one sample of something bound: how long it takes as the plan would run it.

A whole plan runs again and again, as its users run it. A region does not: between two of its runs
the rest of the model passes through the caches, what ran before has just written its inputs, and
the memory of its outputs has just been used by others. So before each timed run other memory is
read, then inputs and outputs are written. Without this, plans of many small regions took up to a
fifth more than their regions; with the outputs left cold, a third less.
"""

from __future__ import annotations

import gc
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.device import Device, Step, device_clock
from intarsia.backends.remote import RemoteClock
from intarsia.errors import IntarsiaError, LinkError
from intarsia.measure.racing import take_round
from intarsia.measure.timing import NAP_SECONDS, wait_until_idle
from intarsia.target.caches import core_l2_bytes

if TYPE_CHECKING:
    from intarsia.runtime.executor import PlanExecutable

logger = logging.getLogger(__name__)

LEAST_SECONDS = 200e-6
"""One sample lasts at least so long, of several runs if one is shorter."""

_MOST_RUNS = 64
_MOST_COLD_RUNS = 8
LEAD_SECONDS = 2e-3
"""A whole plan runs so long before it is timed."""

THREADED_LEAD_SECONDS = 0.03
"""The same with several threads, when those of what ran before sleep: the plan's are to wake."""

THREADED_LEAST_SECONDS = 0.025
"""What one sample of a whole plan with several threads lasts at least."""

RUNS_TO_SETTLE = 3
"""Runtimes allocate in their first runs; then a process grows no more."""

_LEAD_PART = 10
"""What runs longer than so many leads needs none: it is too small a part of it."""


def lead_of(num_threads: int) -> float:
    """Return for how many seconds a whole plan with so many threads runs before it is timed."""
    return THREADED_LEAD_SECONDS if num_threads > 1 else LEAD_SECONDS


def needed_lead(run_seconds: float, lead_seconds: float) -> float:
    """Return how much of a lead a plan needs whose run takes so long: all of it, or nothing."""
    return lead_seconds if run_seconds < _LEAD_PART * lead_seconds else 0.0


def whole_sample_seconds(run_seconds: float, num_threads: int) -> float:
    """Return roughly how long a sample of a whole plan takes, with all that is around it.

    Args:
        run_seconds: What one run takes.
        num_threads: Threads that it uses.
    """
    lead = needed_lead(run_seconds, lead_of(num_threads))
    least = THREADED_LEAST_SECONDS if num_threads > 1 else LEAST_SECONDS
    if run_seconds <= 0.0:
        return lead + least
    runs = math.ceil(lead / run_seconds) + max(1, math.ceil(least / run_seconds))
    return runs * run_seconds + (NAP_SECONDS if num_threads > 1 else 0.0)


# Of server cores on sale; where the system does not tell.
_DEFAULT_CACHE = 2 << 20


@dataclass(slots=True)
class TimedRun:
    """Something bound that can be timed.

    Attributes:
        run: Runs it once.
        clock: The device's own clock, in seconds, if all of it runs on devices that have one.
        cold_bytes: Memory to read between runs; 0 for what runs again and again.
        inputs: Pairs of arrays: what it reads, and what is to be in there.
        outputs: What it writes.
        typical_seconds: What one run takes, roughly.
        num_threads: Threads that wake when it runs again and again.
    """

    run: Step
    clock: Callable[[], float] | None = None
    cold_bytes: int = 0
    inputs: Sequence[tuple[Array, Array]] = ()
    outputs: Sequence[Array] = ()
    typical_seconds: float = 0.0
    num_threads: int = 1


class Sampler:
    """Takes samples; owns the memory that is read in between.

    Args:
        cache_bytes: Of the cache that a core has for itself; 0 means what the system says.
    """

    def __init__(self, cache_bytes: int = 0) -> None:
        self.cache_bytes = cache_bytes or core_l2_bytes() or _DEFAULT_CACHE
        self._is_after_threads = False  # which may still spin
        self._other = np.ones(2 * self.cache_bytes // 8)

    def sample(self, subject: TimedRun, least_seconds: float = LEAST_SECONDS) -> float:
        """Return the median seconds of the runs of one sample.

        Args:
            subject: What to time.
            least_seconds: What the runs are to take together.
        """
        if subject.clock is not None:
            start = subject.clock()
            subject.run()
            return subject.clock() - start
        if self._is_after_threads:
            wait_until_idle()
        self._is_after_threads = not subject.cold_bytes and subject.num_threads > 1
        if subject.cold_bytes:
            return self._sample_cold(subject, least_seconds)
        return self._sample_hot(subject, least_seconds)

    def _sample_hot(self, subject: TimedRun, least_seconds: float) -> float:
        if subject.num_threads > 1:
            least_seconds = max(least_seconds, THREADED_LEAST_SECONDS)
        lead = lead_of(subject.num_threads)
        count, begin = 1, perf_counter()
        subject.run()
        spent = perf_counter() - begin
        if not needed_lead(spent, lead):
            return spent
        while spent < lead:
            subject.run()
            count, spent = count + 1, perf_counter() - begin
        if count * least_seconds > _MOST_RUNS * spent > 0:  # too short for a clock each
            return _time_block(subject.run, math.ceil(least_seconds * count / spent))
        return _median_run(subject.run, least_seconds, _MOST_RUNS)

    def _sample_cold(self, subject: TimedRun, least_seconds: float) -> float:
        begin = perf_counter()
        while perf_counter() - begin < LEAD_SECONDS:
            self._evict(subject.cold_bytes)

        def set_up() -> None:
            self._evict(subject.cold_bytes)
            for array, contents in subject.inputs:
                np.copyto(array, contents)
            for array in subject.outputs:
                array.fill(0)

        return _median_run(subject.run, least_seconds, _MOST_COLD_RUNS, set_up)

    def _evict(self, nbytes: int) -> Any:
        return self._other[: nbytes // 8].sum()


def clock_of(devices: Iterable[Device]) -> Callable[[], float] | None:
    """Return the sum of the clocks of devices, if there is a device and each has one."""
    every = tuple(devices)
    clocks = [clock for device in every if (clock := device_clock(device)) is not None]
    if not clocks or len(clocks) < len(every):
        return None
    return partial(_sum, clocks)


def program_clock(executable: PlanExecutable) -> Callable[[], float] | None:
    """Return the sum of the clocks of all devices, if all of those that run a region have one.

    Others only have inputs and outputs; of these, the host's memory has no clock. Where regions run
    on other machines, it is the time that goes by without that on the way there.
    """
    remote = RemoteClock(executable.executables)
    if remote:
        return remote
    plan = executable.plan
    texts = {region.device for region in plan.placement.regions}
    return clock_of(
        device
        for text, device in zip(plan.devices, executable.devices, strict=True)
        if text in texts or device_clock(device) is not None
    )


def _sum(clocks: Sequence[Callable[[], float]]) -> float:
    return sum(clock() for clock in clocks)


def _median_run(
    run: Step, least_seconds: float, most_runs: int, set_up: Callable[[], None] | None = None
) -> float:
    """Return the median seconds of as many runs as take long enough together."""
    seconds: list[float] = []
    while not seconds or (sum(seconds) < least_seconds and len(seconds) < most_runs):
        if set_up is not None:
            set_up()
        seconds.append(_time_block(run, 1))
    return statistics.median(seconds)


def _time_block(run: Step, count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        run()
    return (perf_counter() - start) / count


@dataclass(frozen=True, slots=True)
class Rounds:
    """What timing several subjects in rounds gave.

    Attributes:
        seconds: By position and round; NaN where a run failed.
        failures: By position, what was raised.
        taken_at: When each round began, in seconds since 1970-01-01 UTC.
    """

    seconds: list[list[float]]
    failures: dict[int, str] = field(default_factory=dict)
    taken_at: list[float] = field(default_factory=list)


def time_in_rounds(
    sampler: Sampler,
    subjects: Sequence[TimedRun],
    rounds: int,
    *,
    seed: int,
    least_seconds: float = LEAST_SECONDS,
    begin: Callable[[int], None] = lambda position: None,
) -> Rounds:
    """Take a sample of each subject in every round, each round in an order of its own.

    What fails once is not run again.

    Args:
        sampler: Takes them.
        subjects: What to time.
        rounds: How many.
        seed: For the orders.
        least_seconds: What one sample lasts at least.
        begin: Told the position of what is going to be timed.
    """
    result = Rounds([[] for _ in subjects])

    def take(position: int) -> float:
        if position in result.failures:
            return math.nan
        begin(position)
        try:
            return sampler.sample(subjects[position], least_seconds)
        except LinkError as error:  # costs this sample: the next one is on a new connection
            logger.warning("a measurement was lost: %s", error.message)
        except IntarsiaError as error:
            result.failures[position] = error.message
        except Exception as error:  # a step is a backend's own
            result.failures[position] = f"{type(error).__name__}: {error}"
        return math.nan

    random = Random(seed)
    is_collecting = gc.isenabled()
    # A collection in the middle of a sample takes milliseconds, and falls on whoever is timed then.
    gc.disable()
    try:
        for _ in range(rounds):
            result.taken_at.append(time.time())
            for position, seconds in take_round(range(len(subjects)), take, random).items():
                result.seconds[position].append(seconds)
    finally:
        if is_collecting:
            gc.enable()
    return result


class FixedKernel:
    """Some arithmetic in the cache that never changes: an anchor when there is no better one."""

    name = "fixed kernel 1"

    def __init__(self) -> None:
        self._left = np.linspace(0.5, 1.5, 1 << 14, dtype=np.float32)
        self._right = self._left[::-1].copy()
        self._out = np.empty_like(self._left)

    def __call__(self) -> None:
        """Do it once."""
        for _ in range(8):
            np.multiply(self._left, self._right, out=self._out)
            np.add(self._out, self._left, out=self._out)
