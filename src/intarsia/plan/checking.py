# SPDX-License-Identifier: Apache-2.0
"""What a check of a package or a model found: one line per finding, and one verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What becomes of a file on this machine, from good to bad."""

    OK = "ok"
    CHANGED = "changed"
    """It works, but something that it was compiled with or measured on is not what it was."""
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        subject: What was looked at: `file`, `format`, `region 3`, `openvino`, `machine`.
        verdict: What it means for the file.
        message: What was found.
        hint: What to do about it; empty if nothing is to be done.
    """

    subject: str
    verdict: Verdict
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.subject}: {self.message}" + (
            f" ({self.hint})" if self.hint else ""
        )


@dataclass(frozen=True, slots=True)
class Check:
    """All findings of one file.

    Attributes:
        file: What was checked.
        verdict: The worst of the findings'.
        findings: In the order in which one would look.
    """

    file: str
    verdict: Verdict
    findings: tuple[Finding, ...]

    @classmethod
    def of(cls, file: str, findings: Iterable[Finding]) -> Check:
        """Return the check with these findings."""
        found = tuple(findings)
        order = list(Verdict)
        worst = max((finding.verdict for finding in found), key=order.index, default=Verdict.OK)
        return cls(file, worst, found)
