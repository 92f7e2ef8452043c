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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from intarsia.cost.fingerprint import this_machine
from intarsia.cost.key import new_session
from intarsia.measure.racing import (
    ACCEPTANCE_ALPHA,
    CONFIRMING_LOOKS,
    MARGIN,
    halve,
    paired_ratio,
)
from intarsia.tuning.budget import CHOOSING_END, HEATS_END, REGIONS_END, Budget
from intarsia.tuning.costing.cost_table import CostBook, KeyMaker
from intarsia.tuning.costing.runner import Runner
from intarsia.tuning.finalists.choosing import LOOKS, align_rounds
from intarsia.tuning.finalists.finalists import (
    RIVAL,
    FinalRound,
    compare_bytes,
    compare_plans,
)
from intarsia.tuning.laboratory.laboratory import Laboratory, Probe
from intarsia.tuning.laboratory.sampling import whole_sample_seconds
from intarsia.tuning.laboratory.values import OutOfTimeError
from intarsia.tuning.objectives.memory import MemoryProspector
from intarsia.tuning.objectives.slowdown import PACE_LOOKS, pace_of, quick_enough
from intarsia.tuning.objectives.throughput import ROUND_SECONDS, Packages
from intarsia.tuning.options import Moment, Options
from intarsia.tuning.proposals.candidates import PlanCandidate, Space, make_space, single_plans
from intarsia.tuning.prospector import Prospector

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.place.build import Store
    from intarsia.place.setting import Setting

