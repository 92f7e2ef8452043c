# SPDX-License-Identifier: Apache-2.0
"""What running one region right after another costs, where two runtimes meet.

Both regions are timed alone, and one after the other, in the same rounds: the difference is what
caches, copies and the threads of the one do to the other. It is measured only where a plan's fate
depends on it; else it is taken to be what is known of the same two targets, or nothing.

A gain is shown, but not counted: plans have been slower than the sum of their regions, not faster.
It counts where tensors cross in a shared blocked layout: alone, both regions were timed with the
conversions that they save there, and it counts up to what these can cost.

Copies by size and calls of nothing are measured too: they are the floor of what a boundary costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from intarsia.cost.key import Sample
from intarsia.cost.transition import PROBE_BYTES, TransitionTable
from intarsia.measure.racing import LOOKS
from intarsia.plan.tuning import BoundaryReport
from intarsia.tuning.laboratory.laboratory import Laboratory
from intarsia.tuning.laboratory.values import Probe, Race

if TYPE_CHECKING:
    from intarsia.cost.key import BoundaryKey
    from intarsia.place.schedule import Layouts
    from intarsia.tuning.costing.cost_table import CostTable
    from intarsia.tuning.costing.model import Units


_BORDERS = "intarsia.tuning.laboratory.border_probe"
ROUNDS = LOOKS[1]


def measure_copies(
    laboratory: Laboratory, *, sizes: Sequence[int] = PROBE_BYTES, rounds: int = ROUNDS
) -> dict[tuple[str, str], TransitionTable]:
    """Return the cost of copies by size, for every ordered pair of memory domains.

    Args:
        laboratory: Of the machine.
        sizes: In bytes.
        rounds: Samples of each.

    Raises:
        BackendError: A device could not be opened or copied to.
    """
    rows = laboratory.ask(f"{_BORDERS}:time_copies", list(sizes), rounds, laboratory.seed)
    probes: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for source, destination, nbytes, seconds in rows:
        samples = [(nbytes, one) for one in seconds if one > 0]
        probes.setdefault((source, destination), []).extend(samples)
    return {
        pair: TransitionTable.from_probes(samples) for pair, samples in probes.items() if samples
    }


def measure_calls(laboratory: Laboratory, *, rounds: int = 2 * ROUNDS) -> dict[int, float]:
    """Return the seconds of a call that computes next to nothing, by position of the target.

    Args:
        laboratory: Of the machine.
        rounds: Samples of each.

    Raises:
        BackendError: The worker failed.
    """
    rows = laboratory.ask(f"{_BORDERS}:time_calls", rounds, laboratory.seed)
    calls = {}
    for position, row in enumerate(rows):
        samples = [one for one in row if math.isfinite(one)]
        if samples:
            calls[position] = median(samples)
    return calls


@dataclass(frozen=True, slots=True)
class MeasuredBoundary:
    """The boundary between two regions that run one after another, round by round.

    Attributes:
        before: The first region.
        after: The second.
        change_seconds: What running one right after the other adds to their own times: caches,
            copies, and what the threads of the one do to the other. It may be negative.
        race: All samples.
    """

    before: Probe
    after: Probe
    change_seconds: tuple[float, ...]
    race: Race

    @property
    def seconds(self) -> float:
        """The median of what the boundary costs."""
        finite = [one for one in self.change_seconds if math.isfinite(one)]
        return median(finite) if finite else math.nan

    def samples(self, session: str = "") -> tuple[Sample, ...]:
        """Return the samples for the cost database."""
        return self.race.as_samples(self.change_seconds, (self.before, self.after), session)


def measure_boundary(
    laboratory: Laboratory, before: Probe, after: Probe, *, rounds: int = ROUNDS
) -> MeasuredBoundary:
    """Measure a boundary in place: both regions, and both in sequence, in the same rounds.

    Args:
        laboratory: Of the model.
        before: A region.
        after: Another one, which may run right after it.
        rounds: Samples of each.

    Raises:
        BackendError: The worker failed.
    """
    field = (before, after, in_sequence(before, after))
    race = laboratory.race(field, rounds=rounds)
    rows = zip(*(race.seconds[probe] for probe in field), strict=True)
    change = tuple(both - (one + other) for one, other, both in rows)
    return MeasuredBoundary(before, after, change, race)


def in_sequence(before: Probe, after: Probe) -> Probe:
    """Return two regions one after another; even all of a model counts as a part, as they do."""
    return Probe((*before.calls, *after.calls), is_part=True)


Side = tuple[int, tuple[int, ...]]
"""The position of a target, and ascending units."""

Pair = tuple[Side, Side]
"""Two calls, of which the second runs right after the first."""

RANGE = 0.05
"""What was not measured may cost this part of what its two regions take, and a call.

