# SPDX-License-Identifier: Apache-2.0
"""How to tune, and what a tuner tells while it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from intarsia.errors import SettingError
from intarsia.tuning.objectives.latency import LATENCY

if TYPE_CHECKING:
    from intarsia.tuning.objectives.objective import Objective


@dataclass(frozen=True, slots=True)
class TuningStatus:
    """What a tuner is doing.

    Attributes:
        stage: `prepare`, `measure`, `search` or `compare`.
        what: What is being measured, in words.
        best: Name of the best plan so far; empty if there is none yet.
        best_seconds: Its time; None if there is none.
        left_seconds: Of the budget.
        sizes: Of free dimensions, for which it is measured; empty if there are none.
    """

    stage: str
    what: str
    best: str
    best_seconds: float | None
    left_seconds: float
    sizes: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """How to tune.

    Attributes:
        budget_seconds: Wall-clock time, compiling the finalists counted in.
        objective: What the plan is to be best at.
        feeds: An array per input, by name, to measure with; None means made-up ones.
        tell: Told what is going on.
        chosen: How sizes of free dimensions were chosen, where they come from requests.

    Raises:
        SettingError: The budget is not a number.
    """

    budget_seconds: float = 120.0
    objective: Objective = LATENCY
    feeds: Mapping[str, Any] | None = None
    tell: Callable[[TuningStatus], None] | None = None
    chosen: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.budget_seconds, Real):
            raise SettingError(
                f"budget {self.budget_seconds!r} is not a number of seconds",
                hint="write for example budget=120",
            )
