# SPDX-License-Identifier: Apache-2.0
"""Planning without measuring: for machines that are not here.

Costs are intervals, and the plan is the one that is least slow at worst (`outlooks`). Units that
stay where they are in all cases are decided; for the others the report says what to measure next.

That is found greedily: of all candidates whose cost is not known, that one is measured (in thought,
at the middle of its interval) whose interval is widest beyond its slack, the difference between the
best plan with it and the best plan. What one measurement tells about others of the same target is
learnt from it as it will be from a real one. It is repeated until every unit is decided.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from intarsia.cost.cost import Cost, CostSource
from intarsia.cost.database import known_costs
from intarsia.cost.fingerprint import this_machine
from intarsia.place.decide import Calls
from intarsia.plan.tuning import Finalist, TuningReport, name_some
from intarsia.tuning.absent.outlooks import (
    MIDDLE,
    TIE,
    Outlook,
    Planner,
    cases_of,
    high_seconds,
    make_planner,
    solve_case,
    survey,
    targets_of,
)
from intarsia.tuning.costing.formulation import best_with
from intarsia.tuning.finalists import count_nodes

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.cost.key import CostKey
    from intarsia.place.setting import Setting
    from intarsia.search.problem import PlacementProblem
    from intarsia.tuning.options import Options


def plan_absent(
    setting: Setting, options: Options, *, costs: str | None = None
) -> tuple[Calls, TuningReport]:
    """Return a plan for a machine that is not here, by the costs that a database has.

    Args:
        setting: The model and the machine.
        options: How to tune.
        costs: The database; None means what the settings say.

    Raises:
        CostDatabaseError: The database is damaged or out of reach.
        SettingError: Nothing is known of the objective without measuring.
        UnsupportedError: A node has no target.
    """
    with known_costs(costs, setting.backends.settings) as database:
        return plan_without_measuring(setting, database, options)


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
    queue = find_next_measurements(planner, undecided)
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
        return "there is only one target, so there is nothing to decide"
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
    targets = tuple(map(str, setting.targets))
    used = _used(planner, plan)
    singles = [each for each in outlooks if each.single >= 0]
    return TuningReport(
        targets=targets,
        versions=tuple(capability.backend.name for capability in setting.capabilities),
        machine=f"planned on {this_machine().text}",
        threads=setting.num_threads,
        objective=options.objective.name,
        finalists=tuple(
            Finalist(
                name=each.name,
                nodes=count_nodes(targets, calls_of[each.name]),
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
    return "no faster by the middles of the intervals"


MOST_MEASUREMENTS = 24
"""Most measurements that are proposed; if more are needed, tune on the machine itself."""

MOST_SECONDS = 5.0
"""Longest time to look for measurements."""

_SHOWN = 6
_PRECISION = 1.02
"""How far a measurement is off, as a factor."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One region to measure.

    Attributes:
        target: Text of the target.
        nodes: Names of the first nodes of the first unit that has its shape.
        count: How many units have it.
    """

    target: str
    nodes: tuple[str, ...]
    count: int

    def __str__(self) -> str:
        more = f" (x{self.count})" if self.count > 1 else ""
        return f"{', '.join(self.nodes)}{more} on {self.target}"


@dataclass(frozen=True, slots=True)
class NextMeasurements:
    """What to measure, in order.

    Attributes:
        measurements: The first ones tell most.
        left: How many units are open when all of them are known.
    """

    measurements: tuple[Measurement, ...] = ()
    left: int = 0

    @property
    def lines(self) -> tuple[str, ...]:
        """What the report says of it."""
        if not self.measurements:
            return ()
        shown = "; ".join(map(str, self.measurements[:_SHOWN]))
        more = len(self.measurements) - _SHOWN
        shown += f"; and {more} more" if more > 0 else ""
        count = len(self.measurements)
        what = "measurement" if count == 1 else f"{count} measurements"
        if not self.left:
            return (f"the {what} that would settle it: {shown}",)
        return (f"the first {what} to take, after which {self.left} units are open: {shown}",)


def find_next_measurements(planner: Planner, undecided: frozenset[int]) -> NextMeasurements:
    """Return the fewest regions, as far as greedy search finds them, that decide every unit.

    Args:
        planner: What is known; it is not changed.
        undecided: Units whose target depends on costs.
    """
    measurements: list[Measurement] = []
    planner = replace(planner, estimator=copy.deepcopy(planner.estimator))
    end = time.monotonic() + MOST_SECONDS
    while undecided and len(measurements) < MOST_MEASUREMENTS and time.monotonic() < end:
        key = _widest(planner, undecided)
        if key is None:
            break
        same = {place: each for place, each in planner.subjects.items() if each.key == key}
        first = min(same)
        middle = planner.costs[first]
        measured = replace(middle, source=CostSource.MEASURED).within(_PRECISION)
        planner.estimator.learn({key: measured}, [same[first]])
        planner = replace(planner)  # asks for all costs again
        nodes = planner.space.units.units[first[1]].nodes
        names = name_some([planner.setting.graph.nodes[node].name for node in nodes])
        target = str(planner.setting.targets[first[0]])
        measurements.append(Measurement(target, names, len(same)))
        undecided = _open(planner) or _open(planner, with_calls=True)
    return NextMeasurements(tuple(measurements), len(undecided))


def _open(planner: Planner, *, with_calls: bool = False) -> frozenset[int]:
    """Return the units whose target depends on costs.

    Args:
        planner: What is known.
        with_calls: Whether to form calls and to keep the limits of devices, which takes longer.
    """
    count = len(planner.space.units.units)
    problems = map(planner.problem, cases_of(planner.positions))
    if with_calls:
        placed = [targets_of(solve_case(problem).chosen, count) for problem in problems]
    else:
        placed = [_targets(problem, count) for problem in problems]
    return frozenset(unit for unit in range(count) if len({each[unit] for each in placed}) > 1)


def _targets(problem: PlacementProblem, count: int) -> tuple[int, ...]:
    """Return by unit the position of the target that the best labels give it."""
    seconds = best_with(problem)
    if not seconds:  # the graph is too wide
        return targets_of(solve_case(problem).chosen, count)
    best = [(math.inf, -1)] * count
    for (position, unit), each in seconds.items():
        best[unit] = min(best[unit], (each, position))
    return tuple(position for _, position in best)


def _widest(planner: Planner, undecided: frozenset[int]) -> CostKey | None:
    """Return the key of what is most worth measuring; None if nothing is open any more."""
    seconds = best_with(planner.problem(MIDDLE))  # where the graph is too wide, widths alone decide
    best = min(seconds.values(), default=0.0)
    worth: dict[CostKey, float] = {}
    for (position, unit), cost in planner.costs.items():
        if unit not in undecided or cost.source.is_measured:
            continue
        width = high_seconds(cost) - cost.low_seconds
        beyond = width - (seconds.get((position, unit), best) - best)
        key = planner.subjects[position, unit].key
        worth[key] = worth.get(key, 0.0) + max(beyond, 1e-3 * width)
    return max(worth, key=worth.__getitem__, default=None)
