# SPDX-License-Identifier: Apache-2.0
"""Which plan to take where costs are intervals: the one that is least slow at worst.

Every cost comes from the best source there is (`cost.estimator`). Errors of one target's estimates
go together, so each target in turn is taken to be as fast as it may be and the others as slow, and
the other way round: these are the cases.

The model is placed by the middles and in every other case. Of the plans that are best in some case,
and those of single targets, the one is taken that is least slow if all that it uses is as slow as
it may be, among those that no case shows to be much slower than the best (`REGRET_CAP`). A plan of
which every cost was measured is left only for one that is faster even then.

Source:
    Minimax regret: Savage, The Theory of Statistical Decision, JASA 46(253), 1951.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from intarsia.backends.calling import calling
from intarsia.backends.values import Candidate
from intarsia.cost.cost import Cost
from intarsia.cost.estimator import CostSubject, Estimator
from intarsia.cost.peak import target_peak
from intarsia.cost.transition import LINK, SPREAD, TransitionTable
from intarsia.errors import UnsupportedError
from intarsia.search.pricing import price
from intarsia.search.problem import Infeasible, Piece, PlacementProblem, Solution
from intarsia.search.solve import solve
from intarsia.target import DeviceType, Target
from intarsia.tuning.costing.cost_table import KeyMaker
from intarsia.tuning.costing.formulation import Facts, formulate
from intarsia.tuning.costing.model import TYPICAL_BYTE_SECONDS, TargetModel
from intarsia.tuning.proposals.space import Space, make_space, short_names

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.cost.key import CostKey
    from intarsia.cost.peak import Peak
    from intarsia.graph.region import Region
    from intarsia.place.setting import Setting


CALL_SECONDS = 5e-6
"""Assumed overhead of one call."""

LINK_SECONDS = 1e-5
"""Assumed time of a copy of nothing to or from a device."""

_LEAST_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class CostCase:
    """One way the costs may be.

    Attributes:
        name: In words.
        fast: Positions of targets that are as fast as they may be.
        slow: Positions of those that are as slow; all others are as the middles say.
    """

    name: str
    fast: frozenset[int] = frozenset()
    slow: frozenset[int] = frozenset()

    def seconds(self, position: int, cost: Cost) -> float:
        """Return the seconds to plan with."""
        if position in self.fast:
            return cost.low_seconds
        return high_seconds(cost) if position in self.slow else cost.seconds

    def copy_factor(self, position: int, spread: float) -> float:
        """Return the factor of the cost of a copy to or from a target."""
        if position in self.fast:
            return 1.0 / spread
        return spread if position in self.slow else 1.0


MIDDLE = CostCase("middles")


def high_seconds(cost: Cost) -> float:
    """Return the most that something may take."""
    return min(cost.high_seconds, 100 * cost.seconds)


def cases_of(positions: Sequence[int]) -> tuple[CostCase, ...]:
    """Return the cases to look at: the middles, and each target against the others."""
    every = frozenset(positions)
    cases = [MIDDLE]
    for position in positions if len(positions) > 1 else ():
        one = frozenset((position,))
        cases.append(CostCase("fast", one, every - one))
        cases.append(CostCase("slow", every - one, one))
    return tuple(cases)


@dataclass(slots=True)
class Planner:
    """What is known of a machine that is not here.

    Attributes:
        setting: The model and the machine.
        space: What may be chosen.
        subjects: By position and unit: what costs are asked of.
        estimator: Knows them.
        tables: By position: copies to and from the memory of targets that have one of their own.
        costs: By position and unit.
    """

    setting: Setting
    space: Space
    subjects: Mapping[tuple[int, int], CostSubject]
    estimator: Estimator
    tables: Mapping[int, TransitionTable]
    costs: dict[tuple[int, int], Cost] = field(init=False)

    def __post_init__(self) -> None:
        self.costs = {place: self.estimator.cost(each) for place, each in self.subjects.items()}

    @property
    def positions(self) -> tuple[int, ...]:
        """The targets that may have some unit, ascending."""
        return tuple(sorted({position for position, _ in self.costs}))

    def problem(self, case: CostCase) -> PlacementProblem:
        """Return what the search is asked in one case."""
        models = {}
        for position in self.positions:
            marginals = {
                unit: max(_LEAST_SECONDS, case.seconds(position, cost))
                for (at, unit), cost in self.costs.items()
                if at == position
            }
            groups = {  # they will not be measured: what fusing them saves is not hoped for
                group.units: sum(marginals[unit] for unit in group.units)
                for group in self.space.groups
                if group.position == position
            }
            models[position] = TargetModel(
                CALL_SECONDS, TYPICAL_BYTE_SECONDS, marginals, frozenset(marginals), groups
            )
        refused = frozenset((position, (unit,)) for position, unit in self.space.refused)
        copies = partial(self._copy_seconds, case)
        return formulate(self.space, Facts(models, {}, refused, copies, self._nbytes))

    def _nbytes(self, unit: int) -> int:
        units = self.space.units
        return sum(units.graph.constant_bytes(units.units[unit].nodes).values())

    def _copy_seconds(self, case: CostCase, position: int, nbytes: int) -> float:
        table = self.tables.get(position)
        if table is None:
            return 0.0
        return table.seconds(nbytes) * case.copy_factor(position, SPREAD[table.source])


def make_planner(setting: Setting, database: CostDatabase | None) -> Planner:
    """Return a planner that relies on estimates alone.

    Raises:
        UnsupportedError: A node has no target.
    """
    setting = setting.whole
    space = make_space(setting)
    naming = KeyMaker(setting)
    subjects: dict[tuple[int, int], CostSubject] = {}
    peaks: dict[int, Peak] = {}
    tables = {}
    asked: dict[CostKey, Cost | None] = {}
    for position, capability in enumerate(setting.capabilities):
        described = _described(setting, capability.context.refined)
        peaks[position] = target_peak(described, setting.num_threads)
        if setting.config.device_of(capability.target).device_type is not DeviceType.CPU:
            tables[position] = TransitionTable.assumed(LINK, LINK_SECONDS)
    for unit, every in enumerate(space.units.units):
        region = space.units.region((unit,))
        for position in every.targets:
            key = naming.key(((position, every.nodes),))
            estimate = partial(_ask_once, asked, key, partial(_ask, setting, position, region))
            subjects[position, unit] = CostSubject(region, key, peaks[position], None, estimate)
    estimator = Estimator()
    if database is not None:
        costs = database.costs({subject.key for subject in subjects.values()})
        estimator.learn(costs, subjects.values())
    return Planner(setting, space, subjects, estimator, tables)


def _described(setting: Setting, target: Target) -> Target:
    """Return a target that says which CPU it runs on: there is one, so any that names it will do.

    A runtime's target, such as `onnxruntime`, does not.
    """
    if target.device_type is not DeviceType.CPU or "mcpu" in target.attrs:
        return target
    every = (placed.target for placed in setting.targets)
    naming = (e for e in every if e and e.device_type is DeviceType.CPU and "mcpu" in e.attrs)
    return next(naming, target)


def _ask_once(
    asked: dict[CostKey, Cost | None], key: CostKey, ask: Callable[[], Cost | None]
) -> Cost | None:
    """Return what a backend says, which is asked once for all layers that are equal."""
    if key not in asked:
        asked[key] = ask()
    return asked[key]


def _ask(setting: Setting, position: int, region: Region) -> Cost | None:
    """Return what the backend says that a region costs."""
    capability = setting.capabilities[position]
    estimate = capability.backend.estimate
    if estimate is None:
        return None
    with calling(capability.backend.name, capability.context, "when asked for an estimate"):
        candidate = Candidate.plain(region, capability.target)
        return estimate(candidate, capability.context)


REGRET_CAP = 2.0
"""A plan should in no case take more than so many times the time of the best one of that case."""

TIE = 1.01
"""Plans whose times are within this factor are alike."""

_SEARCH_SECONDS = 5.0


def solve_case(problem: PlacementProblem) -> Solution:
    """Return the best plan of a case.

    Raises:
        UnsupportedError: There is no plan.
    """
    solution = solve(problem, seconds=_SEARCH_SECONDS)
    if isinstance(solution, Infeasible):
        raise UnsupportedError(f"there is no plan: {solution}")
    return solution


def targets_of(chosen: Sequence[Piece], count: int) -> tuple[int, ...]:
    """Return by unit the position of the target that a plan gives it."""
    positions = [-1] * count
    for piece in chosen:
        for op in piece.ops:
            positions[op] = piece.backend
    return tuple(positions)


@dataclass(frozen=True, slots=True)
class Outlook:
    """A plan, and what it would take.

    Attributes:
        name: For people.
        solution: Its pieces and calls.
        seconds: By the middles.
        low: If all that it uses is as fast as it may be.
        high: If all of that is as slow.
        regret: By how many times it is slower than the best plan in the worst case for it.
        single: The position of its only target but for the fallback; -1 if it is not such a plan.
        is_measured: Whether all costs of its units were measured.
    """

    name: str
    solution: Solution
    seconds: float
    low: float
    high: float
    regret: float
    single: int = -1
    is_measured: bool = False


def survey(planner: Planner) -> tuple[tuple[Outlook, ...], frozenset[int]]:
    """Return all plans worth a look, the one to take first, and the units that are not decided.

    Raises:
        UnsupportedError: There is no plan.
    """
    count = len(planner.space.units.units)
    cases = cases_of(planner.positions)
    problems = [planner.problem(case) for case in cases]
    best = [solve_case(problem) for problem in problems]
    plans: dict[tuple[int, ...], tuple[str, Solution, int]] = {}
    for position, name in enumerate(short_names(planner.setting.targets)):
        alone = _only(problems[0], position)
        if position in planner.positions and not isinstance(alone, Infeasible):
            places = targets_of(alone.chosen, count)
            plans.setdefault(places, (f"{name} alone", alone, position))
    placed = [targets_of(solution.chosen, count) for solution in best]
    mixes = 0
    for places, solution in zip(placed, best, strict=True):
        if places not in plans:
            mixes += 1
            plans[places] = (f"mix {mixes}", solution, -1)
    ends = [
        planner.problem(CostCase("best", fast=frozenset(planner.positions))),
        planner.problem(CostCase("worst", slow=frozenset(planner.positions))),
    ]
    outlooks = []
    for name, solution, single in plans.values():
        in_cases = [_price(problem, solution) for problem in problems]
        low, high = (_price(problem, solution) for problem in ends)
        regret = max(seconds / one.seconds for seconds, one in zip(in_cases, best, strict=True))
        sources = {planner.costs[e.backend, op].source for e in solution.chosen for op in e.ops}
        is_measured = all(source.is_measured for source in sources)
        outlooks.append(
            Outlook(name, solution, in_cases[0], low, high, regret, single, is_measured)
        )
    undecided = frozenset(
        unit for unit in range(count) if len({places[unit] for places in placed}) > 1
    )
    return rank(outlooks), undecided


def rank(outlooks: Sequence[Outlook]) -> tuple[Outlook, ...]:
    """Return plans with the one to take first: least slow at worst, of those within the cap."""
    cap = max(REGRET_CAP, min(each.regret for each in outlooks))
    within_cap = [each for each in outlooks if each.regret <= cap * TIE]
    measured = [each for each in outlooks if each.is_measured]
    if measured:
        bar = min(each.high for each in measured)
        within_cap = [each for each in within_cap if each.high < bar] or measured
    least = min(each.high for each in within_cap)
    # of those that are alike at worst, the one that is faster by the middles
    first = min((e for e in within_cap if e.high <= TIE * least), key=lambda each: each.seconds)
    others = sorted((e for e in outlooks if e is not first), key=lambda each: each.high)
    return (first, *others)


def _only(problem: PlacementProblem, position: int) -> Solution | Infeasible:
    """Return the plan that gives one target all that it takes."""
    mine = {unit for label in problem.labels if label.backend == position for unit in label.ops}
    labels = tuple(
        label for label in problem.labels if label.backend == position or mine.isdisjoint(label.ops)
    )
    return solve(replace(problem, labels=labels), seconds=_SEARCH_SECONDS)


def _price(problem: PlacementProblem, solution: Solution) -> float:
    """Return what a plan takes by the costs of another case."""
    labels = {label.key: label for label in problem.labels}
    chosen = tuple(labels[piece.key] for piece in solution.chosen)
    calls = tuple(
        replace(call, pieces=tuple(labels[piece.key] for piece in call.pieces))
        for call in solution.calls
    )
    return price(problem, chosen, calls).seconds
