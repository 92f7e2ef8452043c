# SPDX-License-Identifier: Apache-2.0
"""The objective memory: fewest bytes that a plan adds to a process; it may be slower.

The search for such plans is what `Prospector` does, with bytes for seconds.

What one region adds to a process is weighed in the worker: a second instance of it is loaded and
run, so that neither compiling nor a library's first use is counted, and constants are counted by
their size. As with time, a region is not the sum of its parts (each brings a runtime's own
structures), so what the best plan uses is weighed as the region that it is. What libraries take for
themselves is not in these sums; the final is run in fresh processes, where it is.

A gigabyte is written as a second, so that limits of the search mean something sensible.

The search is told the seconds of every piece as what a device may keep of it, with the limit as the
memory of the only device: it prices seconds until they fit. What was not timed may be as fast
as the roofline; what the best plan uses is timed when it is weighed. What that leaves out
(conversions, calls) is settled by running the plans.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

from intarsia.cost.cost import Cost, CostSource
from intarsia.cost.records import Poison, Weight
from intarsia.cost.weights import add_weights, find_weights, typical_bytes
from intarsia.errors import BackendError, ReasonCode, SettingError
from intarsia.measure.racing import ACCEPTANCE_ALPHA, MARGIN
from intarsia.tuning.budget import REGIONS_END
from intarsia.tuning.costing.cost_table import CostTable
from intarsia.tuning.costing.costing import Costing, Wanted
from intarsia.tuning.finalists import NOT_RUN, FinalRound, order_plans
from intarsia.tuning.laboratory.values import OutOfTimeError, Probe
from intarsia.tuning.objectives.objective import SLOWDOWN, Objective, outcome_in_words
from intarsia.tuning.objectives.packages import MEMORY_RUNS
from intarsia.tuning.proposals.space import PlanCandidate
from intarsia.tuning.prospector import REGION_ROUNDS, Prospector

if TYPE_CHECKING:
    from intarsia.cost.key import CostKey
    from intarsia.graph.region import Region
    from intarsia.place.decide import Calls
    from intarsia.plan.tuning import Finalist, TuningReport
    from intarsia.search.problem import Piece, PlacementProblem
    from intarsia.tuning.costing.model import TargetModel
    from intarsia.tuning.whole_plans import WholePlans


@dataclass(frozen=True, slots=True)
class Memory(Objective):
    """Bytes by which a process grows that loads and runs a plan.

    Attributes:
        slowdown: A plan may take so many times as long as the fastest one that was measured; None
            means no limit.
    """

    slowdown: float | None = SLOWDOWN
    name = "memory"
    weighs_pieces = True
    figure_name = "adds"

    def describe(self) -> str:
        """Return the name with the limit, if there is one."""
        return self.name if self.slowdown is None else f"{self.name} {self.slowdown:.6g}x"

    def with_slowdown(self, slowdown: float | None) -> Memory:
        """Return the objective with another limit."""
        return replace(self, slowdown=slowdown)

    def circumstance(self) -> str:
        """Return the name and the limit."""
        limit = "none" if self.slowdown is None else f"{self.slowdown:.6g}"
        return f", for objective {self.name} and slowdown {limit}"

    def estimate_note(self) -> str:
        """Refuse.

        Raises:
            SettingError: Nothing is known of memory without measuring.
        """
        raise SettingError(
            "what a plan adds to a process is measured, not estimated",
            hint="leave out --objective memory, or tune on the machine itself",
        )

    def search(
        self,
        plans: WholePlans,
        prospector: Prospector,
        candidates: Sequence[PlanCandidate],
        best: float,
        *,
        is_again: bool,
    ) -> list[PlanCandidate]:
        """Return plans of two targets that need less memory; a second search finds no others."""
        if is_again:
            return []
        bytes_prospector = MemoryProspector(
            prospector.setting,
            prospector.space,
            plans.runner,
            plans.budget,
            plans.tell,
            times=prospector.costing,
            most_seconds=self.limits(best),
        )
        lean = bytes_prospector.find(candidates)
        prospector.add_notes(bytes_prospector.notes)
        if len(lean) > MOST_LEAN_PLANS:
            count = len(lean) - MOST_LEAN_PLANS
            prospector.add_notes(
                [f"{count} lean plans were left out: at most {MOST_LEAN_PLANS} are run"]
            )
        return lean[:MOST_LEAN_PLANS]

    def measure(
        self, plans: WholePlans, candidates: Sequence[PlanCandidate], rounds: int
    ) -> Mapping[PlanCandidate, Sequence[float]]:
        """Return by how many bytes fresh processes grow under plans; nothing of one that failed."""
        grown = {}
        for plan in candidates:
            plans.tell("compare", f"memory of {plan.name}")
            grown[plan] = plans.packages.added_bytes(Probe(plan.calls), rounds)
        return grown

    def compare(self, plans: WholePlans, candidates: Sequence[PlanCandidate]) -> FinalRound | None:
        """Weigh the plans that are not slower than the fastest by more than the user allows."""
        if self.slowdown is not None:
            seconds = plans.time(candidates, TIMING_LOOKS)
            limit = self.limits(min(seconds.values(), default=math.inf))
            candidates = [
                plan
                for plan in candidates
                if seconds[plan] <= limit and math.isfinite(seconds[plan])
            ]
        return compare_bytes(candidates, self.measure(plans, candidates, MEMORY_RUNS))

    def show(self, row: Finalist, amount: float, /) -> Finalist:
        """Return the row of a plan with the bytes that it adds to a process."""
        text = f"{amount / 1e6:.1f} MB" if amount else ""
        return replace(row, nbytes=round(amount), figure=text)

    def outcome(self, report: TuningReport, /) -> str:
        """Return by how much a process grows under the plan that ships."""
        return outcome_in_words(
            report,
            lambda row: f"grows a process by {row.nbytes / 1e6:.1f} MB",
            lambda row, other: f"{row.nbytes / max(other.nbytes, 1):.2f} times as much as",
        )


def compare_bytes(
    plans: Sequence[PlanCandidate], samples: Mapping[PlanCandidate, Sequence[float]]
) -> FinalRound | None:
    """Find the plan that needs the least memory.

    Memory hardly varies, so that there are no rounds: a mixed plan ships if the most that it took
    is less than the least that any single plan took, by the margin.

    Args:
        plans: Those that can be run.
        samples: By how many bytes processes grew under each plan; nothing if it failed.

    Returns:
        What was found, the bytes in the place of seconds; None if no plan has been run.
    """
    ordered = order_plans(plans)
    alive = [plan for plan in ordered if samples[plan]]
    if not alive:
        return None
    singles = [plan for plan in alive if plan.single >= 0]
    single = _leanest(singles or alive, samples)
    winner = _leanest(alive, samples)
    fates = dict.fromkeys(alive, "needs more memory")
    fates |= {plan: NOT_RUN for plan in ordered if plan not in alive}
    rivals = [min(samples[plan]) for plan in singles]
    if winner.single < 0 and rivals and max(samples[winner]) > (1 - MARGIN) * min(rivals):
        fates[winner] = "not shown to need less memory than every single backend"
        winner = single
    fates[winner] = "ships"
    amounts = {plan: list(samples[plan]) for plan in ordered}
    return FinalRound(ordered, winner, single, 1.0 - ACCEPTANCE_ALPHA, amounts, fates)


def _leanest(
    plans: Sequence[PlanCandidate], samples: Mapping[PlanCandidate, Sequence[float]]
) -> PlanCandidate:
    """Return the plan that needs the least; of those within a tie the first."""
    least = min(median(samples[plan]) for plan in plans)
    return next(plan for plan in plans if median(samples[plan]) <= (1 + MARGIN) * least)


SECONDS_PER_BYTE = 1e-9
_TICKS = 1e9
"""Seconds are told to the search in nanoseconds."""

TIMING_LOOKS = (6,)
"""Rounds in which plans that were never run are timed against the fastest one."""

MOST_LEAN_PLANS = 5
"""Mixed plans that are weighed as a whole, at most."""

_LEAST_BYTES = 1024.0
"""Least bytes of a region: even an empty one has a name."""


@dataclass(slots=True)
class WeightTable(CostTable):
    """What is known of memory, by the keys of costs: from the database, and weighed by this tuner.

    Attributes:
        times: The table of seconds, which knows what failed.
        is_limited: Whether seconds matter too; then a weight without a time is not enough.
    """

    times: CostTable = field(kw_only=True)
    is_limited: bool = field(kw_only=True)

    def _look_up(self, keys: Sequence[CostKey]) -> None:
        self.times.ask(keys)
        for key, weights in find_weights(self.database, keys).items():
            self._costs[key] = _cost_of(typical_bytes(weights))

    def cost(self, key: CostKey) -> Cost | None:
        """Return the bytes of a key, a gigabyte as a second."""
        if self.is_limited and self.times.cost(key) is None:
            return None
        return CostTable.cost(self, key)

    def poison(self, key: CostKey) -> Poison | None:
        """Return why a key must not be tried again, if it failed."""
        return self._poisons.get(key) or self.times.poison(key)

    def needs_weight(self, key: CostKey) -> bool:
        """Whether a key was neither weighed nor failed."""
        return CostTable.cost(self, key) is None and self.poison(key) is None

    def add_weight(self, key: CostKey, nbytes: int) -> None:
        """Record what was weighed; it is kept at once."""
        add_weights(self.database, {key: [Weight(nbytes, time.time(), self.session)]})
        self._asked.add(key)
        self._costs[key] = _cost_of(nbytes)

    def fail_weighing(self, key: CostKey, reason: str) -> None:
        """Note what cannot be weighed in this run; it may be timed all the same."""
        self._poisons[key] = Poison(str(ReasonCode.CRASHED), reason, 0.0, "")


def _cost_of(nbytes: int) -> Cost:
    return Cost(SECONDS_PER_BYTE * max(_LEAST_BYTES, nbytes), nbytes, CostSource.MEASURED)


@dataclass(slots=True)
class MemoryProspector(Prospector):
    """Looks for plans of several targets that need little memory.

    Attributes:
        times: What the search for the fastest plan is told.
        most_seconds: What one run may take.
    """

    times: Costing = field(kw_only=True)
    most_seconds: float = field(kw_only=True)

    @property
    def is_limited(self) -> bool:
        """Whether seconds matter too."""
        return math.isfinite(self.most_seconds)

    def _make_table(self) -> CostTable:
        times = self.runner.table
        return WeightTable(
            times.keys, times.database, times.session, times=times, is_limited=self.is_limited
        )

    def find(self, plans: Sequence[PlanCandidate]) -> list[PlanCandidate]:
        """Return plans of several targets that may need less memory than any that is known.

        Two targets at a time: each brings a library, which the sums leave out.

        Args:
            plans: Those of a single backend.
        """
        singles = [plan for plan in plans if plan.single >= 0]
        weights = self._weigh(singles)
        if not weights:
            return []
        leanest = min(weights, key=weights.__getitem__)
        best = min(self._quick(weights) or weights, key=weights.__getitem__)
        every = set(self.costing.positions)
        mixes: list[PlanCandidate] = []
        for pair in combinations(sorted(every), 2):
            if {best.single, leanest.single} & set(pair) and self.budget.left(REGIONS_END):
                self.costing.restrict(banned=(every - set(pair)) | self.runner.banned)
                mixes += self.search((*plans, *mixes), weights[best])
        return mixes

    def _quick(self, plans: Iterable[PlanCandidate]) -> list[PlanCandidate]:
        """Return the plans that take no longer than they may."""
        if not self.is_limited:
            return list(plans)
        return [plan for plan in plans if self.runner.seconds(plan.calls) <= self.most_seconds]

    def _weigh(self, plans: Sequence[PlanCandidate]) -> dict[PlanCandidate, float]:
        """Return what the regions of plans add up to, as far as they can be weighed."""
        table = self.costing.table
        calls = list(dict.fromkeys((call,) for plan in plans for call in plan.calls))
        table.ask(map(table.keys.key, calls))
        calls = [call for call in calls if table.cost(table.keys.key(call)) is None]
        with self.budget.charge("prepare", REGIONS_END):
            self.tell("prepare", f"{len(calls)} regions")
            ready = self.runner.prepare(calls)
        with self.budget.charge("measure", REGIONS_END):
            self.tell("measure", f"{len(ready)} regions")
            try:
                self._measure(ready)
            except OutOfTimeError as error:
                self.notes.append(f"not all plans were weighed: {error.message}")
        weights = {}
        for plan in plans:
            costs = [table.cost(table.keys.key((call,))) for call in plan.calls]
            self.propose(plan.calls)
            if all(cost is not None for cost in costs):
                weights[plan] = sum(cost.seconds for cost in costs if cost is not None)
        return weights

    def _measure(self, calls: Sequence[Calls]) -> None:
        """Weigh calls, once, and time those of which that matters and is not known."""
        table = self.costing.table
        assert isinstance(table, WeightTable)
        keys = {each: table.keys.key(each) for each in calls}
        untimed = [each for each, key in keys.items() if self.runner.table.cost(key) is None]
        if self.is_limited and untimed:
            self.runner.race(untimed, REGION_ROUNDS)
        for each, key in keys.items():
            if not table.needs_weight(key):
                continue
            try:
                table.add_weight(key, self.runner.lab.weigh(Probe(each)))
            except BackendError as error:
                table.fail_weighing(key, error.message)

    def _measure_boundaries(self, _plan: Sequence[Wanted], _best: float, /) -> bool:
        """Measure nothing: regions that follow each other weigh no more for it."""
        return False

    def _make_problem(self) -> PlacementProblem:
        """Return the problem as far as weights are known; its plans keep the limit of time.

        One with limits of devices has no room for that: then running the plans settles it all.
        """
        problem = self.costing.problem(self.models)
        if problem.memory or not self.is_limited:
            return problem
        self.times.look_up()
        models = self.times.models()

        def ticks(piece: Piece) -> int:
            units = tuple(piece.ops)
            seconds = self.times.seconds_of((piece.backend, units)) if len(units) > 1 else None
            model = models.get(piece.backend)
            if seconds is None and model is not None:
                inside = sum(self._unit_seconds(model, piece.backend, unit) for unit in units)
                seconds = min(inside, model.groups.get(units, math.inf))
            return round(_TICKS * (seconds or 0.0))

        return replace(
            problem,
            labels=tuple(replace(label, nbytes=ticks(label)) for label in problem.labels),
            intervals=tuple(replace(each, nbytes=ticks(each)) for each in problem.intervals),
            devices=(0,) * problem.backends,
            memory=(_TICKS * self.most_seconds,),
        )

    def _unit_seconds(self, model: TargetModel, position: int, unit: int) -> float:
        """Return what a unit takes inside a region: at least, if that was not measured."""
        if unit in model.measured:
            return model.marginals[unit]
        return self.times.least_seconds(position, unit)

    def _bound(self, region: Region, _position: int, /) -> float:
        """Return what a region keeps at least: its constants."""
        nbytes = sum(region.graph.constant_bytes(region.nodes).values())
        return SECONDS_PER_BYTE * max(_LEAST_BYTES, nbytes)
