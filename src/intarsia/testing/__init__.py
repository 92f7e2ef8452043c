# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: what a backend promises, tried on it. `docs/backends.md` describes it."""

from intarsia.testing.case import Operand, OperatorCase, case, constant, fed, given, weight
from intarsia.testing.cases import CASES
from intarsia.testing.judging import ConformanceError
from intarsia.testing.kit import CHECKS, ConformanceCheck, Report, conformance, examine, list_trials
from intarsia.testing.tolerance import TOLERANCES, Tolerance
from intarsia.testing.trial import Status, Trial, TrialVerdict

__all__ = [
    "CASES",
    "CHECKS",
    "TOLERANCES",
    "ConformanceCheck",
    "ConformanceError",
    "Operand",
    "OperatorCase",
    "Report",
    "Status",
    "Tolerance",
    "Trial",
    "TrialVerdict",
    "case",
    "conformance",
    "constant",
    "examine",
    "fed",
    "given",
    "list_trials",
    "weight",
]