EARLY_LOOKS = (3, 6)
"""Of the heats; their rounds count in the final too."""
MOST_REPEATS = 2
"""How often the search is repeated because a whole plan was not what had been predicted."""
MOST_FINALISTS = 5
_FEWEST_FINALISTS = 2
RESIDUAL = 0.05
"""A prediction that is off by more than this is fed back."""
_LEAST_ROUND_SECONDS = 0.01
_SINGLE_LIMIT = 1.3
"""A plan that is slower than the best single one by more than this is out of the final.

Of a single plan the lower end of its interval is, as it would be a rival.
"""
_PLANNED_ROUNDS = 6
"""Of the final, for each plan that takes part."""


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
        runner: Times probes.
        prospector: Looks for plans of several targets.
        packages: Runs plans as users do, where one run at a time tells nothing of the objective.
        plans: Whole plans that can be run.
        final: The last comparison of whole plans.
        notes: What the user should know.
        given_up: Plans that there was no time to run, and how far that had come.
        left_out: Plans that a limit kept out of a final, and which.
        is_interrupted: Whether it was stopped.
        is_out_of_time: Whether its time was over before plans had been compared.
    """

    setting: Setting
    database: CostDatabase
    options: Options
    budget: Budget = field(init=False)
    book: CostBook = field(init=False)
    space: Space = field(init=False)
    runner: Runner = field(init=False)
    prospector: Prospector = field(init=False)
    packages: Packages = field(init=False)
    plans: tuple[PlanCandidate, ...] = ()
    final: FinalRound | None = None
    notes: list[str] = field(default_factory=list)
    given_up: dict[PlanCandidate, str] = field(default_factory=dict)
    left_out: dict[PlanCandidate, str] = field(default_factory=dict)
    is_interrupted: bool = False
    is_out_of_time: bool = False
    _best: PlanCandidate | None = None
    _samples: dict[PlanCandidate, list[float]] = field(default_factory=dict)
    _absent_rivals: tuple[PlanCandidate, ...] = ()  # single plans without time in the last final
    _confirmations: int = 0

    def __post_init__(self) -> None:
        self.budget = Budget(self.options.budget_seconds)
        self.book = CostBook(KeyMaker(self.setting), self.database, new_session())
        self.space = make_space(self.setting)
        lab = Laboratory(self.setting, feeds=self.options.feeds)
        seconds = max(lab.limits.seconds or 0.0, 0.5 * self.options.budget_seconds)
        lab.limits = replace(lab.limits, seconds=seconds)  # a large model compiles long
        lab.left = self.budget.allowance
        cpus = int(this_machine().cpus)
        self.packages = Packages(lab, max(1, cpus // self.setting.num_threads))
        self.runner = Runner(lab, self.book)
        self.prospector = Prospector(self.setting, self.space, self.runner, self.budget, self._tell)

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
            if len(self.prospector.costing.positions) > 1:
                self._mix()
            elif len(self.plans) > 1 or not self.is_for_latency:
                self._compare(self.plans)
        except KeyboardInterrupt:
            self.is_interrupted = True
            self.notes.append("interrupted: what was measured is kept; tune again to go on")
        except OutOfTimeError as error:
            self.is_out_of_time = self.final is None
            self.notes.append(f"{error.message}: give more with --budget, or tune again to go on")
        if self._lacks_rivals:
            names = ", ".join(plan.name for plan in self._absent_rivals)
            self.notes.append(f"there was no time to run it against {names} again: tune again")

    def __enter__(self) -> Self:
        self.runner.lab.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.packages.close()
        self.runner.lab.__exit__(kind, error, trace)

    @property
    def is_proven(self) -> bool:
        """Whether nothing that could beat the plan that ships was left out for lack of time."""
        is_missing = any(plan.single >= 0 for plan in self.given_up)
        is_stopped = self.is_interrupted or self.is_out_of_time
        return not (is_stopped or is_missing or self._lacks_rivals)

    @property
    def _lacks_rivals(self) -> bool:
        """Whether a mixed plan ships that was not run against all that might be faster."""
        return bool(self.final and self.final.winner.single < 0 and self._absent_rivals)

    @property
    def is_for_latency(self) -> bool:
        """Whether the seconds of one run decide."""
        return self.options.objective == "latency"

    @property
    def store(self) -> Store:
        """What was compiled, until the tuner is left."""
        return self.runner.lab.artifacts

    def predicted(self, plan: PlanCandidate) -> float | None:
        """Return what was said of a mixed plan before it was run, at today's scale of costs.

        The machine may have become faster or slower since: the best single plan tells by how much.
        """
        first = self.prospector.predictions.get(plan.calls)
        if first is None:
            return None
        now = self._best_single_seconds()
        is_known = math.isfinite(now) and math.isfinite(first.best_seconds)
        return first.seconds * (now / first.best_seconds if is_known else 1.0)

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
            alive = self._prepare(new, CHOOSING_END)
            with self.budget.charge("compare"):
                looks = self._affordable(EARLY_LOOKS, alive, HEATS_END)
                if len(alive) == 1:  # a race of one has no rounds
                    self._measure_plans(alive, looks[0])
                halve(alive, self._measure_plans, looks=looks)
        known = tuple(plan for plan in singles if math.isfinite(self.seconds_of(plan)))
        for plan in known:
            self.prospector.propose(plan.calls)
        self._best = min(known, key=self.seconds_of, default=None)
        return known

    def _prepare(self, plans: Sequence[PlanCandidate], until: float = 1.0) -> list[PlanCandidate]:
        """Compile plans; return those that can be run.

        One that takes longer than is left is given up. So is one that takes more than half of it
        while others wait.
        """
        found = []
        for index, plan in enumerate(plans):
            self._tell("prepare", plan.name)
            share = self.budget.share(until, len(plans) - index - 1)
            with self.budget.charge("prepare", share):
                if self.runner.prepare([plan.calls]):
                    found.append(plan)
            late = self.runner.late.get(plan.calls)
            if late is not None:
                self.given_up[plan] = late
                self.notes.append(f"{plan.name} was not measured: {late}")
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
            if self.options.objective == "memory":
                quick = quick_enough(plans, self.options, self._time_plans)
                self.final = compare_bytes(quick, self._measure_bytes)
                return
            measure = self._measure_plans if self.is_for_latency else self._measure_in_flight
            looks = self._affordable(LOOKS, plans, CHOOSING_END)
            earlier: Mapping[PlanCandidate, Sequence[float]] = {}
            if self.is_for_latency:
                earlier = self._earlier_rounds(plans)
            elif len(plans) == 1:  # a race of one has no rounds
                earlier = measure(plans, looks[:2][-1])
            self.final = compare_plans(
                *(plans, measure),
                looks=looks,
                confirming_looks=self._affordable(CONFIRMING_LOOKS, plans, 1.0),
                earlier=earlier,
            )
            if self.final is not None and self.final.is_confirmation:  # each has a chance to err
                self._confirmations += 1
                if self.final.winner.single < 0:
                    self.final.confidence = 1.0 - self._confirmations * ACCEPTANCE_ALPHA

    def _earlier_rounds(
        self, plans: Sequence[PlanCandidate]
    ) -> Mapping[PlanCandidate, Sequence[float]]:
        """Return the rounds of whole plans that this run and those before it have measured.

        They are filed under the machine, versions, sources and threads of now.
        """
        return align_rounds({plan: self.runner.samples(plan.calls) for plan in plans})

    def _measure_in_flight(
        self, plans: Sequence[PlanCandidate], rounds: int
    ) -> dict[PlanCandidate, tuple[float, ...]]:
        """Return the seconds per run of several processes together, by plan and round."""
        count = self.packages.in_flight
        self._tell("compare", f"{len(plans)} plans, {rounds} rounds, {count} runs in flight")
        seconds = self.packages.time_rounds([Probe(plan.calls) for plan in plans], rounds)
        return {plan: seconds[Probe(plan.calls)] for plan in plans}

    def _time_plans(self, plans: Sequence[PlanCandidate]) -> Mapping[PlanCandidate, float]:
        """Return the seconds of plans; those that were never run are, against the fastest one."""
        new = [plan for plan in plans if not self._has_run(plan)]
        if new and self._best is not None:
            new = list(dict.fromkeys((*new, self._best)))
            self._measure_plans(new, self._affordable(PACE_LOOKS, new, 1.0)[-1])
        return {plan: self.seconds_of(plan) for plan in plans}

    def _measure_bytes(self, plan: PlanCandidate) -> list[int]:
        self._tell("compare", f"memory of {plan.name}")
        return self.packages.added_bytes(Probe(plan.calls))

    def _affordable(
        self, looks: Sequence[int], plans: Sequence[PlanCandidate], until: float
    ) -> tuple[int, ...]:
        """Return the looks that there is time for; the first in any case."""
        per_round = sum(map(self._sample_seconds, plans))
        if self.options.objective == "throughput" and until > HEATS_END:
            per_round += len(plans) * ROUND_SECONDS
        most = self.budget.left(until) / max(_LEAST_ROUND_SECONDS, per_round)
        return tuple(look for look in looks if look <= most) or (looks[0],)

    def _sample_seconds(self, plan: PlanCandidate) -> float:
        """Return roughly how long one sample of a plan takes, with all that is around it."""
        expected = self.runner.expected(plan.calls)
        return whole_sample_seconds(expected, self.setting.num_threads)

    # Mixed plans

    def _mix(self) -> None:
        """Search for plans of several targets and run them against the others."""
        if self.options.objective == "memory":
            self._mix_for_memory()
            return
        self.prospector.measure_borders()
        for turn in range(1 + MOST_REPEATS):
            found = self.prospector.search(
                self.plans, self._best_single_seconds(), is_again=turn > 0
            )
            if turn and not found:
                return
            if not self.budget.left(CHOOSING_END):
                self.given_up |= dict.fromkeys(found[1:], "out of time")
                found = found[:1]
            self.plans = (*self.plans, *self._prepare(found, CHOOSING_END))
            self._compare(self._finalists())
            if not self._feed_back() or not self.budget.left(REGIONS_END):
                return

    def _mix_for_memory(self) -> None:
        """Search for plans of several targets that need less memory."""
        sources = (self.setting, self.space, self.runner, self.budget, self._tell)
        pace = pace_of(self.prospector.costing, self.options, self._best_single_seconds())
        prospector = MemoryProspector(*sources, pace)
        found = prospector.find(self.plans)
        self.notes += prospector.notes
        if len(found) > MOST_FINALISTS:
            count = len(found) - MOST_FINALISTS
            self.notes.append(f"{count} lean plans were not run: {MOST_FINALISTS} are at most")
            found = found[:MOST_FINALISTS]
        self.plans = (*self.plans, *self._prepare(found, CHOOSING_END))
        self._compare(self._finalists())

    def _finalists(self) -> list[PlanCandidate]:
        """Return the plans of the final: the best ones first, as many as there is time for.

        A single plan that is clearly slower than the best one by more than what makes a rival need
        not be run again: a mixed plan would not have to beat it.
        """
        singles = [plan for plan in self.plans if plan.single >= 0]
        singles.sort(key=self.seconds_of)
        others = [plan for plan in self.plans if plan.single < 0]
        others.sort(key=lambda plan: (self._expected(plan), len(plan.calls)))
        champion = [self.final.winner] if self.final is not None else []
        ranked = dict.fromkeys([*champion, *singles[:1], *others[:1], *singles[1:], *others[1:]])
        out = self._clear_losers(singles, others) if self.is_for_latency else set()
        worth = [plan for plan in ranked if plan in champion or plan not in out]
        # room for all single plans, and two mixed ones that go before the last of them
        left, most = self.budget.left(), max(MOST_FINALISTS, len(singles) + 2)
        crowded = f"not run: the final has {most} plans at most"
        self.left_out.update(dict.fromkeys(worth[most:], crowded))
        kept: list[PlanCandidate] = []
        for plan in worth[:most]:
            left -= _PLANNED_ROUNDS * self._sample_seconds(plan)
            if len(kept) < _FEWEST_FINALISTS or left > 0:
                kept.append(plan)
        self._absent_rivals = tuple(
            plan for plan in worth if plan.single >= 0 and plan not in kept and self.is_for_latency
        )
        return kept

    def _clear_losers(
        self, singles: Sequence[PlanCandidate], others: Sequence[PlanCandidate]
    ) -> set[PlanCandidate]:
        """Return plans of which earlier rounds say that they can neither ship nor be rivals."""
        if not singles:
            return set()
        taken = self._earlier_rounds([*singles, *others])
        ratios = {plan: paired_ratio(taken[plan], taken[singles[0]]) for plan in taken}
        limit = _SINGLE_LIMIT * self._best_single_seconds()
        return {
            plan
            for plan, ratio in ratios.items()
            if ratio.low > (RIVAL if plan.single >= 0 else 1 - MARGIN)
            or (self._has_run(plan) and self._least_seconds(plan) > limit)
        }

    def _least_seconds(self, plan: PlanCandidate) -> float:
        """Return the time of a plan that has run; of a single one the lower end of its interval."""
        cost = self.book.cost(self.runner.key(plan.calls)) if plan.single >= 0 else None
        return self.seconds_of(plan) if cost is None else cost.low_seconds

    def _expected(self, plan: PlanCandidate) -> float:
        return self.seconds_of(plan) if self._has_run(plan) else self.predicted(plan) or math.inf

    def _best_single_seconds(self) -> float:
        singles = (plan for plan in self.plans if plan.single >= 0)
        return min(map(self.seconds_of, singles), default=math.inf)

    def _has_run(self, plan: PlanCandidate) -> bool:
        return math.isfinite(self.seconds_of(plan))

    def _feed_back(self) -> bool:
        """Let the search know by what its plans were slower than predicted; whether it matters."""
        if not self.is_for_latency:
            return False
        worst = 0.0
        for plan in self.plans:
            predicted = self.predicted(plan)
            if predicted is None or len(plan.calls) < 2:  # noqa: PLR2004 - one call is as measured
                continue
            excess = self.seconds_of(plan) - predicted
            if math.isfinite(excess) and excess > RESIDUAL * predicted:
                worst = max(worst, excess / len(plan.calls))
        if worst <= self.prospector.costing.strain:
            return False
        self.prospector.costing.strain = worst
        return True

    def _tell(self, stage: str, what: str) -> None:
        if self.options.tell is None:
            return
        seconds = self.seconds_of(self._best) if self._best else None
        name = self._best.name if self._best else ""
        self.options.tell(Moment(stage, what, name, seconds, self.budget.left()))
