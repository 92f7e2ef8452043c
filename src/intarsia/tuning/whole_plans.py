# SPDX-License-Identifier: Apache-2.0
"""The whole plans of one tuner run: compiled, run end to end, with their times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from intarsia.measure.racing import CONFIRMING_LOOKS
from intarsia.tuning.budget import CHOOSING_END, Budget
from intarsia.tuning.costing.runner import ProbeRunner
from intarsia.tuning.finalists import LOOKS, align_rounds
from intarsia.tuning.laboratory.sampling import whole_sample_seconds
from intarsia.tuning.objectives.packages import Packages
from intarsia.tuning.options import TuningStatus
from intarsia.tuning.proposals.space import PlanCandidate

_LEAST_ROUND_SECONDS = 0.01


@dataclass(slots=True)
class WholePlans:
    """Prepares and times whole plans.

    Attributes:
        runner: Compiles and times them.
        packages: Runs them as users do, in fresh processes.
        budget: The time.
        listener: Told what is going on, if it is not None.
        samples: Seconds of every plan that was run, by round.
        given_up: Plans that there was no time to run, and how far that had come.
        best: The fastest so far.
        notes: What the user should know.
    """

    runner: ProbeRunner
    packages: Packages
    budget: Budget
    listener: Callable[[TuningStatus], None] | None = None
    samples: dict[PlanCandidate, list[float]] = field(default_factory=dict)
    given_up: dict[PlanCandidate, str] = field(default_factory=dict)
    best: PlanCandidate | None = None
    notes: list[str] = field(default_factory=list)

    def seconds(self, plan: PlanCandidate) -> float:
        """Return the measured time of a plan; infinite if there is none."""
        return self.runner.seconds(plan.calls)

    def has_run(self, plan: PlanCandidate) -> bool:
        """Whether the time of a plan is known."""
        return math.isfinite(self.seconds(plan))

    def choose_best(self, plans: Sequence[PlanCandidate]) -> None:
        """Take the fastest of some plans for the best so far."""
        self.best = min(plans, key=self.seconds, default=None)

    def give_up(self, plans: Sequence[PlanCandidate]) -> None:
        """Record that there is no time to run plans."""
        self.given_up |= dict.fromkeys(plans, "out of time")

    def prepare(self, plans: Sequence[PlanCandidate], until: float = 1.0) -> list[PlanCandidate]:
        """Compile plans; return those that can be run.

        One that takes longer than is left is given up. So is one that takes more than half of it
        while others wait.
        """
        ready = []
        for index, plan in enumerate(plans):
            self.tell("prepare", plan.name)
            share = self.budget.share(until, len(plans) - index - 1)
            with self.budget.charge("prepare", share):
                if self.runner.prepare([plan.calls]):
                    ready.append(plan)
            late = self.runner.late.get(plan.calls)
            if late is not None:
                self.given_up[plan] = late
                self.notes.append(f"{plan.name} was not measured: {late}")
        return ready

    def race(
        self, plans: Sequence[PlanCandidate], rounds: int
    ) -> dict[PlanCandidate, tuple[float, ...]]:
        """Run plans against each other; return seconds by round, NaN where one failed."""
        self.tell("compare", f"{len(plans)} plans, {rounds} rounds")
        seconds = self.runner.race([plan.calls for plan in plans], rounds)
        by_plan = {plan: seconds[plan.calls] for plan in plans}
        for plan, plan_seconds in by_plan.items():
            self.samples.setdefault(plan, []).extend(plan_seconds)
            if self.best is None or self.seconds(plan) < self.seconds(self.best):
                self.best = plan
        return by_plan

    def time(
        self, plans: Sequence[PlanCandidate], looks: Sequence[int]
    ) -> Mapping[PlanCandidate, float]:
        """Return the seconds of plans; those that were never run are, against the fastest one."""
        new = [plan for plan in plans if not self.has_run(plan)]
        if new and self.best is not None:
            new = list(dict.fromkeys((*new, self.best)))
            self.race(new, self.affordable(looks, new, 1.0)[-1])
        return {plan: self.seconds(plan) for plan in plans}

    def earlier_rounds(
        self, plans: Sequence[PlanCandidate]
    ) -> Mapping[PlanCandidate, Sequence[float]]:
        """Return the rounds of whole plans that this run and those before it have measured.

        They are filed under the machine, versions, sources and threads of now.
        """
        return align_rounds({plan: self.runner.samples(plan.calls) for plan in plans})

    def affordable_looks(
        self, plans: Sequence[PlanCandidate], extra_seconds: float = 0.0
    ) -> tuple[int, ...]:
        """Return after how many rounds of the final there is time to look."""
        return self.affordable(LOOKS, plans, CHOOSING_END, extra_seconds)

    def affordable_confirmation(
        self, plans: Sequence[PlanCandidate], extra_seconds: float = 0.0
    ) -> tuple[int, ...]:
        """Return after how many rounds of the confirmation there is time to look."""
        return self.affordable(CONFIRMING_LOOKS, plans, 1.0, extra_seconds)

    def affordable(
        self,
        looks: Sequence[int],
        plans: Sequence[PlanCandidate],
        until: float,
        extra_seconds: float = 0.0,
    ) -> tuple[int, ...]:
        """Return the looks that there is time for; the first in any case.

        Args:
            looks: After so many rounds.
            plans: Those that take part.
            until: The part of the budget at which they are to be done.
            extra_seconds: Of each plan in each round, beside what a sample takes.
        """
        per_round = sum(self.sample_seconds(plan) + extra_seconds for plan in plans)
        most = self.budget.left(until) / max(_LEAST_ROUND_SECONDS, per_round)
        return tuple(look for look in looks if look <= most) or (looks[0],)

    def sample_seconds(self, plan: PlanCandidate) -> float:
        """Return roughly how long one sample of a plan takes, with all that is around it."""
        expected = self.runner.expected(plan.calls)
        return whole_sample_seconds(expected, self.runner.lab.setting.num_threads)

    def least_seconds(self, plan: PlanCandidate) -> float:
        """Return the time of a plan that has run; of a single one the lower end of its interval."""
        cost = self.runner.table.cost(self.runner.key(plan.calls)) if plan.single >= 0 else None
        return self.seconds(plan) if cost is None else cost.low_seconds

    def tell(self, stage: str, what: str) -> None:
        """Report progress: a stage, and what is being done, in words."""
        if self.listener is None:
            return
        seconds = self.seconds(self.best) if self.best else None
        name = self.best.name if self.best else ""
        self.listener(TuningStatus(stage, what, name, seconds, self.budget.left()))
