# SPDX-License-Identifier: Apache-2.0
"""Random graphs through every target, against two judges. `docs/differential.md` describes it."""

from intarsia.testing.differential.campaign import BAD, TARGETS, Results, run
from intarsia.testing.differential.comparing import OutputDifference, compare
from intarsia.testing.differential.judging import (
    GraphFinding,
    GraphVerdict,
    Judged,
    judge_seed,
)

__all__ = [
    "BAD",
    "TARGETS",
    "GraphFinding",
    "GraphVerdict",
    "Judged",
    "OutputDifference",
    "Results",
    "compare",
    "judge_seed",
    "run",
]
