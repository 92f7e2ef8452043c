# SPDX-License-Identifier: Apache-2.0
"""Whole plans against each other, end to end: no plan ships that is not shown to be best.

All plans are raced in interleaved rounds, and those that are clearly slower leave. If the fastest
is not a plan of a single backend, it has to beat every one of these again, on fresh rounds that did
not choose it. Ties go to the plan with fewer regions, then to the user's order.

The race only chooses which plan to prove. Whether a mixed plan ships is decided by the rounds that
come after it, so what is cut short here may cost a gain, but never lets a slower plan ship:

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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from intarsia.cost.key import Sample
from intarsia.measure.racing import (
    ACCEPTANCE_ALPHA,
    ALPHA,
    CONFIRMING_LOOKS,
    MARGIN,
    RaceResult,
    Ratio,
    confirm,
    judge,
    paired_ratio,
)
from intarsia.plan.tuning import Finalist
from intarsia.tuning.proposals.space import PlanCandidate

if TYPE_CHECKING:
    from intarsia.place.decide import Calls


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
    for plan, plan_samples in samples.items():
        seen: dict[tuple[float, str], int] = {}
        for sample in plan_samples:
            when = (sample.taken_at, sample.session)
            count = seen[when] = seen.get(when, -1) + 1
            rounds.setdefault((*when, count), {})[plan] = sample.seconds
    least = 2 if len(samples) > 1 else 1
    latest = [rounds[when] for when in sorted(rounds) if len(rounds[when]) >= least][-MOST_EARLIER:]
    return {plan: [one.get(plan, math.nan) for one in latest] for plan in samples}


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
    # Each look may err by its share (Bonferroni): they are not independent, and together err by no
    # more.
    alpha = ALPHA / len(looks)
    standing = judge(samples, alpha=alpha, tie=TIE)
    for look in looks if len(live) > 1 else ():
        fresh = measure(live, look - done)
        for plan in plans:
            seconds = list(fresh.get(plan, ()))[: look - done] if plan in live else []
            samples[plan] += seconds + [math.nan] * (look - done - len(seconds))
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
    seconds_by_plan = {plan: tuple(seconds) for plan, seconds in samples.items()}
    return RaceResult(standing.winner, standing.is_decided, ratios, seconds_by_plan)


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


@dataclass(frozen=True, slots=True)
class FinalRound:
    """The comparison of whole plans.

    Attributes:
        plans: In the order in which ties are broken.
        winner: The plan that ships.
        single: The best plan with one backend.
        confidence: Of the claim that the winner is not slower than the best single plan.
        samples: Seconds by plan and round, of all rounds; NaN where a plan had no part in one.
        fates: By plan, `ships`, or why it does not.
        is_confirmation: Whether a mixed plan was put to the proof, and might have passed by chance.
        slower: Plans that do not ship because their rounds say that they are slower.
        in_flight: How many processes ran a plan at the same time.
    """

    plans: tuple[PlanCandidate, ...]
    winner: PlanCandidate
    single: PlanCandidate
    confidence: float
    samples: dict[PlanCandidate, list[float]]
    fates: dict[PlanCandidate, str] = field(default_factory=dict)
    is_confirmation: bool = False
    slower: frozenset[PlanCandidate] = frozenset()
    in_flight: int = 1

    def ratio(self, plan: PlanCandidate) -> Ratio:
        """Return how a plan's time compares with that of the best single plan."""
        return paired_ratio(self.samples[plan], self.samples[self.single])


def order_plans(plans: Sequence[PlanCandidate]) -> tuple[PlanCandidate, ...]:
    """Return plans in the order in which ties are broken."""
    return tuple(
        sorted(
            dict.fromkeys(plans),
            key=lambda plan: (
                len(plan.calls),
                plan.single < 0,
                plan.single if plan.single >= 0 else len(plans),
                [position for position, _ in plan.calls],
            ),
        )
    )


def compare_plans(
    plans: Sequence[PlanCandidate],
    measure: MeasurePlans,
    *,
    looks: Sequence[int] = LOOKS,
    confirming_looks: Sequence[int] = CONFIRMING_LOOKS,
    earlier: Mapping[PlanCandidate, Sequence[float]] | None = None,
) -> FinalRound | None:
    """Find the plan that ships.

    Args:
        plans: Those that can be run; at least one of a single backend among them, unless none can
            be run at all.
        measure: Runs them.
        looks: Rounds of the race after which to look.
        confirming_looks: Rounds of the confirmation after which to look; none means that no mixed
            plan can be accepted.
        earlier: Rounds that were run before, aligned: they help to choose, never to confirm.

    Returns:
        What was found; None if no plan has been run.
    """
    ordered = order_plans(plans)
    race = choose(ordered, measure, looks=looks, earlier=earlier)
    samples = {plan: list(raced) for plan, raced in race.samples.items()}
    if race.winner is None:
        return None
    winner, confidence = _simplest(ordered, race), 1.0 - ACCEPTANCE_ALPHA
    fates = {
        plan: _fate(plan, winner, race.ratios[plan]) for plan in ordered if plan in race.ratios
    }
    slower = frozenset(plan for plan in fates if not is_equal(race.ratios[plan]))
    dead = [plan for plan in ordered if not any(map(math.isfinite, samples[plan]))]
    fates |= dict.fromkeys(dead, NOT_RUN)
    singles = [plan for plan in ordered if plan.single >= 0 and plan not in dead]
    single = winner if winner.single >= 0 else _fastest(singles, race.ratios) or winner
    is_confirmation = winner.single < 0 and bool(singles)
    if is_confirmation:
        rivals = [plan for plan in singles if _may_be_best(plan, single, race.ratios)]
        acceptance = confirm(winner, rivals, measure, looks=confirming_looks)
        for plan in ordered:  # samples of one round stay in one place
            none = (math.nan,) * acceptance.rounds
            samples[plan] += acceptance.samples.get(plan, none)
        single = _hardest(rivals, acceptance.ratios) or single
        if not acceptance.is_accepted:
            ratio = acceptance.ratios.get(single)
            shown = "" if ratio is None else f": {ratio} of {single.name}"
            fates[winner] = f"not shown to be faster than every single backend{shown}"
            winner = single
    fates[winner] = "ships"
    return FinalRound(
        ordered, winner, single, confidence, samples, fates, is_confirmation, slower - {winner}
    )


