# SPDX-License-Identifier: Apache-2.0
"""What one run of a region costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CostSource(StrEnum):
    """Where a cost comes from, in order of trust."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run costs.

    Attributes:
        seconds: Wall-clock time of one run.
        nbytes: Memory that is needed while running, beside inputs and outputs.
        source: Where the figure comes from.
        spread_seconds: Half the width of the interval around `seconds`.
    """

    seconds: float
    nbytes: int
    source: CostSource
    spread_seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.seconds * 1e3:.3f} ms ± {self.spread_seconds * 1e3:.3f} ({self.source})"
