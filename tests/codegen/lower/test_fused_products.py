# SPDX-License-Identifier: Apache-2.0
"""Products and convolutions that ONNX Runtime's optimiser has fused: one kernel each."""

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.lower.small_models import feeds_of, small_model

from intarsia.codegen.lower.region import refuse_node
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

ACTIVATIONS = {
    "Relu": {},
    "Sigmoid": {},
    "Tanh": {},
    "LeakyRelu": {"alpha": 0.2},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
}


def calls_of(lower_model, model):
    program, _ = lower_model(model)
    return sum(bool(call.nodes) for call in program.calls)


def attributes_of(**given):
    texts = (
        f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
        for name, value in given.items()
    )
    return f"<{', '.join(texts)}>" if given else ""


MATRICES = [
    ((3, 5), (5, 4), {}),
    ((5, 3), (5, 4), {"transA": 1}),
    ((3, 5), (4, 5), {"transB": 1}),
    ((2, 3, 7, 5), (2, 3, 19, 5), {"transB": 1, "alpha": 0.125}),
    ((2, 3, 5, 7), (2, 3, 5, 19), {"transA": 1, "alpha": -2.0}),
    ((2, 3, 5, 7), (2, 3, 4, 5), {"transA": 1, "transB": 1}),
    ((7, 2, 3, 5), (2, 3, 5, 19), {"transBatchA": 1}),
    ((2, 3, 7, 5), (5, 2, 3, 19), {"transBatchB": 1, "alpha": 0.5}),
    ((7, 2, 3, 5), (19, 2, 3, 5), {"transBatchA": 1, "transBatchB": 1, "transB": 1}),
    ((5, 2, 7), (5, 2, 19), {"transBatchA": 1, "transA": 1, "transBatchB": 1}),
]


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize(("a", "b", "options"), MATRICES)
def test_fused_matmul(run_both, lower_model, a, b, options, is_constant):
    text = f"p = com.microsoft.FusedMatMul{attributes_of(**options)}(a, b) y = Relu(p)"
    weights = {"b": b} if is_constant else {}
    model = small_model("y", text, {"a": a} | ({} if is_constant else {"b": b}), weights)
    assert calls_of(lower_model, model) == 1
    run_both(model, feeds_of(model), rtol=1e-5)


def test_one_weight_in_two_orders(run_both):
    text = (
        "p = com.microsoft.FusedMatMul<transB = 1>(a, b)"
        " q = com.microsoft.FusedMatMul<alpha = 0.5>(p, b) r = com.microsoft.FusedMatMul(q, b)"
        " s = com.microsoft.TransposeMatMul<transB = 1, alpha = 2.0>(r, b) y = MatMul(s, b)"
    )
    model = small_model("y", text, {"a": (3, 8)}, {"b": (8, 8)})
    run_both(model, feeds_of(model), rtol=1e-4)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 20), st.integers(1, 20)),
    st.tuples(*[st.booleans()] * 4),
)
def test_random_orders(run_both, sizes, flags):
    batch, m, n, k = sizes
    names = ("transA", "transB", "transBatchA", "transBatchB")
    options = {name: 1 for name, flag in zip(names, flags, strict=True) if flag}
    a, b = [m, k], [k, n]
    a = a[::-1] if flags[0] else a
    b = b[::-1] if flags[1] else b
    a.insert(1 if flags[2] else 0, batch)
    b.insert(1 if flags[3] else 0, batch)
    text = f"y = com.microsoft.FusedMatMul{attributes_of(**options)}(a, b)"
    model = small_model("y", text, {"a": tuple(a), "b": tuple(b)})
    run_both(model, feeds_of(model), rtol=1e-4)


@pytest.mark.parametrize("addend", [None, (4,), (3, 4), (3, 1)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fused_gemm(run_both, lower_model, activation, addend):
    options = {f"activation_{name}": value for name, value in ACTIVATIONS[activation].items()}
    options["activation"] = activation
    options |= {"alpha": 0.5, "beta": 1.5, "transB": 1}
    operands = "a, b" if addend is None else "a, b, c"
    text = f"p = com.microsoft.FusedGemm{attributes_of(**options)}({operands}) y = Neg(p)"
    weights = {"b": (4, 5)} | ({} if addend is None else {"c": addend})
    model = small_model("y", text, {"a": (3, 5)}, weights)
    assert calls_of(lower_model, model) == 1
    run_both(model, feeds_of(model), rtol=1e-5)


@pytest.mark.parametrize("operands", ["x, w", "x, w, b, z"])
@pytest.mark.parametrize("activation", ["none", *ACTIVATIONS, "Clip"])
@pytest.mark.parametrize("kernel", [(20, 16, 1, 1), (16, 1, 3, 3)])
def test_fused_conv(run_both, lower_model, kernel, activation, operands):
    parameters = ACTIVATIONS.get(activation, {"min": -0.5, "max": 1.5})
    options = {"group": 16 // kernel[1], "pads": [kernel[2] // 2] * 4}
    if activation != "none":
        options["activation"] = activation
    if parameters:
        options["activation_params"] = [*parameters.values()]
    text = f"c = com.microsoft.FusedConv{attributes_of(**options)}({operands}) y = Neg(c)"
    inputs = {"x": (2, 16, 6, 7)}
    if "z" in operands:
        inputs["z"] = (2, kernel[0], 6, 7)
    weights = {"w": kernel} | ({"b": kernel[:1]} if "b" in operands else {})
    model = small_model("y", text, inputs, weights)
    assert calls_of(lower_model, model) == 1
    run_both(model, feeds_of(model), rtol=1e-4)


def test_a_fused_conv_between_others(run_both):
    text = (
        "a = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(a)"
        ' c = com.microsoft.FusedConv<pads = [1, 1, 1, 1], activation = "Relu">(r, w, b, a)'
        " y = Conv<pads = [1, 1, 1, 1]>(c, w)"
    )
    model = small_model("y", text, {"x": (2, 16, 6, 7)}, {"w": (16, 16, 3, 3), "b": (16,)})
    run_both(model, feeds_of(model))


def test_trilu(run_both):
    text = "y = com.microsoft.Trilu<upper = 0>(x)"
    model = small_model("y", text, {"x": (2, 5, 7)})
    run_both(model, feeds_of(model))


REFUSED = {
    'y = com.microsoft.FusedConv<activation = "Selu">(x, w)': "its activation is Selu",
    'y = com.microsoft.FusedConv<activation = "Clip", activation_params = [1.0]>(x, w)': (
        "its Clip lacks a parameter"
    ),
    "y = com.microsoft.FusedConv(x, w, , s)": (
        "what is added does not have the shape of its result"
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
        " n (float[1,2,8,8] x, float[2,2,1,1] w, float[1,2,1,1] s) => (float[1,2,8,8] y)"
        f" {{ {text} }}"
    )
    graph = snapshot(load(model))
    assert refuse_node(graph, graph.nodes[0]) == ("op", REFUSED[text])
