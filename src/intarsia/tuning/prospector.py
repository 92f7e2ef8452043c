# SPDX-License-Identifier: Apache-2.0
"""Looks for plans of several targets: measures what the best plan needs, and searches again.

Costs begin optimistic. What the best plan uses and was not measured is measured: units first,
then the plan's calls as the regions that they are. Then it is solved again, until its plan is
measured or no plan can beat the best one that was run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from intarsia.cost.estimator import bound
from intarsia.cost.peak import Peak, target_peak
from intarsia.cost.transition import TransitionTable
from intarsia.errors import BackendError
from intarsia.measure.racing import MARGIN
from intarsia.place.decide import Calls
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.search.problem import Infeasible, PlacementProblem, PlannedCall, Solution
from intarsia.search.solve import solve
from intarsia.search.sweep import finalists
from intarsia.tuning.budget import CHOOSING_END, REGIONS_END, Budget
from intarsia.tuning.costing.boundaries import (
    in_sequence,
    measure_boundary,
    measure_calls,
    measure_copies,
)
from intarsia.tuning.costing.costing import Costing, Wanted
from intarsia.tuning.costing.model import TargetModel
from intarsia.tuning.laboratory.values import OutOfTimeError, Probe
from intarsia.tuning.proposals.space import PlanCandidate, Space

if TYPE_CHECKING:
    from intarsia.graph.region import Region
    from intarsia.place.setting import Setting
    from intarsia.tuning.costing.cost_table import CostTable
    from intarsia.tuning.costing.runner import ProbeRunner

REGION_ROUNDS = 5
MOST_TURNS = 16
"""How often the search is repeated at most before the finalists are run."""
MOST_PROBES = 48
"""Measured in one go, between two searches."""
MOST_BOUNDARIES = 4
"""Borders that are measured in one go."""
MOST_RUNNERS_UP = 2
_RUNNER_UP = 1.1
"""A plan is worth running if it is not predicted to be slower than the best by more than this.

Once whole plans have told by how much predictions are short, it has to be predicted to be as fast.
"""
_HOST = domain_text(HOST_DOMAIN)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction of a plan's time, made before it was run.

    Attributes:
        name: The plan's.
        seconds: What it was to take.
        best_seconds: What the best plan of a single backend took by the costs of that moment: the
            scale of the machine, which drifts.
    """

    name: str
    seconds: float
    best_seconds: float


