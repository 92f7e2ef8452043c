# SPDX-License-Identifier: Apache-2.0
"""What the prospector needs of who measures, and of who remembers: time, or memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from intarsia.cost.cost import Cost
    from intarsia.cost.key import CostKey, JunctionKey
    from intarsia.cost.records import Poison
    from intarsia.place.decide import Calls
    from intarsia.tuning.costing.cost_table import KeyMaker
    from intarsia.tuning.costing.transitions import Junction
    from intarsia.tuning.laboratory.laboratory import Laboratory


class Book(Protocol):
    """What is known of costs, and what failed."""

    @property
    def keys(self) -> KeyMaker:
        """What costs are filed under."""

    def ask(self, keys: Iterable[CostKey]) -> None:
        """Look up, all at once, what was not asked for before."""

    def cost(self, key: CostKey) -> Cost | None:
        """Return what is known of a key's cost."""

    def poison(self, key: CostKey) -> Poison | None:
        """Return why a key must not be tried again, if it failed."""

    def junctions(self, keys: Iterable[JunctionKey]) -> Mapping[JunctionKey, float]:
        """Return what is known of borders."""

    def add_junction(self, key: JunctionKey, junction: Junction) -> None:
        """Record a measurement of a border."""


class Meter(Protocol):
    """Prepares calls and measures them."""

    @property
    def lab(self) -> Laboratory:
        """Where probes are compiled."""

    @property
    def book(self) -> Book:
        """Where what is measured is entered."""

    @property
    def banned(self) -> set[int]:
        """Positions of targets that are not tried any more."""

    @property
    def late(self) -> dict[Calls, str]:
        """What there was no time to compile, and how far it had come."""

    def prepare(self, every: Sequence[Calls]) -> list[Calls]:
        """Compile and check calls; return those that can be run."""

    def race(self, every: Sequence[Calls], rounds: int) -> object:
        """Measure calls against each other."""

    def drop(self, every: Sequence[Calls]) -> None:
        """Forget what is compiled of calls."""
