# SPDX-License-Identifier: Apache-2.0
"""One thing to try on a backend, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from intarsia.errors import LinkError
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.subject import Subject


class Status(StrEnum):
    """What became of a trial."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing to try.

    Attributes:
        check: Name of the check that it belongs to.
        name: What it tries, in words joined by `_` and `-`.
        act: Tries it, and may return what was seen; raises `ConformanceError` or `NotApplicable`.
        needs_runtime: Whether it is skipped where the backend's runtime is not installed.
    """

    check: str
    name: str
    act: Callable[[Subject], str | None]
    needs_runtime: bool = True

    @property
    def id(self) -> str:
        """The name under which pytest shows it."""
        return f"{self.check}-{self.name}"


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """What became of one trial.

    Attributes:
        trial: The trial.
        status: Passed, skipped (the backend refused, or has no such thing) or failed.
        message: Why it was skipped or failed, or what was seen.
        is_lost: Whether it failed as the way to the machine did, which says nothing of the backend.
    """

    trial: Trial
    status: Status
    message: str = ""
    is_lost: bool = False

    def __str__(self) -> str:
        return f"{self.status} {self.trial.id}" + (f": {self.message}" if self.message else "")


def judge(subject: Subject, trial: Trial) -> TrialVerdict:
    """Try one thing on a backend."""
    try:
        if trial.needs_runtime:
            subject.need_runtime()
        seen = trial.act(subject)
    except NotApplicable as reason:
        return TrialVerdict(trial, Status.SKIPPED, str(reason))
    except ConformanceError as error:
        is_lost = isinstance(error.__cause__, LinkError)
        return TrialVerdict(trial, Status.FAILED, str(error), is_lost)
    return TrialVerdict(trial, Status.PASSED, seen or "")
