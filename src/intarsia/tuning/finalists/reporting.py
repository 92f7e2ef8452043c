# SPDX-License-Identifier: Apache-2.0
"""From what a tuner knows at its end to the plan that ships and its report."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.cost.fingerprint import this_machine
from intarsia.errors import BackendError
from intarsia.plan.tuning import TuningReport
from intarsia.tuning.finalists.finalists import (
    EQUAL,
    NOT_RUN,
    FinalRound,
    finalist_rows,
    order_plans,
)
from intarsia.tuning.finalists.reasons import report_cuts, report_units
from intarsia.tuning.laboratory.values import Probe

if TYPE_CHECKING:
    from intarsia.place.decide import Calls
    from intarsia.tuning.proposals.candidates import PlanCandidate
    from intarsia.tuning.tuner import Tuner

_LATE = "not measured: out of time"


def conclude(tuner: Tuner) -> tuple[Calls, TuningReport]:
    """Return the plan that ships, and the report.

    Args:
        tuner: One that has run, or was interrupted.

    Raises:
        BackendError: No plan could be run.
    """
    setting, book, objective = tuner.setting, tuner.book, tuner.options.objective
    final = tuner.final or _provisional(tuner)
    final = _with_others(final, tuner)
    seconds = {plan: _seconds(tuner, plan) for plan in final.plans}
    winner, single = final.winner, final.single
    measured, single_measured = seconds[winner], seconds.get(single)
    ratio = final.ratio(winner)
    if objective.compares_run_seconds and single_measured is not None and ratio.rounds:
        measured = single_measured * ratio.value  # both by the same rounds
    amounts = () if tuner.final is None else (objective.show,)
    report = TuningReport(
        targets=tuple(map(str, setting.targets)),
        versions=tuple(map(book.keys.version, range(len(setting.targets)))),
        machine=this_machine().text,
        threads=setting.num_threads,
        objective=objective.name,
        slowdown=objective.slowdown,
        finalists=finalist_rows(setting, final, seconds, tuner.predicted, *amounts),
        winner=winner.name,
        is_mixed=book.keys.is_shared(winner.calls),
        single=single.name,
        seconds=measured,
        single_seconds=single_measured,
        predicted_seconds=tuner.predicted(winner),
        confidence=final.confidence,
        proof=tuner.prospector.solution.proof if tuner.prospector.solution else "",
        bound_seconds=tuner.prospector.solution.bound if tuner.prospector.solution else None,
        nodes=len(setting.graph.nodes),
        units=len(tuner.space.units.units),
        measured=len(book.fresh),
        known=book.known,
        unmeasured=_count_unmeasured(tuner, winner),
        failures=tuple(tuner.whole.runner.failures.values()),
        caps=tuner.space.caps,
        notes=tuner.notes,
        spent=dict(tuner.budget.spent),
        in_flight=final.in_flight,
        figure_name=objective.figure_name,
        budget_seconds=tuner.options.budget_seconds,
        is_interrupted=tuner.is_interrupted,
        unit_reports=report_units(tuner, winner.calls),
        cuts=report_cuts(tuner, winner.calls),
        junctions=tuple(tuner.prospector.costing.junctions.found.values()),
    )
    return winner.calls, replace(report, outcome=objective.outcome(report))


def _count_unmeasured(tuner: Tuner, winner: PlanCandidate) -> int:
    """Return how many regions of a plan that was never run were not measured either."""
    if math.isfinite(tuner.whole.seconds(winner)):
        return 0
    return sum(not math.isfinite(tuner.whole.runner.seconds((call,))) for call in winner.calls)


def _with_others(final: FinalRound, tuner: Tuner) -> FinalRound:
    """Return the comparison with the plans that were run before it and left out."""
    every = dict.fromkeys((*tuner.plans, *tuner.whole.given_up))
    others = [plan for plan in every if plan not in final.plans]
    best = tuner.whole.seconds(final.winner)
    fates = dict(final.fates)
    for plan in final.plans:
        if fates.get(plan) == NOT_RUN:
            fates[plan] = _failure(tuner, plan) or NOT_RUN
    for plan in others:
        seconds = tuner.whole.seconds(plan)
        if math.isfinite(seconds) and best > 0:
            fates[plan] = _fate_of_slow(tuner, seconds, best)
        else:
            fates[plan] = _failure(tuner, plan) or tuner.left_out.get(plan, _LATE)
    earlier = (
        tuner.whole.samples
        if tuner.options.objective.compares_run_seconds or tuner.final is None
        else {}
    )
    samples = {plan: list(earlier.get(plan, ())) for plan in others}
    return replace(
        final,
        plans=(*final.plans, *others),
        samples={**final.samples, **samples},
        fates=fates,
    )


def _failure(tuner: Tuner, plan: PlanCandidate) -> str:
    """Return why a plan could not be run; nothing if it could, or was not tried."""
    failure = tuner.whole.runner.failures.get(tuner.book.keys.key(plan.calls))
    code = failure.code if failure else tuner.whole.packages.failures.get(Probe(plan.calls))
    return f"{NOT_RUN}: {code}" if code else ""


def _fate_of_slow(tuner: Tuner, seconds: float, best: float) -> str:
    """Return why a plan was not in the final that has run, against the winner's seconds."""
    slowdown = tuner.options.objective.slowdown
    if slowdown is None:
        return f"{seconds / best:.2f} times the time of the fastest, in the heats"
    fastest = min(map(tuner.whole.seconds, tuner.plans), default=best)
    if seconds > tuner.options.objective.limits(fastest):
        return f"{seconds / fastest:.2f} times the time of the fastest: more than {slowdown:g}"
    return "not weighed: out of time"


def _seconds(tuner: Tuner, plan: PlanCandidate) -> float | None:
    seconds = tuner.whole.seconds(plan)
    return seconds if math.isfinite(seconds) else None


def _provisional(tuner: Tuner) -> FinalRound:
    """Return what is best by what is known, where no comparison was finished.

    Raises:
        BackendError: There is no plan that can be run.
    """
    plans = tuner.plans or tuple(tuner.whole.given_up)
    if not plans:
        failures = tuple(tuner.whole.runner.failures.values())
        first = failures[0] if failures else None
        raise BackendError(
            "no plan could be run" + (f": {first.code}: {first.reason}" if first else ""),
            target=first.target if first else None,
            hint="add a target that runs the model, or leave out the one at fault",
        )
    failed = tuner.whole.runner.failures
    sound = [plan for plan in plans if tuner.book.keys.key(plan.calls) not in failed]
    singles = [plan for plan in sound if plan.single >= 0] or sound or list(plans)
    least = min(map(tuner.whole.seconds, singles))
    best = next(one for one in order_plans(singles) if tuner.whole.seconds(one) <= EQUAL * least)
    samples = {plan: list(tuner.whole.samples.get(plan, ())) for plan in plans}
    fates = dict.fromkeys(plans, "not compared to the end")
    for plan in plans:
        if not math.isfinite(tuner.whole.seconds(plan)):
            late = _LATE if plan in tuner.whole.given_up else "not measured"
            fates[plan] = _failure(tuner, plan) or late
    return FinalRound(tuple(plans), best, best, 0.0, samples, {**fates, best: "ships"})
