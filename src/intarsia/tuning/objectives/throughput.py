# SPDX-License-Identifier: Apache-2.0
"""Runs per second of as many processes as there are CPUs for their threads, all together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from intarsia.tuning.objectives.objective import Objective, outcome_in_words

if TYPE_CHECKING:
    from intarsia.plan.tuning import Finalist, TuningReport
    from intarsia.tuning.finalists import FinalRound
    from intarsia.tuning.proposals.space import PlanCandidate
    from intarsia.tuning.whole_plans import WholePlans


@dataclass(frozen=True, slots=True)
class Throughput(Objective):
    """Runs per second; what is compared is the seconds per run of all processes together."""

    name = "throughput"
    default_threads = 1
    figure_name = "runs per second"

    def measure(
        self, plans: WholePlans, candidates: Sequence[PlanCandidate], rounds: int
    ) -> Mapping[PlanCandidate, Sequence[float]]:
        """Return the seconds per run of several processes together, by plan and round."""
        from intarsia.tuning.laboratory.values import Probe

        count = plans.packages.in_flight
        plans.tell("compare", f"{len(candidates)} plans, {rounds} rounds, {count} runs in flight")
        seconds = plans.packages.time_rounds([Probe(plan.calls) for plan in candidates], rounds)
        return {plan: seconds[Probe(plan.calls)] for plan in candidates}

    def compare(self, plans: WholePlans, candidates: Sequence[PlanCandidate]) -> FinalRound | None:
        """Race plans, and confirm a mixed one on fresh rounds."""
        from intarsia.tuning.finalists import compare_plans
        from intarsia.tuning.objectives.packages import ROUND_SECONDS

        looks = plans.affordable_looks(candidates, ROUND_SECONDS)
        earlier: Mapping[PlanCandidate, Sequence[float]] = {}
        if len(candidates) == 1:  # a race of one has no rounds
            earlier = self.measure(plans, candidates, looks[:2][-1])
        final = compare_plans(
            candidates,
            partial(self.measure, plans),
            looks=looks,
            confirming_looks=plans.affordable_confirmation(candidates, ROUND_SECONDS),
            earlier=earlier,
        )
        return final and replace(final, in_flight=plans.packages.in_flight)

    def estimate_note(self) -> str:
        """Return that one run alone was estimated."""
        return "planned by the latency of one run: what processes share is not estimated"

    def show(self, row: Finalist, amount: float, /) -> Finalist:
        """Return the row of a plan with its runs per second."""
        rate = 1 / amount if amount else 0.0
        return replace(row, runs_per_second=rate, figure=f"{rate:.1f}" if rate else "")

    def outcome(self, report: TuningReport, /) -> str:
        """Return how many runs a second the plan that ships does."""
        in_flight = f", {report.in_flight} in flight" if report.in_flight > 1 else ""
        return outcome_in_words(
            report,
            lambda row: f"{row.runs_per_second:.1f} runs per second{in_flight}",
            lambda row, other: (
                f"{row.runs_per_second / (other.runs_per_second or math.inf):.2f} times as many as"
            ),
        )
