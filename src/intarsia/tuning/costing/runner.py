# SPDX-License-Identifier: Apache-2.0
"""Prepares and times probes in the laboratory, and enters what comes out into the cost table."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from intarsia.cost.key import session_host
from intarsia.errors import ReasonCode
from intarsia.plan.tuning import Failure, name_some
from intarsia.tuning.laboratory.values import OutOfTimeError, Probe

if TYPE_CHECKING:
    from intarsia.cost.key import CostKey, Sample
    from intarsia.place.decide import Calls
    from intarsia.tuning.costing.cost_table import CostTable
    from intarsia.tuning.laboratory.laboratory import Laboratory
    from intarsia.tuning.laboratory.values import Race


logger = logging.getLogger(__name__)

MOST_CRASHES = 3
"""After so many crashes and hangs, and nothing that worked, a target is not tried any more."""

_FATAL = (str(ReasonCode.CRASHED), str(ReasonCode.TIMEOUT))


@dataclass(slots=True)
class ProbeRunner:
    """What was prepared and what failed in one run of the tuner.

    Attributes:
        lab: Where probes are compiled and timed.
        table: Where costs and failures are entered.
        failures: What was excluded, by key.
        banned: Positions of targets that are not tried any more.
        late: What there was no time to compile, and how far it had come.
    """

    lab: Laboratory
    table: CostTable
    failures: dict[CostKey, Failure] = field(default_factory=dict)
    banned: set[int] = field(default_factory=set)
    late: dict[Calls, str] = field(default_factory=dict)
    _worked: set[int] = field(default_factory=set)
    _crashes: dict[int, int] = field(default_factory=dict)
    _first_seconds: dict[Calls, float] = field(default_factory=dict)
    _ready: set[Probe] = field(default_factory=set)

    def key(self, calls: Calls) -> CostKey:
        """Return what calls are filed under; a part of the model runs as in a mixed plan."""
        return self.table.keys.key(calls)

    def prepare(self, every: Sequence[Calls]) -> list[Calls]:
        """Compile and check calls; return those that can be run. What failed before is left out.

        What there is no time for is left out too, and noted in `late`: the backend is not at fault.
        """
        self.table.ask(map(self.key, every))
        sound = []
        for calls in every:
            if self.table.poison(self.key(calls)) is None:
                sound.append(calls)
            else:
                self._note(calls)
        for probe in map(Probe, sound):
            positions = {position for position, _ in probe.calls}
            if probe in self._ready or not positions.isdisjoint(self.banned):
                continue
            try:
                prepared = self.lab.prepare([probe])[probe]
            except OutOfTimeError as error:
                self.late[probe.calls] = error.message
                continue
            self.late.pop(probe.calls, None)
            refusal = prepared.refusal
            if refusal is not None and refusal[0] is ReasonCode.UNAVAILABLE:
                self.late[probe.calls] = refusal[1]  # the machine is out of reach: nobody's fault
                continue
            if refusal is None:
                self._ready.add(probe)
                self._first_seconds[probe.calls] = prepared.run_seconds
                self._worked |= positions
            else:
                self._fail(probe, *refusal)
                self._count_failure(positions, str(refusal[0]))
        return [calls for calls in sound if Probe(calls) in self._ready]

    def _count_failure(self, positions: set[int], code: str) -> None:
        """Ban a target that has ended the worker several times and never worked."""
        if len(positions) == 1 and code in _FATAL:
            (position,) = positions
            self._crashes[position] = self._crashes.get(position, 0) + 1
            if self._crashes[position] >= MOST_CRASHES and position not in self._worked:
                self.banned.add(position)

    def race(self, every: Sequence[Calls], rounds: int) -> dict[Calls, tuple[float, ...]]:
        """Time calls in interleaved rounds; return seconds by round, NaN where one failed."""
        race = self.lab.race(
            [Probe(calls) for calls in every],
            rounds=rounds,
            note=lambda part: self._record(part, every),
        )
        for calls in every:
            refusal = race.refusals.get(Probe(calls))
            if refusal is not None and refusal[0] is not ReasonCode.UNAVAILABLE:
                self._fail(Probe(calls), *refusal)
        return {calls: race.seconds[Probe(calls)] for calls in every}

    def drop(self, every: Sequence[Calls]) -> None:
        """Forget what is compiled of calls."""
        probes = [Probe(calls) for calls in every]
        self.lab.drop(probes)
        self._ready.difference_update(probes)

    def seconds(self, calls: Calls) -> float:
        """Return the measured time of calls; infinite if there is none."""
        cost = self.table.cost(self.key(calls))
        return math.inf if cost is None else cost.seconds

    def expected(self, calls: Calls) -> float:
        """Return roughly what calls take: as measured, else as in their first run."""
        seconds = self.seconds(calls)
        return seconds if math.isfinite(seconds) else self._first_seconds.get(calls, 0.0)

    def samples(self, calls: Calls) -> tuple[Sample, ...]:
        """Return all samples of calls that were taken on this host, by this run or before."""
        key, here = self.key(calls), session_host(self.table.session)
        samples = self.table.database.samples([key]).get(key, ())
        return tuple(sample for sample in samples if sample.host == here)

    def _record(self, race: Race, every: Sequence[Calls]) -> None:
        """Enter the samples of some rounds as soon as they are there: a kill loses no more."""
        samples: dict[CostKey, Sequence[Sample]] = {}
        for calls in every:
            race_samples = race.samples(Probe(calls), self.table.session)
            if race_samples and Probe(calls) not in race.refusals:
                samples[self.key(calls)] = race_samples
        self.table.add(samples)

    def _fail(self, probe: Probe, code: str, reason: str) -> None:
        key = self.key(probe.calls)
        self.table.fail(key, str(code), reason, time.time())
        self._ready.discard(probe)
        self._note(probe.calls)
        logger.info("excluded: %s: %s", key.target, reason)

    def _note(self, calls: Calls) -> None:
        key = self.key(calls)
        poison = self.table.poison(key)
        if poison is not None and key not in self.failures:
            graph = self.table.keys.setting.graph
            names = [graph.nodes[node].name for _, every in calls for node in every]
            self.failures[key] = Failure(
                key.target, name_some(names), len(names), poison.code, poison.reason
            )
