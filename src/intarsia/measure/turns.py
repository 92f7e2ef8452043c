# SPDX-License-Identifier: Apache-2.0
"""Runtimes in processes of their own, timed in blocks that take turns, round by round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.errors import BackendError, InputError
from intarsia.measure.racing import Ratio, paired_ratio
from intarsia.process.workers import CallOutcome, Limits, Worker

LEAD_SECONDS = 0.1
LEAST_RUNS = 3
LEAST_SECONDS = 0.1
"""Of a block: untimed runs, and what counts."""

STREAM_SECONDS = 0.5
"""How long several streams run in a round."""

ALPHA = 0.05
"""How often an interval may miss the ratio, all looks together."""

HALF_WIDTH = 0.01
"""Of an interval, as a part of the ratio: what is narrower needs no more rounds."""

SUBJECT = "intarsia.bench.subject"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class SubjectSetup:
    """How a process is set up: a function of `bench.subject`, and its arguments."""

    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Timed:
    """What the processes gave, by name.

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
        """Whether more rounds would tell more of a ratio."""
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
            outcome = _call(workers, name, runner.function, *runner.arguments, feeds=feeds)
            facts[name] = outcome.value
        outputs = {name: outputs_of(_call(workers, name, "read_outputs")) for name in runners}
        blocks, runs, rates = ({name: list[float]() for name in runners} for _ in range(3))
        random = np.random.default_rng(0)
        for look in effort.looks:
            for turn in range(len(blocks[first]), look):
                tell("measure", turn, look)
                for name in random.permutation(list(runners)).tolist():
                    arguments = (LEAD_SECONDS, LEAST_RUNS, LEAST_SECONDS)
                    outcome = _call(workers, name, "run_block", *arguments, limits=effort.limits)
                    blocks[name].append(statistics.median(outcome.value))
                    runs[name] += outcome.value
                    if effort.streams > 1:
                        streamed = (effort.streams, STREAM_SECONDS)
                        outcome = _call(
                            workers, name, "run_streams", *streamed, limits=effort.limits
                        )
                        rates[name].append(outcome.value)
            tell("measure", look, look)
            ratios = [effort.ratio(blocks[name], blocks[first]) for name in others]
            if not any(map(effort.is_open, ratios)):
                break
        peaks = {name: _call(workers, name, "read_outputs").peak_bytes for name in runners}
    return Timed(blocks, runs, rates, outputs, facts, peaks)


def outputs_of(outcome: CallOutcome) -> list[Array]:
    """Return what a call of `read_outputs` or `evaluate_float64` gave, in the model's order."""
    return [outcome.arrays[str(index)] for index in range(outcome.value)]


def _call(
    workers: Mapping[str, Worker],
    name: str,
    function: str,
    *arguments: Any,
    feeds: Mapping[str, Array] | None = None,
    limits: Limits | None = None,
) -> CallOutcome:
    outcome = workers[name].call(f"{SUBJECT}:{function}", *arguments, arrays=feeds, limits=limits)
    if not outcome.is_ok:
        if outcome.error_type == InputError.__name__:
            raise InputError(f"{name}: {outcome.message}", hint=outcome.hint or None)
        what = outcome.reason or outcome.error_type
        raise BackendError(
            f"{name} failed in {function}: {what}: {outcome.message}",
            backend=name,
            hint=outcome.hint or None,
        )
    return outcome
