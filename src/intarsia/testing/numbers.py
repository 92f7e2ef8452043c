# SPDX-License-Identifier: Apache-2.0
"""Check: each operator that is not refused gives the numbers of the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from intarsia.testing.case import Case, problem_of
from intarsia.testing.subject import Subject
from intarsia.testing.trial import Trial

SENTENCE = "Every operator and dtype is refused, or computed as the reference does."


def trials(cases: Sequence[Case]) -> Iterator[Trial]:
    """Yield one trial per case and dtype."""
    for case in cases:
        for dtype in case.dtypes:
            yield Trial("numbers", f"{case}-{dtype}", partial(compute, case=case, dtype=dtype))


def compute(subject: Subject, case: Case, dtype: str) -> None:
    """Run one operator on two draws of its inputs."""
    problem = problem_of(case, dtype)
    region = subject.take(subject.graph(problem.model), problem.title)
    subject.verify_region(region, problem.values, problem.title)
