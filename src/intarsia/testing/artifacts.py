# SPDX-License-Identifier: Apache-2.0
"""Check: an artifact refers to its constants, and the same region gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from intarsia.backends.values import Artifact
from intarsia.testing.case import Case, case, fed, problem_of, weight
from intarsia.testing.judging import ConformanceError
from intarsia.testing.sketch import random_problem, taken_moves
from intarsia.testing.subject import Subject
from intarsia.testing.trial import Trial

SENTENCE = "Constants are referred to and not copied; compiling twice gives the same bytes."

WEIGHTY: tuple[Case, ...] = (
    case("MatMul", "weights", fed(4, 256), weight(256, 256)),
    case("Gemm", "weights", fed(4, 256), weight(256, 256)),
    case("Conv", "weights", fed(1, 64, 6, 6), weight(64, 64, 3, 3)),
    case("Add", "weights", fed(256, 256), weight(256, 256)),
    case("Mul", "weights", fed(256, 256), weight(256, 256)),
)
"""One constant of some 256 KiB each."""

SHARE = 4
"""A payload has to be smaller than the weights by this factor."""


def trials() -> Iterator[Trial]:
    """Yield one trial per kind of weights, and one for the bytes."""
    for weighty in WEIGHTY:
        yield Trial("artifacts", f"constants_of_{weighty.op_type}", partial(refer, weighty=weighty))
    yield Trial("artifacts", "deterministic", repeat)


def refer(subject: Subject, weighty: Case) -> None:
    """Compile an operator with large weights and look at its payload."""
    problem = problem_of(weighty, "float32")
    region = subject.take(subject.graph(problem.model), problem.title)
    artifact = subject.compile(region, problem.title)
    weights = sum(region.graph.values[i].nbytes for i in region.constants)
    if len(artifact.payload) * SHARE > weights:
        raise ConformanceError(
            f"{problem.title}: the payload has {len(artifact.payload)} bytes for {weights} bytes "
            f"of weights: refer to them by Artifact.constants, so that packages and regions share "
            f"one copy"
        )
    referred = sum(constant.data.nbytes for constant in artifact.constants)
    if referred < weights:
        raise ConformanceError(
            f"{problem.title}: {weights} bytes of weights, of which the artifact refers to "
            f"{referred}: it cannot be loaded in another process"
        )


def repeat(subject: Subject) -> None:
    """Compile one region twice, from two graphs of one model."""
    problem = random_problem(taken_moves(subject), seed=1)
    first, second = (
        subject.compile(subject.take(subject.graph(problem.model), problem.title), problem.title)
        for _ in range(2)
    )
    for name in ("payload", "inputs", "outputs", "metadata", "target", "version"):
        if getattr(first, name) != getattr(second, name):
            raise ConformanceError(f"compiling {problem.title} twice gives two values of {name}")
    if _constants(first) != _constants(second):
        raise ConformanceError(f"compiling {problem.title} twice gives two sets of constants")


def _constants(artifact: Artifact) -> list[tuple[str, str, bytes]]:
    return [
        (item.name, str(item.data.dtype), np.ascontiguousarray(item.data).tobytes())
        for item in artifact.constants
    ]
