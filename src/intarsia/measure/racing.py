# SPDX-License-Identifier: Apache-2.0
"""Rounds in which each of several things is timed once, and which of them is faster.

The machine drifts more than its contenders differ; therefore they take turns, each round in an
order drawn anew, and only ratios within one round count. Whoever asks says how a sample is taken. A
sample that is not finite and positive (a run that failed or hung) takes its round out of the
comparisons of that contender alone.

Source:
    Intervals of medians: `cost.sampling`. Halving: Jamieson and Talwalkar, AISTATS 2016. Several
    looks: Bonferroni's inequality.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Generic, TypeVar

from intarsia.cost.sampling import median_ranks

# The looks share `ALPHA`, and at 98.75% order statistics enclose a median from 8 rounds on: the
# first two looks are by Student's distribution. 24 rounds tell 5% apart at a noise of 5%.
LOOKS = (3, 6, 12, 24)
"""After how many rounds contenders that are clearly slower leave the race."""

CONFIRMING_LOOKS = (12, 24, 48, 96)
"""After how many fresh rounds a chosen plan may be accepted."""

ALPHA = 0.05
"""Probability that a race calls a difference clear that does not exist, over all looks."""

ACCEPTANCE_ALPHA = 0.025
"""Probability of accepting a plan that is not better than its best rival."""

MARGIN = 0.01
"""The fraction by which an accepted plan must be faster."""

TIE = 0.02
"""Differences below this part are not worth resolving."""

# More than a float has bits.
_BISECTIONS = 80

Key = TypeVar("Key", bound=Hashable)
Sample = TypeVar("Sample")
Samples = Mapping[Key, Sequence[float]]
"""Seconds by contender and round; a contender that left has fewer rounds."""


def take_round(
    contenders: Sequence[Key], take: Callable[[Key], Sample], random: Random
) -> dict[Key, Sample]:
    """Take one sample of each contender.

    Args:
        contenders: What takes turns.
        take: Takes a sample: seconds, or whatever the caller makes of a block of runs.
        random: Draws the order.
    """
    taken = {key: take(key) for key in random.sample(contenders, len(contenders))}
    return {key: taken[key] for key in contenders}


def take_turns(
    contenders: Sequence[Key], take: Callable[[Key], Sample], rounds: int, *, seed: int = 0
) -> dict[Key, list[Sample]]:
    """Return by contender the samples of some rounds, each in an order of its own."""
    random = Random(seed)
    samples: dict[Key, list[Sample]] = {key: [] for key in contenders}
    for _ in range(rounds):
        for key, sample in take_round(contenders, take, random).items():
            samples[key].append(sample)
    return samples


@dataclass(frozen=True, slots=True)
class Ratio:
    """How one contender's time compares with another's.

    Attributes:
        value: Median over the rounds of the ratio; NaN if there is no round.
        low: Lower end of its interval; 0 if the rounds allow none.
        high: Upper end; infinite if the rounds allow none.
        rounds: How many rounds had both.
    """

    value: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Compare two contenders by the rounds that both have.

    The interval is that of the median (no assumption but that rounds are alike) where there are
    rounds enough for the confidence; else Student's on logarithms, which widens with outliers.

    Args:
        ours: Seconds by round.
        theirs: Likewise.
        confidence: Two-sided; the upper end alone has half the error.
    """
    logs = sorted(
        math.log(one / other) for one, other in zip(ours, theirs, strict=False) if _both(one, other)
    )
    if not logs:
        return Ratio(math.nan, 0.0, math.inf, 0)
    # Logarithms, so that exchanging the two gives the reciprocal.
    middle = statistics.median(logs)
    positions = median_ranks(len(logs), confidence)
    if positions is not None:
        low, high = logs[positions[0]], logs[positions[1]]
    elif len(logs) > 1:
        mean, spread = statistics.fmean(logs), statistics.stdev(logs)
        reach = student_quantile(len(logs) - 1, confidence) * spread / math.sqrt(len(logs))
        low, high = min(middle, mean - reach), max(middle, mean + reach)
    else:
        low, high = -math.inf, math.inf
    return Ratio(math.exp(middle), _exp(low), _exp(high), len(logs))


