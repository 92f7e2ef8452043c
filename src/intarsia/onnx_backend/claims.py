# SPDX-License-Identifier: Apache-2.0
"""What a target claims of ONNX's node tests by itself, and whether it keeps what it claims.

Most tests give everything as inputs, also what models have as constants: weights, axes, shapes. So
each runs twice: as it is, and with all inputs but the first as constants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

from intarsia.backends.defects import KnownDefect
from intarsia.backends.float64 import evaluate
from intarsia.backends.registry import Backends, load_backends
from intarsia.errors import ExecutionError, IntarsiaError, UnsupportedError
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot
from intarsia.onnx_backend.backend import IntarsiaRep
from intarsia.onnx_backend.conformance import OnnxCase, Outcome, as_array, load_cases, quiet
from intarsia.process.workers import Limits, Worker
from intarsia.settings import Settings
from intarsia.target import Target

STATED = "stated"
"""The code of a failure that a backend states of itself: see `docs/numbers.md`."""
_ROUNDED = "its expectation is rounded to halves in between; float64 gives what we give"

_SEVERAL = 2
_REASON = re.compile(r"not on .*?: ([\w-]+): (.*)")
_STAND_IN = "reference"
"""What runs nodes that no target takes, where a list of targets says nothing of it."""
_LIMITS = Limits(seconds=120)


@dataclass(frozen=True, slots=True)
class Claim:
    """What became of one test.

    Attributes:
        test: Its name; `[constant]` behind it says which way it ran.
        operator: What is tested.
        dtypes: Of the inputs.
        outcome: Refused is right, failed is not.
        code: Of a refusal, what kind it is; of a failure, `STATED` or nothing.
        why: Of a refusal or failure.
    """

    test: str
    operator: str
    dtypes: tuple[str, ...]
    outcome: Outcome
    code: str = ""
    why: str = ""


def node_cases(*, several: bool = False) -> Iterator[OnnxCase]:
    """Yield ONNX's tests of one node, each as it is and with its parameters as constants.

    Args:
        several: Whether to yield those of several nodes too: bodies of functions, above all.
    """
    for case in load_cases(("node",)):
        if several or len(case.model.graph.node) == 1:
            yield case
            frozen = with_constants(case)
            if frozen is not None:
                yield frozen


def with_constants(case: OnnxCase) -> OnnxCase | None:
    """Return a test with all inputs but the first as constants, or None if it has just one."""
    if len(case.data) != 1:
        return None
    inputs, outputs = case.data[0]
    arrays = [_scalar(as_array(proto)) for proto in inputs]
    declared = list(case.model.graph.input)
    is_plain = all(isinstance(array, np.ndarray) for array in arrays)
    if len(arrays) != len(declared) or len(arrays) < _SEVERAL or not is_plain:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.input[1:]
    for value, array in zip(declared[1:], arrays[1:], strict=True):
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    return replace(case, name=f"{case.name}[constant]", model=model, data=[([arrays[0]], outputs)])


def check_claims(
    cases: Iterable[OnnxCase], target: str, backends: Backends | None = None
) -> Iterator[Claim]:
    """Run tests on one target without a fallback, and yield what became of them."""
    backends = load_backends(Settings.from_environment()) if backends is None else backends
    for case in cases:
        yield _check(case, target, backends)


def check_isolated(cases: Sequence[OnnxCase], target: str) -> Iterator[Claim]:
    """Run tests on one target in a process that may die, and yield what became of them.

    Args:
        cases: Sent one by one: a process would need ten seconds to have onnx make all of them.
        target: One target or several.
    """
    with Worker() as worker:
        for case in cases:
            fields = {name: getattr(case, name) for name in ("name", "operator", "rtol", "atol")}
            sent = {**fields, "model": case.model.SerializeToString(), "data": _sent(case.data)}
            ran = worker.call(f"{__name__}:check_sent", sent, target, limits=_LIMITS)
            if ran.is_ok:
                values = {**ran.value, "dtypes": tuple(ran.value["dtypes"])}
                yield Claim(**{**values, "outcome": Outcome(values["outcome"])})
            else:
                yield Claim(case.name, case.operator, (), Outcome.FAILED, why=ran.message)


def check_sent(case: dict[str, Any], target: str) -> dict[str, Any]:
    """Run a test as `check_isolated` sends it on a target; return the fields of its `Claim`."""
    model = onnx.ModelProto.FromString(case["model"])
    received = OnnxCase(**{**case, "model": model, "data": _received(case["data"])})
    return asdict(_check(received, target, _backends()))


def _sent(value: Any) -> Any:
    """Return arrays, and sequences of them, as bytes that a process can be sent."""
    if value is None or isinstance(value, list | tuple):
        return value and [_sent(item) for item in value]
    is_proto = isinstance(value, onnx.TensorProto)
    proto = value if is_proto else numpy_helper.from_array(np.asarray(value))
    return proto.SerializeToString()


def _received(value: Any) -> Any:
    """Return what `_sent` was given, tensors as arrays."""
    if value is None or isinstance(value, list):
        return value and [_received(item) for item in value]
    return numpy_helper.to_array(onnx.TensorProto.FromString(value))


@cache
def _backends() -> Backends:
    return load_backends(Settings.from_environment())


def _check(case: OnnxCase, target: str, backends: Backends) -> Claim:
    inputs = case.data[0][0] if case.data else ()
    arrays = [as_array(proto) for proto in inputs]
    dtypes = tuple(array.dtype.name for array in arrays if isinstance(array, np.ndarray))
    claim = Claim(case.name, case.operator, dtypes, Outcome.PASSED)
    # A partial target needs something behind it; `strict` lets nothing get there.
    is_whole = "," in target or Target(target).kind.is_complete
    machine = target if is_whole else f"{target}, reference"
    options = {"backends": backends, "num_threads": 1, "strict": "," not in target}
    outputs: list[Any] = []
    wanted: list[Any] = []
    try:
        with quiet():
            prepared = IntarsiaRep(case.model, machine, options)
            for inputs, expected in case.data:
                outputs = _flat(prepared.run([as_array(proto) for proto in inputs]))
                wanted = _flat([as_array(proto) for proto in expected])
                Runner.assert_similar_outputs(wanted, outputs, case.rtol, case.atol, case.name)
    except UnsupportedError as error:
        match = _REASON.search(str(error))
        code, why = match.groups() if match else ("", error.message)
        return replace(claim, outcome=Outcome.REFUSED, code=code, why=why)
    except AssertionError as error:
        defect = _stated(case, target, backends, list(zip(outputs, wanted, strict=False)))
        if defect is not None:
            return replace(claim, outcome=Outcome.FAILED, code=STATED, why=defect.says)
        if _is_exact(case, inputs, outputs):
            return replace(claim, outcome=Outcome.FAILED, code=STATED, why=_ROUNDED)
        return replace(claim, outcome=Outcome.FAILED, why=str(error))
    except ExecutionError as error:
        if error.backend == _STAND_IN and _STAND_IN not in target:  # none of the target's takes it
            return replace(claim, outcome=Outcome.REFUSED, why=error.message)
        return replace(claim, outcome=Outcome.FAILED, why=str(error))
    except Exception as error:  # whatever is raised is a claim that is not kept
        why = str(error) if isinstance(error, IntarsiaError) else repr(error)
        return replace(claim, outcome=Outcome.FAILED, why=why)
    return claim


def _is_exact(case: OnnxCase, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Tell whether halves are within a test's tolerance of what float64 gives, if not of its own.

    What it expects of several nodes is rounded after each, to three digits; a library that rounds
    once is nearer to what is meant, and may be further from the expectation.
    """
    if not all(_is_array(output) and output.dtype == np.float16 for output in outputs):
        return False
    names = [value.name for value in case.model.graph.input]
    feeds = dict(zip(names, (_scalar(as_array(proto)) for proto in inputs), strict=True))
    try:
        with quiet():
            wanted = evaluate(case.model, feeds)
            wide = [output.astype(np.float64) for output in outputs]
            Runner.assert_similar_outputs(wanted, wide, case.rtol, case.atol, case.name)
    except Exception:  # without a reference the expectation stands
        return False
    return True


