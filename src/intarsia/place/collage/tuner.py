# SPDX-License-Identifier: Apache-2.0
"""The tuner: measures what the best plan needs, searches again, and proves the winner end to end.

1. Every plan of a single backend runs end to end: the safety net, and the scale of all else.
2. The search covers the model at optimistic costs; what its plan uses and nobody has measured is
   measured: units first, then the plan's calls as the regions that they are. Then it is solved
   again, until its plan is measured or no plan can beat the best single one any more.
3. The finalists run against each other (`finalists`); what the prediction missed is fed back, and
   the search repeated at most twice.

Every step may be the last: time is handed out by a budget, and what was measured is kept.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from intarsia.cost.key import new_session
from intarsia.cost.peak import Peak, target_peak
from intarsia.cost.roofline import bound
from intarsia.cost.transition import TransitionTable
from intarsia.errors import BackendError, SettingError
from intarsia.place.collage.book import CostBook, KeyMaker
from intarsia.place.collage.budget import CHOOSING_END, HEATS_END, REGIONS_END, Budget
from intarsia.place.collage.candidates import PlanCandidate, Space, make_space, single_plans
from intarsia.place.collage.costing import Costing, Wanted
from intarsia.place.collage.finalists import FINAL_LOOKS, FinalRound, compare_plans
from intarsia.place.collage.measure import Laboratory
from intarsia.place.collage.model import TargetModel
from intarsia.place.collage.runner import Runner
from intarsia.place.collage.transitions import measure_calls, measure_copies
from intarsia.place.decide import Calls
from intarsia.place.search.finalists import finalists
from intarsia.place.search.problem import Call, Infeasible, Objective, Problem, Solution
from intarsia.place.search.solve import solve
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.runtime.racing import CONFIRMING_LOOKS, MARGIN, halve

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.graph.region import Region
    from intarsia.place.build import Store
    from intarsia.place.setting import Setting

logger = logging.getLogger("intarsia")

EARLY_LOOKS = (3, 6, 12)
REGION_ROUNDS = 5
MOST_TURNS = 16
"""How often the search is repeated at most before the finalists are run."""
MOST_REPEATS = 2
"""How often it is repeated because a whole plan was not what had been predicted."""
MOST_PROBES = 48
"""Measured in one go, between two searches."""
MOST_FINALISTS = 5
MOST_RUNNERS_UP = 2
_FEWEST_FINALISTS = 2
_HOST = domain_text(HOST_DOMAIN)
RESIDUAL = 0.05
"""A prediction that is off by more than this is fed back."""
_RUNS_PER_SAMPLE = 1.5
"""How many runs of a plan a sample of it takes, on the average."""
_LEAST_ROUND_SECONDS = 0.01
_SINGLE_LIMIT = 1.3
"""A single plan that is slower than the best one by more than this is out of the final."""
_RUNNER_UP = 1.1
"""A plan is worth running if it is not predicted to be slower than the best by more than this."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What a tuner is doing.

    Attributes:
        stage: `prepare`, `measure`, `search` or `compare`.
        what: What is being measured, in words.
        best: Name of the best plan so far; empty if there is none yet.
        best_seconds: Its time; None if there is none.
        left_seconds: Of the budget.
    """

    stage: str
    what: str
    best: str
    best_seconds: float | None
    left_seconds: float


@dataclass(frozen=True, slots=True)
class Options:
    """How to tune.

    Attributes:
        budget_seconds: Wall-clock time, compiling the finalists counted in.
        objective: What is minimised.
        feeds: An array per input, by name, to measure with; None means made-up ones.
        tell: Told what is going on.
    """

    budget_seconds: float = 120.0
    objective: Objective = "latency"
    feeds: Mapping[str, Any] | None = None
    tell: Callable[[Moment], None] | None = None


OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput")


def check_objective(text: str) -> Objective:
    """Return an objective by its name.

    A plan runs one step after another, so whatever has the least latency has the most throughput.

    Raises:
        SettingError: There is none of that name, or it is not measured.
    """
    for objective in OBJECTIVES:
        if objective == text:
            return objective
    if text == "memory":
        raise SettingError(
            "objective 'memory' cannot be tuned for yet: memory is not measured",
            hint="leave --objective out, and compare packages by size",
        )
    raise SettingError(f"objective {text!r} is unknown", hint=f"use one of {', '.join(OBJECTIVES)}")


@dataclass(slots=True)
class Tuner:
    """One run of the tuner on one model. A context manager: what it compiled is kept until its end.

    Attributes:
        setting: The model and the machine.
        database: Where costs are kept.
        options: How to tune.
        budget: The time.
        book: What is known of costs.
        space: What may be chosen.
        costing: What the search is told.
        runner: Times probes.
        plans: Whole plans that can be run.
        final: The last comparison of whole plans.
        solution: The search's last plan.
        problem: What it was asked.
        models: What was fitted to each target.
        notes: What the user should know.
        is_interrupted: Whether it was stopped.
    """

    setting: Setting
    database: CostDatabase
    options: Options
    budget: Budget = field(init=False)
    book: CostBook = field(init=False)
    space: Space = field(init=False)
    costing: Costing = field(init=False)
    runner: Runner = field(init=False)
    plans: tuple[PlanCandidate, ...] = ()
    final: FinalRound | None = None
    solution: Solution | None = None
    problem: Problem | None = None
    models: dict[int, TargetModel] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    is_interrupted: bool = False
    _best: PlanCandidate | None = None
    _samples: dict[PlanCandidate, list[float]] = field(default_factory=dict)
    _predicted: dict[Calls, tuple[str, float]] = field(default_factory=dict)
    _peaks: dict[int, Peak] = field(default_factory=dict)
    _copies: Mapping[tuple[str, str], TransitionTable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.budget = Budget(self.options.budget_seconds)
        self.book = CostBook(KeyMaker(self.setting), self.database, new_session())
        self.space = make_space(self.setting)
        lab = Laboratory(self.setting, feeds=self.options.feeds)
        seconds = max(lab.limits.seconds or 0.0, 0.5 * self.options.budget_seconds)
        lab.limits = replace(lab.limits, seconds=seconds)  # a large model compiles long
        self.runner = Runner(lab, self.book)
        self.costing = Costing(self.space, self.book, self._bound, self._copy_seconds)

    @property
    def samples(self) -> Mapping[PlanCandidate, Sequence[float]]:
        """Seconds of every whole plan that was run, by round."""
        return self._samples

    def run(self) -> None:
        """Tune until the plan is proven, the budget is spent, or somebody interrupts.

        Raises:
            BackendError: Nothing here can run the model.
        """
        self.plans = singles = single_plans(self.setting)
        try:
            self.plans = self._race_singles(singles)
            if len(self.costing.positions) > 1:
                self._mix()
            elif len(self.plans) > 1:
                self._compare(self.plans)
        except KeyboardInterrupt:
            self.is_interrupted = True
            self.notes.append("interrupted: what was measured is kept; tune again to go on")

    def __enter__(self) -> Self:
        self.runner.lab.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.runner.lab.__exit__(kind, error, trace)

    @property
    def store(self) -> Store:
        """What was compiled, until the tuner is left."""
        return self.runner.lab.artifacts

    def predicted(self, plan: PlanCandidate) -> float | None:
        """Return what was said of a plan before the final: of a single one, by its first race."""
        return self._predicted[plan.calls][1] if plan.calls in self._predicted else None

    def seconds_of(self, plan: PlanCandidate) -> float:
        """Return the measured time of a plan; infinite if there is none."""
        return self.runner.seconds(plan.calls)

    # Whole plans

    def _race_singles(self, singles: Sequence[PlanCandidate]) -> tuple[PlanCandidate, ...]:
        """Run the single-backend plans whose time is not known; return those that work."""
        with self.budget.charge("search"):
            self.book.ask(self.book.keys.key(plan.calls) for plan in singles)
        new = [plan for plan in singles if not math.isfinite(self.seconds_of(plan))]
        if new:
            alive = self._prepare(new)
            with self.budget.charge("compare"):
                looks = self._affordable(EARLY_LOOKS, alive, HEATS_END)
                halve(alive, self._measure_plans, looks=looks)
        known = tuple(plan for plan in singles if math.isfinite(self.seconds_of(plan)))
        for plan in known:
            self._propose(plan.calls)
            self._predicted[plan.calls] = (plan.name, self.seconds_of(plan))
        self._best = min(known, key=self.seconds_of, default=None)
        return known

    def _prepare(self, plans: Sequence[PlanCandidate]) -> list[PlanCandidate]:
        """Compile plans; return those that can be run."""
        found = []
        for plan in plans:
            self._tell("prepare", plan.name)
            with self.budget.charge("prepare"):
                if self.runner.prepare([plan.calls]):
                    found.append(plan)
        return found

    def _measure_plans(
        self, plans: Sequence[PlanCandidate], rounds: int
    ) -> dict[PlanCandidate, tuple[float, ...]]:
        self._tell("compare", f"{len(plans)} plans, {rounds} rounds")
        seconds = self.runner.race([plan.calls for plan in plans], rounds)
        found = {plan: seconds[plan.calls] for plan in plans}
        for plan, taken in found.items():
            self._samples.setdefault(plan, []).extend(taken)
            if self._best is None or self.seconds_of(plan) < self.seconds_of(self._best):
                self._best = plan
        return found

    def _compare(self, plans: Sequence[PlanCandidate]) -> None:
        """Run the finalists against each other."""
        plans = self._prepare(plans)
        with self.budget.charge("compare"):
            self.final = compare_plans(
                plans,
                self._measure_plans,
                looks=self._affordable(FINAL_LOOKS, plans, CHOOSING_END),
                confirming_looks=self._affordable(CONFIRMING_LOOKS, plans, 1.0),
                samples=self._samples,
            )

    def _affordable(
        self, looks: Sequence[int], plans: Sequence[PlanCandidate], until: float
    ) -> tuple[int, ...]:
        """Return the looks that there is time for; the first in any case."""
        per_round = sum(self.runner.expected(plan.calls) for plan in plans)
        most = self.budget.left(until) / max(_LEAST_ROUND_SECONDS, _RUNS_PER_SAMPLE * per_round)
        return tuple(look for look in looks if look <= most) or (looks[0],)

    # Mixed plans

    def _mix(self) -> None:
        """Search for plans of several targets and run them against the others."""
        self._measure_borders()
        for turn in range(1 + MOST_REPEATS):
            found = self._search()
            if turn and not found:
                return
            if not self.budget.left(CHOOSING_END):
                found = found[:1]
            self.plans = (*self.plans, *self._prepare(found))
            self._compare(self._finalists())
            if not self._feed_back() or not self.budget.left(REGIONS_END):
                return

    def _measure_borders(self) -> None:
        """Measure what calls and copies cost on their own: the floor of what a border costs."""
        self._tell("measure", "calls and copies")
        with self.budget.charge("measure"):
            try:
                self.costing.call_seconds.update(measure_calls(self.runner.lab))
            except BackendError as error:  # one that fails on everything fails here too
                self.notes.append(f"the overhead of calls is not known: {error.message}")
            if len({domain_text(self._domain(i)) for i in self.costing.positions} | {_HOST}) > 1:
                self._copies = measure_copies(self.runner.lab)

    def _domain(self, position: int) -> tuple[int, int, str]:
        return self.setting.devices.domains[self.setting.config.targets[position]]

    def _finalists(self) -> list[PlanCandidate]:
        """Return the plans of the final: the best ones first, as many as there is time for."""
        singles = [plan for plan in self.plans if plan.single >= 0]
        singles.sort(key=self.seconds_of)
        best = min(map(self.seconds_of, singles), default=math.inf)
        others = [plan for plan in self.plans if plan.single < 0]
        others.sort(key=lambda plan: (self.predicted(plan) or 0.0, len(plan.calls)))
        limit = _SINGLE_LIMIT * best
        ranked = [*singles[:1], *others[:1], *singles[1:], *others[1:]]
        worth = [
            plan for plan in ranked if not self.seconds_of(plan) > limit or not self._has_run(plan)
        ]
        left = self.budget.left()
        kept: list[PlanCandidate] = []
        for plan in worth[: max(MOST_FINALISTS, len(singles) + 1)]:
            left -= FINAL_LOOKS[0] * _RUNS_PER_SAMPLE * self.runner.expected(plan.calls)
            if len(kept) < _FEWEST_FINALISTS or left > 0:
                kept.append(plan)
        return kept

    def _has_run(self, plan: PlanCandidate) -> bool:
        return math.isfinite(self.seconds_of(plan))

    def _feed_back(self) -> bool:
        """Let the search know by what its plans were slower than predicted; whether it matters."""
        worst = 0.0
        for plan in self.plans:
            if plan.single >= 0 or plan.predicted_seconds is None or len(plan.calls) < 2:  # noqa: PLR2004
                continue
            excess = self.seconds_of(plan) - plan.predicted_seconds
            if math.isfinite(excess) and excess > RESIDUAL * plan.predicted_seconds:
                worst = max(worst, excess / len(plan.calls))
        if worst <= self.costing.strain:
            return False
        self.costing.strain = worst
        return True

    def _search(self) -> list[PlanCandidate]:
        """Search until the best plan is measured; return what is worth running end to end."""
        with self.budget.charge("search"):
            self.costing.look_up()
        best = min(map(self.seconds_of, self.plans), default=math.inf)
        for _ in range(MOST_TURNS):
            with self.budget.charge("search"):
                solution = self._solve()
            if solution is None:
                return []
            plan = self.costing.plan_of(solution.calls)
            if solution.seconds >= (1 - MARGIN) * best:
                break  # even what is not measured, at its best, makes no faster plan
            wanted = self._wanted(solution, plan)
            if not wanted or not self.budget.left(REGIONS_END):
                break
            self._measure_regions(wanted)
            for position, units in plan:
                if len(units) > 1:
                    self.costing.regions.add((position, units))
        return self._candidates(best)

    def _candidates(self, best: float) -> list[PlanCandidate]:
        """Return the search's plan and its runners-up, as far as they may be the best."""
        if self.solution is None or self.problem is None:
            return []
        with self.budget.charge("search"):
            others = finalists(self.problem, self.solution, MOST_RUNNERS_UP)
        found: dict[Calls, PlanCandidate] = {}
        for calls in (self.solution.calls, *(plan.calls for plan in others)):
            if not self._rests_on_measurements(calls):
                continue
            mixes = sum(name.startswith("mix") for name, _ in self._predicted.values())
            plan = self._plan_of(calls, f"mix {mixes + 1}")
            if (plan.predicted_seconds or 0.0) <= _RUNNER_UP * best:
                found.setdefault(plan.calls, plan)
        known = {plan.calls for plan in self.plans}
        return [plan for plan in found.values() if plan.calls not in known]

    def _rests_on_measurements(self, calls: Sequence[Call]) -> bool:
        """Whether every unit of a plan, or the region around it, was measured where it is."""
        return all(
            self.costing.seconds_of(wanted) is not None
            or not self.costing.unmeasured([(wanted[0], (unit,)) for unit in wanted[1]])
            for wanted in self.costing.plan_of(calls)
        )

    def _solve(self) -> Solution | None:
        self._tell("search", f"{len(self.space.units.units)} units")
        self.models = self.costing.models()
        self.problem = self.costing.problem(self.models)
        seconds = min(10.0, max(0.5, 0.1 * self.budget.left()))
        solution = solve(self.problem, seconds=seconds)
        if isinstance(solution, Infeasible):
            self.notes.append(f"the search found no plan: {solution}")
            return None
        self.solution = solution
        return solution

    def _plan_of(self, found: Sequence[Call], name: str) -> PlanCandidate:
        """Return calls of the search as a plan, with the first prediction that was made of it."""
        plan = self.costing.plan_of(found)
        calls = tuple((at, self.space.units.nodes_of(units)) for at, units in plan)
        if calls not in self._predicted:
            self._predicted[calls] = (name, self.costing.price(plan, self.models))
        name, first = self._predicted[calls]
        return PlanCandidate(name, calls, predicted_seconds=first)

    def _wanted(self, solution: Solution, plan: Sequence[Wanted]) -> Sequence[Wanted]:
        """Return what is worth measuring next: units of the plan, else its calls."""
        chosen: list[Wanted] = [
            (piece.backend, (op,))
            for piece in solution.chosen
            for op in piece.ops
            if piece.key is not None and isinstance(piece.key, tuple) and piece.key[0] == "unit"
        ]
        units = list(self.costing.unmeasured(chosen))
        if units:
            counts = self.costing.multiplicity()
            units.sort(key=lambda each: -counts[self.costing.key_of(each)] * self._weight(each))
            return units[:MOST_PROBES]
        return self.costing.unmeasured(plan)[:MOST_PROBES]

    def _weight(self, wanted: Wanted) -> float:
        """Return the seconds that are at stake with a unit: the most that any target needs."""
        (unit,) = wanted[1]
        models = self.models.values()
        return max(model.marginals.get(unit, 0.0) for model in models)

    def _measure_regions(self, wanted: Sequence[Wanted]) -> None:
        """Compile and time regions."""
        every = [self.costing.calls_of(each) for each in wanted]
        with self.budget.charge("prepare"):
            self._tell("prepare", f"{len(every)} regions")
            ready = self.runner.prepare(every)
        with self.budget.charge("measure"):
            self._tell("measure", f"{len(ready)} regions")
            if ready:
                self.runner.race(ready, REGION_ROUNDS)
        self.runner.drop(ready)
        for position in sorted(self.runner.banned - self.costing.banned):
            target = self.setting.config.targets[position]
            self.notes.append(f"{target} was given up: it ended the process whatever it was asked")
        self.costing.banned |= self.runner.banned

    def _propose(self, calls: Calls) -> None:
        """Let the calls of a plan take part in the search as regions."""
        for position, nodes in calls:
            units = self.costing.units_of(nodes)
            if len(units) > 1 and self.costing.is_of_units(nodes):
                self.costing.regions.add((position, units))

    def _tell(self, stage: str, what: str) -> None:
        if self.options.tell is None:
            return
        seconds = self.seconds_of(self._best) if self._best else None
        name = self._best.name if self._best else ""
        self.options.tell(Moment(stage, what, name, seconds, self.budget.left()))

    def _copy_seconds(self, position: int, nbytes: int) -> float:
        """Return what it costs to bring bytes to a target's memory or back."""
        domain = domain_text(self._domain(position))
        if domain == _HOST:
            return 0.0
        pairs = ((_HOST, domain), (domain, _HOST))
        tables = [self._copies[pair] for pair in pairs if pair in self._copies]
        return max((table.seconds(nbytes) for table in tables), default=0.0)

    def _bound(self, region: Region, position: int) -> float:
        if position not in self._peaks:
            target = self.setting.capabilities[position].context.refined
            self._peaks[position] = target_peak(target, self.setting.num_threads)
        return bound(region, self._peaks[position]).seconds
