# SPDX-License-Identifier: Apache-2.0
"""The cost of a region from the best source there is, with how sure it is.

Order of trust: measured here; measured on a machine with the same fingerprint; estimated by the
backend; the roofline of the target; assumed. What is not measured is multiplied by the factor by
which its source was off wherever it could be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from intarsia.cost.cost import Cost, CostSource
from intarsia.cost.key import CostKey
from intarsia.cost.peak import Peak
from intarsia.cost.work import region_work
from intarsia.graph.ops import node_flop

if TYPE_CHECKING:
    from intarsia.graph.region import Region


SIGMAS = 1.96
"""Half the width of a 95 % interval in standard deviations."""

_PRIOR_COUNT = 1.0
"""Observations that the prior counts as; the family's as a prior of the group likewise."""


@dataclass(frozen=True, slots=True)
class EstimateFactor:
    """The factor by which an estimate is corrected, with a lognormal distribution.

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


PRIORS: Mapping[CostSource, EstimateFactor] = {
    CostSource.ESTIMATED: EstimateFactor(1.0, 2.0),
    CostSource.ROOFLINE: EstimateFactor(2.5, 4.0),
    CostSource.ASSUMED: EstimateFactor(1.0, 10.0),
}
"""The error factors that are assumed before anything was measured.

Source:
    The bands that vendors give for their own estimators, and what rooflines miss in general.
