# SPDX-License-Identifier: Apache-2.0
"""Which of several whole plans is worth proving: a race that ends once more rounds change nothing.

It only chooses. Whether a mixed plan ships is decided by rounds that come after it, so what is cut
short here may cost a gain, but never lets a slower plan ship:

* Rounds of before count: of the heats, of an earlier final, of a run that was stopped. Only ratios
  within one round are used, so a machine that has become faster or slower since does no harm; a few
  fresh rounds are run in any case.
* A mixed plan leaves as soon as it would be hopeless in the confirmation: its whole interval is
  above what it would have to reach there against the best single plan.
* One mixed plan that is left and is ahead goes to the confirmation at once: that is the same
  question, asked more strictly.
* Plans that 48 rounds cannot tell apart are equal for all purposes; ties go to the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from intarsia.cost.key import Sample
from intarsia.measure.racing import ALPHA, MARGIN, RaceResult, Ratio, judge, paired_ratio
from intarsia.tuning.proposals.candidates import PlanCandidate

LOOKS = (3, 6, 12, 24, 48)
"""After how many fresh rounds plans may leave."""

MOST_EARLIER = 48
"""Rounds of before that count: the latest ones."""

TIE = MARGIN
"""Plans that differ by less than this part are equal: what ships may be slower by no more."""

_ENOUGH = 12
"""Rounds after which a mixed plan that is ahead may be confirmed."""

MeasurePlans = Callable[[Sequence[PlanCandidate], int], Mapping[PlanCandidate, Sequence[float]]]
"""Given plans and a number of rounds, returns seconds by round; NaN where one failed."""

Rounds = dict[PlanCandidate, list[float]]
"""Seconds by plan and round; all plans have the same rounds, NaN where one had no part."""


def align_rounds(samples: Mapping[PlanCandidate, Sequence[Sample]]) -> Rounds:
    """Return the rounds in which samples were taken, the latest last.

    What was timed in one round has the time and the session of it. Rounds of one plan alone say
    nothing, and are left out while others are there.

    Args:
        samples: Of each plan, in the order in which they were taken.
    """
    rounds: dict[tuple[float, str, int], dict[PlanCandidate, float]] = {}
    for plan, taken in samples.items():
        seen: dict[tuple[float, str], int] = {}
        for sample in taken:
            when = (sample.taken_at, sample.session)
            count = seen[when] = seen.get(when, -1) + 1
            rounds.setdefault((*when, count), {})[plan] = sample.seconds
    least = 2 if len(samples) > 1 else 1
    kept = [rounds[when] for when in sorted(rounds) if len(rounds[when]) >= least][-MOST_EARLIER:]
    return {plan: [one.get(plan, math.nan) for one in kept] for plan in samples}


def choose(
    plans: Sequence[PlanCandidate],
    measure: MeasurePlans,
    *,
    looks: Sequence[int] = LOOKS,
    earlier: Mapping[PlanCandidate, Sequence[float]] | None = None,
) -> RaceResult[PlanCandidate]:
    """Race plans until it is clear which one to prove, or the looks are used up.

    Args:
        plans: In the order in which ties are broken.
        measure: Runs them.
        looks: Fresh rounds after which to look, rising.
        earlier: Rounds of before, aligned; they count, and come first in the samples.
    """
    samples = _padded(plans, earlier or {})
    live, ratios, done = tuple(plans), dict[PlanCandidate, Ratio](), 0
    alpha = ALPHA / len(looks)
    standing = judge(samples, alpha=alpha, tie=TIE)
    for look in looks if len(live) > 1 else ():
        fresh = measure(live, look - done)
        for plan in plans:
            got = list(fresh.get(plan, ()))[: look - done] if plan in live else []
            samples[plan] += got + [math.nan] * (look - done - len(got))
        done = look
        standing = judge({plan: samples[plan] for plan in live}, alpha=alpha, tie=TIE)
        ratios.update(standing.ratios)
        against = _against_singles(standing.live, samples, 1 - alpha)
        live = tuple(
            plan for plan in standing.live if plan not in against or against[plan].low < 1 - MARGIN
        )
        if standing.winner not in live:  # of mixed plans that were ahead within a tie
            standing = judge({plan: samples[plan] for plan in live}, alpha=alpha, tie=TIE)
        mixed = [plan for plan in live if plan.single < 0]
        is_ahead = mixed == [standing.winner] and _is_ahead(against.get(mixed[0]))
        if standing.is_decided or len(live) < 2 or is_ahead:  # noqa: PLR2004
            break
    taken = {plan: tuple(seconds) for plan, seconds in samples.items()}
    return RaceResult(standing.winner, standing.is_decided, ratios, taken)


def _padded(
    plans: Sequence[PlanCandidate], earlier: Mapping[PlanCandidate, Sequence[float]]
) -> Rounds:
    length = max((len(earlier.get(plan, ())) for plan in plans), default=0)
    return {
        plan: [*earlier.get(plan, ()), *[math.nan] * (length - len(earlier.get(plan, ())))]
        for plan in plans
    }


def _against_singles(
    live: Sequence[PlanCandidate], samples: Rounds, confidence: float
) -> dict[PlanCandidate, Ratio]:
    """Return how mixed plans compare with the best single plan that is left; none without one."""
    singles = judge({plan: samples[plan] for plan in live if plan.single >= 0}, tie=TIE)
    if singles.winner is None:
        return {}
    best = samples[singles.winner]
    return {plan: paired_ratio(samples[plan], best, confidence) for plan in live if plan.single < 0}


def _is_ahead(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.rounds >= _ENOUGH and ratio.value < 1 - MARGIN
