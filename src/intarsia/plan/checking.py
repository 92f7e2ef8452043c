# SPDX-License-Identifier: Apache-2.0
"""What a check of a package or a model found: one line per finding, and one verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from intarsia.cost.fingerprint import machine_of
from intarsia.errors import IntarsiaError


class CheckVerdict(StrEnum):
    """What becomes of a file on this machine, from good to bad."""

    OK = "ok"
    CHANGED = "changed"
    """It works, but something that it was compiled with or measured on is not what it was."""
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One thing that was looked at.

    Attributes:
        subject: What was looked at: `file`, `format`, `region 3`, `openvino`, `machine`.
        verdict: What it means for the file.
        message: What was found.
        hint: What to do about it; empty if nothing is to be done.
    """

    subject: str
    verdict: CheckVerdict
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.subject}: {self.message}" + (
            f" ({self.hint})" if self.hint else ""
        )


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All findings of one file.

    Attributes:
        file: What was checked.
        verdict: The worst of the findings'.
        findings: In the order in which one would look.
    """

    file: str
    verdict: CheckVerdict
    findings: tuple[CheckFinding, ...]

    @classmethod
    def of(cls, file: str, findings: Iterable[CheckFinding]) -> CheckReport:
        """Return the check with these findings."""
        collected = tuple(findings)
        order = list(CheckVerdict)
        worst = max(
            (finding.verdict for finding in collected), key=order.index, default=CheckVerdict.OK
        )
        return cls(file, worst, collected)


def check_runners(runners: Iterable[str]) -> Iterator[CheckFinding]:
    """Ask each machine that runners lead to what it is.

    Args:
        runners: Their texts; each is asked once.
    """
    for runner in dict.fromkeys(runners):
        try:
            verdict, message, hint = CheckVerdict.OK, f"answers: {machine_of(runner)}", ""
        except IntarsiaError as error:
            verdict, message, hint = CheckVerdict.INCOMPATIBLE, error.message, error.hint or ""
        yield CheckFinding(f"runner {runner}", verdict, message, hint)
