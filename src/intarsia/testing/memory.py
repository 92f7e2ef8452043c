# SPDX-License-Identifier: Apache-2.0
"""Check: running, loading and unloading again and again does not fill the memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

from intarsia.graph.region import Region
from intarsia.process.workers import resident_bytes
from intarsia.testing.case import Case, Problem, case, fed, problem_of, weight
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.subject import Subject
from intarsia.testing.trial import Trial

SENTENCE = "200 runs, and 20 times loading and unloading, do not grow resident memory by 8 MiB."

RUNS = 200
LOADS = 20
BOUND = 8 << 20
"""Bytes by which each of `ROUNDS` rounds must grow for it to be a leak."""

ROUNDS = 3
_WARM_LOADS = 3

HEAVY: tuple[Case, ...] = (
    case("MatMul", "weights", fed(8, 512), weight(512, 512)),
    case("Conv", "weights", fed(1, 128, 4, 4), weight(256, 128, 3, 3)),
    case("Add", "weights", fed(512, 512), weight(512, 512)),
)
"""With about 1 MiB of weights, which soon pass the bound if they are kept."""

LIGHT: tuple[Case, ...] = (
    case("Relu", "large", fed(256, 256)),
    case("Add", "large", fed(256, 256), fed(256, 256)),
    case("MatMul", "large", fed(256, 32), weight(32, 256)),
    case("Conv", "large", fed(1, 1, 256, 256), weight(1, 1, 1, 1)),
)
"""With 256 KiB of output, which soon pass the bound if a run keeps them."""


def trials() -> Iterator[Trial]:
    """Yield one trial for runs and one for loads."""
    yield Trial("memory", f"{RUNS}_runs", run_often)
    yield Trial("memory", f"{LOADS}_loads", load_often)


def run_often(subject: Subject) -> None:
    """Run one bound region `RUNS` times a round."""
    problem, region = _first_taken(subject, LIGHT)
    bound = subject.bind(subject.build(region, problem.title), problem.title)
    bound.write(problem.values[0])

    def once() -> None:
        with subject.calling("a step", problem.title):
            for _ in range(RUNS):
                bound.step()

    _bounded(once, f"{problem.title}: {RUNS} runs")


def load_often(subject: Subject) -> None:
    """Load, run and drop one artifact `LOADS` times a round."""
    problem, region = _first_taken(subject, HEAVY)
    artifact = subject.compile(region, problem.title)

    def cycle(times: int) -> None:
        for _ in range(times):
            bound = subject.bind(subject.load(region, artifact, problem.title), problem.title)
            bound.write(problem.values[0])
            bound.step()
            del bound

    cycle(_WARM_LOADS)
    _bounded(lambda: cycle(LOADS), f"{problem.title}: {LOADS} times loading and unloading")


def _first_taken(subject: Subject, cases: tuple[Case, ...]) -> tuple[Problem, Region]:
    if not resident_bytes():
        raise NotApplicable("this system does not tell resident memory")
    for one in cases:
        problem = problem_of(one, "float32")
        graph = subject.graph(problem.model)
        if not subject.refusals(graph, problem.title):
            return problem, graph.whole
    names = ", ".join(one.op_type for one in cases)
    raise NotApplicable(f"the backend takes none of {names} in float32")


def _bounded(act: Callable[[], None], what: str) -> None:
    """Require that one of a few rounds grows by less than the bound: allocators keep some."""
    growths: list[int] = []
    for _ in range(ROUNDS):
        gc.collect()
        before = resident_bytes()
        act()
        gc.collect()
        growths.append(resident_bytes() - before)
        if growths[-1] < BOUND:
            return
    told = ", ".join(f"{growth / 2**20:.1f}" for growth in growths)
    raise ConformanceError(
        f"{what} grow resident memory in each of {ROUNDS} rounds ({told} MiB); "
        f"the bound is {BOUND >> 20} MiB"
    )
