# SPDX-License-Identifier: Apache-2.0
"""What a race has given so far: samples by probe and round, and who left and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.tuning.laboratory.values import Probe, Race, Refused


class RaceRecord:
    """The rounds of one race, as they come in.

    Args:
        probes: Those that are raced; without the anchor.
        anchor: What is timed beside them; None means the fixed kernel.
        anchor_name: Its name.

    Attributes:
        field: All that are timed, each once: the probes and, if it is a probe, the anchor.
        refusals: Why probes left.
        done: How many rounds there are.
    """

    def __init__(self, probes: Sequence[Probe], anchor: Probe | None, anchor_name: str) -> None:
        self.field = tuple(dict.fromkeys((*probes, *([anchor] if anchor is not None else []))))
        self.refusals: dict[Probe, Refused] = {}
        self.done = 0
        self._probes, self._anchor, self._anchor_name = tuple(probes), anchor, anchor_name
        self._seconds: dict[Probe | None, list[float]] = {key: [] for key in (*self.field, None)}
        self._taken_at: list[float] = []

    def add(self, live: Sequence[Probe], rounds: Mapping[str, Any], count: int) -> None:
        """Add rounds.

        Args:
            live: Those that ran, in the order of the rows; the fixed kernel after them, if it ran.
            rounds: What `probe.race` returned.
            count: How many rounds these are.
        """
        for probe, row in zip((*live, None), rounds["seconds"], strict=False):
            self._seconds[probe] += row
        self._taken_at += rounds["taken_at"]
        self.done += count
        self.fill(self.done)

    def fill(self, length: int) -> None:
        """Let who has fewer rounds have no samples in the others."""
        for row in self._seconds.values():
            row.extend([math.nan] * (length - len(row)))

    def result(self, clocked: frozenset[Probe], start: int = 0) -> Race:
        """Return the rounds from one on.

        Args:
            clocked: Probes that their devices' own clocks time.
            start: How many rounds to leave out.
        """
        return Race(
            seconds={probe: tuple(self._seconds[probe][start:]) for probe in self._probes},
            anchor=self._anchor_name,
            anchor_seconds=tuple(self._seconds[self._anchor][start:]),
            taken_at=tuple(self._taken_at[start:]),
            refusals=dict(self.refusals),
            clocked=clocked,
        )
