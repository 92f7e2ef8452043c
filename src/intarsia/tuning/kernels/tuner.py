# SPDX-License-Identifier: Apache-2.0
"""Finds fast schedules of kernels by measuring them against those that heuristics pick.

Likewise it finds which layers between Q and DQ nodes are faster in float32 than in integers.

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
from intarsia.codegen.lower.schedules import ScheduleChoice, choice_of, in_floats
from intarsia.measure.racing import Ratio, paired_ratio, take_turns
from intarsia.native.schedule_table import TunedSchedule

LEAST_GAIN = 1.01
"""Times as fast that a schedule must be for certain."""
CONFIDENCE = 0.99
# Too few for a claim of 99%, which takes eight; of 21, it lies between the fifth and the
# seventeenth.
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


Job = Callable[[Random], TunedSchedule]
"""Finds the fastest way of something, in rounds of an order that is drawn."""


@dataclass(frozen=True, slots=True)
class KernelMoment:
    """How far a tuner is: kernels that are done, how many there are, and the last one's result."""

    done: int
    total: int
    key: str
    entry: TunedSchedule | None


def tune_kernels(
    jobs: Mapping[str, Job],
    *,
    keep: Callable[[str, TunedSchedule], None],
    tell: Callable[[KernelMoment], None],
    budget: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
    seed: int = 0,
) -> int:
    """Find the fastest schedule of each kernel.

    Args:
        jobs: By key what finds the fastest.
        keep: Called with each result as soon as it is there.
        tell: Told how far it is.
        budget: Seconds after which no more kernels are begun.
        clock: What they are counted by.
        seed: Of the orders of rounds.

    Returns:
        How many kernels were measured.
    """
    end, done = clock() + budget, 0
    for key, job in jobs.items():
        if clock() >= end:
            break
        tell(KernelMoment(done, len(jobs), key, None))
        entry = job(Random(f"{seed} {key}"))
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
        return _judge(len(every), lambda number, _: choice_of(every[number]), contest, random)
    finally:
        contest.close()


def tune_layer(prepare: Callable[[], Contest], random: Random) -> TunedSchedule:
    """Find whether a layer between Q and DQ nodes is faster in float32.

    Args:
        prepare: Makes it ready in integers, and in float32.
        random: Orders the rounds.
    """
    contest = prepare()
    try:
        return _judge(2, lambda _, ratio: in_floats(ratio.value), contest, random)
    finally:
        contest.close()


def compare(prepare: Callable[[], Contest], random: Random) -> Ratio:
    """Return how many times as fast the second of two candidates is as the first.

    Args:
        prepare: Makes both ready.
        random: Orders the rounds.
    """
    contest = prepare()
    try:
        samples = _race(contest, (0, 1), _FRESH_ROUNDS, random)
        return paired_ratio(samples[0], samples[1], CONFIDENCE)
    finally:
        contest.close()


def _race(
    contest: Contest, numbers: Sequence[int], rounds: int, random: Random
) -> dict[int, list[float]]:
    """Return the seconds of candidates, which take turns."""

    def take(number: int) -> float:
        return max(contest.seconds(number), 1e-12)

    return take_turns(numbers, take, rounds, seed=random.getrandbits(32))


def _judge(
    count: int,
    choose: Callable[[int, Ratio], ScheduleChoice],
    contest: Contest,
    random: Random,
) -> TunedSchedule:
    """Return which of some candidates is the fastest.

    Args:
        count: How many there are; the first is what is taken otherwise.
        choose: Returns a candidate as a choice, from how many times as fast it is.
        contest: Runs them.
        random: Orders the rounds.
    """
    samples = _race(contest, range(count), _SCREENING_ROUNDS, random)
    own = median(samples[0]) * 1e6
    gains = [paired_ratio(samples[0], samples[number]) for number in range(count)]
    ordered = sorted(range(1, count), key=lambda n: -gains[n].value)
    best = Ratio(1.0, 1.0, 1.0, 0)
    for number in ordered[:_PROMISING]:
        if gains[number].value <= LEAST_GAIN:
            break
        # Fresh rounds: the ratio by which one of many was picked is too good on average.
        again = _race(contest, (0, number), _FRESH_ROUNDS, random)
        fresh = paired_ratio(again[0], again[number], CONFIDENCE)
        if fresh.low > LEAST_GAIN:
            return _result(choose(number, fresh), fresh, count, own)
        best = max(best, fresh, key=lambda ratio: ratio.value)
    return _result(None, best, count, own)


def _result(choice: ScheduleChoice | None, ratio: Ratio, count: int, own: float) -> TunedSchedule:
    return TunedSchedule(choice, ratio.value, ratio.low, ratio.high, count, own)
