# SPDX-License-Identifier: Apache-2.0
"""The time budget: how much each stage may spend, and how much is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        end: The part of the budget that what is going on may use up.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    spent: dict[str, float] = field(default_factory=dict)
    end: float = 1.0
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

    def allowance(self) -> float:
        """Return the seconds that are left to what is going on; at least 0."""
        return self.left(self.end)

    def share(self, until: float, waiting: int) -> float:
        """Return the part of the budget at which to give up on one thing of several.

        Half of what is left is for those that wait: one that takes forever leaves them time.

        Args:
            until: Part of the budget at which all of them are to be done.
            waiting: How many come after it.
        """
        if not waiting or self.seconds <= 0:
            return until
        return (self.elapsed + self.left(until) / 2) / self.seconds

    @contextmanager
    def charge(self, what: str, until: float = 1.0) -> Iterator[None]:
        """Charge the time of a `with` block to something.

        Args:
            what: On what it is spent.
            until: The part of the budget that it may use up.
        """
        start, end_before = self.clock(), self.end
        self.end = until
        try:
            yield
        finally:
            self.end = end_before
            self.spent[what] = self.spent.get(what, 0.0) + self.clock() - start
