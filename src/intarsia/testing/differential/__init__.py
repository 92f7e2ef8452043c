# SPDX-License-Identifier: Apache-2.0
"""Random graphs through every target, against two judges. `docs/differential.md` describes it."""

from intarsia.testing.differential.campaign import BAD, TARGETS, Results, run
from intarsia.testing.differential.comparing import Difference, compare
from intarsia.testing.differential.judging import Finding, Judged, Verdict, judge_seed

__all__ = [
    "BAD",
    "TARGETS",
    "Difference",
    "Finding",
    "Judged",
    "Results",
    "Verdict",
    "compare",
    "judge_seed",
    "run",
]
