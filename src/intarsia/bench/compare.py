# SPDX-License-Identifier: Apache-2.0
"""Times ours against peers: processes of their own, blocks in turn, ratios per round.

Spinning pools of one runtime slow the next one in the same process; therefore each runtime has a
process. They take turns in blocks, so that what else happens on the machine hits all alike, and
what is reported is the ratio of each round.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from intarsia.backends.api import Array
from intarsia.bench.models import BenchModel
from intarsia.errors import BackendError, SettingError
from intarsia.runtime.agreement import Agreement, compare_outputs
from intarsia.runtime.racing import paired_ratio
from intarsia.runtime.workers import Limits, Outcome, Worker

LEAST_RUNS = 12
LEAST_SECONDS = 0.2
OURS = "intarsia"
_SUBJECT = "intarsia.bench.subject"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Series:
    """What one runtime needed.

    Attributes:
        median_seconds: Median over the rounds of the median of a block.
        low_seconds: The fastest round.
        high_seconds: The slowest round.
        peak_bytes: Largest resident memory of its process; 0 where the system does not tell.
        set_up_seconds: Loading or compiling.
        error: Largest errors against the float64 reference; None if there is no reference.
        facts: What else there is to tell: version, or coverage of the plan.
    """

    median_seconds: float
    low_seconds: float
    high_seconds: float
    peak_bytes: int
    set_up_seconds: float
    error: Agreement | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """A benchmark of one model.

    Attributes:
        model: Its name.
        target: What ours was compiled for.
        threads: Threads of each runtime.
        batch: The first dimension of the inputs, if it was set.
        rounds: How many there were.
        ours: Our figures.
        peers: By name.
        machine: What it ran on.
        notes: What could not be done, and why.
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


def compare(  # noqa: PLR0913 - all by name
    model: BenchModel,
    target: str | None,
    against: Sequence[str],
    *,
    threads: int,
    rounds: int = 7,
    options: Mapping[str, Any] | None = None,
    check_errors: bool = True,
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
        options: Of `intarsia.compile`.
        check_errors: Whether to compute the float64 reference.
        limits: Of each call into a process.
        progress: Told about the stages as they go.

    Raises:
        SettingError: The rounds or the peers make no sense.
        BackendError: A runtime failed; names it.
    """
    if rounds < 1 or len(set(against)) != len(against) or OURS in against:
        raise SettingError("a benchmark needs at least one round, and different peers")
    tell = progress or (lambda stage, done, total: None)
    names = (OURS, *against)
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker()) for name in names}
        facts = {}
        for index, name in enumerate(names):
            tell(f"set up {name}", index, len(names))
            arguments: tuple[Any, ...] = (name, model.path, threads)
            function = "set_up_peer"
            if name == OURS:
                function, arguments = "set_up_ours", (model.path, target, threads, options or {})
            facts[name] = _call(workers, name, function, *arguments, feeds=model.feeds).value
        outputs = {name: _outputs(_call(workers, name, "read_outputs")) for name in names}
        blocks = _blocks(workers, names, rounds, limits, tell)
        peaks = {name: _call(workers, name, "read_outputs").peak_bytes for name in names}
    reference, notes = _reference(model, check_errors=check_errors, tell=tell)
    series = {
        name: _series(
            blocks[name],
            peaks[name],
            facts[name],
            None if reference is None else compare_outputs(reference, outputs[name]),
        )
        for name in names
    }
    return Comparison(
        model=model.name,
        target=target or "detected",
        threads=threads,
        batch=model.batch,
        rounds=rounds,
        ours=series[OURS],
        peers={name: _peer(blocks[name], blocks[OURS], series[name]) for name in against},
        machine=f"{_cpu_name()}, {platform.system()}, Python {platform.python_version()}",
        notes=notes,
    )


def _blocks(
    workers: Mapping[str, Worker],
    names: Sequence[str],
    rounds: int,
    limits: Limits | None,
    tell: Progress,
) -> dict[str, list[float]]:
    medians: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        tell("measure", turn, rounds)
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            arguments = (LEAST_RUNS, LEAST_SECONDS)
            seconds = _call(workers, name, "run_block", *arguments, limits=limits).value
            medians[name].append(statistics.median(seconds))
    tell("measure", rounds, rounds)
    return medians


def _call(
    workers: Mapping[str, Worker],
    name: str,
    function: str,
    *arguments: Any,
    feeds: Mapping[str, Array] | None = None,
    limits: Limits | None = None,
) -> Outcome:
    outcome = workers[name].call(f"{_SUBJECT}:{function}", *arguments, arrays=feeds, limits=limits)
    if not outcome.is_ok:
        what = outcome.reason or outcome.error_type
        raise BackendError(
            f"{name} failed in {function}: {what}: {outcome.message}",
            backend=name,
            hint=outcome.hint or None,
        )
    return outcome


def _outputs(outcome: Outcome) -> list[Array]:
    return [outcome.arrays[str(index)] for index in range(outcome.value)]


def _reference(
    model: BenchModel, *, check_errors: bool, tell: Progress
) -> tuple[list[Array] | None, tuple[str, ...]]:
    if not check_errors:
        return None, ("errors were not asked for",)
    tell("float64 reference", 0, 1)
    with Worker() as worker:
        outcome = worker.call(f"{_SUBJECT}:evaluate_float64", model.path, arrays=model.feeds)
    if not outcome.is_ok:
        return None, (f"no float64 reference: {outcome.message}",)
    return _outputs(outcome), ()


def _series(
    blocks: Sequence[float], peak: int, facts: Mapping[str, Any], error: Agreement | None
) -> Series:
    return Series(
        statistics.median(blocks),
        min(blocks),
        max(blocks),
        peak,
        facts["set_up_seconds"],
        error,
        {key: value for key, value in facts.items() if key != "set_up_seconds"},
    )


def _peer(theirs: Sequence[float], ours: Sequence[float], series: Series) -> Peer:
    ratio = paired_ratio(theirs, ours)
    seen = [peer / own for peer, own in zip(theirs, ours, strict=True)]
    return Peer(ratio.value, max(ratio.low, min(seen)), min(ratio.high, max(seen)), series)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as cpus:  # noqa: PTH123
            names = [line.partition(":")[2].strip() for line in cpus if "model name" in line]
    except OSError:
        names = []
    return f"{len(names)} x {names[0]}" if names else platform.processor() or platform.machine()
