# SPDX-License-Identifier: Apache-2.0
"""Times ours against peers: processes of their own, blocks in turn, ratios per round.

Each runtime has a process, as its users have it. They take turns in blocks, in an order drawn anew
for each round, so that what else happens on the machine hits all alike, and what is reported is the
ratio of each round. A block begins with runs that do not count: for up to 100 ms the idle threads
of the runtime before may still spin.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from intarsia.arrays import Array
from intarsia.bench.models import BenchModel
from intarsia.errors import SettingError
from intarsia.measure.agreement import Agreement, compare_outputs
from intarsia.measure.timing import percentiles
from intarsia.measure.turns import (
    SUBJECT,
    Effort,
    Progress,
    SubjectSetup,
    Timed,
    outputs_of,
    time_in_turn,
)
from intarsia.process.workers import Limits, Worker

OURS = "intarsia"


@dataclass(frozen=True, slots=True)
class Series:
    """What one runtime needed.

    Attributes:
        median_seconds: Median over the rounds of the median of a block.
        low_seconds: The fastest round.
        high_seconds: The slowest round.
        peak_bytes: Largest resident memory of its process; 0 where the system does not tell.
        set_up_seconds: Loading or compiling.
        p50_seconds: What half of all runs took at most.
        p90_seconds: What nine in ten took at most.
        p99_seconds: What 99 in a hundred took at most.
        runs_per_second: Of all streams together.
        error: Largest errors against the float64 reference; None if there is no reference.
        facts: What else there is to tell: version, or coverage of the plan.
    """

    median_seconds: float
    low_seconds: float
    high_seconds: float
    peak_bytes: int
    set_up_seconds: float
    p50_seconds: float = 0.0
    p90_seconds: float = 0.0
    p99_seconds: float = 0.0
    runs_per_second: float = 0.0
    error: Agreement | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Verdict(StrEnum):
    """What a ratio and its interval say about a bar."""

    MET = "met"
    BELOW = "below"
    UNCLEAR = "not clear"


def verdict_of(low: float, high: float, bar: float) -> Verdict:
    """Return what an interval says about a bar that it may contain."""
    if low >= bar:
        return Verdict.MET
    return Verdict.BELOW if high < bar else Verdict.UNCLEAR


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer, and how it compares.

    Attributes:
        ratio: Median over the rounds of its time through ours: above 1 means ours is faster.
        low: Lower end of the median's interval of at least 95 % where the rounds allow it.
        high: Upper end.
        series: Its own figures.
    """

    ratio: float
    low: float
    high: float
    series: Series

    def against(self, bar: float) -> Verdict:
        """Return whether the ratio meets a bar: not clear where the interval contains it."""
        return verdict_of(self.low, self.high, bar)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A benchmark of one model.

    Attributes:
        model: Its name.
        target: What ours was compiled for.
        threads: Threads of each runtime.
        batch: The first dimension of the inputs, if it was set.
        rounds: How many there were in the end.
        ours: Our figures.
        peers: By name.
        machine: What it ran on.
        notes: What could not be done, and why.
        streams: Runs at once of which `runs_per_second` is.
    """

    model: str
    target: str
    threads: int
    batch: int | None
    rounds: int
    ours: Series
    peers: Mapping[str, Peer]
    machine: str
    notes: tuple[str, ...] = ()
    streams: int = 1


def compare(  # noqa: PLR0913 - all by name
    model: BenchModel,
    target: str | None,
    against: Sequence[str],
    *,
    threads: int,
    rounds: int = 7,
    most_rounds: int = 0,
    bar: float | None = None,
    options: Mapping[str, Any] | None = None,
    check_errors: bool = True,
    streams: int = 1,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare our program for a target with peers on one model.

    Args:
        model: The file and its inputs.
        target: The machine; None means what is found here.
        against: Names of backends whose runtimes are the peers.
        threads: Threads that each runtime may use.
        rounds: How often each gets a block.
        most_rounds: If it is more: the rounds are doubled up to it while the interval of a peer's
            ratio contains the bar and is wider than ±1 %.
        bar: A ratio that matters; without one, every interval wider than ±1 % asks for more.
        options: Of `intarsia.compile`.
        check_errors: Whether to compute the float64 reference.
        streams: Runs at once whose throughput is measured, each with the same threads.
        limits: Of each call into a process.
        progress: Told about the stages as they go.

    Raises:
        SettingError: The rounds or the peers make no sense.
        BackendError: A runtime failed; names it.
    """
    if rounds < 1 or len(set(against)) != len(against) or OURS in against:
        raise SettingError("a benchmark needs at least one round, and different peers")
    if streams < 1:
        raise SettingError(f"{streams} streams do nothing", hint="give 1 or more")
    tell = progress or _tell_nobody
    runners = {OURS: SubjectSetup("set_up_ours", (model.path, target, threads, options or {}))}
    runners |= {name: SubjectSetup("set_up_peer", (name, model.path, threads)) for name in against}
    effort = Effort(rounds, most_rounds, bar, limits, streams)
    found = time_in_turn(runners, model.feeds, effort, tell)
    reference, notes = _reference(model, check_errors=check_errors, tell=tell)
    series = {name: _series(found, name, reference) for name in runners}
    return Comparison(
        model=model.name,
        target=target or "detected",
        threads=threads,
        batch=model.batch,
        rounds=len(found.blocks[OURS]),
        ours=series[OURS],
        peers={name: _peer(found, name, effort, series[name]) for name in against},
        machine=f"{_cpu_name()}, {platform.system()}, Python {platform.python_version()}",
        notes=notes,
        streams=streams,
    )


