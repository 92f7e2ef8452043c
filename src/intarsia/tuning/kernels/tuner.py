# SPDX-License-Identifier: Apache-2.0
"""Finds fast schedules of kernels by measuring them against those that heuristics pick.

Candidates of a kernel take turns in rounds of random order. The most promising are then compared
with the heuristic's alone, on fresh rounds, so that none wins because it was lucky among many; one
replaces it only if the interval of the median of ratios is above `LEAST_GAIN`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Protocol

from intarsia.codegen.kernels.families import TunableSpec, candidates, with_schedule
from intarsia.codegen.lower.schedules import ScheduleChoice, choice_of
from intarsia.cost.sampling import median_interval
from intarsia.native.schedule_table import TunedSchedule

LEAST_GAIN = 1.01
"""Times as fast that a schedule must be for certain."""
CONFIDENCE = 0.99
_SCREENING_ROUNDS = 7
_FRESH_ROUNDS = 21
_PROMISING = 3
"""Candidates that are compared once more."""


class Contest(Protocol):
    """Runs the candidates of one kernel, by number."""

    def seconds(self, candidate: int) -> float:
        """Run one for a moment, and return the seconds of a call."""

    def close(self) -> None:
        """Give back its memory."""


Prepare = Callable[[Sequence[TunableSpec]], Contest]
"""Makes candidates ready to be run."""


@dataclass(frozen=True, slots=True)
class KernelMoment:
    """How far a tuner is: kernels that are done, how many there are, and the last one's result."""

    done: int
    total: int
    key: str
    entry: TunedSchedule | None


def tune_kernels(
    jobs: Mapping[str, Sequence[TunableSpec]],
    prepare: Prepare,
    *,
    keep: Callable[[str, TunedSchedule], None],
    tell: Callable[[KernelMoment], None],
    budget: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
    seed: int = 0,
) -> int:
    """Find the fastest schedule of each kernel.

    Args:
        jobs: By key what gives the same result, the heuristic's first.
        prepare: Makes candidates ready.
        keep: Called with each result as soon as it is there.
        tell: Told how far it is.
        budget: Seconds after which no more kernels are begun.
        clock: What they are counted by.
        seed: Of the orders of rounds.

    Returns:
        How many kernels were measured.
    """
    end, done = clock() + budget, 0
    for key, specs in jobs.items():
        if clock() >= end:
            break
        tell(KernelMoment(done, len(jobs), key, None))
        entry = tune_kernel(specs, prepare, Random(f"{seed} {key}"))
        keep(key, entry)
        done += 1
        tell(KernelMoment(done, len(jobs), key, entry))
    return done


def tune_kernel(specs: Sequence[TunableSpec], prepare: Prepare, random: Random) -> TunedSchedule:
    """Find the fastest schedule of one kernel.

    Args:
        specs: What gives the same result, the heuristic's first; none has a schedule.
        prepare: Makes candidates ready.
        random: Orders the rounds.
    """
    every = [with_schedule(spec, schedule) for spec in specs for schedule in candidates(spec)]
    contest = prepare(every)
    try:
        return _judge(every, contest, random)
    finally:
        contest.close()


def _judge(every: Sequence[TunableSpec], contest: Contest, random: Random) -> TunedSchedule:
    numbers = range(len(every))
    rounds = [_round(contest, numbers, random) for _ in range(_SCREENING_ROUNDS)]
    gains = {number: median(_gains(rounds, number)) for number in numbers[1:]}
    own = median(seconds[0] for seconds in rounds) * 1e6
    least = math.log(LEAST_GAIN)
    ordered = sorted((n for n in gains if gains[n] > least), key=lambda n: -gains[n])
    best = (0.0, 0.0, 0.0)
    for number in ordered[:_PROMISING]:
        fresh = [_round(contest, (0, number), random) for _ in range(_FRESH_ROUNDS)]
        found = median_interval(_gains(fresh, number), CONFIDENCE)
        if found[1] > least:
            return _entry(choice_of(every[number]), found, len(every), own)
        best = max(best, found)
    return _entry(None, best, len(every), own)


def _entry(
    choice: ScheduleChoice | None, logs: tuple[float, float, float], count: int, own: float
) -> TunedSchedule:
    ratio, low, high = map(math.exp, logs)
    return TunedSchedule(choice, ratio, low, high, count, own)


def _round(contest: Contest, numbers: Sequence[int], random: Random) -> dict[int, float]:
    order = list(numbers)
    random.shuffle(order)
    return {number: max(contest.seconds(number), 1e-12) for number in order}


def _gains(rounds: Sequence[Mapping[int, float]], number: int) -> list[float]:
    """Return logarithms of how many times as fast as the heuristic's a candidate was."""
    return [math.log(seconds[0] / seconds[number]) for seconds in rounds]
