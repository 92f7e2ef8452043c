# SPDX-License-Identifier: Apache-2.0
"""Plans as packages in fresh processes: how many runs a second, and how much memory.

Throughput is what several processes do together, each with a run in flight all the time. What they
share is the machine: caches, memory, clocks. Memory is by how much one process grows.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.errors import BackendError, ReasonCode
from intarsia.process.workers import CallOutcome, Limits, Worker
from intarsia.runtime.package import PACKAGE_SUFFIX
from intarsia.tuning.laboratory.laboratory import Laboratory
from intarsia.tuning.laboratory.store import map_values
from intarsia.tuning.laboratory.values import OutOfTimeError, Probe

logger = logging.getLogger(__name__)

ROUND_SECONDS = 0.2
"""How long one plan runs in one round."""

MEMORY_RUNS = 2
"""Number of fresh processes in which a plan's memory is measured."""

_PACKAGED = "intarsia.tuning.objectives.packaged"
_LEAD_SECONDS = 0.01
"""Time between the order to start and the start, which covers the delay of messages."""

_PATIENCE_SECONDS = 60.0


@dataclass(slots=True)
class Packages:
    """Packages of whole plans, and processes that run them until `close`.

    Attributes:
        lab: Compiles them.
        in_flight: How many processes run at the same time.
        seed: For the orders of rounds.
        failures: Why plans could not be run, by the code of the reason.
    """

    lab: Laboratory
    in_flight: int
    seed: int = 0
    failures: dict[Probe, str] = field(default_factory=dict)
    _workers: list[Worker] = field(default_factory=list)
    _files: dict[Probe, Path | None] = field(default_factory=dict)
    _opened: dict[int, tuple[int | None, set[Path]]] = field(default_factory=dict)
    _rounds: int = 0

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()

    def time_rounds(self, probes: Sequence[Probe], rounds: int) -> dict[Probe, tuple[float, ...]]:
        """Run plans in rounds, each in an order of its own, in all processes at the same time.

        Args:
            probes: Whole plans.
            rounds: How many.

        Returns:
            By plan and round, the seconds of one run: the time that passed by the number of runs
            that all processes finished. NaN where one failed.

        Raises:
            OutOfTimeError: The time is over.
        """
        random = np.random.default_rng(self.seed + self._rounds)
        self._rounds += rounds
        seconds: dict[Probe, list[float]] = {probe: [] for probe in probes}
        for _ in range(rounds):
            for position in random.permutation(len(probes)).tolist():
                seconds[probes[position]].append(self._time(probes[position]))
        return {probe: tuple(row) for probe, row in seconds.items()}

    def added_bytes(self, probe: Probe, runs: int = MEMORY_RUNS) -> list[int]:
        """Return by how many bytes fresh processes grow under a plan; empty if it fails there.

        Args:
            probe: A whole plan.
            runs: In how many processes.

        Raises:
            OutOfTimeError: The time is over.
        """
        file, feeds, grown = self._file(probe), self._feeds(), list[int]()
        if file is None:
            return grown
        for _ in range(runs):
            with Worker() as worker:
                outcome = self._call(
                    worker, "added_bytes", str(file), *feeds.arguments, feeds=feeds
                )
            if self._has_failed(probe, outcome):
                return []
            grown.append(int(outcome.value))
        return grown

    def reserve(self, probe: Probe) -> Path:
        """Return the file in which the caller will write the package of a plan."""
        file = self.lab.folder / f"given-{len(self._files)}{PACKAGE_SUFFIX}"
        self._files[probe] = file
        return file

    def _time(self, probe: Probe) -> float:
        file, feeds = self._file(probe), self._feeds()
        if file is None:
            return math.nan
        while len(self._workers) < self.in_flight:
            self._workers.append(Worker())
        with ThreadPoolExecutor(self.in_flight) as threads:
            try:
                return self._time_together(threads, probe, file, feeds)
            except BaseException:  # Ctrl-C, or no time: the threads would wait for their processes
                for worker in self._workers:
                    worker.stop()
                raise

    def _has_failed(self, probe: Probe, outcome: CallOutcome) -> bool:
        if not outcome.is_ok:
            self.failures[probe] = str(outcome.reason or ReasonCode.CRASHED)
        return not outcome.is_ok

    def _time_together(
        self, threads: ThreadPoolExecutor, probe: Probe, file: Path, feeds: _Feeds
    ) -> float:
        """Return the seconds of one run, in all processes at the same time."""
        every = range(self.in_flight)
        ready = list(threads.map(lambda i: self._open(i, probe, file, feeds), every))
        if not all(ready):
            return math.nan
        start = time.monotonic() + _LEAD_SECONDS
        outcomes = list(
            threads.map(
                lambda worker: self._call(worker, "time_runs", str(file), start, ROUND_SECONDS),
                self._workers,
            )
        )
        if any(self._has_failed(probe, outcome) for outcome in outcomes):
            return math.nan
        rate = sum(count / spent for count, spent in (o.value for o in outcomes) if spent > 0)
        return 1.0 / rate if rate > 0 else math.nan

    def _open(self, position: int, probe: Probe, file: Path, feeds: _Feeds) -> bool:
        """Open a package in a process unless it is open there; return whether it is."""
        worker = self._workers[position]
        pid, files = self._opened.get(position, (None, set()))
        if pid is None or pid != worker.pid:
            files = set()
        if file not in files:
            outcome = self._call(worker, "open_program", str(file), *feeds.arguments, feeds=feeds)
            if self._has_failed(probe, outcome):
                return False
            files.add(file)
            self._opened[position] = worker.pid, files
        return True

    def _file(self, probe: Probe) -> Path | None:
        if probe not in self._files:
            try:
                self._files[probe] = self.lab.save(probe)
            except BackendError as error:
                logger.info("%s cannot be packaged: %s", self.lab.name_of(probe), error.message)
                self._files[probe] = None
                refusal = self.lab.prepare([probe])[probe].refusal
                code = ReasonCode.COMPILE_FAILED if refusal is None else refusal[0]
                self.failures[probe] = str(code)
        return self._files[probe]

    def _feeds(self) -> _Feeds:
        """Return what the reference run was given."""
        reference, graph = self.lab.reference, self.lab.setting.graph
        stored = map_values(self.lab.folder, reference.stored)
        names = [graph.values[position].name for position in graph.inputs]
        arrays = {
            name: np.asarray(stored[graph.value_named(name).id])
            for name in names
            if name not in reference.texts
        }
        plug_ins = msgspec.to_builtins(self.lab.plug_ins)
        return _Feeds((self.lab.setting.num_threads, dict(reference.texts), plug_ins), arrays)

    def _call(
        self, worker: Worker, function: str, *arguments: Any, feeds: _Feeds | None = None
    ) -> CallOutcome:
        left = self.lab.left()
        if left <= 0:
            raise OutOfTimeError("out of time")
        memory = self.lab.limits.memory_bytes
        limits = Limits(
            min(left, self.lab.limits.seconds or _PATIENCE_SECONDS),
            None if memory is None else memory // max(1, self.in_flight),
        )
        outcome = worker.call(
            f"{_PACKAGED}:{function}",
            *arguments,
            arrays=None if feeds is None else feeds.arrays,
            limits=limits,
        )
        if outcome.reason is ReasonCode.TIMEOUT and self.lab.left() <= 0:
            raise OutOfTimeError("out of time while running plans as packages")
        return outcome


@dataclass(frozen=True, slots=True)
class _Feeds:
    arguments: tuple[int, Mapping[str, list[str]], Mapping[str, Any]]
    arrays: Mapping[str, Array]