def compare_twins(
    model: BenchModel, name: str, *, threads: int, rounds: int = 7, most_rounds: int = 0
) -> Peer:
    """Compare a peer with itself in a second process: what a benchmark finds where nothing differs.

    Args:
        model: The file and its inputs.
        name: The backend whose runtime is the peer.
        threads: Threads that each process may use.
        rounds: As of `compare`.
        most_rounds: Likewise.

    Raises:
        BackendError: It failed.
    """
    set_up = SubjectSetup("set_up_peer", (name, model.path, threads))
    effort = Effort(rounds, most_rounds)
    found = time_in_turn({OURS: set_up, name: set_up}, model.feeds, effort, _tell_nobody)
    return _peer(found, name, effort, _series(found, name, None))


def _tell_nobody(stage: str, done: int, total: int) -> None:
    del stage, done, total


def _reference(
    model: BenchModel, *, check_errors: bool, tell: Progress
) -> tuple[list[Array] | None, tuple[str, ...]]:
    if not check_errors:
        return None, ("errors were not asked for",)
    tell("float64 reference", 0, 1)
    with Worker() as worker:
        outcome = worker.call(f"{SUBJECT}:evaluate_float64", model.path, arrays=model.feeds)
    if not outcome.is_ok:
        return None, (f"no float64 reference: {outcome.message}",)
    return outputs_of(outcome), ()


def _series(found: Timed, name: str, reference: Sequence[Array] | None) -> Series:
    blocks, facts, runs = found.blocks[name], found.facts[name], found.runs[name]
    rates = found.rates[name]
    p50, p90, p99 = percentiles(runs)
    return Series(
        statistics.median(blocks),
        min(blocks),
        max(blocks),
        found.peaks[name],
        facts["set_up_seconds"],
        *(p50, p90, p99),
        statistics.median(rates) if rates else len(runs) / sum(runs),
        None if reference is None else compare_outputs(reference, found.outputs[name]),
        {key: value for key, value in facts.items() if key != "set_up_seconds"},
    )


def _peer(found: Timed, name: str, effort: Effort, series: Series) -> Peer:
    theirs, ours = found.blocks[name], found.blocks[OURS]
    ratio = effort.ratio(theirs, ours)
    return Peer(ratio.value, ratio.low, ratio.high, series)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as cpus:  # noqa: PTH123
            names = [line.partition(":")[2].strip() for line in cpus if "model name" in line]
    except OSError:
        names = []
    return f"{len(names)} x {names[0]}" if names else platform.processor() or platform.machine()