@cache
def student_quantile(freedom: int, confidence: float) -> float:
    """Return t such that Student's distribution is within ±t with that probability.

    Source:
        Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """

    def within(t: float) -> float:
        angle = math.atan(t / math.sqrt(freedom))
        term = math.cos(angle) if freedom % 2 else 1.0
        total = 0.0
        for k in range(1 + freedom % 2, freedom, 2):
            total += term
            term *= math.cos(angle) ** 2 * k / (k + 1)
        if freedom % 2:
            return 2 / math.pi * (angle + math.sin(angle) * total)
        return math.sin(angle) * total

    low, high = 0.0, 1.0
    while within(high) < confidence:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < confidence else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class Standing(Generic[Key]):
    """The state of a race after some rounds.

    Attributes:
        winner: The fastest; among those that tie with it, the first in the order given. None if
            no contender has a sample.
        live: Those that are not clearly slower by more than a tie, in the order given.
        ratios: Of each contender's time to the fastest one's.
        is_decided: Whether more rounds would not change the winner: no other is live, or all
            live ones tie.
    """

    winner: Key | None
    live: tuple[Key, ...]
    ratios: Mapping[Key, Ratio]
    is_decided: bool


def judge(samples: Samples[Key], *, alpha: float = ALPHA, tie: float = TIE) -> Standing[Key]:
    """Return what some rounds say.

    Args:
        samples: In the order in which ties are broken.
        alpha: How often this look may be wrong about a pair.
        tie: Differences below this part are ties.
    """
    fastest = _fastest(samples)
    if fastest is None:
        return Standing(None, (), {}, True)
    ratios = {key: paired_ratio(own, samples[fastest], 1 - alpha) for key, own in samples.items()}
    live = tuple(key for key, ratio in ratios.items() if ratio.rounds and ratio.low <= 1.0 + tie)
    tied = [key for key in live if ratios[key].value <= 1.0 + tie]
    is_same = all(ratios[key].high <= 1.0 + tie for key in live)
    return Standing(tied[0], live, ratios, len(live) == 1 or is_same)


@dataclass(frozen=True, slots=True)
class RaceResult(Generic[Key]):
    """How a race ended.

    Attributes:
        winner: As in `Standing`.
        is_decided: Likewise; false if the rounds ended first.
        ratios: Of each contender's time to the fastest one's, from the last look that had it.
        samples: Seconds by contender and round, all rounds.
    """

    winner: Key | None
    is_decided: bool
    ratios: Mapping[Key, Ratio]
    samples: Mapping[Key, tuple[float, ...]]


def halve(
    contenders: Sequence[Key],
    measure: Callable[[Sequence[Key], int], Samples[Key]],
    *,
    looks: Sequence[int] = LOOKS,
    alpha: float = ALPHA,
    tie: float = TIE,
) -> RaceResult[Key]:
    """Race contenders; after each look those that are clearly slower leave.

    Args:
        contenders: In the order in which ties are broken.
        measure: Given contenders and how many more rounds, returns their samples of these rounds;
            a contender may be missing, or have fewer, if it failed.
        looks: Rounds after which to look, rising.
        alpha: How often the race may be wrong about a pair; shared by the looks.
        tie: Differences below this part are ties.
    """
    live = tuple(contenders)
    samples: dict[Key, list[float]] = {key: [] for key in live}
    ratios: dict[Key, Ratio] = {}
    standing: Standing[Key] = Standing(live[0] if live else None, live, {}, len(live) < 2)  # noqa: PLR2004
    done = 0
    for look in looks:
        if standing.is_decided:
            break
        fresh = measure(live, look - done)
        _append({key: samples[key] for key in live}, fresh, look - done)
        done = look
        standing = judge({key: samples[key] for key in live}, alpha=alpha / len(looks), tie=tie)
        ratios.update(standing.ratios)
        live = standing.live
    return RaceResult(standing.winner, standing.is_decided, ratios, _frozen(samples))


