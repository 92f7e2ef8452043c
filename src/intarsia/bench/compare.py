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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

from intarsia.arrays import Array
from intarsia.bench.models import BenchModel
from intarsia.errors import BackendError, InputError, SettingError
from intarsia.measure.agreement import Agreement, compare_outputs
from intarsia.measure.racing import Ratio, paired_ratio, take_round
from intarsia.measure.timing import percentiles
from intarsia.process.workers import CallOutcome, Limits, Worker

OURS = "intarsia"

LEAD_SECONDS = 0.1
LEAST_RUNS = 3
LEAST_SECONDS = 0.1
"""Duration of a block of runs: of its untimed ones, and of those that count."""

STREAM_SECONDS = 0.5
"""How long several streams run in a round."""

ALPHA = 0.05
"""Probability that an interval misses the ratio, over all looks together."""

HALF_WIDTH = 0.01
"""Half the width of an interval, relative to the ratio, at which rounds stop."""

SUBJECT = "intarsia.bench.subject"

AWAY = (
    "times of intarsia are those of the machines that runners lead to, by their clocks: the way "
    "there is left out; peers run on this machine"
)
AWAY_STREAMS = "runs per second of several streams hold the way there"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Series:
    """The times of one runtime.

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


class BenchVerdict(StrEnum):
    """Whether a ratio, with its interval, reaches a required value."""

    MET = "met"
    BELOW = "below"
    UNCLEAR = "not clear"


def verdict_of(low: float, high: float, bar: float) -> BenchVerdict:
    """Return what an interval says about a bar that it may contain."""
    if low >= bar:
        return BenchVerdict.MET
    return BenchVerdict.BELOW if high < bar else BenchVerdict.UNCLEAR


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

    def against(self, bar: float) -> BenchVerdict:
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
        sizes: Of the inputs, by dimension, if the model's dimensions are free.
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
    sizes: Mapping[str, int] | None = None


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
    timed = time_in_turn(runners, model.feeds, effort, tell)
    reference, notes = _reference(model, check_errors=check_errors, tell=tell)
    series = {name: _series(timed, name, reference) for name in runners}
    if timed.facts[OURS]["is_away"]:
        notes += (AWAY, AWAY_STREAMS)[: 1 if streams == 1 else 2]
    return Comparison(
        model=model.name,
        target=target or "detected",
        threads=threads,
        batch=model.batch,
        rounds=len(timed.blocks[OURS]),
        ours=series[OURS],
        peers={name: _peer(timed, name, effort, series[name]) for name in against},
        machine=f"{_cpu_name()}, {platform.system()}, Python {platform.python_version()}",
        notes=notes,
        streams=streams,
        sizes=model.sizes,
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
    timed = time_in_turn({OURS: set_up, name: set_up}, model.feeds, effort, _tell_nobody)
    return _peer(timed, name, effort, _series(timed, name, None))


def _tell_nobody(_stage: str, _done: int, _total: int) -> None:
    """Tell nobody how far a benchmark is."""


def _reference(
    model: BenchModel, *, check_errors: bool, tell: Progress
) -> tuple[list[Array] | None, tuple[str, ...]]:
    if not check_errors:
        return None, ("errors were not requested",)
    tell("float64 reference", 0, 1)
    with Worker() as worker:
        outcome = worker.call(f"{SUBJECT}:evaluate_float64", model.path, arrays=model.feeds)
    if not outcome.is_ok:
        return None, (f"no float64 reference: {outcome.message}",)
    return outputs_of(outcome), ()


def _series(timed: Timed, name: str, reference: Sequence[Array] | None) -> Series:
    blocks, facts, runs = timed.blocks[name], timed.facts[name], timed.runs[name]
    rates = timed.rates[name]
    p50, p90, p99 = percentiles(runs)
    return Series(
        statistics.median(blocks),
        min(blocks),
        max(blocks),
        timed.peaks[name],
        facts["set_up_seconds"],
        p50,
        p90,
        p99,
        statistics.median(rates) if rates else len(runs) / sum(runs),
        None if reference is None else compare_outputs(reference, timed.outputs[name]),
        {key: value for key, value in facts.items() if key != "set_up_seconds"},
    )


def _peer(timed: Timed, name: str, effort: Effort, series: Series) -> Peer:
    theirs, ours = timed.blocks[name], timed.blocks[OURS]
    ratio = effort.ratio(theirs, ours)
    return Peer(ratio.value, ratio.low, ratio.high, series)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as cpus:  # noqa: PTH123
            names = [line.partition(":")[2].strip() for line in cpus if "model name" in line]
    except OSError:
        names = []
    return f"{len(names)} x {names[0]}" if names else platform.processor() or platform.machine()


@dataclass(frozen=True, slots=True)
class SubjectSetup:
    """How a process is set up: a function of `bench.subject`, and its arguments."""

    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Timed:
    """The times that the processes returned, by name of the runtime.

    Attributes:
        blocks: The median of each block.
        runs: The seconds of each run that counts.
        rates: Runs per second of several streams at once, in each round; empty for one stream.
        outputs: Of a run.
        facts: What setting up told.
        peaks: Largest resident memory.
    """

    blocks: Mapping[str, list[float]]
    runs: Mapping[str, list[float]]
    rates: Mapping[str, list[float]]
    outputs: Mapping[str, list[Array]]
    facts: Mapping[str, Mapping[str, Any]]
    peaks: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Effort:
    """How many rounds to time.

    Attributes:
        rounds: How often each runtime gets a block.
        most_rounds: If it is more: the rounds are doubled up to it while an interval contains the
            bar and is wider than ±1 %.
        bar: A ratio that matters; without one, every interval counts that is so wide.
        limits: Of each call into a process.
        streams: Runs at once, whose throughput is measured beside.
    """

    rounds: int
    most_rounds: int = 0
    bar: float | None = None
    limits: Limits | None = None
    streams: int = 1

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many rounds to look whether more are needed."""
        looks = [self.rounds]
        while looks[-1] < self.most_rounds:
            looks.append(min(2 * looks[-1], self.most_rounds))
        return tuple(looks)

    def ratio(self, theirs: Sequence[float], ours: Sequence[float]) -> Ratio:
        """Return the ratio of two runtimes' times; its interval allows for all the looks."""
        return paired_ratio(theirs, ours, 1 - ALPHA / len(self.looks))

    def is_open(self, ratio: Ratio) -> bool:
        """Whether more rounds would make a ratio clearer."""
        is_wide = ratio.high - ratio.low > 2 * HALF_WIDTH * ratio.value
        return is_wide and (self.bar is None or ratio.low < self.bar <= ratio.high)


