# SPDX-License-Identifier: Apache-2.0
"""How far each kind of estimate is from what was measured, learnt from where there are both.

A source is off by a factor that is alike for like regions; its logarithm is taken to be normally
distributed. What is known before anything was measured counts as few observations.

Source:
    Gelman et al., Bayesian Data Analysis, 3rd edition, 2013, section 2.5 (a mean between the prior
    and the data, weighted by their counts).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from intarsia.cost.cost import CostSource

SIGMAS = 1.96
"""Half the width of a 95 % interval in standard deviations."""

_PRIOR_COUNT = 1.0
"""Observations that the prior counts as; the family's as a prior of the group likewise."""


@dataclass(frozen=True, slots=True)
class Factor:
    """What an estimate is to be multiplied by: lognormal.

    Attributes:
        middle: Its median.
        spread: The 95 % interval is from `middle / spread` to `middle * spread`.
    """

    middle: float
    spread: float

    @property
    def sigma(self) -> float:
        """The standard deviation of its logarithm."""
        return math.log(self.spread) / SIGMAS


PRIORS: Mapping[CostSource, Factor] = {
    CostSource.ESTIMATED: Factor(1.0, 2.0),
    CostSource.ROOFLINE: Factor(2.5, 4.0),
    CostSource.ASSUMED: Factor(1.0, 10.0),
}
"""Before anything was measured.

Source:
    The bands that vendors give for their own estimators, and what rooflines miss in general.
"""


@dataclass(slots=True)
class Calibration:
    """Observed factors between estimates and measurements, by source, family and group.

    A family is what shares a device, such as the text of a target; a group is more alike, such as
    an operator on it. What a group lacks its family lends, and the prior what that lacks.
    """

    _logs: dict[tuple[CostSource, str], dict[str, list[float]]] = field(default_factory=dict)

    def observe(
        self, source: CostSource, family: str, group: str, estimated: float, measured: float
    ) -> None:
        """Learn from one region for which there are both: seconds, above 0."""
        if estimated > 0 and measured > 0:
            groups = self._logs.setdefault((source, family), {})
            groups.setdefault(group, []).append(math.log(measured / estimated))

    def factor(self, source: CostSource, family: str, group: str = "") -> Factor:
        """Return what estimates of such regions are to be multiplied by.

        Costs of one device that come from one source share the error of their family; whoever
        compares devices must take it as one error and not as many.
        """
        groups = self._logs.get((source, family), {})
        every = [fmean(logs) for logs in groups.values()]
        wide = _combine(PRIORS.get(source, PRIORS[CostSource.ASSUMED]), every)
        return _combine(wide, groups.get(group, []))

    def count(self, source: CostSource, family: str) -> int:
        """Return how many regions of a family were learnt from."""
        return sum(map(len, self._logs.get((source, family), {}).values()))


def _combine(prior: Factor, logs: list[float]) -> Factor:
    """Return the prior after these observations."""
    if not logs:
        return prior
    total = _PRIOR_COUNT + len(logs)
    centre = (math.log(prior.middle) * _PRIOR_COUNT + math.fsum(logs)) / total
    squares = math.fsum((log - centre) ** 2 for log in logs)
    variance = (_PRIOR_COUNT * prior.sigma**2 + squares) / total
    return Factor(math.exp(centre), math.exp(SIGMAS * math.sqrt(variance)))
