# SPDX-License-Identifier: Apache-2.0
"""Plans of a model with free dimensions: which one holds for which sizes, as was measured.

Each plan was measured at some sizes. Where one dimension differs between these, it holds for an
interval, and two neighbours meet where measuring both says that the other one becomes faster. Where
several differ, the nearest sizes that were measured decide.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from intarsia.cost.records import Assigned
from intarsia.decoding import decode_json
from intarsia.graph.free_sizes import sizes_text
from intarsia.plan.tuning import time_text

Regions = tuple[Assigned, ...]
"""A plan by names: in the order in which they run, the nodes of each region and its target."""


@dataclass(frozen=True, slots=True)
class MeasuredSizes:
    """What was measured at some sizes.

    Attributes:
        sizes: By free dimension.
        plan: Position of the plan that won.
        winner: Its name: `openvino alone`, `mix 1`.
        seconds: Of one run; None if it was not measured.
        single: Name of the best plan with one backend.
        single_seconds: Of one run of that.
        generic_ratio: What the program for all sizes takes over what this plan takes; None if that
            was not measured, or there is none.
        is_proven: Whether the plan was accepted: nothing was left out for lack of time.
    """

    sizes: dict[str, int]
    plan: int
    winner: str
    seconds: float | None = None
    single: str = ""
    single_seconds: float | None = None
    generic_ratio: float | None = None
    is_proven: bool = True

    @property
    def needs_own(self) -> bool:
        """Whether a program of its own is faster at these sizes than the one for all."""
        return self.generic_ratio is None or self.generic_ratio > EQUAL


EQUAL = 1.02
"""A program for all sizes that takes no longer than this over one of its own is as fast."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where the plan of larger sizes takes over from that of smaller ones.

    Attributes:
        size: The first size of the second plan.
        below: The largest size at which the first one was measured to be faster.
        above: The smallest size at which the second one was.
        measured: Sizes at which both ran, in the order in which they did.
        tie: The size at which neither was faster; None if there was none.
        is_settled: Whether it is known as closely as it is looked for; else time was short, or it
            was not looked for.
    """

    size: int
    below: int
    above: int
    measured: tuple[int, ...] = ()
    tie: int | None = None
    is_settled: bool = True

    def __str__(self) -> str:
        if not self.measured:
            return f"not measured: the middle of {self.below} and {self.above}"
        text = f"measured at {', '.join(map(str, sorted(self.measured)))}: "
        if self.tie is not None:
            text += f"equal at {self.tie}"
        else:
            text += f"between {self.below} and {self.above}"
        return text if self.is_settled else f"{text}, then time was up"


@dataclass(frozen=True, slots=True)
class SizeInterval:
    """The sizes for which a plan holds.

    Attributes:
        plan: Its position.
        low: The smallest; None if there is no limit.
        high: The largest; None if there is no limit.
        points: Positions of what was measured there.
        switch: What says where it begins; None for the first.
    """

    plan: int
    low: int | None
    high: int | None
    points: tuple[int, ...]
    switch: Crossover | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which plan is for some sizes.

    Attributes:
        point: Position of the measured sizes that it comes from.
        regions: The plan.
        is_measured: Whether these are the sizes.
        why: One line.
    """

    point: int
    regions: Regions
    is_measured: bool
    why: str


