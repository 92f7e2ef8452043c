# SPDX-License-Identifier: Apache-2.0
"""How long each step of a plan took."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.plan.plan import Plan, RegionStep


@dataclass(frozen=True, slots=True)
class Profile:
    """How long each step of a plan took, each waited for by itself.

    Devices that work side by side in a run take turns here: the sum may be more than a run takes.

    Attributes:
        seconds: The median of each step, in the order of `Plan.steps`.
        runs: How many runs were timed.
    """

    seconds: tuple[float, ...]
    runs: int

    def of_regions(self, plan: Plan) -> tuple[float, ...]:
        """Return the seconds of each region of the plan that was profiled."""
        totals = [0.0] * len(plan.placement.regions)
        for step, seconds in zip(plan.steps, self.seconds, strict=True):
            if isinstance(step, RegionStep):
                totals[step.region] += seconds
        return tuple(totals)