@dataclass(slots=True)
class Prospector:
    """What one run of the tuner knows of plans of several targets.

    Attributes:
        setting: The model and the machine.
        space: What may be chosen.
        runner: Times probes.
        budget: The time.
        tell: Told what is going on: a stage, and what, in words.
        costing: What the search is told.
        solution: The search's last plan.
        problem: What it was asked.
        models: What was fitted to each target.
        notes: What the user should know.
        predictions: By the calls of a plan, the first prediction made of it.
    """

    setting: Setting
    space: Space
    runner: ProbeRunner
    budget: Budget
    tell: Callable[[str, str], None]
    costing: Costing = field(init=False)
    solution: Solution | None = None
    problem: PlacementProblem | None = None
    models: dict[int, TargetModel] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    predictions: dict[Calls, Prediction] = field(default_factory=dict)
    _peaks: dict[int, Peak] = field(default_factory=dict)
    _copies: Mapping[tuple[str, str], TransitionTable] = field(default_factory=dict)
    _others: tuple[Solution, list[Sequence[PlannedCall]]] | None = None

    def __post_init__(self) -> None:
        self.costing = Costing(self.space, self._make_table(), self._bound, self._copy_seconds)

    def _make_table(self) -> CostTable:
        return self.runner.table

    def add_notes(self, lines: Sequence[str]) -> None:
        """Record what else the user should know."""
        self.notes.extend(lines)

    def measure_calls_and_copies(self) -> None:
        """Measure what calls and copies cost on their own: the floor of what a boundary costs."""
        self.tell("measure", "calls and copies")
        with self.budget.charge("measure", REGIONS_END):
            try:
                self.costing.call_seconds.update(measure_calls(self.runner.lab))
            except (
                BackendError,
                OutOfTimeError,
            ) as error:  # a backend that always fails does here too
                self.notes.append(f"the overhead of calls is not known: {error.message}")
            if {domain_text(self._domain(i)) for i in self.costing.positions} == {_HOST}:
                return
            try:
                self._copies = measure_copies(self.runner.lab)
            except (BackendError, OutOfTimeError) as error:
                self.notes.append(f"the cost of copies is not known: {error.message}")

    def _domain(self, position: int) -> tuple[int, int, str]:
        return self.setting.constraints.domains[self.setting.targets[position]]

    def search(
        self, plans: Sequence[PlanCandidate], best: float, *, is_again: bool = False
    ) -> list[PlanCandidate]:
        """Search until the best plan is measured; return what is worth running end to end.

        Args:
            plans: Those that were run.
            best: Seconds of the fastest of a single backend.
            is_again: Whether what whole plans told was fed back.
        """
        with self.budget.charge("search"):
            self.costing.look_up()
        for _ in range(MOST_TURNS):
            with self.budget.charge("search"):
                solution = self._solve()
            if solution is None:
                return []
            plan = self.costing.plan_of(solution.calls)
            first = self.costing.boundaries.call_penalty(plan[0][0])  # nothing runs before it
            if solution.seconds - first >= (1 - MARGIN) * best:
                break  # even what is not measured, at its best, makes no faster plan
            if not self.budget.left(REGIONS_END):
                break
            wanted = self._wanted(solution, plan)
            if not wanted:
                if self._measure_boundaries(plan, best) or self._measure_others(best):
                    continue
                break
            if not self._measure_regions(wanted):
                break
            for position, units in plan:
                if len(units) > 1:
                    self.costing.regions.add((position, units))
        else:
            self.notes.append(f"the search was repeated {MOST_TURNS} times, and then no more")
        return self._candidates(plans, best, best if is_again else _RUNNER_UP * best)

    def _candidates(
        self, plans: Sequence[PlanCandidate], best: float, limit: float
    ) -> list[PlanCandidate]:
        """Return the search's plan and its runners-up, as far as they may be the best."""
        if self.solution is None:
            return []
        known_calls = {plan.calls for plan in plans}  # these were measured
        candidates = []
        for planned in (self.solution.calls, *self._runners_up()):
            plan = self.costing.plan_of(planned)
            calls = tuple((at, self.space.units.nodes_of(units)) for at, units in plan)
            if calls in known_calls or not self._rests_on_measurements(planned):
                continue
            first = self.predictions.get(calls)
            if first is None:
                seconds = self.costing.price(plan, self.models)
                first = Prediction(f"mix {len(self.predictions) + 1}", seconds, best)
                self.predictions[calls] = first
            if first.seconds <= limit:
                known_calls.add(calls)
                candidates.append(PlanCandidate(first.name, calls))
        return candidates

    def _runners_up(self) -> list[Sequence[PlannedCall]]:
        """Return the calls of plans that are unlike the search's last one, the best first."""
        if self.solution is None or self.problem is None:
            return []
        if self._others is None or self._others[0] is not self.solution:
            with self.budget.charge("search"):
                others = finalists(self.problem, self.solution, MOST_RUNNERS_UP)
            self._others = (self.solution, [plan.calls for plan in others])
        return self._others[1]

    def _measure_others(self, best: float) -> bool:
        """Measure the boundaries that decide about a runner-up; whether there were any."""
        for calls in self._runners_up():
            if self._rests_on_measurements(calls) and self.budget.left(REGIONS_END):
                plan = self.costing.plan_of(calls)
                is_near = self.costing.price(plan, self.models) <= _RUNNER_UP * best
                if is_near and self._measure_boundaries(plan, best):
                    return True
        return False

    def _rests_on_measurements(self, calls: Sequence[PlannedCall]) -> bool:
        """Whether every unit of a plan, or the region around it, was measured where it is."""
        return all(
            self.costing.seconds_of(wanted) is not None
            or not self.costing.unmeasured(self.costing.pieces(wanted))
            for wanted in self.costing.plan_of(calls)
        )

    def _solve(self) -> Solution | None:
        self.tell("search", f"{len(self.costing.space.units.units)} units")
        self.models = self.costing.models()
        self.problem = self._make_problem()
        seconds = min(10.0, max(0.5, 0.1 * self.budget.left()))
        solution = solve(self.problem, seconds=seconds)
        if isinstance(solution, Infeasible):
            self.notes.append(f"the search found no plan: {solution}")
            return None
        self.solution = solution
        return solution

    def _make_problem(self) -> PlacementProblem:
        return self.costing.problem(self.models)

    def _wanted(self, solution: Solution, plan: Sequence[Wanted]) -> Sequence[Wanted]:
        """Return what is worth measuring next: units and groups of the plan, else its calls."""
        chosen: list[Wanted] = [
            (piece.backend, tuple(sorted(piece.ops)))
            for piece in solution.chosen
            if isinstance(piece.key, tuple) and piece.key[0] in ("unit", "group")
        ]
        units = list(self.costing.unmeasured(chosen))
        if units:
            counts = self.costing.multiplicity()
            units.sort(key=lambda each: -counts[self.costing.key_of(each)] * self._weight(each[1]))
            return units[:MOST_PROBES]
        return self.costing.unmeasured(plan)[:MOST_PROBES]

    def _weight(self, units: Sequence[int]) -> float:
        """Return the seconds that are at stake with units: the most that any target needs."""
        models = self.models.values()
        return max(sum(model.marginals.get(unit, 0.0) for unit in units) for model in models)

    def _measure_regions(self, wanted: Sequence[Wanted]) -> bool:
        """Compile and time regions; return whether there was time for all of them."""
        every = [self.costing.calls_of(each) for each in wanted]
        with self.budget.charge("prepare", REGIONS_END):
            self.tell("prepare", f"{len(every)} regions")
            ready = self.runner.prepare(every)
        late = [self.runner.late[calls] for calls in every if calls in self.runner.late]
        with self.budget.charge("measure", CHOOSING_END):
            self.tell("measure", f"{len(ready)} regions")
            try:
                if ready:
                    self._measure(ready)
            except OutOfTimeError as error:
                late.append(error.message)
        self.runner.drop(ready)
        if late:
            self.notes.append(f"{len(late)} regions were not measured: {late[0]}")
        for position in sorted(self.runner.banned - self.costing.banned):
            target = self.setting.targets[position]
            self.notes.append(f"{target} was given up: each measurement on it ended the process")
        self.costing.restrict(self.costing.banned | self.runner.banned)
        return not late

    def _measure(self, calls: Sequence[Calls]) -> None:
        self.runner.race(calls, REGION_ROUNDS)

    def _measure_boundaries(self, plan: Sequence[Wanted], best: float) -> bool:
        """Measure the boundaries that decide whether a plan is worth running; whether any."""
        costing = self.costing
        with self.budget.charge("search"):
            costing.boundaries.look_up(costing.boundaries.pairs_of(plan))
        if not math.isfinite(best):
            return False
        calls = [self.models[position].call_seconds for position, _ in plan]
        pairs = costing.boundaries.wanted(
            plan,
            (1 - MARGIN) * best - costing.price(plan, self.models),
            lambda side: costing.seconds_of(side) or 0.0,
            max(calls),
        )[:MOST_BOUNDARIES]
        if not pairs:
            return False
        probes = {
            pair: (Probe(costing.calls_of(pair[0])), Probe(costing.calls_of(pair[1])))
            for pair in pairs
        }
        self.tell("measure", f"{len(pairs)} boundaries")
        together = [in_sequence(*both) for both in probes.values()]
        done = 0
        with self.budget.charge("measure", CHOOSING_END):
            try:
                for (
                    pair,
                    both,
                ) in probes.items():  # kept at once: a tuner that is stopped loses no more
                    costing.boundaries.enter(pair, measure_boundary(self.runner.lab, *both))
                    done += 1
            except OutOfTimeError as error:
                self.notes.append(
                    f"{len(pairs) - done} boundaries were not measured: {error.message}"
                )
        self.runner.lab.drop([*together, *(probe for both in probes.values() for probe in both)])
        return done > 0

    def propose(self, calls: Calls) -> None:
        """Let the calls of a plan take part in the search as regions."""
        for position, nodes in calls:
            units = self.costing.units_of(nodes)
            if len(units) > 1 and self.costing.is_of_units(nodes):
                self.costing.regions.add((position, units))

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
