# SPDX-License-Identifier: Apache-2.0
"""How to tune, and what a tuner tells while it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from intarsia.errors import SettingError
from intarsia.place.search.problem import Objective


@dataclass(frozen=True, slots=True)
class Moment:
    """What a tuner is doing.

    Attributes:
        stage: `prepare`, `measure`, `search` or `compare`.
        what: What is being measured, in words.
        best: Name of the best plan so far; empty if there is none yet.
        best_seconds: Its time; None if there is none.
        left_seconds: Of the budget.
    """

    stage: str
    what: str
    best: str
    best_seconds: float | None
    left_seconds: float


@dataclass(frozen=True, slots=True)
class Options:
    """How to tune.

    Attributes:
        budget_seconds: Wall-clock time, compiling the finalists counted in.
        objective: What is minimised.
        feeds: An array per input, by name, to measure with; None means made-up ones.
        tell: Told what is going on.
    """

    budget_seconds: float = 120.0
    objective: Objective = "latency"
    feeds: Mapping[str, Any] | None = None
    tell: Callable[[Moment], None] | None = None


OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput")


def check_objective(text: str) -> Objective:
    """Return an objective by its name.

    A plan runs one step after another, so whatever has the least latency has the most throughput.

    Raises:
        SettingError: There is none of that name, or it is not measured.
    """
    for objective in OBJECTIVES:
        if objective == text:
            return objective
    if text == "memory":
        raise SettingError(
            "objective 'memory' cannot be tuned for yet: memory is not measured",
            hint="leave --objective out, and compare packages by size",
        )
    raise SettingError(f"objective {text!r} is unknown", hint=f"use one of {', '.join(OBJECTIVES)}")