def _append(samples: Mapping[Key, list[float]], fresh: Samples[Key], rounds: int) -> None:
    """Add rounds, which stay in step: what failed leaves a hole."""
    for key in samples:
        added = list(fresh.get(key, ()))[:rounds]
        samples[key] += added + [math.nan] * (rounds - len(added))


def _frozen(samples: Samples[Key]) -> dict[Key, tuple[float, ...]]:
    return {key: tuple(seconds) for key, seconds in samples.items()}


@dataclass(frozen=True, slots=True)
class Acceptance(Generic[Key]):
    """Whether a plan may ship in place of its rivals.

    Attributes:
        is_accepted: Whether it is clearly faster than every rival, by more than the margin.
        ratios: Of its time to each rival's.
        rounds: How many were looked at.
        samples: Seconds by contender and round.
    """

    is_accepted: bool
    ratios: Mapping[Key, Ratio]
    rounds: int
    samples: Mapping[Key, tuple[float, ...]]


def is_better(
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    margin: float = MARGIN,
    alpha: float = ACCEPTANCE_ALPHA,
) -> bool:
    """Whether the upper bound of the ratio of two times, at 1 - alpha, is below 1 - margin."""
    return paired_ratio(ours, theirs, 1 - 2 * alpha).high < 1 - margin


def confirm(
    chosen: Key,
    rivals: Sequence[Key],
    measure: Callable[[Sequence[Key], int], Samples[Key]],
    *,
    looks: Sequence[int] = CONFIRMING_LOOKS,
    margin: float = MARGIN,
    alpha: float = ACCEPTANCE_ALPHA,
) -> Acceptance[Key]:
    """Test on fresh rounds, none of which chose it, whether a plan beats each of its rivals.

    It stops early when the answer is clear. A plan that is no better than its best rival is
    accepted with a probability of at most alpha, whatever the number of rivals, because it must
    beat all of them.

    Args:
        chosen: The plan, chosen by other rounds.
        rivals: Those that it must beat.
        measure: As in `halve`.
        looks: Rounds after which to look, rising; they share alpha.
        margin: By what part it must be faster.
        alpha: One-sided.
    """
    keys = (chosen, *rivals)
    samples: dict[Key, list[float]] = {key: [] for key in keys}
    # Bonferroni's share for each look; times two, as only the upper end counts.
    confidence = 1 - 2 * alpha / len(looks)
    ratios: dict[Key, Ratio] = {}
    done = 0
    for look in looks:
        fresh = measure(keys, look - done)
        _append(samples, fresh, look - done)
        done = look
        own = samples[chosen]
        ratios = {key: paired_ratio(own, samples[key], confidence) for key in rivals}
        # It must beat all, so rivals need no share of alpha: an intersection-union test (Berger,
        # "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24(4), 1982).
        is_accepted = all(ratio.high < 1 - margin for ratio in ratios.values())
        is_hopeless = any(ratio.low >= 1 - margin for ratio in ratios.values())
        is_dead = not any(map(math.isfinite, own))
        if is_accepted or is_hopeless or is_dead:
            break
    else:
        is_accepted = False
    return Acceptance(is_accepted, ratios, done, _frozen(samples))


def _fastest(samples: Samples[Key]) -> Key | None:
    """Return a contender that no other one beats in the median of their common rounds.

    It starts with the one that has the most rounds and goes on to the one that beats it by most;
    should the contenders beat one another in a circle, the last of as many steps as there are
    counts.
    """
    counts = {key: sum(map(_is_sample, own)) for key, own in samples.items()}
    fastest = max(counts, key=counts.__getitem__, default=None)
    if fastest is None or not counts[fastest]:
        return None
    for _ in samples:
        values = {key: paired_ratio(own, samples[fastest]).value for key, own in samples.items()}
        best = min(values, key=lambda key: (math.isnan(values[key]), values[key]))
        if not values[best] < 1.0:
            break
        fastest = best
    return fastest


def _is_sample(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0


def _both(one: float, other: float) -> bool:
    return _is_sample(one) and _is_sample(other)


def _exp(logarithm: float) -> float:
    try:
        return math.exp(logarithm)
    except OverflowError:
        return math.inf