@dataclass(frozen=True, slots=True)
class PlansBySizes:
    """Which plan is for which sizes.

    Attributes:
        dimension: The one that differs between the measured sizes; empty if several do, or none.
        plans: Each once.
        points: What was measured; in the order of `dimension` if there is one.
        switches: Between points that follow one another, where their plans differ; None elsewhere.
        objective: What was minimised.
        notes: What else the user should know.
        chosen: How the sizes were chosen, where they come from requests; empty if they were given.
    """

    dimension: str
    plans: tuple[Regions, ...]
    points: tuple[MeasuredSizes, ...]
    switches: tuple[Crossover | None, ...] = ()
    objective: str = "latency"
    notes: tuple[str, ...] = ()
    chosen: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to measure."""
        return all(point.is_proven for point in self.points) and all(
            switch is None or switch.is_settled for switch in self.switches
        )

    def has_sizes(self, wanted: Sequence[Mapping[str, int]]) -> bool:
        """Tell whether these sizes were measured, and no others."""
        measured = {tuple(sorted(point.sizes.items())) for point in self.points}
        return measured == {tuple(sorted(sizes.items())) for sizes in wanted}

    @property
    def intervals(self) -> tuple[SizeInterval, ...]:
        """Which plan is for which sizes of the one dimension; nothing if there is none."""
        if not self.dimension:
            return ()
        intervals: list[SizeInterval] = []
        low, begin, start = None, None, 0
        for last, switch in enumerate((*self.switches, None)):
            is_end = last == len(self.points) - 1
            if switch is None and not is_end:
                continue
            high = None if switch is None else switch.size - 1
            points = tuple(range(start, last + 1))
            intervals.append(SizeInterval(self.points[start].plan, low, high, points, begin))
            if switch is not None:
                low, begin, start = switch.size, switch, last + 1
        return tuple(intervals)

    def choose(self, sizes: Mapping[str, int]) -> Choice:
        """Return the plan for some sizes.

        Args:
            sizes: Of every free dimension, by name.
        """
        for position, point in enumerate(self.points):
            if point.sizes == dict(sizes):
                why = f"measured at {sizes_text(point.sizes)}"
                return self._choice(position, why, is_measured=True)
        if not self.dimension:
            position = self._nearest(sizes, range(len(self.points)))
            if len(self.points) == 1:
                why = f"measured at {sizes_text(self.points[0].sizes)} alone"
            else:
                why = f"measured at {sizes_text(self.points[position].sizes)}, the nearest sizes"
            return self._choice(position, why)
        size = sizes[self.dimension]
        interval = next(each for each in self.intervals if each.high is None or size <= each.high)
        position = self._nearest(sizes, interval.points)
        where = f"{self.dimension} {interval_text(interval)}"
        measured = f"{self.dimension}={self.points[position].sizes[self.dimension]}"
        return self._choice(position, f"measured at {measured}, holds for {where}")

    def _nearest(self, sizes: Mapping[str, int], points: Sequence[int]) -> int:
        """Return the position of the measured sizes that are nearest, by logarithms."""

        def distance(position: int) -> float:
            measured = self.points[position].sizes
            logs = (
                math.log(max(1, size) / max(1, sizes.get(name, size)))
                for name, size in measured.items()
            )
            return sum(log * log for log in logs)

        return min(points, key=distance)

    def _choice(self, position: int, why: str, *, is_measured: bool = False) -> Choice:
        point = self.points[position]
        return Choice(position, self.plans[point.plan], is_measured, f"{point.winner}: {why}")

    @property
    def lines(self) -> tuple[str, ...]:
        """Which plan is for which sizes, a line each."""
        if not self.dimension:
            lines = [_point_line(point) for point in self.points]
            if len(lines) > 1:
                lines.append("other sizes have the plan of the nearest of these, by logarithms")
            return tuple(lines)
        lines = []
        for interval in self.intervals:
            where = f"{self.dimension} {interval_text(interval)}"
            names = dict.fromkeys(self.points[position].winner for position in interval.points)
            at = ", ".join(
                f"{self.points[position].sizes[self.dimension]} "
                f"({time_text(self.points[position].seconds)})"
                for position in interval.points
            )
            begin = "" if interval.switch is None else f"; begins there as {interval.switch}"
            lines.append(f"{where}: {' or '.join(names)}, measured at {at}{begin}")
        return tuple(lines)

    @property
    def decisions(self) -> tuple[str, ...]:
        """What runs where at which sizes, a line each, without times."""
        if not self.dimension:
            return tuple(
                f"{sizes_text(point.sizes)}: {places_text(self.plans[point.plan])}"
                for point in self.points
            )
        return tuple(
            f"{self.dimension} {interval_text(each)}: {places_text(self.plans[each.plan])}"
            for each in self.intervals
        )

    def __str__(self) -> str:
        title = f"plans by sizes ({self.objective})"
        parts = [title, *([f"  {self.chosen}"] if self.chosen else [])]
        return "\n".join((*parts, *(f"  {line}" for line in (*self.lines, *self.notes))))


def places_text(regions: Regions) -> str:
    """Return how many nodes each target has: `llvm: 40, onnxruntime: 3`."""
    counts: Counter[str] = Counter()
    for region in regions:
        counts[region.target] += len(region.nodes)
    return ", ".join(f"{target}: {count}" for target, count in counts.items())


def interval_text(interval: SizeInterval) -> str:
    """Return the sizes of an interval: `up to 60`, `61 to 200`, `from 201`."""
    if interval.low is None and interval.high is None:
        return "of any size"
    if interval.low is None:
        return f"up to {interval.high}"
    return f"from {interval.low}" if interval.high is None else f"{interval.low} to {interval.high}"


def _point_line(point: MeasuredSizes) -> str:
    return f"{sizes_text(point.sizes)}: {point.winner}, {time_text(point.seconds)}"


def to_json(plans: PlansBySizes) -> str:
    """Return plans as JSON text."""
    return msgspec.json.encode(plans).decode()


def from_json(text: str) -> PlansBySizes | None:
    """Return the plans of a JSON text; nothing if it is of another version, or inconsistent."""
    try:
        plans = decode_json(text, PlansBySizes)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return plans if is_consistent(plans) else None


def is_consistent(plans: PlansBySizes) -> bool:
    """Tell whether every position is that of something, and sizes are in order."""
    points = plans.points
    if not points or not all(0 <= point.plan < len(plans.plans) for point in points):
        return False
    if len({frozenset(point.sizes) for point in points}) > 1:
        return False
    if not plans.dimension:
        return True
    if len(plans.switches) != len(points) - 1 or plans.dimension not in points[0].sizes:
        return False
    sizes = [point.sizes[plans.dimension] for point in points]
    ends = zip(sizes, sizes[1:], plans.switches, strict=False)
    return all(
        low < high and (switch is None or low < switch.size <= high) for low, high, switch in ends
    )