BERT-base in 26 regions once was 8 % slower than the sum of these."""

MOST_CONVERSION_BYTE_SECONDS = 1e-9
"""Most seconds per byte of a conversion between layouts: one gigabyte per second."""


@dataclass(slots=True)
class Boundaries:
    """What is known of boundaries between calls on different targets.

    Attributes:
        table: Where what was measured is kept.
        nodes_of: The nodes of some units.
        copied: Seconds of the copies between two calls, which plans are charged for already.
        found: What was measured or looked up, in the order in which it was asked for.
    """

    table: CostTable
    nodes_of: Callable[[Units], tuple[int, ...]]
    copied: Callable[[Pair], float]
    found: dict[BoundaryKey, BoundaryReport] = field(default_factory=dict)
    _known: dict[BoundaryKey, float] = field(default_factory=dict)
    _failed: set[BoundaryKey] = field(default_factory=set)
    _blocked: set[BoundaryKey] = field(default_factory=set)
    _pairs: dict[BoundaryKey, Pair] = field(default_factory=dict)
    _crossing: dict[Pair, int] = field(default_factory=dict)

    def pairs_of(self, plan: Sequence[Side]) -> list[Pair]:
        """Return the boundaries of a plan between different targets, each shape once."""
        pairs: dict[BoundaryKey, Pair] = {}
        for pair in _meetings(plan):
            pairs.setdefault(self.key_of(pair), pair)
        return list(pairs.values())

    def key_of(self, pair: Pair) -> BoundaryKey:
        """Return what a boundary is filed under."""
        (one, before), (other, after) = pair
        return self.table.keys.boundary_key(
            (one, self.nodes_of(before)), (other, self.nodes_of(after))
        )

    def look_up(self, pairs: Sequence[Pair]) -> None:
        """Ask the database for boundaries that were measured before."""
        new = {self.key_of(pair): pair for pair in pairs}
        new = {key: pair for key, pair in new.items() if key not in self._known}
        for key, seconds in self.table.boundaries(new).items():
            self._enter(key, new[key], seconds, is_known=True)

    def seconds(self, pair: Pair) -> float:
        """Return what a boundary costs beyond its copies: as measured, or as is assumed."""
        measured = self._known.get(self.key_of(pair))
        return self._assumed(pair) if measured is None else measured

    def of_plan(self, plan: Sequence[Side]) -> float:
        """Return what all boundaries of a plan cost beyond its copies."""
        return sum(map(self.seconds, _meetings(plan)))

    def call_penalty(self, position: int) -> float:
        """Return what calls on a target cost more for running after others, at least 0."""
        every = [
            self._known[key]
            for key, pair in self._pairs.items()
            if pair[1][0] == position and key not in self._blocked
        ]
        return max(0.0, median(every)) if every else 0.0

    def wanted(
        self, plan: Sequence[Side], gap: float, seconds: Callable[[Side], float], call: float
    ) -> list[Pair]:
        """Return boundaries that decide whether a plan is worth running, the largest range first.

        Of each pair of targets one: what it costs says what others may cost.

        Args:
            plan: Its calls, in the order in which they run.
            gap: By how many seconds it seems to win or lose.
            seconds: Of a call.
            call: Seconds of the overhead of a call.
        """
        counts: dict[BoundaryKey, int] = {}
        for pair in _meetings(plan):
            counts[self.key_of(pair)] = counts.get(self.key_of(pair), 0) + 1
        ranges: list[tuple[float, Pair]] = []
        for pair in self.pairs_of(plan):
            key = self.key_of(pair)
            if key in self._known or key in self._failed:
                continue
            width = call + RANGE * sum(map(seconds, pair)) + self.most_saved(pair)
            similar = self._similar(pair)
            if similar:
                width = max(abs(one - median(similar)) for one in (*similar, 0.0)) / 2
            ranges.append((width * counts[key], pair))
        ranges.sort(key=lambda item: (-item[0], item[1]))
        if sum(width for width, _ in ranges) <= abs(gap):
            return []
        first: dict[tuple[int, int], Pair] = {}
        for _, pair in ranges:
            first.setdefault((pair[0][0], pair[1][0]), pair)
        return list(first.values())

    def enter(self, pair: Pair, boundary: MeasuredBoundary) -> None:
        """Record what was measured of a boundary; a failure is not tried again in this run."""
        key = self.key_of(pair)
        if not math.isfinite(boundary.seconds):
            self._failed.add(key)
            return
        self.table.add_boundary(key, boundary)
        rounds = sum(map(math.isfinite, boundary.change_seconds))
        self._enter(key, pair, boundary.seconds, is_known=False, rounds=rounds)

    def _enter(
        self, key: BoundaryKey, pair: Pair, seconds: float, *, is_known: bool, rounds: int = 0
    ) -> None:
        assumed, copied = self._assumed(pair), self.copied(pair)
        self._known[key] = max(-self.most_saved(pair), seconds - copied)
        self._pairs[key] = pair
        layouts = self._layouts(pair)
        if layouts:
            self._blocked.add(key)
        graph, targets = self.table.keys.setting.graph, self.table.keys.setting.targets
        names = [[graph.nodes[n].name for n in self.nodes_of(units)] for _, units in pair]
        self.found[key] = BoundaryReport(
            str(targets[pair[0][0]]),
            str(targets[pair[1][0]]),
            names[0][-1],
            names[1][0],
            assumed + copied,
            seconds,
            rounds,
            is_known,
            " ".join(sorted(set(layouts.values()))),
        )

    def _alike(self, pair: Pair) -> list[BoundaryKey]:
        """Return costs of other boundaries between the same targets, equally blocked or plain."""
        ends, is_blocked = (pair[0][0], pair[1][0]), bool(self._layouts(pair))
        return [
            key
            for key, (one, other) in self._pairs.items()
            if (one[0], other[0]) == ends and (key in self._blocked) == is_blocked
        ]

    def _similar(self, pair: Pair) -> list[float]:
        return [self._known[key] for key in self._alike(pair)]

    def _assumed(self, pair: Pair) -> float:
        similar = self._similar(pair)
        typical = median(similar) if similar else 0.0
        if typical < 0:  # what is saved goes by bytes
            alike = self._alike(pair)
            part = median(self._known[key] / self.most_saved(self._pairs[key]) for key in alike)
            return part * self.most_saved(pair)
        return typical

    def most_saved(self, pair: Pair) -> float:
        """Return what the conversions can cost that a boundary saves; 0 where all is plain."""
        return 2 * self.blocked_bytes(pair) * MOST_CONVERSION_BYTE_SECONDS

    def blocked_bytes(self, pair: Pair) -> int:
        """Return the bytes that cross a boundary in blocks of channels."""
        if pair not in self._crossing:
            values = self.table.keys.setting.graph.values
            self._crossing[pair] = sum(values[value].nbytes for value in self._layouts(pair))
        return self._crossing[pair]

    def saved_share(self, hoped: Callable[[Pair], float]) -> float:
        """Return which part of what was hoped for boundaries in blocks save; 1 until one is known.

        Args:
            hoped: Seconds that conversions at a boundary are taken to cost.
        """
        parts = []
        for key in self._blocked:
            expected = hoped(self._pairs[key])
            if expected > 0:
                parts.append(min(1.0, max(0.0, -self._known[key] / expected)))
        return median(parts) if parts else 1.0

    def _layouts(self, pair: Pair) -> Layouts:
        """Return how tensors lie that cross a boundary, where that is not plain."""
        (one, before), (other, after) = pair
        return self.table.keys.layouts_between(
            (one, self.nodes_of(before)), (other, self.nodes_of(after))
        )


def _meetings(plan: Sequence[Side]) -> list[Pair]:
    """Return neighbours in time on different targets."""
    return [(one, other) for one, other in pairwise(plan) if one[0] != other[0]]
