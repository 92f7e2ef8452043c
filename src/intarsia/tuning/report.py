# SPDX-License-Identifier: Apache-2.0
"""From what a tuner knows at its end to the plan that ships and its report.

The report says why the plan is as it is: what every unit costs everywhere, and what its cuts cost.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.cost.fingerprint import this_machine
from intarsia.errors import BackendError
from intarsia.place.assign import refusal_of
from intarsia.place.decide import cut_regions
from intarsia.plan.tuning import CutReport, TuningReport, UnitCost, UnitReport
from intarsia.tuning.costing.formulation import best_with
from intarsia.tuning.costing.model import predict
from intarsia.tuning.finalists import EQUAL, NOT_RUN, FinalRound, finalist_rows, order_plans
from intarsia.tuning.laboratory.values import Probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from intarsia.place.decide import Calls
    from intarsia.tuning.proposals.space import PlanCandidate
    from intarsia.tuning.tuner import Tuner


_LATE = "not measured: out of time"


def conclude(tuner: Tuner) -> tuple[Calls, TuningReport]:
    """Return the plan that ships, and the report.

    Args:
        tuner: One that has run, or was interrupted.

    Raises:
        BackendError: No plan could be run.
    """
    setting, table, objective = tuner.setting, tuner.table, tuner.options.objective
    final = tuner.final or _provisional(tuner)
    final = _with_others(final, tuner)
    seconds = {plan: _seconds(tuner, plan) for plan in final.plans}
    winner, single = final.winner, final.single
    measured, single_measured = seconds[winner], seconds.get(single)
    ratio = final.ratio(winner)
    if objective.compares_run_seconds and single_measured is not None and ratio.rounds:
        measured = single_measured * ratio.value  # both by the same rounds
    amounts = () if tuner.final is None else (objective.show,)
    targets = tuple(map(str, setting.targets))
    report = TuningReport(
        targets=targets,
        versions=tuple(map(table.keys.version, range(len(targets)))),
        machine=this_machine().text,
        threads=setting.num_threads,
        objective=objective.name,
        slowdown=objective.slowdown,
        finalists=finalist_rows(targets, final, seconds, tuner.predicted, *amounts),
        winner=winner.name,
        is_mixed=table.keys.is_shared(winner.calls),
        single=single.name,
        seconds=measured,
        single_seconds=single_measured,
        predicted_seconds=tuner.predicted(winner),
        confidence=final.confidence,
        proof=tuner.prospector.solution.proof if tuner.prospector.solution else "",
        bound_seconds=tuner.prospector.solution.bound if tuner.prospector.solution else None,
        nodes=len(setting.graph.nodes),
        units=len(tuner.space.units.units),
        measured=len(table.fresh),
        known=table.known,
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
        junctions=tuple(tuner.prospector.costing.boundaries.found.values()),
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
    failure = tuner.whole.runner.failures.get(tuner.table.keys.key(plan.calls))
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
    """Return the plan that is best so far if no comparison was finished.

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
    sound = [plan for plan in plans if tuner.table.keys.key(plan.calls) not in failed]
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


MOST_CUTS = 20
_LEAST_SAVED_SECONDS = 1e-6
_MOST_MOVED_UNITS = 8


def report_units(tuner: Tuner, calls: Calls) -> tuple[UnitReport, ...]:
    """Return what every unit costs on every target.

    Args:
        tuner: One that has searched.
        calls: The plan that ships.
    """
    if not tuner.prospector.models or tuner.prospector.problem is None:
        return ()
    plan_seconds = best_with(tuner.prospector.problem)
    graph, targets = tuner.setting.graph, tuner.setting.targets
    region_of = {node: i for i, (_, nodes) in enumerate(calls) for node in nodes}
    reports = []
    for unit, every in enumerate(tuner.space.units.units):
        region = region_of[every.nodes[0]]
        reports.append(
            UnitReport(
                nodes=tuple(graph.nodes[node].name for node in every.nodes),
                operators=tuple(graph.nodes[node].op_type for node in every.nodes),
                target=str(targets[calls[region][0]]),
                region=region,
                costs=tuple(
                    _unit_cost(tuner, position, unit, plan_seconds)
                    for position in range(len(targets))
                ),
            )
        )
    return tuple(reports)


def _unit_cost(
    tuner: Tuner, position: int, unit: int, plan_seconds: dict[tuple[int, int], float]
) -> UnitCost:
    setting = tuner.setting
    target = str(setting.targets[position])
    refusal = _refusal(tuner, position, unit)
    if refusal:
        return UnitCost(target, refusal=refusal)
    cost = tuner.table.cost(tuner.prospector.costing.key_of((position, (unit,))))
    model = tuner.prospector.models.get(position)
    return UnitCost(
        target,
        alone_seconds=None if cost is None else cost.seconds,
        inside_seconds=None if model is None else model.marginals.get(unit),
        source=_source(tuner, position, unit) if cost is None else str(cost.source),
        plan_seconds=plan_seconds.get((position, unit)),
    )