"""


@dataclass(slots=True)
class Calibration:
    """How far each kind of estimate is from what was measured, learnt from where there are both.

    A source is off by a factor that is alike for like regions; its logarithm is taken to be
    normally distributed. What is known before anything was measured counts as few observations.
    Factors are by source, family and group.
    A family is what shares a device, such as the text of a target; a group is more alike, such as
    an operator on it. What a group lacks its family lends, and the prior what that lacks.

    Source:
        Gelman et al., Bayesian Data Analysis, 3rd edition, 2013, section 2.5 (a mean between the
        prior and the data, weighted by their counts).
    """

    _logs: dict[tuple[CostSource, str], dict[str, list[float]]] = field(default_factory=dict)

    def observe(
        self, source: CostSource, family: str, group: str, estimated: float, measured: float
    ) -> None:
        """Learn from one region for which there are both: seconds, above 0."""
        if estimated > 0 and measured > 0:
            groups = self._logs.setdefault((source, family), {})
            groups.setdefault(group, []).append(math.log(measured / estimated))

    def factor(self, source: CostSource, family: str, group: str = "") -> EstimateFactor:
        """Return the factor that corrects estimates of such regions.

        Costs of one device that come from one source share the error of their family: a
        comparison of devices must take it as one error and not as many.
        """
        groups = self._logs.get((source, family), {})
        # One figure for each group: forty convolutions of one network are one piece of evidence on
        # a target, not forty.
        every = [fmean(logs) for logs in groups.values()]
        wide = _combine(PRIORS.get(source, PRIORS[CostSource.ASSUMED]), every)
        return _combine(wide, groups.get(group, []))

    def count(self, source: CostSource, family: str) -> int:
        """Return how many regions of a family were learnt from."""
        return sum(map(len, self._logs.get((source, family), {}).values()))


def _combine(prior: EstimateFactor, logs: list[float]) -> EstimateFactor:
    """Return the prior after these observations."""
    if not logs:
        return prior
    total = _PRIOR_COUNT + len(logs)
    centre = (math.log(prior.middle) * _PRIOR_COUNT + math.fsum(logs)) / total
    squares = math.fsum((log - centre) ** 2 for log in logs)
    # The prior's own width counts as one observation's: a few that agree by chance do not make an
    # estimate sure.
    variance = (_PRIOR_COUNT * prior.sigma**2 + squares) / total
    return EstimateFactor(math.exp(centre), math.exp(SIGMAS * math.sqrt(variance)))


def bound(region: Region, peak: Peak, reached: Peak | None = None) -> Cost:
    """Return what a region costs at least on a machine: optimistic, and so no estimate.

    The call itself counts nothing here; what several calls cost is the plan's to know.

    Args:
        region: With static shapes; what is not static counts nothing.
        peak: What the machine can do at most.
        reached: What a program reached there. The figure then says how long the region would
            take at that rate; the low end stays the bound.

    Source:
        Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009, equation 1.
    """
    work = region_work(region)
    # The least: a 3x3 convolution by Winograd's transforms has 2.25 or 4 times fewer products.
    computing = work.least_flop / peak.flops(work.dtype)
    moving = work.nbytes / peak.bandwidth(work.nbytes)
    seconds = max(computing, moving)
    limit = "operations" if computing >= moving else "bytes"
    likely = seconds
    if reached is not None:
        scale = peak.flops(work.dtype) / peak.flops("float32")
        computing = work.flop / (reached.flops("float32") * scale)
        likely = max(seconds, computing, work.nbytes / reached.bandwidth(work.nbytes))
    return Cost(
        seconds=likely,
        nbytes=0,
        source=CostSource.ROOFLINE,
        low_seconds=seconds,
        provenance=f"{work.flop / 1e9:.3g} GFLOP, {work.nbytes / 1e6:.3g} MB: {limit} limit",
    )


NODE_SECONDS = 5e-6
"""Assumed time of a node of which nothing is known: a small kernel with its dispatch."""


@dataclass(frozen=True, slots=True)
class CostSubject:
    """A region on a target: what a cost is asked of.

    Attributes:
        region: The nodes.
        key: What its measurements are filed under.
        peak: What the target can do at most.
        reached: What a program reached on that machine, if it is here.
        estimate: Asks the backend; None if there is none to ask.
    """

    region: Region
    key: CostKey
    peak: Peak
    reached: Peak | None = None
    estimate: Callable[[], Cost | None] | None = None


@dataclass(slots=True)
class Estimator:
    """Answers what regions cost, and learns from those that were measured.

    Attributes:
        measured: Costs by samples.
        calibration: What was learnt of the other sources.
    """

    measured: dict[CostKey, Cost] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)

    def learn(self, costs: Mapping[CostKey, Cost], subjects: Iterable[CostSubject] = ()) -> None:
        """Take measured costs in.

        Args:
            costs: By key.
            subjects: Regions with such keys; what the other sources say of them is compared.
        """
        self.measured.update(costs)
        for subject in subjects:
            if subject.key in costs:
                self._compare(subject, costs[subject.key])

    def cost(self, subject: CostSubject) -> Cost:
        """Return the cost by the most trusted source."""
        measured = self.measured.get(subject.key)
        if measured is not None:
            return measured
        return self.predict(subject)

    def predict(self, subject: CostSubject) -> Cost:
        """Return the cost as if it had never been measured."""
        raw = _ask(subject)
        if raw is not None:
            return self._calibrated(subject, raw)
        least = bound(subject.region, subject.peak, subject.reached)
        if least.seconds > 0:
            cost = self._doubted(self._calibrated(subject, least), subject)
            low = max(cost.low_seconds, least.low_seconds)
            middle = max(cost.seconds, low)
            return replace(
                cost, seconds=middle, low_seconds=low, high_seconds=max(cost.high_seconds, middle)
            )
        seconds = NODE_SECONDS * max(1, len(subject.region))
        return self._calibrated(
            subject, Cost(seconds, 0, CostSource.ASSUMED, provenance="nothing is known about it")
        )

    def _calibrated(self, subject: CostSubject, raw: Cost) -> Cost:
        """Return what a source says, corrected by its factor; its own interval counts if wider."""
        family, group = family_of(subject.key), group_of(subject.region)
        factor = self.calibration.factor(raw.source, family, group)
        cost = raw.scaled(factor.middle)
        low, high = cost.seconds / factor.spread, cost.seconds * factor.spread
        if raw.source is CostSource.ESTIMATED and raw.has_interval:
            low, high = min(low, cost.low_seconds), max(high, cost.high_seconds)
        return replace(
            cost,
            low_seconds=low,
            high_seconds=high,
            provenance=self._provenance(raw, factor, family),
        )

    def _doubted(self, cost: Cost, subject: CostSubject) -> Cost:
        """Return a cost for all machines that fit a description that leaves much open.

        Once one region was measured there, the factor that was seen says how fast the machine is.
        """
        doubt = subject.peak.doubt
        if doubt == 1.0 or self.calibration.count(CostSource.ROOFLINE, family_of(subject.key)):
            return cost
        return replace(
            cost,
            seconds=cost.seconds * math.sqrt(doubt),
            high_seconds=cost.high_seconds * doubt,
            provenance=f"{cost.provenance}; {subject.peak.text}, or up to {doubt:g} times as slow",
        )

    def _provenance(self, raw: Cost, factor: EstimateFactor, family: str) -> str:
        count = self.calibration.count(raw.source, family)
        learnt = f"{count} comparisons" if count else "no comparison yet"
        said = f"{raw.provenance}; " if raw.provenance else ""
        return f"{said}x{factor.middle:.2g} by {learnt}"

    def _compare(self, subject: CostSubject, measured: Cost) -> None:
        family, group = family_of(subject.key), group_of(subject.region)
        least = bound(subject.region, subject.peak, subject.reached)
        for raw in (_ask(subject), least):
            if raw is not None:
                self.calibration.observe(raw.source, family, group, raw.seconds, measured.seconds)


def _ask(subject: CostSubject) -> Cost | None:
    """Return what the backend says: an estimate, whatever it calls it."""
    cost = subject.estimate() if subject.estimate is not None else None
    if cost is None or not cost.seconds > 0:
        return None
    if cost.source in (CostSource.ESTIMATED, CostSource.ASSUMED):
        return cost
    return replace(cost, source=CostSource.ESTIMATED)


def family_of(key: CostKey) -> str:
    """Return which estimates share an error: those of one target, backend and thread setting."""
    return f"{key.backend} on {key.target}, threads {key.threads}"


def group_of(region: Region) -> str:
    """Return what a region is most like: the operator that does most of its operations."""
    graph = region.graph
    by_op: dict[str, int] = {}
    for node in region.nodes:
        op_type = graph.nodes[node].op_type
        by_op[op_type] = by_op.get(op_type, 0) + node_flop(graph, node)
    return max(by_op, key=by_op.__getitem__) if by_op else ""
