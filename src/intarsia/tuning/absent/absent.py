# SPDX-License-Identifier: Apache-2.0
"""Planning without measuring: for machines that are not here.

Costs are intervals (`guesses`), and the plan is the one that is least slow at worst (`outlooks`).
Units that stay where they are in all cases are decided; for the others the report says what to
measure (`settle`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from intarsia.cost.cost import Cost
from intarsia.cost.fingerprint import this_machine
from intarsia.place.decide import Calls
from intarsia.plan.tuning import Finalist, TuningReport
from intarsia.tuning.absent.intervals import Planner, make_planner
from intarsia.tuning.absent.next_measurements import settle
from intarsia.tuning.absent.outlooks import TIE, Outlook, survey
from intarsia.tuning.finalists.finalists import count_nodes
from intarsia.tuning.proposals.candidates import PlanCandidate

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.place.setting import Setting
    from intarsia.tuning.options import Options


def plan_without_measuring(
    setting: Setting, database: CostDatabase | None, options: Options
) -> tuple[Calls, TuningReport]:
    """Return a plan by estimates, and how sure it is.

    Args:
        setting: The model and the machine.
        database: Measured costs, where there are some.
        options: How to tune.

    Raises:
        SettingError: Nothing is known of the objective without measuring.
        UnsupportedError: A node has no target.
    """
    objective_note = options.objective.estimate_note()
    planner = make_planner(setting, database)
    outlooks, undecided = survey(planner)
    queue = settle(planner, undecided)
    units = planner.space.units
    calls_of = {
        each.name: tuple(
            (call.backend, units.nodes_of(sorted(call.ops))) for call in each.solution.calls
        )
        for each in outlooks
    }
    plan = outlooks[0]
    notes = [_source_note(planner, plan), _decided_note(planner, undecided), *queue.lines]
    notes += [objective_note] if objective_note else []
    notes.append(
        "nothing of this was run: it is not shown to be as fast as any single backend; tune on "
        "the machine itself"
    )
    return calls_of[plan.name], _report(planner, outlooks, calls_of, options, tuple(notes))


def _used(planner: Planner, plan: Outlook) -> dict[tuple[int, int], Cost]:
    """Return the costs that a plan rests on."""
    return {
        (call.backend, op): planner.costs[call.backend, op]
        for call in plan.solution.calls
        for op in call.ops
    }


def _source_note(planner: Planner, plan: Outlook) -> str:
    sources = Counter(cost.source for cost in _used(planner, plan).values())
    ranked = sorted(sources, key=lambda source: source.rank)
    counted = ", ".join(f"{sources[source]} {source}" for source in ranked)
    return (
        f"costs of units: {counted}; one run takes {1e3 * plan.low:.3f} to "
        f"{1e3 * plan.high:.3f} ms by their intervals, with {planner.setting.num_threads} threads"
    )


def _decided_note(planner: Planner, undecided: frozenset[int]) -> str:
    count = len(planner.space.units.units)
    if len(planner.positions) == 1:
        return "there is one target: nothing is to be decided"
    if not undecided:
        return "every unit stays where it is whatever the costs are within their intervals"
    return (
        f"{count - len(undecided)} of {count} units are decided; {len(undecided)} depend on costs"
    )


def _report(
    planner: Planner,
    outlooks: Sequence[Outlook],
    calls_of: Mapping[str, Calls],
    options: Options,
    notes: tuple[str, ...],
) -> TuningReport:
    setting, plan = planner.setting, outlooks[0]
    used = _used(planner, plan)
    singles = [each for each in outlooks if each.single >= 0]
    return TuningReport(
        targets=tuple(map(str, setting.targets)),
        versions=tuple(capability.backend.name for capability in setting.capabilities),
        machine=f"planned on {this_machine().text}",
        threads=setting.num_threads,
        objective=options.objective.name,
        finalists=tuple(
            Finalist(
                name=each.name,
                nodes=count_nodes(setting, PlanCandidate(each.name, calls_of[each.name])),
                regions=len(each.solution.calls),
                is_single=each.single >= 0,
                predicted_seconds=each.seconds,
                low_seconds=each.low,
                high_seconds=each.high,
                fate="planned; not measured" if each is plan else _fate(each, plan),
            )
            for each in outlooks
        ),
        winner=plan.name,
        is_mixed=len({position for position, _ in calls_of[plan.name]}) > 1,
        single=min(singles, key=lambda each: each.high).name if singles else plan.name,
        seconds=None,
        single_seconds=None,
        predicted_seconds=plan.seconds,
        confidence=0.0,
        proof=plan.solution.proof,
        bound_seconds=plan.solution.bound,
        nodes=len(setting.graph.nodes),
        units=len(planner.space.units.units),
        known=sum(cost.source.is_measured for cost in used.values()),
        unmeasured=sum(not cost.source.is_measured for cost in used.values()),
        caps=planner.space.caps,
        notes=notes,
    )


def _fate(outlook: Outlook, plan: Outlook) -> str:
    if outlook.high > TIE * plan.high and outlook.low > plan.low:
        return f"may be {outlook.high / plan.high:.2f} times as slow at worst"
    if plan.is_measured and not outlook.is_measured:
        return "not measured, and not sure to be faster"
    if outlook.regret > TIE * plan.regret:
        return f"may be {outlook.regret:.2f} times as slow as the best plan"
    return "no faster by the middles"
