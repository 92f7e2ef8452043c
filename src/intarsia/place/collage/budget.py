# SPDX-License-Identifier: Apache-2.0
"""Time that is handed out: what may be spent on what, and what is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

HEATS_END = 0.35
"""Part of the budget after which the single-backend plans have been raced a first time."""

REGIONS_END = 0.6
"""Part of the budget after which no new region is measured: the rest is for whole plans."""

CHOOSING_END = 0.8
"""Part after which the finalists have been raced, and the winner is confirmed."""


@dataclass(slots=True)
class Budget:
    """A number of seconds.

    Attributes:
        seconds: In all.
        clock: Tells the time.
        spent: Seconds by what they were spent on, in the order in which that began.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    spent: dict[str, float] = field(default_factory=dict)
    _start: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._start = self.clock()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.clock() - self._start

    def left(self, until: float = 1.0) -> float:
        """Return the seconds until some part of the budget is spent; at least 0."""
        return max(0.0, until * self.seconds - self.elapsed)

    def charge(self, what: str) -> _Charge:
        """Return a context in which time is charged to something."""
        return _Charge(self, what)


@dataclass(slots=True)
class _Charge:
    budget: Budget
    what: str
    start: float = 0.0

    def __enter__(self) -> None:
        self.start = self.budget.clock()

    def __exit__(self, *_: object) -> None:
        spent = self.budget.spent
        spent[self.what] = spent.get(self.what, 0.0) + self.budget.clock() - self.start