def _source(tuner: Tuner, position: int, unit: int) -> str:
    """Return where the figure of a unit comes from that was not measured alone."""
    return "group" if (position, unit) in tuner.space.refused else "hoped"


def _refusal(tuner: Tuner, position: int, unit: int) -> str:
    """Return why a target cannot have a unit; empty if it can."""
    setting, every = tuner.setting, tuner.space.units.units[unit]
    capability = setting.capabilities[position]
    for node in every.nodes:
        pin = setting.constraints.pins.get(node)
        if pin is not None and capability.target not in pin.targets:
            return pin.why
        refusal = refusal_of(setting.graph.nodes[node], capability, setting.constraints)
        if refusal is not None:
            return f"{refusal.code}: {refusal.reason}"
    poison = tuner.table.poison(tuner.prospector.costing.key_of((position, (unit,))))
    if poison is not None:
        return f"{poison.code}: {poison.reason}"
    return "" if position in every.targets else "left out of the search"


def report_cuts(tuner: Tuner, calls: Calls) -> tuple[CutReport, ...]:
    """Return what would be saved if a neighbour's target took nodes as fast as their own does.

    Units at a border, and whole small regions, are moved to the target of a neighbour; the plan is
    cut anew and priced by what was fitted to the measurements.

    Args:
        tuner: One that has searched.
        calls: The plan that ships.
    """
    if not tuner.prospector.models or len(calls) < 2:  # noqa: PLR2004 - one call has no cut
        return ()
    if not all(tuner.prospector.costing.is_of_units(nodes) for _, nodes in calls):
        return ()  # a plan in the user's order, which parts what the search keeps together
    mover = _Mover(tuner, calls)
    graph = tuner.setting.graph
    cuts = []
    for moved, other in mover.moves():
        saved, fewer = mover.saved(moved, other)
        if saved > _LEAST_SAVED_SECONDS:
            nodes = tuner.space.units.nodes_of(moved)
            target = str(tuner.setting.targets[mover.choices[moved[0]]])
            cuts.append(
                CutReport(
                    tuple(graph.nodes[node].name for node in nodes),
                    target,
                    str(tuner.setting.targets[other]),
                    saved,
                    fewer,
                )
            )
    cuts.sort(key=lambda cut: (-cut.saved_seconds, cut.nodes))
    return tuple(cuts[:MOST_CUTS])


class _Mover:
    """Prices the plan with some units on another target."""

    def __init__(self, tuner: Tuner, calls: Calls) -> None:
        self.tuner = tuner
        self.units = tuner.space.units
        self.calls = [
            (position, tuner.prospector.costing.units_of(nodes)) for position, nodes in calls
        ]
        self.choices = [0] * len(self.units.units)
        for position, members in self.calls:
            for unit in members:
                self.choices[unit] = position
        self.seconds, self.count = self._price(self.choices, {})

    def moves(self) -> list[tuple[tuple[int, ...], int]]:
        """Return units at a border, and small regions, with the targets of their neighbours."""
        graph, owner = self.units.graph, self.units.owner
        neighbours: dict[int, set[int]] = {}
        for node, after in enumerate(graph.successors):
            for other in after:
                one, two = owner[node], owner[other]
                if self.choices[one] != self.choices[two]:
                    neighbours.setdefault(one, set()).add(self.choices[two])
                    neighbours.setdefault(two, set()).add(self.choices[one])
        moves: set[tuple[tuple[int, ...], int]] = {
            ((unit,), at) for unit, every in neighbours.items() for at in every
        }
        for position, members in self.calls:
            if 1 < len(members) <= _MOST_MOVED_UNITS:
                around = {at for unit in members for at in neighbours.get(unit, ())} - {position}
                moves |= {(members, at) for at in around}
        return sorted(moves)

    def saved(self, moved: Sequence[int], other: int) -> tuple[float, int]:
        """Return the seconds saved, and how many calls fewer there are."""
        choices = list(self.choices)
        assumed = {}
        for unit in moved:
            here = self.tuner.prospector.models[choices[unit]].marginals[unit]
            there = self.tuner.prospector.models[other].marginals.get(unit, here)
            assumed[unit] = min(here, there)
            choices[unit] = other
        seconds, count = self._price(choices, assumed)
        return self.seconds - seconds, self.count - count

    def _price(self, choices: Sequence[int], assumed: dict[int, float]) -> tuple[float, int]:
        by_node = [choices[self.units.owner[node.id]] for node in self.units.graph.nodes]
        total, regions = 0.0, cut_regions(self.units.graph, by_node)
        for position, nodes in regions:
            members = self.tuner.prospector.costing.units_of(nodes)
            model = self.tuner.prospector.models[position]
            missing = [unit for unit in members if unit in assumed]
            measured = tuple(unit for unit in members if unit not in assumed)
            total += predict(model, measured, self.units.border_bytes(members))
            total += sum(assumed[unit] for unit in missing)
        return total, len(regions)
