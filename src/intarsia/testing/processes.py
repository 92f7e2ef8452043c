# SPDX-License-Identifier: Apache-2.0
"""Check: a package runs here and in a fresh process, with equal numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from intarsia.arrays import Array
from intarsia.compiler import compile as compile_model
from intarsia.errors import BackendError
from intarsia.process.workers import Limits, Worker
from intarsia.runtime.executor import PlanExecutable
from intarsia.runtime.loading import load as load_program
from intarsia.settings import Settings
from intarsia.testing.case import Problem
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.sketch import random_problem, taken_moves
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import REGION_FACTOR
from intarsia.testing.trial import Trial
from intarsia.tuning.laboratory.plug_ins import PlugIns, describe_plug_ins, load_all

SENTENCE = "A package is saved, and runs here and in a fresh process, with the same numbers."

LIMITS = Limits(seconds=120)
_SEED = 2
_PACKAGE = "program.intarsia"


def trials() -> Iterator[Trial]:
    """Yield one trial per process."""
    yield Trial("processes", "save_and_load_here", reload)
    yield Trial("processes", "save_and_run_in_a_fresh_process", restart)


def reload(subject: Subject) -> None:
    """Save a program and load it in this process."""
    problem, program = _program(subject)
    with tempfile.TemporaryDirectory() as folder, subject.calling("save or load", problem.title):
        path = Path(folder) / _PACKAGE
        program.save(path)
        outputs = load_program(path, num_threads=1, backends=subject.backends).run(problem.feeds[0])
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
            "intarsia.testing.processes:run_package",
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
    outputs: dict[str, Any] = load_program(path, num_threads=1, backends=backends).run(arrays)
    return "done", outputs


def _program(subject: Subject) -> tuple[Problem, PlanExecutable]:
    problem = random_problem(taken_moves(subject), _SEED)
    with subject.calling("intarsia.compile", problem.title):
        program = compile_model(
            problem.model, subject.config, num_threads=1, backends=subject.backends
        )
    if not program.placement.coverage().get(str(subject.placed)):
        raise NotApplicable("nothing of the program went to the backend")
    return problem, program
