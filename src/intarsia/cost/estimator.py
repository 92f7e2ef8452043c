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
from typing import TYPE_CHECKING

from intarsia.cost.calibration import Calibration, Factor
from intarsia.cost.cost import Cost, CostSource
from intarsia.cost.key import CostKey
from intarsia.cost.peak import Peak
from intarsia.cost.roofline import bound
from intarsia.graph.ops import node_flop

if TYPE_CHECKING:
    from intarsia.graph.region import Region

NODE_SECONDS = 5e-6
"""Assumed time of a node of which nothing is known: a small kernel with its dispatch."""


@dataclass(frozen=True, slots=True)
class Subject:
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

    def learn(self, costs: Mapping[CostKey, Cost], subjects: Iterable[Subject] = ()) -> None:
        """Take measured costs in.

        Args:
            costs: By key.
            subjects: Regions with such keys; what the other sources say of them is compared.
        """
        self.measured.update(costs)
        for subject in subjects:
            if subject.key in costs:
                self._compare(subject, costs[subject.key])

    def cost(self, subject: Subject) -> Cost:
        """Return the cost by the most trusted source."""
        known = self.measured.get(subject.key)
        if known is not None:
            return known
        return self.predict(subject)

    def predict(self, subject: Subject) -> Cost:
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
            subject, Cost(seconds, 0, CostSource.ASSUMED, provenance="nothing is known of it")
        )

    def _calibrated(self, subject: Subject, raw: Cost) -> Cost:
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

    def _doubted(self, cost: Cost, subject: Subject) -> Cost:
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

    def _provenance(self, raw: Cost, factor: Factor, family: str) -> str:
        count = self.calibration.count(raw.source, family)
        learnt = f"{count} comparisons" if count else "no comparison yet"
        said = f"{raw.provenance}; " if raw.provenance else ""
        return f"{said}x{factor.middle:.2g} by {learnt}"

    def _compare(self, subject: Subject, measured: Cost) -> None:
        family, group = family_of(subject.key), group_of(subject.region)
        least = bound(subject.region, subject.peak, subject.reached)
        for raw in (_ask(subject), least):
            if raw is not None:
                self.calibration.observe(raw.source, family, group, raw.seconds, measured.seconds)


def _ask(subject: Subject) -> Cost | None:
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
