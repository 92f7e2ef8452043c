# SPDX-License-Identifier: Apache-2.0
"""Checks: programs run in other processes, in several threads, and without filling the memory."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.compiler import compile as compile_model
from intarsia.errors import BackendError
from intarsia.graph.region import Region
from intarsia.process.workers import Limits, Worker, resident_bytes
from intarsia.runtime.executor import PlanExecutable
from intarsia.runtime.loading import load as load_program
from intarsia.settings import Settings
from intarsia.testing.binding import Loaded
from intarsia.testing.case import (
    EvaluatedModel,
    OperatorCase,
    case,
    constant,
    evaluate,
    fed,
    problem_of,
    weight,
)
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.sketch import SHAPE, Sketch, random_problem, taken_moves
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import REGION_FACTOR
from intarsia.testing.trial import Trial
from intarsia.tuning.laboratory.plug_ins import PlugIns, describe_plug_ins, load_all

LIMITS = Limits(seconds=300)
_SEED = 2
_PACKAGE = "program.intarsia"


def process_trials() -> Iterator[Trial]:
    """Yield one trial per process."""
    yield Trial("processes", "save_and_load_here", reload)
    yield Trial("processes", "save_and_run_in_a_fresh_process", restart)


def reload(subject: Subject) -> None:
    """Save a program and load it in this process."""
    problem, program = _program(subject)
    with tempfile.TemporaryDirectory() as folder, subject.calling("save or load", problem.title):
        path = Path(folder) / _PACKAGE
        program.save(path)
        outputs = load_program(path, num_threads=1, backends=subject.backends, trust=True).run(
            problem.feeds[0]
        )
        program.run(problem.feeds[1])  # what was saved and loaded shares nothing
    subject.verify(outputs, problem.values[0], "a package loaded here", REGION_FACTOR)


def restart(subject: Subject) -> None:
    """Save a program, load it in a process that never saw the model, and run it."""
    try:
        plug_ins = describe_plug_ins(subject.backends)
    except BackendError as error:
        raise NotApplicable(f"{error.message}; {error.hint}") from None
    problem, program = _program(subject)
    with (
        tempfile.TemporaryDirectory() as folder,
        Worker() as worker,
        subject.calling("save", problem.title),
    ):
        path = Path(folder) / _PACKAGE
        program.save(path)
        outcome = worker.call(
            "intarsia.testing.programs:run_package",
            str(path),
            msgspec.to_builtins(plug_ins),
            arrays=problem.feeds[0],
            limits=LIMITS,
        )
    if not outcome.is_ok:
        raise ConformanceError(
            f"{problem.title}: a fresh process cannot run the package: "
            f"{outcome.error_type or outcome.reason}: {outcome.message}"
        )
    title = "a package in a fresh process"
    subject.verify(outcome.arrays, problem.values[0], title, REGION_FACTOR)
    here = program.run(problem.feeds[0])
    subject.verify(outcome.arrays, here, f"{title}, against this process")


def run_package(
    path: str, plug_ins: Mapping[str, Any], arrays: Mapping[str, Array]
) -> tuple[str, dict[str, Array]]:
    """Load a package and run it once: what the fresh process does.

    Args:
        path: The package.
        plug_ins: `PlugIns` as a dictionary: the backend, if it is not installed.
        arrays: An array per input, by name.
    """
    backends = load_all(msgspec.convert(plug_ins, PlugIns), Settings.from_environment())
    outputs: dict[str, Any] = load_program(path, num_threads=1, backends=backends, trust=True).run(
        arrays
    )
    return "done", outputs


def _program(subject: Subject) -> tuple[EvaluatedModel, PlanExecutable]:
    problem = random_problem(taken_moves(subject), _SEED)
    with subject.calling("intarsia.compile", problem.title):
        program = compile_model(
            problem.model, subject.config, num_threads=1, backends=subject.backends
        )
    if not program.placement.coverage().get(str(subject.placed)):
        raise NotApplicable("nothing of the program went to the backend")
    return problem, program.latest


THREADS = 8
RUNS_OF_A_THREAD = 25
_MOVES = 4


def thread_trials() -> Iterator[Trial]:
    """Yield the one trial."""
    yield Trial("threads", f"one_region_in_{THREADS}_threads", share)


def share(subject: Subject) -> None:
    """Bind one loaded region in each thread, and run them against one another."""
    title = f"{THREADS} threads"
    rng = np.random.default_rng(4)
    try:
        moves = taken_moves(subject)
    except NotApplicable:  # floats are not all that there is
        problem, _ = first_taken(subject, CODES)
        feeds = [
            {name: rng.permuted(array) for name, array in problem.feeds[0].items()}
            for _ in range(THREADS)
        ]
    else:
        sketch = Sketch(rng)
        last = "x"
        for position in range(_MOVES):
            move = moves[position % len(moves)]
            last = move.write(sketch, *(last, "x")[: move.arity])
        problem = sketch.finish(title, [last])
        feeds = [
            {name: rng.uniform(-1, 1, SHAPE).astype(np.float32) for name in problem.feeds[0]}
            for _ in range(THREADS)
        ]
    draws = [evaluate(problem.model, draw) for draw in feeds]
    region = subject.take(subject.graph(problem.model), title)
    loaded = subject.build(region, title)
    barrier = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        jobs = [
            pool.submit(_run_bound, subject, loaded, values, barrier, f"{title}: thread {position}")
            for position, values in enumerate(draws)
        ]
        for job in jobs:
            job.result()


def _run_bound(
    subject: Subject,
    loaded: Loaded,
    values: Mapping[str, Any],
    barrier: threading.Barrier,
    title: str,
) -> None:
    bound = subject.bind(loaded, title)
    barrier.wait(timeout=60)
    for _ in range(RUNS_OF_A_THREAD):
        subject.verify(subject.run(bound, values, title), values, title, REGION_FACTOR)


RUNS = 200
LOADS = 20
BOUND = 8 << 20
"""Bytes by which each of `ROUNDS` rounds must grow for it to be a leak."""

ROUNDS = 3
_WARM_LOADS = 3


def codes_product(name: str, rows: int, depth: int, columns: int) -> OperatorCase:
    """Return a product of a fed matrix of int8 and a constant one, for backends of integers alone.

    Args:
        name: What is special about it.
        rows: Of the fed matrix.
        depth: How many products a sum has.
        columns: Of the result.
    """
    zero = constant(0, "int8")
    scales = [(constant(scale, "float32"), zero) for scale in (0.05, 0.02, 0.001 * depth)]
    matrix = fed(rows, depth, low=-128, high=127, dtype="int8")
    weights = weight(depth, columns, low=-127, high=127, dtype="int8")
    operands = (matrix, *scales[0], weights, *scales[1], *scales[2])
    return case("QLinearMatMul", name, *operands, dtypes=("int8",))


CODES = (codes_product("codes", 4, 4, 4),)

HEAVY: tuple[OperatorCase, ...] = (
    case("MatMul", "weights", fed(8, 512), weight(512, 512)),
    case("Conv", "weights", fed(1, 128, 4, 4), weight(256, 128, 3, 3)),
    case("Add", "weights", fed(512, 512), weight(512, 512)),
    codes_product("weights", 8, 1024, 1024),
)
"""With about 1 MiB of weights, which soon pass the bound if they are kept."""

LIGHT: tuple[OperatorCase, ...] = (
    case("Relu", "large", fed(256, 256)),
    case("Add", "large", fed(256, 256), fed(256, 256)),
    case("MatMul", "large", fed(256, 32), weight(32, 256)),
    case("Conv", "large", fed(1, 1, 256, 256), weight(1, 1, 1, 1)),
    codes_product("large", 1024, 32, 256),
)
"""With 256 KiB of output, which soon pass the bound if a run keeps them."""


def memory_trials() -> Iterator[Trial]:
    """Yield one trial for runs and one for loads."""
    yield Trial("memory", f"{RUNS}_runs", run_often)
    yield Trial("memory", f"{LOADS}_loads", load_often)


def run_often(subject: Subject) -> None:
    """Run one bound region `RUNS` times a round."""
    problem, region = first_taken(subject, LIGHT)
    bound = subject.bind(subject.build(region, problem.title), problem.title)
    bound.write(problem.values[0])

    def once() -> None:
        with subject.calling("a step", problem.title):
            for _ in range(RUNS):
                bound.step()

    _bounded(once, f"{problem.title}: {RUNS} runs")


def load_often(subject: Subject) -> None:
    """Load, run and drop one artifact `LOADS` times a round."""
    problem, region = first_taken(subject, HEAVY)
    artifact = subject.compile(region, problem.title)

    def cycle(times: int) -> None:
        for _ in range(times):
            bound = subject.bind(subject.load(region, artifact, problem.title), problem.title)
            bound.write(problem.values[0])
            bound.step()
            del bound

    cycle(_WARM_LOADS)
    _bounded(lambda: cycle(LOADS), f"{problem.title}: {LOADS} times loading and unloading")


def first_taken(subject: Subject, cases: tuple[OperatorCase, ...]) -> tuple[EvaluatedModel, Region]:
    """Return the first of these cases that the backend takes, each in its first type.

    Raises:
        NotApplicable: It takes none, or the system does not report memory.
    """
    if not resident_bytes():
        raise NotApplicable("this system does not report resident memory")
    for operator_case in cases:
        problem = problem_of(operator_case, operator_case.dtypes[0])
        graph = subject.graph(problem.model)
        if not subject.refusals(graph, problem.title):
            return problem, graph.whole
    names = ", ".join(f"{case.op_type} of {case.dtypes[0]}" for case in cases)
    raise NotApplicable(f"the backend takes none of {names}")


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
    growth_text = ", ".join(f"{growth / 2**20:.1f}" for growth in growths)
    raise ConformanceError(
        f"{what} grow resident memory in each of {ROUNDS} rounds ({growth_text} MiB); "
        f"the bound is {BOUND >> 20} MiB"
    )
