# SPDX-License-Identifier: Apache-2.0
"""Runs ONNX's own backend tests through us and through plain ONNX Runtime, and counts.

Source:
    onnx.backend.test, of the onnx that is installed.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from intarsia.errors import BackendError, ExecutionError, IntarsiaError, UnsupportedError
from intarsia.onnx_backend.backend import IntarsiaRep

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""The tests that come with onnx and need no download."""

Prepared: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
Prepare: TypeAlias = Callable[[onnx.ModelProto], Prepared]


class Outcome(StrEnum):
    """What became of one test."""

    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class OnnxCase:
    """One test: a model, and inputs with the outputs that are expected.

    Attributes:
        name: As onnx calls it.
        operator: What is tested: the operator of a model of one node, else the kind of test.
        model: The model.
        data: Pairs of inputs and outputs.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
    """

    name: str
    operator: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one test on one backend, with the first line of the reason for a failure."""

    test: str
    operator: str
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class Conformance:
    """The results of every backend, by its name, in the order of the tests."""

    results: dict[str, list[Result]] = field(default_factory=dict)

    def counts(self, backend: str) -> Counter[Outcome]:
        """Return how many tests had which outcome."""
        return Counter(result.outcome for result in self.results[backend])

    def by_operator(self) -> dict[str, dict[str, Counter[Outcome]]]:
        """Return the counts by operator and backend, operators in order of their names."""
        table: dict[str, dict[str, Counter[Outcome]]] = {}
        for backend, results in self.results.items():
            for result in results:
                row = table.setdefault(result.operator, {name: Counter() for name in self.results})
                row[backend][result.outcome] += 1
        return dict(sorted(table.items()))

    def missing(self, backend: str, peer: str) -> list[Result]:
        """Return the results of a backend for what passes on a peer and not on it."""
        return [
            result
            for result, other in zip(self.results[backend], self.results[peer], strict=True)
            if other.outcome is Outcome.PASSED and result.outcome is not Outcome.PASSED
        ]


def load_cases(kinds: Iterable[str] = KINDS) -> Iterator[OnnxCase]:
    """Yield the tests that come with onnx, by name within each kind."""
    for kind in kinds:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # computing the expected outputs overflows on purpose
            tests = sorted(load_model_tests(kind=kind), key=lambda case: case.name)
        for case in tests:
            if case.model is not None:
                model, data = case.model, case.data_sets or []
            elif case.model_dir is not None:
                folder = Path(case.model_dir)
                model = onnx.load(folder / "model.onnx")
                data = [_read_data(model, inner) for inner in sorted(folder.glob("test_data_set*"))]
            else:
                continue  # it would have to be downloaded
            nodes = model.graph.node
            operator = nodes[0].op_type if kind == "node" and len(nodes) == 1 else f"({kind})"
            if kind == "node" and len(nodes) != 1:
                operator = "(function body)" if "_expanded" in case.name else "(several nodes)"
            yield OnnxCase(case.name, operator, model, data, case.rtol, case.atol)


def _read_data(model: onnx.ModelProto, folder: Path) -> tuple[list[Any], list[Any]]:
    inputs = len(list(folder.glob("input_*.pb")))
    outputs = len(list(folder.glob("output_*.pb")))
    return (
        [_read(folder / f"input_{i}.pb", model.graph.input[i].type) for i in range(inputs)],
        [_read(folder / f"output_{i}.pb", model.graph.output[i].type) for i in range(outputs)],
    )


def _read(file: Path, kind: onnx.TypeProto) -> Any:
    data = file.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def prepare_ours(target: Any, **options: Any) -> Prepare:
    """Return what prepares a model on a target of ours."""
    from intarsia.backends.registry import load_backends
    from intarsia.settings import Settings

    backends = load_backends(Settings.from_environment())

    def prepare(model: onnx.ModelProto) -> Prepared:
        return IntarsiaRep(model, target, {"backends": backends, **options}).run

    return prepare


def prepare_onnxruntime(num_threads: int = 1) -> Prepare:
    """Return what prepares a model in ONNX Runtime's own session, without us.

    Raises:
        BackendError: It is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendError(
            f"ONNX Runtime is not available: {error}", hint="pip install 'intarsia[onnxruntime]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 4

    def prepare(model: onnx.ModelProto) -> Prepared:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [value.name for value in session.get_inputs()]
        return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))

    return prepare


def run_cases(
    cases: Iterable[OnnxCase],
    backends: dict[str, Prepare],
    progress: Callable[[int, str], None] = lambda done, name: None,
) -> Conformance:
    """Run tests on every backend."""
    conformance = Conformance({name: [] for name in backends})
    for done, case in enumerate(cases):
        progress(done, case.name)
        for name, prepare in backends.items():
            conformance.results[name].append(_run(case, prepare))
    return conformance


def _run(case: OnnxCase, prepare: Prepare) -> Result:
    outcome = Outcome.REFUSED
    try:
        with quiet():
            run = prepare(case.model)
            for inputs, expected in case.data:
                inputs, expected = [[as_array(x) for x in part] for part in (inputs, expected)]  # noqa: PLW2901
                outputs = run(inputs)
                outcome = Outcome.FAILED
                Runner.assert_similar_outputs(
                    expected, list(outputs), case.rtol, case.atol, case.name
                )
    except Exception as error:  # whatever a backend raises is an answer
        if outcome is Outcome.REFUSED and not _is_refusal(error):
            outcome = Outcome.FAILED
        message = error.message if isinstance(error, IntarsiaError) else str(error)
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        why = f"{type(error).__name__}: {lines[0] if lines else ''}"
        return Result(case.name, case.operator, outcome, why)
    return Result(case.name, case.operator, Outcome.PASSED)


def _is_refusal(error: Exception) -> bool:
    """Whether an error says that a model is unsupported, rather than that something failed."""
    if isinstance(error, IntarsiaError):
        is_refused = isinstance(error, UnsupportedError | BackendError)
        return is_refused and not isinstance(error, ExecutionError)
    return type(error).__name__ in ("NotImplemented", "InvalidGraph", "Fail", "InvalidArgument")


def as_array(value: Any) -> Any:
    """Return a tensor of a test as an array; sequences and absent values as they are."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings of what tests do on purpose to ourselves."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
