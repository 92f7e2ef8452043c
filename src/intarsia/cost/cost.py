# SPDX-License-Identifier: Apache-2.0
"""What one run of a region costs: a figure, the interval it lies in, and where it comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum


class CostSource(StrEnum):
    """Where a cost comes from, in order of trust."""

    MEASURED = "measured"
    FINGERPRINT = "fingerprint"
    ESTIMATED = "estimated"
    ROOFLINE = "roofline"
    ASSUMED = "assumed"

    @property
    def rank(self) -> int:
        """Its place in the order of trust; 0 is the most trusted."""
        return tuple(CostSource).index(self)

    @property
    def is_measured(self) -> bool:
        """Whether it was measured, here or on a machine with the same fingerprint."""
        return self in (CostSource.MEASURED, CostSource.FINGERPRINT)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run costs.

    Attributes:
        seconds: Wall-clock time of one run.
        nbytes: Memory that is needed while running, beside inputs and outputs.
        source: Where the figure comes from.
        low_seconds: The time is not expected to be below it.
        high_seconds: Nor above it; infinite if that is not known.
        provenance: For people: how it was found, such as `12 samples` or `cores x lanes`.
    """

    seconds: float
    nbytes: int
    source: CostSource
    low_seconds: float = 0.0
    high_seconds: float = math.inf
    provenance: str = ""

    @property
    def has_interval(self) -> bool:
        """Whether the interval says anything."""
        return self.low_seconds > 0.0 or math.isfinite(self.high_seconds)

    def within(self, factor: float) -> Cost:
        """Return the same figure with the interval `[seconds / factor, seconds * factor]`."""
        low, high = self.seconds / factor, self.seconds * factor
        return replace(self, low_seconds=low, high_seconds=high)

    def scaled(self, factor: float) -> Cost:
        """Return the figure and its interval times a factor."""
        return replace(
            self,
            seconds=self.seconds * factor,
            low_seconds=self.low_seconds * factor,
            high_seconds=self.high_seconds * factor,
        )

    def __str__(self) -> str:
        interval = ""
        if self.has_interval:
            interval = f" [{self.low_seconds * 1e3:.3f}, {self.high_seconds * 1e3:.3f}]"
        return f"{self.seconds * 1e3:.3f} ms{interval} ({self.source})"
