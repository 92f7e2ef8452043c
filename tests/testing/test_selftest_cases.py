# SPDX-License-Identifier: Apache-2.0
"""What the self-test of a device runs has every operation that our emitter writes."""

import pytest

from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.ir import Bitcast, Cast, Loop, results, walk
from intarsia.codegen.lower.region import lower_region, refuse_node
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot
from intarsia.testing.case import problem_of
from intarsia.testing.cases import CASES
from intarsia.testing.selftest import COMMON, EMITTED, side_by_side

UNIT = DeviceLimits(vector_bits=512, has_fp16=True).unit


def operations_of(model):
    """Every operation of the kernels of a model: its name, its types, scalar or vector."""
    graph = snapshot(load(model))
    if any(refuse_node(graph, node) is not None for node in graph.nodes):
        return set()
    found = set()
    for kernel in lower_region(graph.whole, UNIT).kernels:
        for operation in walk(kernel.body):
            found |= set(describe(operation))
    return found


def describe(operation):
    kind = type(operation).__name__
    name = "" if isinstance(operation, Loop) else getattr(operation, "name", "")
    name = name or getattr(operation, "predicate", "")
    source = operation.operand.type.dtype if isinstance(operation, Cast | Bitcast) else ""
    values = results(operation) or [v for v in [getattr(operation, "value", None)] if v]
    for value in values:
        yield kind, name, source, value.type.dtype, value.type.lanes > 1


@pytest.mark.exhaustive
def test_every_operation_that_is_emitted_is_tried():
    tried = operations_of(side_by_side(EMITTED).model)
    for case in CASES:
        for dtype in case.dtypes:
            missing = operations_of(problem_of(case, dtype).model) - tried
            assert not missing, f"{case} {dtype}: add a case that has {missing} to EMITTED"


def test_what_is_tried_are_cases_of_the_kit():
    problem = side_by_side((*COMMON, "Relu-scalar float16"))
    assert len(problem.model.graph.node) == len(COMMON) + 1
    for values in problem.values:
        assert {output.name for output in problem.model.graph.output} <= set(values)