NOT_RUN = "could not be run"
"""The fate of a plan that failed."""

EQUAL = 1.05
"""Plans whose times differ by no more than this, and by what chance can explain, are equally fast.
On a quiet machine the intervals of 48 rounds are 1 or 2 % wide, and this bound says nothing; on a
noisy one it is by how much the simpler plan may be behind."""


def _simplest(plans: Sequence[PlanCandidate], race: RaceResult[PlanCandidate]) -> PlanCandidate:
    """Return the first of the plans that are as fast as the winner of a race, which has one."""
    assert race.winner is not None
    equal = (plan for plan in plans if plan in race.ratios and is_equal(race.ratios[plan]))
    return next(equal, race.winner)


def is_equal(ratio: Ratio) -> bool:
    """Whether a plan is as fast as the fastest, as far as its rounds tell."""
    return ratio.rounds > 0 and ratio.low <= 1.0 and ratio.value <= EQUAL


def _fate(plan: PlanCandidate, winner: PlanCandidate, ratio: Ratio) -> str:
    """Return why a plan does not ship, given its time to the fastest one's."""
    if is_equal(ratio) and len(plan.calls) > len(winner.calls):
        return f"as fast as {winner.name}, with more regions"
    if is_equal(ratio):
        return f"as fast as {winner.name}, which comes first"
    return f"{ratio.value:.2f} times the time of the fastest"


RIVAL = 1.1
"""A single plan that is slower than the best one by more than this need not be beaten again."""


def _may_be_best(
    plan: PlanCandidate, best: PlanCandidate, ratios: Mapping[PlanCandidate, Ratio]
) -> bool:
    if plan == best:
        return True
    ratio, other = ratios.get(plan), ratios.get(best)
    return ratio is not None and other is not None and ratio.low <= RIVAL * other.value


def _hardest(
    rivals: Sequence[PlanCandidate], ratios: Mapping[PlanCandidate, Ratio]
) -> PlanCandidate | None:
    """Return the fastest of the rivals of one plan; of those within a tie the first."""
    most = max((ratios[plan].value for plan in rivals), default=0.0)
    return next((plan for plan in rivals if ratios[plan].value * (1 + MARGIN) >= most), None)


def _fastest(
    plans: Sequence[PlanCandidate], ratios: Mapping[PlanCandidate, Ratio]
) -> PlanCandidate | None:
    measured = [plan for plan in plans if plan in ratios and not math.isnan(ratios[plan].value)]
    return min(measured, key=lambda plan: ratios[plan].value, default=None)


def finalist_rows(
    targets: Sequence[str],
    final: FinalRound,
    seconds: Mapping[PlanCandidate, float | None],
    predicted: Callable[[PlanCandidate], float | None],
    show: Callable[[Finalist, float], Finalist] = lambda row, _: row,
) -> tuple[Finalist, ...]:
    """Return all plans as the report shows them, the best first.

    Args:
        targets: By position, their texts.
        final: The comparison.
        seconds: By plan, its time in absolute terms.
        predicted: Says what was said of a plan before.
        show: Adds what was measured of a plan, where that is not its time.
    """
    rows = []
    for plan in final.plans:
        finite = [one for one in final.samples[plan] if math.isfinite(one)]
        amount = median(finite) if finite else 0.0
        ratio = final.ratio(plan)
        has_ratio = ratio.rounds > 0
        rows.append(
            show(
                Finalist(
                    name=plan.name,
                    nodes=count_nodes(targets, plan.calls),
                    regions=len(plan.calls),
                    is_single=plan.single >= 0,
                    predicted_seconds=predicted(plan),
                    seconds=seconds.get(plan),
                    ratio=ratio.value if has_ratio else None,
                    low=ratio.low if has_ratio else None,
                    high=ratio.high if has_ratio and math.isfinite(ratio.high) else None,
                    rounds=sum(map(math.isfinite, final.samples[plan])),
                    fate=final.fates.get(plan, "") + _explain(final, seconds, plan),
                ),
                amount,
            )
        )
    return tuple(
        sorted(rows, key=lambda row: (row.fate != "ships", row.ratio is None, row.ratio or 0.0))
    )


def _explain(
    final: FinalRound, seconds: Mapping[PlanCandidate, float | None], plan: PlanCandidate
) -> str:
    """Return why a plan that was slower does not ship although its time stands there as lower."""
    seconds_of_plan, best = seconds.get(plan), seconds.get(final.winner)
    if (
        plan not in final.slower
        or seconds_of_plan is None
        or best is None
        or seconds_of_plan >= best
    ):
        return ""
    return " in the same rounds; the time beside is the median of all its rounds"


def count_nodes(targets: Sequence[str], calls: Calls) -> dict[str, int]:
    """Return how many nodes each target has in a plan, in the user's order.

    Args:
        targets: By position, their texts.
        calls: The plan.
    """
    counts: Counter[int] = Counter()
    for position, nodes in calls:
        counts[position] += len(nodes)
    return {targets[i]: counts[i] for i in sorted(counts)}
