# SPDX-License-Identifier: Apache-2.0
"""Normalisations of sums, as ONNX Runtime's optimiser writes them: one kernel each."""

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import feeds_of, small_model

from intarsia.codegen.lower.region import refuse_node
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

FULL = "com.microsoft.SkipLayerNormalization"
SIMPLIFIED = "com.microsoft.SkipSimplifiedLayerNormalization"
SPELLINGS = {
    "layer": f"y = {FULL}(x, s, g, b)",
    "layer without shift": f"y = {FULL}(x, s, g)",
    "layer with bias": f"y = {FULL}<epsilon = 0.01>(x, s, g, b, c)",
    "layer with bias, without shift": f"y = {FULL}(x, s, g, , c)",
    "simplified": f"y = {SIMPLIFIED}(x, s, g)",
    "simplified with bias": f"y = {SIMPLIFIED}<epsilon = 0.01>(x, s, g, c)",
}


def model_of(spelling, shape=(2, 5, 40), then="", outputs="y", skip=None, first=""):
    names = [name for name in "gbc" if f" {name}" in spelling[spelling.index("(") :]]
    weights = dict.fromkeys(names, (shape[-1],))
    inputs = {"x": shape, "s": shape if skip is None else skip}
    if first:
        weights["w"] = (shape[-1], shape[-1])
    return small_model(outputs, f"{first} {spelling} {then}", inputs, weights)


def calls_of(lower_model, model):
    program, _ = lower_model(model)
    return len(program.calls)


@pytest.mark.parametrize("shape", [(2, 5, 40), (2, 3, 700), (1, 1, 5)])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_sum_and_its_norm_are_one_kernel(spelling, shape, run_both, lower_model):
    model = model_of(SPELLINGS[spelling], shape)
    assert calls_of(lower_model, model) == 1
    run_both(model, feeds_of(model), rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 5, 40), (2, 3, 700)])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_sum_is_an_output_too(spelling, shape, run_both, lower_model):
    text = SPELLINGS[spelling].replace("y =", "y, , , t =")
    model = model_of(text, shape, "z = Add(t, y) u = Relu(z)", "u, t")
    assert calls_of(lower_model, model) == 2
    run_both(model, feeds_of(model), rtol=1e-5)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_between_products(spelling, run_both, lower_model):
    text = SPELLINGS[spelling].replace("(x,", "(p,")
    model = model_of(
        text, then="z = Relu(y) o = MatMul(z, w)", outputs="o", first="p = MatMul(x, w)"
    )
    assert calls_of(lower_model, model) == 3
    run_both(model, feeds_of(model), rtol=1e-4)


@pytest.mark.parametrize("skip", [(1, 5, 40), (5, 40)])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_is_added_may_be_shared_by_a_batch(spelling, skip, run_both):
    model = model_of(SPELLINGS[spelling], skip=skip)
    run_both(model, feeds_of(model), rtol=1e-5)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_farther_off_than_onnxruntime(spelling, run_both):
    model = model_of(SPELLINGS[spelling], (3, 4, 768))
    feeds = feeds_of(model)
    feeds["x"] += 50
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    total = feeds["x"].astype(np.float64) + feeds["s"] + weights.get("c", 0)
    centred = total - total.mean(-1, keepdims=True) if "layer" in spelling else total
    epsilon = 0.01 if "0.01" in SPELLINGS[spelling] else 1e-12
    factor = weights["g"] / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    exact = centred * factor + weights.get("b", 0)
    exe = run_both(model, feeds, rtol=1e-4)

    def error(result):
        return np.abs(result - exact).max()

    assert error(exe.run(feeds)["y"]) <= error(evaluate(model, feeds)["y"]) + 2.0**-20


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from([*SPELLINGS]),
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(2, 200)),
)
def test_random_shapes(run_both, spelling, shape):
    model = model_of(SPELLINGS[spelling], shape)
    run_both(model, feeds_of(model), rtol=1e-4)


REFUSED = {
    "y, m = {}(x, s, g)": "its mean or its deviation is asked for",
    "y, , v = {}(x, s, g)": "its mean or its deviation is asked for",
    "y = {}(x, s, h)": "its scale does not have the last dimension of its input",
    "y = {}(x, w, g)": "what is added has more dimensions than its input",
}


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("operator", [FULL, SIMPLIFIED])
def test_refusals(text, operator):
    declared = "float[2,3,8] x, float[2,3,8] s, float[8] g, float[3] h, float[4,2,3,8] w"
    outputs = "float[2,3,8] y"
    if "," in text.partition("=")[0]:
        outputs += f", float[2,3,1] {text.partition('=')[0].split()[-1]}"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
        f" n ({declared}) => ({outputs}) {{ {text.format(operator)} }}"
    )
    graph = snapshot(load(model))
    assert refuse_node(graph, graph.nodes[0]) == ("op", REFUSED[text])


def test_what_follows_waits_for_no_other_result(run_both):
    """Readers of the sum run before what reads both results."""
    text = SPELLINGS["layer"].replace("y =", "y, , , t =")
    model = model_of(
        text,
        then="p = MatMul(t, w) q = Relu(p) r = Neg(q) z = Add(y, r) u = Mul(z, q)",
        outputs="u",
    )
    weight = np.eye(40, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    run_both(model, feeds_of(model))
