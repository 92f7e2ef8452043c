# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: what a backend promises, tried on it. `docs/backends.md` describes it."""

from intarsia.testing.case import Case, Operand, case, constant, fed, given, weight
from intarsia.testing.cases import CASES
from intarsia.testing.judging import ConformanceError
from intarsia.testing.kit import CHECKS, Check, Report, conformance, examine, list_trials
from intarsia.testing.tolerance import TOLERANCES, Tolerance
from intarsia.testing.trial import Status, Trial, Verdict

__all__ = [
    "CASES",
    "CHECKS",
    "TOLERANCES",
    "Case",
    "Check",
    "ConformanceError",
    "Operand",
    "Report",
    "Status",
    "Tolerance",
    "Trial",
    "Verdict",
    "case",
    "conformance",
    "constant",
    "examine",
    "fed",
    "given",
    "list_trials",
    "weight",
]
