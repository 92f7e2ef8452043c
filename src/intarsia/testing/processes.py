# SPDX-License-Identifier: Apache-2.0
"""Check: a package runs here and in a fresh process, with equal numbers."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from intarsia.backends.api import Array
from intarsia.backends.registry import collect, load_backends
from intarsia.compiler import compile as compile_model
from intarsia.runtime.executor import PlanExecutable
from intarsia.runtime.loading import load as load_program
from intarsia.runtime.workers import Limits, Worker
from intarsia.testing.case import Problem
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.sketch import random_problem, taken_moves
from intarsia.testing.subject import Subject, resolve
from intarsia.testing.tolerance import REGION_FACTOR
from intarsia.testing.trial import Trial

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
    spelling = find_spelling(subject)
    problem, program = _program(subject)
    path_list = os.pathsep.join(entry for entry in sys.path if entry)
    with (
        tempfile.TemporaryDirectory() as folder,
        Worker({"PYTHONPATH": path_list}) as worker,
        subject.calling("save", problem.title),
    ):
        path = Path(folder) / _PACKAGE
        program.save(path)
        outcome = worker.call(
            "intarsia.testing.processes:run_package",
            str(path),
            spelling,
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


def find_spelling(subject: Subject) -> str:
    """Return how a fresh process finds the backend: `module:attribute`, or "" for entry points."""
    if subject.spelling is not None:
        return subject.spelling
    installed = load_backends().by_name.get(subject.backend.name)
    if installed is not subject.backend:
        raise NotApplicable(
            "a fresh process cannot find this backend: no entry point leads to it; "
            "give its spelling 'module:attribute' to conformance() in place of the value"
        )
    return ""


def run_package(
    path: str, spelling: str, arrays: Mapping[str, Array]
) -> tuple[str, dict[str, Array]]:
    """Load a package and run it once: what the fresh process does.

    Args:
        path: The package.
        spelling: Of the backend, or "" if it is installed.
        arrays: An array per input, by name.
    """
    backends = load_backends()
    if spelling:
        backend = resolve(spelling)
        backends = collect({**backends.by_name, backend.name: backend}.values())
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
