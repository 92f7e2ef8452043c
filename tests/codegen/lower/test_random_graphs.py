# SPDX-License-Identifier: Apache-2.0
"""Whatever the graph: native numbers are onnxruntime's, and every node is taken."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.lower.random_graphs import models
from tests.codegen.lower.small_models import feeds_of

SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.exhaustive
@settings(SETTINGS, max_examples=150)
@given(models())
def test_numbers(run_both, model):
    run_both(model, feeds_of(model))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float64", "int32", "int64"])
@settings(SETTINGS, max_examples=40)
@given(data=st.data())
def test_numbers_of_other_dtypes(run_both, dtype, data):
    model = data.draw(models(dtype=dtype))
    run_both(model, feeds_of(model))


@pytest.mark.exhaustive
@pytest.mark.parametrize("cpu", ["haswell", "x86-64"])
@settings(SETTINGS, max_examples=40)
@given(models(max_nodes=6))
def test_numbers_with_narrower_vectors(run_both, cpu, model):
    run_both(model, feeds_of(model), f"llvm -mcpu={cpu}")
