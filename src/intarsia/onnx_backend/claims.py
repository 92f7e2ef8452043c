# SPDX-License-Identifier: Apache-2.0
"""What a target claims of ONNX's node tests by itself, and whether it keeps what it claims.

Most tests give everything as inputs, also what models have as constants: weights, axes, shapes. So
each runs twice: as it is, and with all inputs but the first as constants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

from intarsia.backends.registry import Backends, load_backends
from intarsia.errors import IntarsiaError, UnsupportedError
from intarsia.onnx_backend.backend import IntarsiaRep
from intarsia.onnx_backend.conformance import OnnxCase, Outcome, as_array, load_cases, quiet
from intarsia.settings import Settings

_SEVERAL = 2
_REASON = re.compile(r"not on .*?: ([\w-]+): (.*)")


@dataclass(frozen=True, slots=True)
class Claim:
    """What became of one test.

    Attributes:
        test: Its name; `[constant]` behind it says which way it ran.
        operator: What is tested.
        dtypes: Of the inputs.
        outcome: Refused is right, failed is not.
        code: Of a refusal, what kind it is.
        why: Of a refusal or failure.
    """

    test: str
    operator: str
    dtypes: tuple[str, ...]
    outcome: Outcome
    code: str = ""
    why: str = ""


def node_cases() -> Iterator[OnnxCase]:
    """Yield ONNX's tests of one node, each as it is and with its parameters as constants."""
    for case in load_cases(("node",)):
        if len(case.model.graph.node) == 1:
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


def _check(case: OnnxCase, target: str, backends: Backends) -> Claim:
    inputs = case.data[0][0] if case.data else ()
    arrays = [as_array(proto) for proto in inputs]
    dtypes = tuple(array.dtype.name for array in arrays if isinstance(array, np.ndarray))
    claim = Claim(case.name, case.operator, dtypes, Outcome.PASSED)
    options = {"backends": backends, "num_threads": 1, "strict": True}
    try:
        with quiet():
            prepared = IntarsiaRep(case.model, target, options)
            for inputs, expected in case.data:
                outputs = list(prepared.run([as_array(proto) for proto in inputs]))
                wanted = [as_array(proto) for proto in expected]
                Runner.assert_similar_outputs(wanted, outputs, case.rtol, case.atol, case.name)
    except UnsupportedError as error:
        match = _REASON.search(str(error))
        code, why = match.groups() if match else ("", error.message)
        return replace(claim, outcome=Outcome.REFUSED, code=code, why=why)
    except Exception as error:  # whatever is raised is a claim that is not kept
        why = str(error) if isinstance(error, IntarsiaError | AssertionError) else repr(error)
        return replace(claim, outcome=Outcome.FAILED, why=why)
    return claim


def _scalar(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value