def _flat(values: Iterable[Any]) -> list[Any]:
    """Return arrays in order, each sequence with its length before it.

    onnx's runner compares the rows of arrays in a sequence, and cannot compare scalars there.
    """
    arrays: list[Any] = []
    for value in values:
        is_sequence = isinstance(value, list | tuple)
        arrays += [np.asarray(len(value)), *_flat(value)] if is_sequence else [value]
    return arrays


def _stated(
    case: OnnxCase, target: str, backends: Backends, results: Sequence[tuple[Any, Any]]
) -> KnownDefect | None:
    """Return a rule by which one of a target's backends says that it makes such numbers.

    Args:
        case: The test.
        target: One target or several.
        backends: All that there are.
        results: Each output with what was wanted.
    """
    graph = snapshot(load(case.model))
    kinds = {Target(text).kind.name for text in target.split(",")}
    inputs = [_scalar(as_array(proto)) for proto in (case.data[0][0] if case.data else ())]
    arrays = [x for x in (*inputs, *(y for pair in results for y in pair)) if _is_array(x)]
    for backend in backends.by_name.values():
        if kinds.isdisjoint(backend.kind_names):
            continue
        for defect in backend.defects:
            is_meant = any(defect.describes(graph, node, backend.version()) for node in graph.nodes)
            if not is_meant or defect.is_refused or not defect.explains(arrays):
                continue
            if all(_is_within(defect, inputs, *pair, len(graph.nodes)) for pair in results):
                return defect
    return None


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _is_within(
    defect: KnownDefect, inputs: Sequence[Any], output: Any, wanted: Any, nodes: int
) -> bool:
    """Tell whether an output is as far off as a rule says at most.

    What errors of one node come to behind others is not known: of several nodes only a rule that
    says nothing of the size holds.
    """
    if defect.bound is None:
        return True
    if not _is_array(output) or output.shape != wanted.shape or output.dtype != wanted.dtype:
        return False
    most = np.asarray(defect.bound(inputs, output), np.float64)
    if nodes > 1:
        return bool(np.isinf(most).all())
    off = np.abs(output.astype(np.float64) - wanted.astype(np.float64))
    return bool((off <= most).all())


def _scalar(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value
