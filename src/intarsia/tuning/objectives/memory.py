# SPDX-License-Identifier: Apache-2.0
"""The search for plans that need little memory: what `Prospector` does, with bytes for seconds.

What one region adds to a process is weighed in the worker: a second instance of it is loaded and
run, so that neither compiling nor a library's first use is counted, and constants are counted by
their size. As with time, a region is not the sum of its parts (each brings a runtime's own
structures), so what the best plan uses is weighed as the region that it is. What libraries take for
themselves is not in these sums; the final is run in fresh processes, where it is.

A gigabyte is written as a second, so that limits of the search mean something sensible.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from intarsia.cost.cost import Cost, CostSource
from intarsia.cost.records import Poison, Weight
from intarsia.cost.weights import add_weights, find_weights, typical_bytes
from intarsia.errors import BackendError, ReasonCode
from intarsia.place.memory_limits import constants_of
from intarsia.tuning.budget import REGIONS_END, Budget
from intarsia.tuning.costing.costing import Costing, Wanted
from intarsia.tuning.laboratory.laboratory import Laboratory, Probe
from intarsia.tuning.laboratory.values import OutOfTimeError
from intarsia.tuning.proposals.candidates import PlanCandidate, Space
from intarsia.tuning.prospector import REGION_ROUNDS, Prospector

if TYPE_CHECKING:
    from collections.abc import Callable

    from intarsia.cost.key import CostKey, JunctionKey
    from intarsia.graph.region import Region
    from intarsia.place.decide import Calls
    from intarsia.place.setting import Setting
    from intarsia.search.problem import Problem
    from intarsia.tuning.costing.cost_table import CostBook, KeyMaker
    from intarsia.tuning.costing.model import TargetModel
    from intarsia.tuning.costing.runner import Runner
    from intarsia.tuning.costing.transitions import Junction
    from intarsia.tuning.objectives.slowdown import Pace

SECONDS_PER_BYTE = 1e-9
_LEAST_BYTES = 1024.0
"""Nothing is taken for free: it has at least a name."""


@dataclass(slots=True)
class ByteBook:
    """What is known of memory, by the keys of costs: from the database, and weighed by this tuner.

    Attributes:
        costs: The book of times, which knows what failed.
        known: How many weights came from the database.
        is_paced: Whether seconds matter too; then a weight without a time is not enough.
    """

    costs: CostBook
    known: int = 0
    is_paced: bool = False
    _weighed: dict[CostKey, Cost] = field(default_factory=dict)
    _asked: set[CostKey] = field(default_factory=set)
    _poisons: dict[CostKey, Poison] = field(default_factory=dict)

    @property
    def keys(self) -> KeyMaker:
        """What costs are filed under."""
        return self.costs.keys

    def ask(self, keys: Iterable[CostKey]) -> None:
        """Look up, all at once, what was not asked for before: weights, and what failed."""
        new = [key for key in dict.fromkeys(keys) if key not in self._asked]
        if not new:
            return
        self._asked.update(new)
        self.costs.ask(new)
        found = find_weights(self.costs.database, new)
        self.known += len(found)
        for key, weights in found.items():
            self._weighed[key] = _cost_of(typical_bytes(weights))

    def cost(self, key: CostKey) -> Cost | None:
        """Return the bytes of a key, a gigabyte as a second."""
        if self.is_paced and self.costs.cost(key) is None:
            return None
        return self.weight(key)

    def weight(self, key: CostKey) -> Cost | None:
        """Return the same whether or not the seconds are known."""
        self.ask((key,))
        return self._weighed.get(key)

    def poison(self, key: CostKey) -> Poison | None:
        """Return why a key must not be tried again, if it failed."""
        return self._poisons.get(key) or self.costs.poison(key)

    def junctions(self, keys: Iterable[JunctionKey]) -> Mapping[JunctionKey, float]:
        """Return nothing: regions that follow each other weigh no more for it."""
        del keys
        return {}

    def add_junction(self, key: JunctionKey, junction: Junction) -> None:
        """Do nothing: a time is no weight."""

    def add(self, key: CostKey, nbytes: int) -> None:
        """Record what was weighed; it is kept at once."""
        weight = Weight(nbytes, time.time(), self.costs.session)
        add_weights(self.costs.database, {key: [weight]})
        self._asked.add(key)
        self._weighed[key] = _cost_of(nbytes)

    def fail(self, key: CostKey, reason: str) -> None:
        """Note what cannot be weighed."""
        self._poisons[key] = Poison(str(ReasonCode.CRASHED), reason, 0.0, "")


def _cost_of(nbytes: int) -> Cost:
    return Cost(SECONDS_PER_BYTE * max(_LEAST_BYTES, nbytes), nbytes, CostSource.MEASURED)


@dataclass(slots=True)
class ByteRunner:
    """Weighs probes where `Runner` times them.

    Attributes:
        runner: Compiles and checks them.
        book: Where bytes are entered.
    """

    runner: Runner
    book: ByteBook

    @property
    def lab(self) -> Laboratory:
        """Where probes are compiled."""
        return self.runner.lab

    @property
    def banned(self) -> set[int]:
        """Positions of targets that are not tried any more."""
        return self.runner.banned

    @property
    def late(self) -> dict[Calls, str]:
        """What there was no time to compile."""
        return self.runner.late

    def prepare(self, every: Sequence[Calls]) -> list[Calls]:
        """Compile and check calls; return those that can be run."""
        return self.runner.prepare(every)

    def drop(self, every: Sequence[Calls]) -> None:
        """Forget what is compiled of calls."""
        self.runner.drop(every)

    def race(self, every: Sequence[Calls], rounds: int) -> None:
        """Weigh calls, once, and time those of which that matters and is not known."""
        keys = {calls: self.book.keys.key(calls) for calls in every}
        if self.book.is_paced:
            untimed = [calls for calls, key in keys.items() if self.book.costs.cost(key) is None]
            if untimed:
                self.runner.race(untimed, rounds)
        for calls, key in keys.items():
            if self.book.weight(key) is not None or self.book.poison(key) is not None:
                continue
            try:
                self.book.add(key, self.lab.weigh(Probe(calls)))
            except BackendError as error:
                self.book.fail(key, error.message)


@dataclass(slots=True)
class _PacedCosting(Costing):
    """Costs in bytes, with a limit on seconds.

    Attributes:
        pace: The limit.
    """

    pace: Pace = field(kw_only=True)

    def problem(self, models: dict[int, TargetModel]) -> Problem:
        """Return the problem as far as weights are known; its plans are quick enough."""
        return self.pace.limited(Costing.problem(self, models))


class MemoryProspector(Prospector):
    """Looks for plans of several targets that need little memory."""

    def __init__(
        self,
        setting: Setting,
        space: Space,
        runner: Runner,
        budget: Budget,
        tell: Callable[[str, str], None],
        pace: Pace | None = None,
    ) -> None:
        bytes_runner = ByteRunner(runner, ByteBook(runner.book, is_paced=pace is not None))
        super().__init__(setting, space, bytes_runner, budget, tell)
        self.pace = pace
        if pace is not None:
            self.costing = _PacedCosting(
                *(space, self.runner.book, self._bound, self._copy_seconds), pace=pace
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
        found: list[PlanCandidate] = []
        for pair in combinations(sorted(every), 2):
            if {best.single, leanest.single} & set(pair) and self.budget.left(REGIONS_END):
                self.costing.banned = (every - set(pair)) | self.runner.banned
                found += self.search((*plans, *found), weights[best])
        return found

    def _quick(self, plans: Iterable[PlanCandidate]) -> list[PlanCandidate]:
        """Return the plans that take no longer than they may."""
        if self.pace is None:
            return list(plans)
        times, limit = self.pace.times, self.pace.limit
        costs = {plan: times.book.cost(times.book.keys.key(plan.calls)) for plan in plans}
        return [plan for plan, cost in costs.items() if cost and cost.seconds <= limit]

    def _weigh(self, plans: Sequence[PlanCandidate]) -> dict[PlanCandidate, float]:
        """Return what the regions of plans add up to, as far as they can be weighed."""
        book = self.runner.book
        calls = list(dict.fromkeys((call,) for plan in plans for call in plan.calls))
        book.ask(map(book.keys.key, calls))
        calls = [call for call in calls if book.cost(book.keys.key(call)) is None]
        with self.budget.charge("prepare", REGIONS_END):
            self.tell("prepare", f"{len(calls)} regions")
            ready = self.runner.prepare(calls)
        with self.budget.charge("measure", REGIONS_END):
            self.tell("measure", f"{len(ready)} regions")
            try:
                self.runner.race(ready, REGION_ROUNDS)
            except OutOfTimeError as error:
                self.notes.append(f"not all plans were weighed: {error.message}")
        found = {}
        for plan in plans:
            costs = [book.cost(book.keys.key((call,))) for call in plan.calls]
            self.propose(plan.calls)
            if all(cost is not None for cost in costs):
                found[plan] = sum(cost.seconds for cost in costs if cost is not None)
        return found

    def _measure_junctions(self, plan: Sequence[Wanted], best: float) -> bool:
        """Measure nothing."""
        del plan, best
        return False

    def _bound(self, region: Region, position: int) -> float:
        """Return what a region keeps at least: its constants."""
        del position
        nbytes = sum(constants_of(region.graph, region.nodes).values())
        return SECONDS_PER_BYTE * max(_LEAST_BYTES, nbytes)