def time_in_turn(
    runners: Mapping[str, SubjectSetup], feeds: Mapping[str, Array], effort: Effort, tell: Progress
) -> Timed:
    """Set up a process for each runtime, and time them in rounds, each in an order of its own.

    Args:
        runners: By name; the first is the one that ratios are to.
        feeds: An array per input, by name.
        effort: How many rounds.
        tell: Told about the stages as they go.

    Raises:
        BackendError: A runtime failed; names it.
        InputError: An input holds what the model does not allow.
    """
    first, *others = runners
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker()) for name in runners}
        facts = {}
        for index, (name, runner) in enumerate(runners.items()):
            tell(f"set up {name}", index, len(runners))
            outcome = call_worker(workers, name, runner.function, *runner.arguments, feeds=feeds)
            facts[name] = outcome.value
        outputs = {name: outputs_of(call_worker(workers, name, "read_outputs")) for name in runners}
        blocks, runs, rates = ({name: list[float]() for name in runners} for _ in range(3))
        random = Random(0)

        def time_block(name: str) -> tuple[list[float], float | None]:
            arguments = (LEAD_SECONDS, LEAST_RUNS, LEAST_SECONDS)
            block = call_worker(workers, name, "run_block", *arguments, limits=effort.limits).value
            if effort.streams == 1:
                return block, None
            streamed = (effort.streams, STREAM_SECONDS)
            rate = call_worker(workers, name, "run_streams", *streamed, limits=effort.limits).value
            return block, rate

        for look in effort.looks:
            for turn in range(len(blocks[first]), look):
                tell("measure", turn, look)
                for name, (block, rate) in take_round(list(runners), time_block, random).items():
                    blocks[name].append(statistics.median(block))
                    runs[name] += block
                    if rate is not None:
                        rates[name].append(rate)
            tell("measure", look, look)
            ratios = [effort.ratio(blocks[name], blocks[first]) for name in others]
            if not any(map(effort.is_open, ratios)):
                break
        peaks = {name: call_worker(workers, name, "read_outputs").peak_bytes for name in runners}
    return Timed(blocks, runs, rates, outputs, facts, peaks)


def outputs_of(outcome: CallOutcome) -> list[Array]:
    """Return what a call of `read_outputs` or `evaluate_float64` gave, in the model's order."""
    return [outcome.arrays[str(index)] for index in range(outcome.value)]


def call_worker(
    workers: Mapping[str, Worker],
    name: str,
    function: str,
    *arguments: Any,
    feeds: Mapping[str, Array] | None = None,
    limits: Limits | None = None,
) -> CallOutcome:
    """Return what a function of `SUBJECT` gave in a worker.

    Args:
        workers: By the name of what runs in each.
        name: Which.
        function: The function's name.
        arguments: Its arguments.
        feeds: The arrays that it gets beside them.
        limits: Of the call.

    Raises:
        InputError: It says that an input is wrong.
        BackendError: It failed, or what runs there is missing.
    """
    outcome = workers[name].call(f"{SUBJECT}:{function}", *arguments, arrays=feeds, limits=limits)
    if not outcome.is_ok:
        if outcome.error_type == InputError.__name__:
            raise InputError(f"{name}: {outcome.message}", hint=outcome.hint or None)
        message = f"{name}: {outcome.message}"
        if outcome.error_type != BackendError.__name__:  # which says all by itself
            reason = outcome.reason or outcome.error_type
            message = f"{name} failed in {function}: {reason}: {outcome.message}"
        raise BackendError(message, backend=name, hint=outcome.hint or None)
    return outcome
