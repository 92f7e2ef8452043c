# SPDX-License-Identifier: Apache-2.0
"""ONNX's own tests of nodes: what the native backend claims it does right."""

from collections import Counter

import pytest

from intarsia.onnx_backend.claims import check_claims, node_cases
from intarsia.onnx_backend.conformance import (
    Outcome,
    load_cases,
    prepare_ours,
    run_cases,
)

ALL_TAKEN = frozenset(
    (
        *("Add", "Sub", "Mul", "Neg", "Abs", "Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid"),
        *("HardSigmoid", "HardSwish", "Exp", "Log", "Sqrt", "Erf", "Tanh", "Where", "And", "Or"),
        *("Not", "Less", "Greater", "Softmax", "LogSoftmax", "Hardmax", "LRN"),
        *("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "Flatten", "Concat"),
        *("Transpose", "Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth"),
        *("ArgMax", "ArgMin", "MatMul", "Gemm", "Shape", "Size", "InstanceNormalization"),
        *("Conv", "ConvTranspose"),
        *(
            "LayerNormalization",
            "GroupNormalization",
            "MeanVarianceNormalization",
            "LpNormalization",
        ),
    )
)
"""Operators of which nothing is refused."""
TAKEN_WITH_CONSTANTS = frozenset(("BatchNormalization", "Slice", "Squeeze", "Unsqueeze", "Expand"))
"""Operators of which something is taken once parameters are constants."""


@pytest.fixture(scope="module")
def claims():
    return list(check_claims(node_cases(), "llvm"))


@pytest.mark.exhaustive
def test_what_is_claimed_is_right(claims):
    failed = [f"{claim.test}: {claim.why}" for claim in claims if claim.outcome is Outcome.FAILED]
    assert not failed, "\n".join(failed)


@pytest.mark.exhaustive
def test_what_is_refused_has_a_reason(claims):
    refused = [claim for claim in claims if claim.outcome is Outcome.REFUSED]
    assert all(claim.code and claim.why for claim in refused)
    assert "compile-failed" not in {claim.code for claim in refused}


@pytest.mark.exhaustive
def test_much_is_claimed(claims):
    taken = Counter(claim.operator for claim in claims if claim.outcome is Outcome.PASSED)
    refused = Counter(claim.operator for claim in claims if claim.outcome is Outcome.REFUSED)
    assert set(taken) >= ALL_TAKEN | TAKEN_WITH_CONSTANTS
    assert not {op for op in ALL_TAKEN if refused[op]}


@pytest.mark.exhaustive
def test_function_bodies_are_right_beside_another_backend():
    """Several nodes, some of them native: what goes wrong there goes wrong without us too."""
    cases = [
        case
        for case in load_cases(("node",))
        if len(case.model.graph.node) > 1 and "fp16" not in case.name  # rounded otherwise
    ]
    mixed = run_cases(cases, {"mixed": prepare_ours("llvm, onnxruntime", num_threads=1)})
    wrong = {item.test for item in mixed.results["mixed"] if item.outcome is Outcome.FAILED}
    doubtful = [case for case in cases if case.name in wrong]
    alone = run_cases(doubtful, {"alone": prepare_ours("onnxruntime", num_threads=1)})
    assert not [item.test for item in alone.results["alone"] if item.outcome is Outcome.PASSED]
