# SPDX-License-Identifier: Apache-2.0
"""Schedules that were measured to be faster than those that heuristics pick, for lowering to use.

Kernels of one key have the same shape and may have the same schedules. What follows in their
epilogues and where their tensors lie does not count: it changes little of what is fastest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from intarsia.codegen.kernels.families import TunableSpec, candidates, tunable_family, with_schedule
from intarsia.graph.region import Region

logger = logging.getLogger(__name__)

_BY = " by "


class ScheduleChoice(msgspec.Struct, frozen=True):
    """What was measured to be fastest: one of the algorithms of a kernel, and its schedule."""

    algorithm: str
    schedule: dict[str, Any]


class Chooser(Protocol):
    """Says how a kernel is to run."""

    def choose(
        self, first: TunableSpec, others: Callable[[], Sequence[TunableSpec]]
    ) -> TunableSpec:
        """Return a description of a kernel, with a schedule unless heuristics are to pick it.

        Args:
            first: What heuristics take.
            others: Returns what may be taken as well: other algorithms for the same result.
        """

    def gain_of_floats(self, layer: str, part: Region) -> float | None:
        """Return how many times as fast as integers float32 is for a layer between Q and DQ nodes.

        Args:
            layer: What decides how long it takes, in words.
            part: Its nodes, with those that quantise and dequantise.

        Returns:
            None if it is to be computed in integers.
        """


def none() -> Sequence[TunableSpec]:
    """Return no other algorithm."""
    return ()


@dataclass(frozen=True, slots=True)
class Schedules:
    """Choices by key; without any, heuristics pick everything."""

    choices: Mapping[str, ScheduleChoice] = field(default_factory=dict)

    def choose(
        self, first: TunableSpec, others: Callable[[], Sequence[TunableSpec]]
    ) -> TunableSpec:
        """Return a kernel with the schedule that was measured for its key, if there is one."""
        if not self.choices:
            return first
        shape = tunable_family(first).key(first)
        # Before the others are asked for: measuring the errors of Winograd's transforms takes tens
        # of milliseconds.
        if not any(key.startswith(f"{shape}{_BY}") for key in self.choices):
            return first
        specs = (first, *others())
        choice = self.choices.get(key_of(specs))
        return first if choice is None else _apply(choice, specs) or first

    def gain_of_floats(self, layer: str, part: Region) -> float | None:
        """Return what was measured, if float32 was faster."""
        choice = self.choices.get(layer)
        if choice is None or choice.algorithm != _FLOATS:
            return None
        return float(choice.schedule[_GAIN])


HEURISTICS = Schedules()

_FLOATS, _GAIN = "float32", "gain"


def in_floats(gain: float) -> ScheduleChoice:
    """Return the choice of float32 for a layer between Q and DQ nodes.

    Args:
        gain: How many times as fast as integers it was measured to be.
    """
    return ScheduleChoice(_FLOATS, {_GAIN: round(gain, 3)})


@dataclass(frozen=True, slots=True)
class OneWay:
    """Computes all layers between Q and DQ nodes in one way, so that both can be measured.

    Attributes:
        others: Chooses everything else.
        is_in_floats: Whether in float32.
    """

    others: Chooser
    is_in_floats: bool

    def choose(
        self, first: TunableSpec, others: Callable[[], Sequence[TunableSpec]]
    ) -> TunableSpec:
        """Return what is chosen otherwise."""
        return self.others.choose(first, others)

    def gain_of_floats(self, layer: str, part: Region) -> float | None:
        """Return the same for all; nothing was measured yet."""
        return 1.0 if self.is_in_floats else None


@dataclass(slots=True)
class Recorder:
    """Chooses what heuristics do, and notes what there was to choose, and how often.

    Attributes:
        known: Says which layers between Q and DQ nodes are in float32.
        specs: The kernels that do the same, the heuristic's first, by key.
        layers: A layer between Q and DQ nodes for each description.
        counts: How often each of both is there.
    """

    known: Schedules = HEURISTICS
    specs: dict[str, tuple[TunableSpec, ...]] = field(default_factory=dict)
    layers: dict[str, Region] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def choose(
        self, first: TunableSpec, others: Callable[[], Sequence[TunableSpec]]
    ) -> TunableSpec:
        """Return what heuristics take."""
        if first.is_measurable:
            specs = (first, *others())
            key = key_of(specs)
            self.specs.setdefault(key, specs)
            self.counts[key] = self.counts.get(key, 0) + 1
        return first

    def gain_of_floats(self, layer: str, part: Region) -> float | None:
        """Return what is known."""
        self.layers.setdefault(layer, part)
        self.counts[layer] = self.counts.get(layer, 0) + 1
        return self.known.gain_of_floats(layer, part)


def _apply(choice: ScheduleChoice, specs: Sequence[TunableSpec]) -> TunableSpec | None:
    """Return the kernel that was chosen; nothing if it would not be compared today."""
    for spec in specs:
        if spec.algorithm == choice.algorithm:
            for schedule in candidates(spec):
                if fields_of(schedule) == choice.schedule:
                    return with_schedule(spec, schedule)
    logger.info("a tuned schedule is not known any more: %s", choice)
    return None


def choice_of(spec: TunableSpec) -> ScheduleChoice:
    """Return what a kernel is, as a choice."""
    return ScheduleChoice(spec.algorithm, fields_of(tunable_family(spec).schedule(spec)))


def fields_of(schedule: object) -> dict[str, Any]:
    """Return a schedule as plain data."""
    data: dict[str, Any] = msgspec.to_builtins(schedule)
    return data


def key_of(specs: Sequence[TunableSpec]) -> str:
    """Return the shape of a kernel, and the algorithms there are to choose from."""
    names = sorted(spec.algorithm for spec in specs)
    return f"{tunable_family(specs[0]).key(specs[0])}{_BY}{', '.join(names)}"
