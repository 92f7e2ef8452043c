# SPDX-License-Identifier: Apache-2.0
"""Planning without measuring: for machines that are not here.

Every cost comes from the best source there is (`cost.estimator`) and is an interval. The model is
placed by the middles; then each target in turn is taken to be as fast as it may be and the others
as slow, and the other way round. Units that stay where they are in all cases are decided; what the
others need is a measurement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from intarsia.backends.candidate import Candidate
from intarsia.cost.cost import Cost
from intarsia.cost.estimator import Estimator, Subject
from intarsia.cost.fingerprint import this_machine
from intarsia.cost.peak import target_peak
from intarsia.cost.transition import TransitionTable
from intarsia.errors import SettingError, UnsupportedError
from intarsia.place.collage.book import KeyMaker
from intarsia.place.collage.candidates import PlanCandidate, Space, make_space, short_names
from intarsia.place.collage.finalists import count_nodes
from intarsia.place.collage.formulation import Facts, formulate
from intarsia.place.collage.model import TYPICAL_BYTE_SECONDS, TargetModel
from intarsia.place.decide import Calls
from intarsia.place.hooks import calling
from intarsia.place.search.problem import Infeasible, Solution
from intarsia.place.search.solve import solve
from intarsia.plan.tuning import Finalist, TuningReport
from intarsia.target import DeviceType

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.cost.peak import Peak
    from intarsia.graph.region import Region
    from intarsia.place.collage.options import Options
    from intarsia.place.setting import Setting

CALL_SECONDS = 5e-6
"""Assumed overhead of one call."""

_SEARCH_SECONDS = 5.0
_LEAST_SECONDS = 1e-9
_SHOWN = 5


@dataclass(slots=True)
class _Planner:
    """What is known of a machine that is not here."""

    setting: Setting
    space: Space
    costs: dict[tuple[int, int], Cost]  # by position and unit
    tables: dict[int, TransitionTable]

    def solve(self, pick: Callable[[int, Cost], float]) -> Solution:
        """Return the plan for one choice of costs.

        Raises:
            UnsupportedError: There is no plan.
        """
        models = {}
        for position in sorted({position for position, _ in self.costs}):
            marginals = {
                unit: max(_LEAST_SECONDS, pick(position, cost))
                for (at, unit), cost in self.costs.items()
                if at == position
            }
            groups = {  # nobody will measure them: what fusing them saves is not hoped for
                group.units: sum(marginals[unit] for unit in group.units)
                for group in self.space.groups
                if group.position == position
            }
            models[position] = TargetModel(
                CALL_SECONDS, TYPICAL_BYTE_SECONDS, marginals, frozenset(marginals), groups
            )
        refused = frozenset((position, (unit,)) for position, unit in self.space.refused)
        facts = Facts(models, {}, refused, self.copy_seconds, lambda unit: 0)
        solution = solve(formulate(self.space, facts), seconds=_SEARCH_SECONDS)
        if isinstance(solution, Infeasible):
            raise UnsupportedError(f"there is no plan: {solution}")
        return solution

    def copy_seconds(self, position: int, nbytes: int) -> float:
        table = self.tables.get(position)
        return 0.0 if table is None else table.seconds(nbytes)


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
    if options.objective == "memory":
        raise SettingError(
            "what a plan adds to a process is measured, not estimated",
            hint="leave out --objective memory, or --devices-absent",
        )
    planner = _make_planner(setting, database)
    middle = planner.solve(lambda position, cost: cost.seconds)
    units = planner.space.units
    chosen = _targets(middle, len(units.units))
    positions = sorted(planner.tables.keys() | {at for at, _ in planner.costs})
    undecided: set[int] = set()
    for fast in positions if len(positions) > 1 else ():
        for is_fast in (True, False):

            def pick(position: int, cost: Cost, fast: int = fast, low: bool = is_fast) -> float:
                return cost.low_seconds if (position == fast) == low else _high(cost)

            other = _targets(planner.solve(pick), len(units.units))
            undecided |= {unit for unit, at in enumerate(other) if at != chosen[unit]}
    calls = tuple((call.backend, units.nodes_of(sorted(call.ops))) for call in middle.calls)
    return calls, _report(planner, middle, calls, sorted(undecided), options)


def _high(cost: Cost) -> float:
    return min(cost.high_seconds, 100 * cost.seconds)


def _make_planner(setting: Setting, database: CostDatabase | None) -> _Planner:
    space = make_space(setting)
    naming = KeyMaker(setting)
    subjects: dict[tuple[int, int], Subject] = {}
    peaks: dict[int, Peak] = {}
    tables = {}
    for position, capability in enumerate(setting.capabilities):
        peaks[position] = target_peak(capability.context.refined, setting.num_threads)
        if setting.config.device_of(capability.target).device_type is not DeviceType.CPU:
            tables[position] = TransitionTable.assumed(peaks[position])
    for unit, every in enumerate(space.units.units):
        region = space.units.region((unit,))
        for position in every.targets:
            key = naming.key(((position, every.nodes),))
            estimate = partial(_ask, setting, position, region)
            subjects[position, unit] = Subject(region, key, peaks[position], None, estimate)
    estimator = Estimator()
    if database is not None:
        known = database.costs({subject.key for subject in subjects.values()})
        estimator.learn(known, subjects.values())
    costs = {place: estimator.cost(subject) for place, subject in subjects.items()}
    return _Planner(setting, space, costs, tables)


def _ask(setting: Setting, position: int, region: Region) -> Cost | None:
    """Return what the backend says that a region costs."""
    capability = setting.capabilities[position]
    with calling(capability.backend.name, capability.context, "when asked for an estimate"):
        candidate = Candidate.plain(region, capability.target)
        return capability.backend.estimate(candidate, capability.context)


def _targets(solution: Solution, count: int) -> list[int]:
    found = [-1] * count
    for call in solution.calls:
        for op in call.ops:
            found[op] = call.backend
    return found


def _report(
    planner: _Planner, solution: Solution, calls: Calls, undecided: list[int], options: Options
) -> TuningReport:
    setting, units = planner.setting, planner.space.units
    used = {
        (call.backend, op): planner.costs[call.backend, op]
        for call in solution.calls
        for op in call.ops
    }
    sources = Counter(str(cost.source) for cost in used.values())
    counted = ", ".join(f"{count} {source}" for source, count in sources.most_common())
    low = sum(cost.low_seconds for cost in used.values())
    high = sum(_high(cost) for cost in used.values())
    notes = [
        f"nothing was measured: costs of {counted}; one run takes {1e3 * low:.3f} to "
        f"{1e3 * high:.3f} ms by their intervals"
    ]
    graph = setting.graph
    if undecided:
        dear = sorted(undecided, key=lambda unit: -max(_spread(planner, unit)))[:_SHOWN]
        names = ", ".join(graph.nodes[units.units[unit].nodes[0]].name for unit in dear)
        notes.append(
            f"{len(undecided)} of {len(units.units)} units depend on a measurement; measure first: "
            f"{names}"
        )
    else:
        notes.append("every unit stays where it is whatever the costs are within their intervals")
    plan = PlanCandidate("estimate", calls)
    position_names = short_names(setting)
    single = position_names[setting.config.targets.index(setting.config.fallback)]
    row = Finalist(
        name=plan.name,
        nodes=count_nodes(setting, plan),
        regions=len(calls),
        is_single=len(calls) == 1,
        predicted_seconds=solution.seconds,
        fate="planned; not measured",
    )
    return TuningReport(
        targets=tuple(map(str, setting.config.targets)),
        versions=tuple(capability.backend.name for capability in setting.capabilities),
        machine=f"planned on {this_machine().text}",
        threads=setting.num_threads,
        objective=options.objective,
        finalists=(row,),
        winner=plan.name,
        is_mixed=len({position for position, _ in calls}) > 1,
        single=single,
        seconds=None,
        single_seconds=None,
        predicted_seconds=solution.seconds,
        confidence=0.0,
        proof=solution.proof,
        bound_seconds=solution.bound,
        nodes=len(graph.nodes),
        units=len(units.units),
        known=sum(cost.source.is_measured for cost in used.values()),
        unmeasured=sum(not cost.source.is_measured for cost in used.values()),
        caps=planner.space.caps,
        notes=tuple(notes),
    )


def _spread(planner: _Planner, unit: int) -> list[float]:
    return [_high(cost) - cost.low_seconds for (_, at), cost in planner.costs.items() if at == unit]
