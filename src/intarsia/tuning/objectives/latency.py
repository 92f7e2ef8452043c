# SPDX-License-Identifier: Apache-2.0
"""The seconds of one run: plans run one after another in interleaved rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from intarsia.tuning.objectives.objective import Objective

if TYPE_CHECKING:
    from intarsia.tuning.finalists import FinalRound
    from intarsia.tuning.proposals.space import PlanCandidate
    from intarsia.tuning.whole_plans import WholePlans


@dataclass(frozen=True, slots=True)
class Latency(Objective):
    """The seconds of one run."""

    name = "latency"
    compares_run_seconds = True

    def measure(
        self, plans: WholePlans, candidates: Sequence[PlanCandidate], rounds: int
    ) -> Mapping[PlanCandidate, Sequence[float]]:
        """Return the seconds of plans by round."""
        return plans.race(candidates, rounds)

    def compare(self, plans: WholePlans, candidates: Sequence[PlanCandidate]) -> FinalRound | None:
        """Race plans, and confirm a mixed one on fresh rounds; all rounds of before count."""
        from intarsia.tuning.finalists import compare_plans

        return compare_plans(
            candidates,
            partial(self.measure, plans),
            looks=plans.affordable_looks(candidates),
            confirming_looks=plans.affordable_confirmation(candidates),
            earlier=plans.earlier_rounds(candidates),
        )

    def circumstance(self) -> str:
        """Return nothing: it is the default."""
        return ""


LATENCY = Latency()
"""What the best plan is best at unless the user says."""
