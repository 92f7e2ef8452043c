# SPDX-License-Identifier: Apache-2.0
"""Check: threads share one loaded region, each with buffers of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from intarsia.testing.binding import Loaded
from intarsia.testing.case import evaluate
from intarsia.testing.sketch import SHAPE, Sketch, taken_moves
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import REGION_FACTOR
from intarsia.testing.trial import Trial

SENTENCE = "One loaded region gives the right numbers to several threads at once."

THREADS = 4
RUNS = 25
_MOVES = 4


def trials() -> Iterator[Trial]:
    """Yield the one trial."""
    yield Trial("threads", "one_region_in_4_threads", share)


def share(subject: Subject) -> None:
    """Bind one loaded region in each thread, and run them against one another."""
    title = f"{THREADS} threads"
    moves = taken_moves(subject)
    rng = np.random.default_rng(4)
    sketch = Sketch(rng)
    last = "x"
    for position in range(_MOVES):
        move = moves[position % len(moves)]
        last = move.write(sketch, *(last, "x")[: move.arity])
    problem = sketch.finish(title, [last])
    draws = [
        evaluate(problem.model, {n: rng.uniform(-1, 1, SHAPE).astype(np.float32) for n in names})
        for names in [list(problem.feeds[0])] * THREADS
    ]
    region = subject.take(subject.graph(problem.model), title)
    loaded = subject.build(region, title)
    barrier = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        jobs = [
            pool.submit(_work, subject, loaded, values, barrier, f"{title}: thread {position}")
            for position, values in enumerate(draws)
        ]
        for job in jobs:
            job.result()


def _work(
    subject: Subject,
    loaded: Loaded,
    values: Mapping[str, Any],
    barrier: threading.Barrier,
    title: str,
) -> None:
    bound = subject.bind(loaded, title)
    barrier.wait(timeout=60)
    for _ in range(RUNS):
        subject.verify(subject.run(bound, values, title), values, title, REGION_FACTOR)
