# SPDX-License-Identifier: Apache-2.0
"""How to tune, and what a tuner tells while it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from intarsia.errors import SettingError
from intarsia.settings import Settings, thread_count

Objective: TypeAlias = Literal["latency", "memory", "throughput"]
"""What a plan is best at."""

SLOWDOWN = 2.0
"""A plan for memory may take so many times as long as the fastest one, unless the user says."""


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
        objective: `latency` of one run; `throughput` of as many processes as there are CPUs for
            their threads; `memory` that a process needs to load and run the plan.
        feeds: An array per input, by name, to measure with; None means made-up ones.
        tell: Told what is going on.
        slowdown: For `memory`: a plan may take so many times as long as the fastest one that was
            measured; None means as long as it likes.
    """

    budget_seconds: float = 120.0
    objective: Objective = "latency"
    feeds: Mapping[str, Any] | None = None
    tell: Callable[[Moment], None] | None = None
    slowdown: float | None = SLOWDOWN

    @property
    def aim(self) -> str:
        """What an accepted plan is filed under: the objective, with its limit if it has one."""
        if self.objective != "memory" or self.slowdown is None:
            return self.objective
        return f"{self.objective} {self.slowdown:.6g}x"


OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def check_objective(text: str) -> Objective:
    """Return an objective by its name.

    Raises:
        SettingError: There is none of that name.
    """
    for objective in OBJECTIVES:
        if objective == text:
            return objective
    raise SettingError(f"objective {text!r} is unknown", hint=f"use one of {', '.join(OBJECTIVES)}")


def check_slowdown(slowdown: float | str | None, objective: Objective) -> float | None:
    """Return by what factor a plan may be slower than the fastest one; None means by any.

    Args:
        slowdown: A factor of at least 1, as a number or as text, or `none`.
        objective: What is minimised.

    Raises:
        SettingError: It is no such factor, or the objective is one of speed.
    """
    text = str(slowdown).strip().lower()
    factor: float | None
    try:
        factor = None if text in ("none", "inf") else float(text)
    except ValueError:
        factor = math.nan
    if factor is not None and not (factor >= 1 and math.isfinite(factor)):
        raise SettingError(
            f"slowdown {text!r} is no factor of at least 1",
            hint="write for example 1.5, or none for a plan as slow as it likes",
        )
    if objective != "memory" and factor != SLOWDOWN:
        raise SettingError(
            f"a slowdown says nothing about {objective}: the fastest plan is looked for anyway",
            hint="leave it out, or add --objective memory",
        )
    return factor


def threads_for(objective: Objective, num_threads: int | None) -> int:
    """Return the threads of one run; for throughput one, unless the user says something else.

    Args:
        objective: What is minimised.
        num_threads: What was asked for; None means what the settings say.

    Raises:
        SettingError: It is below 1.
    """
    if num_threads is None and objective == "throughput":
        num_threads = Settings.from_environment().num_threads or 1
    return thread_count(num_threads)
