# SPDX-License-Identifier: Apache-2.0
"""What it costs to bring a tensor from one state to another, by its size.

A straight line through all sizes is off by up to two thirds where a cache ends; so there is a line
for each pair of neighbouring probes, in the logarithms of size and time.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from intarsia.cost.cost import Cost, CostSource
from intarsia.cost.peak import Peak

PROBE_BYTES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 25)
"""Sizes to probe: around the ends of the usual caches."""

SPREAD = {
    CostSource.MEASURED: 1.3,
    CostSource.FINGERPRINT: 1.35,
    CostSource.ESTIMATED: 2.0,
    CostSource.ROOFLINE: 4.0,
    CostSource.ASSUMED: 4.0,
}
"""How far, as a factor, a conversion in place is from the table."""


LINK = Peak({"float32": 1.0}, 2.5e10, 2.5e10, 0, "PCI Express 4.0 with 16 lanes")
"""What copies between a host and a device of its own memory usually go through."""


@dataclass(frozen=True, slots=True)
class TransitionTable:
    """The time of a conversion by size.

    Attributes:
        points: Ascending sizes in bytes, each with seconds that do not fall; at least one.
        source: Where they come from.
    """

    points: tuple[tuple[int, float], ...]
    source: CostSource = CostSource.MEASURED

    @classmethod
    def from_probes(
        cls,
        probes: Iterable[tuple[int, float]],
        source: CostSource = CostSource.MEASURED,
    ) -> TransitionTable:
        """Return the table of probes: the median of each size, evened out so that it never falls.

        Args:
            probes: At least one pair of a size in bytes, above 0, and seconds, above 0.
            source: Where they come from.

        Source:
            Barlow et al., Statistical Inference under Order Restrictions, 1972, section 1.2
            (pooling adjacent violators).
        """
        by_size: dict[int, list[float]] = {}
        for nbytes, seconds in probes:
            # Logarithms: a probe that took twice as long counts as much as one that took half.
            by_size.setdefault(nbytes, []).append(math.log(seconds))
        sizes = sorted(by_size)
        levels = _never_falling([median(by_size[size]) for size in sizes])
        points = tuple(zip(sizes, map(math.exp, levels), strict=True))
        return cls(points, source)

    @classmethod
    def assumed(cls, peak: Peak, call_seconds: float = 1e-6) -> TransitionTable:
        """Return the table of a plain copy on a machine: each byte is read and written.

        Args:
            peak: What the machine can do.
            call_seconds: What a copy of nothing takes.
        """
        points = tuple(
            (size, call_seconds + 2 * size / peak.bandwidth(2 * size)) for size in PROBE_BYTES
        )
        return cls.from_probes(points, CostSource.ASSUMED)

    def seconds(self, nbytes: int) -> float:
        """Return the time for a tensor of this size.

        Below the smallest probe it is what that took; above the largest one it grows as the size.
        """
        first, last = self.points[0], self.points[-1]
        if nbytes <= first[0]:
            return first[1]
        if nbytes >= last[0]:
            # Beyond all caches a copy is bound by memory: time is proportional to bytes.
            return last[1] * nbytes / last[0]
        after = bisect.bisect_right(self.points, nbytes, key=lambda point: point[0])
        (low, start), (high, end) = self.points[after - 1 : after + 1]
        share = math.log(nbytes / low) / math.log(high / low)
        return math.exp((1 - share) * math.log(start) + share * math.log(end))

    def cost(self, nbytes: int) -> Cost:
        """Return the same with its interval."""
        cost = Cost(self.seconds(nbytes), nbytes, self.source, provenance="transition")
        return cost.within(SPREAD[self.source])


def _never_falling(values: Sequence[float]) -> list[float]:
    """Return the nearest values that never fall: neighbours that do become their mean."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before = pools.pop()
            total, count = total + before[0], count + before[1]
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]
