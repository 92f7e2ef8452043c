# SPDX-License-Identifier: Apache-2.0
"""Planning without measuring: for machines that are not here.

Every cost comes from the best source there is (`cost.estimator`) and is an interval. The model is
placed by the middles; then each target in turn is taken to be as fast as it may be and the others
as slow, and the other way round, since errors of one target's estimates go together. Units that
stay where they are in all cases are decided.

Of the plans that are best in some case, and those of single targets, the one is taken that is least
slow if all that it uses is as slow as it may be, among those that no case shows to be much slower
than the best (`REGRET_CAP`). A plan of which every cost was measured is left only for one that is
faster even then.

Source:
    Minimax regret: Savage, The Theory of Statistical Decision, JASA 46(253), 1951.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from intarsia.backends.candidate import Candidate
from intarsia.cost.cost import Cost
from intarsia.cost.estimator import Estimator, Subject
from intarsia.cost.fingerprint import this_machine
from intarsia.cost.peak import target_peak
from intarsia.cost.transition import LINK, SPREAD, TransitionTable
from intarsia.errors import SettingError, UnsupportedError
from intarsia.place.collage.book import KeyMaker
from intarsia.place.collage.candidates import PlanCandidate, Space, make_space, short_names
from intarsia.place.collage.finalists import count_nodes
from intarsia.place.collage.formulation import Facts, formulate
from intarsia.place.collage.model import TYPICAL_BYTE_SECONDS, TargetModel
from intarsia.place.decide import Calls
from intarsia.place.hooks import calling
from intarsia.place.memory_limits import constants_of
from intarsia.place.search.pricing import price
from intarsia.place.search.problem import Infeasible, Piece, Problem, Solution
from intarsia.place.search.solve import solve
from intarsia.plan.tuning import Finalist, TuningReport
from intarsia.target import DeviceType, Target

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.cost.peak import Peak
    from intarsia.graph.region import Region
    from intarsia.place.collage.options import Options
    from intarsia.place.setting import Setting

CALL_SECONDS = 5e-6
"""Assumed overhead of one call."""

LINK_SECONDS = 1e-5
"""Assumed time of a copy of nothing to or from a device."""

REGRET_CAP = 2.0
"""A plan should in no case take more than so many times the time of the best one of that case."""

_SEARCH_SECONDS = 5.0
_LEAST_SECONDS = 1e-9
_TIE = 1.01

Pick = Callable[[int, Cost], float]
"""Given the position of a target and a cost there, the seconds to plan with."""


@dataclass(frozen=True, slots=True)
class Case:
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
        """Return what a copy to or from a target is to be multiplied by."""
        if position in self.fast:
            return 1.0 / spread
        return spread if position in self.slow else 1.0


MIDDLE = Case("middles")


def high_seconds(cost: Cost) -> float:
    """Return the most that something may take."""
    return min(cost.high_seconds, 100 * cost.seconds)


def cases_of(positions: Sequence[int]) -> tuple[Case, ...]:
    """Return the cases to look at: the middles, and each target against the others."""
    every = frozenset(positions)
    found = [MIDDLE]
    for position in positions if len(positions) > 1 else ():
        one = frozenset((position,))
        found.append(Case("fast", one, every - one))
        found.append(Case("slow", every - one, one))
    return tuple(found)


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
    subjects: Mapping[tuple[int, int], Subject]
    estimator: Estimator
    tables: Mapping[int, TransitionTable]
    costs: dict[tuple[int, int], Cost] = field(init=False)

    def __post_init__(self) -> None:
        self.costs = {place: self.estimator.cost(each) for place, each in self.subjects.items()}

    @property
    def positions(self) -> tuple[int, ...]:
        """The targets that may have some unit, ascending."""
        return tuple(sorted({position for position, _ in self.costs}))

    def problem(self, case: Case) -> Problem:
        """Return what the search is asked in one case."""
        models = {}
        for position in self.positions:
            marginals = {
                unit: max(_LEAST_SECONDS, case.seconds(position, cost))
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
        copies = partial(self._copy_seconds, case)
        return formulate(self.space, Facts(models, {}, refused, copies, self._nbytes))

    def _nbytes(self, unit: int) -> int:
        units = self.space.units
        return sum(constants_of(units.graph, units.units[unit].nodes).values())

    def _copy_seconds(self, case: Case, position: int, nbytes: int) -> float:
        table = self.tables.get(position)
        if table is None:
            return 0.0
        return table.seconds(nbytes) * case.copy_factor(position, SPREAD[table.source])


def solve_case(problem: Problem) -> Solution:
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
    found = [-1] * count
    for piece in chosen:
        for op in piece.ops:
            found[op] = piece.backend
    return tuple(found)


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
        single: The position of its only target but for the fallback; -1 if it is no such plan.
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
    found: dict[tuple[int, ...], tuple[str, Solution, int]] = {}
    for position, name in enumerate(short_names(planner.setting)):
        alone = _only(problems[0], position)
        if position in planner.positions and not isinstance(alone, Infeasible):
            places = targets_of(alone.chosen, count)
            found.setdefault(places, (f"{name} alone", alone, position))
    placed = [targets_of(solution.chosen, count) for solution in best]
    mixes = 0
    for places, solution in zip(placed, best, strict=True):
        if places not in found:
            mixes += 1
            found[places] = (f"mix {mixes}", solution, -1)
    ends = [
        planner.problem(Case("best", fast=frozenset(planner.positions))),
        planner.problem(Case("worst", slow=frozenset(planner.positions))),
    ]
    outlooks = []
    for name, solution, single in found.values():
        in_cases = [_price(problem, solution) for problem in problems]
        low, high = (_price(problem, solution) for problem in ends)
        regret = max(own / one.seconds for own, one in zip(in_cases, best, strict=True))
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
    kept = [each for each in outlooks if each.regret <= cap * _TIE]
    measured = [each for each in outlooks if each.is_measured]
    if measured:
        bar = min(each.high for each in measured)
        kept = [each for each in kept if each.high < bar] or measured
    least = min(each.high for each in kept)
    # of those that are alike at worst, the one that is faster by the middles
    first = min((e for e in kept if e.high <= _TIE * least), key=lambda each: each.seconds)
    others = sorted((e for e in outlooks if e is not first), key=lambda each: each.high)
    return (first, *others)


def _only(problem: Problem, position: int) -> Solution | Infeasible:
    """Return the plan that gives one target all that it takes."""
    mine = {unit for label in problem.labels if label.backend == position for unit in label.ops}
    labels = tuple(
        label for label in problem.labels if label.backend == position or mine.isdisjoint(label.ops)
    )
    return solve(replace(problem, labels=labels), seconds=_SEARCH_SECONDS)


def _price(problem: Problem, solution: Solution) -> float:
    """Return what a plan takes by the costs of another case."""
    labels = {label.key: label for label in problem.labels}
    chosen = tuple(labels[piece.key] for piece in solution.chosen)
    calls = tuple(
        replace(call, pieces=tuple(labels[piece.key] for piece in call.pieces))
        for call in solution.calls
    )
    return price(problem, chosen, calls).seconds


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
    from intarsia.place.collage.settle import settle

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
    if options.objective == "throughput":
        notes.append("planned by the latency of one run: what processes share is not estimated")
    notes.append(
        "nothing of this was run: it is not shown to be as fast as any single backend; tune on "
        "the machine itself"
    )
    return calls_of[plan.name], _report(planner, outlooks, calls_of, options, tuple(notes))


def make_planner(setting: Setting, database: CostDatabase | None) -> Planner:
    """Return what is known without measuring.

    Raises:
        UnsupportedError: A node has no target.
    """
    space = make_space(setting)
    naming = KeyMaker(setting)
    subjects: dict[tuple[int, int], Subject] = {}
    peaks: dict[int, Peak] = {}
    tables = {}
    for position, capability in enumerate(setting.capabilities):
        described = _described(setting, capability.context.refined)
        peaks[position] = target_peak(described, setting.num_threads)
        if setting.config.device_of(capability.target).device_type is not DeviceType.CPU:
            tables[position] = TransitionTable.assumed(LINK, LINK_SECONDS)
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
    return Planner(setting, space, subjects, estimator, tables)


def _described(setting: Setting, target: Target) -> Target:
    """Return a target that says which CPU it runs on: there is one, so any that names it will do.

    A runtime's target, such as `onnxruntime`, does not.
    """
    if target.device_type is not DeviceType.CPU or "mcpu" in target.attrs:
        return target
    every = (placed.target for placed in setting.config.targets)
    naming = (e for e in every if e and e.device_type is DeviceType.CPU and "mcpu" in e.attrs)
    return next(naming, target)


def _ask(setting: Setting, position: int, region: Region) -> Cost | None:
    """Return what the backend says that a region costs."""
    capability = setting.capabilities[position]
    with calling(capability.backend.name, capability.context, "when asked for an estimate"):
        candidate = Candidate.plain(region, capability.target)
        return capability.backend.estimate(candidate, capability.context)


def _used(planner: Planner, plan: Outlook) -> dict[tuple[int, int], Cost]:
    """Return the costs that a plan rests on."""
    return {
        (call.backend, op): planner.costs[call.backend, op]
        for call in plan.solution.calls
        for op in call.ops
    }


def _source_note(planner: Planner, plan: Outlook) -> str:
    sources = Counter(cost.source for cost in _used(planner, plan).values())
    counted = ", ".join(f"{sources[source]} {source}" for source in sorted(sources, key=_rank))
    return (
        f"costs of units: {counted}; one run takes {1e3 * plan.low:.3f} to "
        f"{1e3 * plan.high:.3f} ms by their intervals, with {planner.setting.num_threads} threads"
    )


def _rank(source: object) -> int:
    from intarsia.cost.cost import CostSource

    return CostSource(str(source)).rank


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
        targets=tuple(map(str, setting.config.targets)),
        versions=tuple(capability.backend.name for capability in setting.capabilities),
        machine=f"planned on {this_machine().text}",
        threads=setting.num_threads,
        objective=options.objective,
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
    if outlook.high > _TIE * plan.high and outlook.low > plan.low:
        return f"may be {outlook.high / plan.high:.2f} times as slow at worst"
    if plan.is_measured and not outlook.is_measured:
        return "not measured, and not sure to be faster"
    if outlook.regret > _TIE * plan.regret:
        return f"may be {outlook.regret:.2f} times as slow as the best plan"
    return "no faster by the middles"
