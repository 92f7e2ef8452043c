# SPDX-License-Identifier: Apache-2.0
"""Checks: a machine that a runner leads to answers, and what runs there tells its own time."""

from __future__ import annotations

import time
from collections.abc import Iterator

from intarsia.backends.remote import Away
from intarsia.cost.fingerprint import machine_of
from intarsia.process.runner import parse_runner
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.sketch import random_problem, taken_moves
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import REGION_FACTOR
from intarsia.testing.trial import Trial

_SEED = 3
_RUNS = 3


def runner_trials() -> Iterator[Trial]:
    """Yield a trial of the machine, and one of the time that a region takes there."""
    yield Trial("runner", "the_machine_answers", answer, needs_runtime=False)
    yield Trial("runner", "time_on_the_way", time_the_way)


def answer(subject: Subject) -> None:
    """Ask the machine what it is."""
    with subject.calling("the runner", _runner(subject)):
        machine_of(_runner(subject))


def time_the_way(subject: Subject) -> None:
    """Run a region there, and compare the time that it was on the way with that of the calls."""
    problem = random_problem(taken_moves(subject), _SEED)
    title = problem.title
    region = subject.take(subject.graph(problem.model), title)
    bound = subject.bind(subject.build(region, title), title)
    away = bound.loaded.executable
    if not isinstance(away, Away):
        raise ConformanceError(f"{title}: what load() returned does not say that it is away")
    wanted = parse_runner(_runner(subject)).text
    if parse_runner(away.runner).text != wanted:
        raise ConformanceError(f"{title}: it runs through {away.runner!r}, not {wanted!r}")
    begin, away_before = time.perf_counter(), away.away_seconds()
    for _ in range(_RUNS):
        values = problem.values[0]
        subject.verify(subject.run(bound, values, title), values, title, REGION_FACTOR)
    seconds, spent = time.perf_counter() - begin, away.away_seconds() - away_before
    if not 0 < spent < seconds:
        raise ConformanceError(
            f"{title}: {spent} s of calls that took {seconds} s were on the way there"
        )


def _runner(subject: Subject) -> str:
    if not subject.runner:
        raise NotApplicable("the target has no runner")
    return subject.runner
