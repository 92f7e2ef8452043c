# SPDX-License-Identifier: Apache-2.0
"""The laboratory's questions and answers: probes and their outcomes, and races."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from intarsia.cost.key import Sample
from intarsia.errors import IntarsiaError, ReasonCode
from intarsia.place.decide import Calls
from intarsia.target.placed import MemoryDomain
from intarsia.tuning.laboratory.plug_ins import PlugIns
from intarsia.tuning.laboratory.store import StoredValue

Refused = tuple[ReasonCode, str]
"""Why a probe cannot be used: a code, and a sentence."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Something that can be timed: one call is a region; several run one after another.

    Attributes:
        calls: Positions of targets in the machine's list, and ascending node ids.
        is_part: Whether it is timed as a part of a model although it may be all of it: without
            copies of the model's inputs and outputs.
        steps: Ids of nodes that the plan runs itself; such a plan is timed as a package only.
    """

    calls: Calls
    is_part: bool = False
    steps: tuple[int, ...] = ()

    @classmethod
    def region(cls, position: int, nodes: Iterable[int]) -> Probe:
        """Return the probe of one region on one target."""
        return cls(((position, tuple(sorted(nodes))),))


class OutOfTimeError(IntarsiaError):
    """What was going on was stopped, because the time for it is over. No backend is to blame."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """What became of preparing a probe.

    Attributes:
        refusal: Why it cannot be used, or None.
        run_seconds: The first run.
        nbytes: By how much the worker grew.
        error: The largest error, as a part of what is tolerated.
        has_clock: Whether its devices' own clocks time it.
    """

    refusal: Refused | None = None
    run_seconds: float = 0.0
    nbytes: int = 0
    error: float = 0.0
    has_clock: bool = False


@dataclass(frozen=True, slots=True)
class Race:
    """What some rounds gave.

    Attributes:
        seconds: By probe and round; NaN where it has none.
        anchor: Name of what was timed beside them.
        anchor_seconds: Its seconds by round.
        taken_at: When each round began, in seconds since 1970-01-01 UTC.
        refusals: Why probes left.
        clocked: Probes that their devices' own clocks timed: no anchor says more than these.
    """

    seconds: Mapping[Probe, tuple[float, ...]]
    anchor: str
    anchor_seconds: tuple[float, ...]
    taken_at: tuple[float, ...]
    refusals: Mapping[Probe, Refused] = field(default_factory=dict)
    clocked: frozenset[Probe] = frozenset()

    def samples(self, probe: Probe, session: str = "") -> tuple[Sample, ...]:
        """Return the samples of a probe, for the cost database.

        Args:
            probe: One that took part.
            session: The name of the tuner's run.
        """
        return self.as_samples(self.seconds.get(probe, ()), (probe,), session)

    def as_samples(
        self, seconds: Sequence[float], probes: Iterable[Probe], session: str = ""
    ) -> tuple[Sample, ...]:
        """Return seconds by round as samples.

        Args:
            seconds: NaN where there are none.
            probes: Those that they come from.
            session: The name of the tuner's run.
        """
        is_exact = self.clocked.issuperset(probes)
        anchor = "" if is_exact else self.anchor
        rows = zip(seconds, self.anchor_seconds, self.taken_at, strict=False)
        return tuple(
            Sample(one, beside if anchor and math.isfinite(beside) else 0.0, anchor, when, session)
            for one, beside, when in rows
            if math.isfinite(one)
        )


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """What the run that keeps every value of a model gave.

    Attributes:
        stored: Where the values are.
        texts: The elements of inputs of text, by name; files hold none.
    """

    stored: tuple[StoredValue, ...]
    texts: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a worker needs to know.

    Attributes:
        folder: Where the model and the reference run's values are.
        config: The machine, as `CompilationConfig.to_json` gives it.
        num_threads: Threads that one run may use.
        is_shared: Whether parts of a model are to run as among several runtimes.
        reference: What the reference run gave.
        plug_ins: Backends that are not installed.
        hosts: What runs nodes that no target of the machine takes, as `PlacedTarget.to_json`
            gives it; by position they come after its targets.
        borders: By name, the memory of inputs and outputs that are not the host's.
    """

    folder: str
    config: dict[str, Any]
    num_threads: int
    is_shared: bool
    reference: ReferenceRun
    plug_ins: PlugIns = field(default_factory=PlugIns)
    hosts: list[dict[str, Any]] = field(default_factory=list)
    borders: dict[str, MemoryDomain] = field(default_factory=dict)
