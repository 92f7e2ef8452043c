# SPDX-License-Identifier: Apache-2.0
"""Activations stand right behind products, before views: the same numbers to the bit."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from tests.codegen.lower.small_models import feeds_of, small_model

from intarsia.graph.annotate import on_device
from intarsia.graph.load import load
from intarsia.passes.prepare import prepare

GELU = "u = Div({0}, root) v = Erf(u) s = Add(v, one) m = Mul({0}, s) y = Mul(half, m)"
TANH = (
    "h = Mul({0}, half) c = Pow({0}, three) k = Mul(c, half) i = Add({0}, k) t = Tanh(i)"
    " p = Add(t, one) y = Mul(h, p)"
)
WEIGHTS = {
    "w": (8, 6),
    "bias": (6,),
    "rows": np.array([10, 8], np.int64),
    "batch": np.array([2, 5, 6], np.int64),
    **{
        name: np.float32(value)
        for name, value in {"root": 1.5, "one": 1, "half": 0.5, "three": 3}.items()
    },
    "long": np.ones((1, 1, 1), np.float32),
    "channels": (6,),
}
GEMM = "a = Reshape(x, rows) g = Gemm(a, w, bias) r = Reshape(g, batch) "


def check(body, outputs="y", devices=None):
    """Prepare a model, compare its numbers to the bit, and return its operators in order."""
    read = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    weights = {name: array for name, array in WEIGHTS.items() if name in read}
    model = small_model(outputs, body, {"x": (2, 5, 8)}, weights, opset=20)
    for node in model.graph.node:
        node.name = node.output[0]
    prepared = prepare(load(on_device(model, devices or {})))
    after = ir.to_proto(prepared.model)
    onnx.checker.check_model(after, full_check=True)

    def run(proto):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, feeds_of(model))

    for got, want in zip(run(after), run(model), strict=True):
        np.testing.assert_array_equal(got, want)
    assert all(value.is_static for value in prepared.graph.values)
    return [node.name for node in prepared.graph.nodes]


@pytest.mark.parametrize("gelu", [GELU, TANH], ids=["erf", "tanh"])
def test_a_spelled_activation_moves_as_a_whole(gelu):
    names = check(GEMM + gelu.format("r") + " z = Softmax(y)", "z")
    assert names[:2] == ["a", "g"]
    assert names[-3:] == ["y", "r", "z"]


def test_an_activation_moves_before_several_views():
    body = (
        "g = MatMul(x, w) b = Add(g, bias) r = Reshape(b, batch) t = Transpose<perm = [0, 2, 1]>(r)"
    )
    names = check(body + " u = Relu(t) y = MatMul(u, x)")
    assert names == ["g", "b", "u", "t", "y"]  # the reshape changes nothing and goes


def test_a_move_is_told_although_no_node_goes():
    model = small_model(
        "y",
        GEMM + "u = Relu(r) y = Softmax(u)",
        {"x": (2, 5, 8)},
        {name: WEIGHTS[name] for name in ("w", "bias", "rows", "batch")},
        opset=20,
    )
    assert "activate-before-views: 1" in map(str, prepare(load(model)).rewrites)


def test_the_name_of_the_result_stays_that_of_its_numbers():
    weights = {name: WEIGHTS[name] for name in ("w", "bias", "rows", "batch")}
    body = GEMM + "u = Relu(r) y = Softmax(u)"
    graph = prepare(load(small_model("y", body, {"x": (2, 5, 8)}, weights))).graph
    (value,) = (value for value in graph.values if value.name == "u")
    assert value.shape == (2, 5, 6)
    assert graph.nodes[value.producer].op_type == "Reshape"


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (GEMM + "y = Relu(r)", "y"),
        (GEMM + "u = Relu(r) y = Neg(u)", "r, y"),
        (GEMM + "u = Relu(r) y = Neg(u)", "g, y"),
        (GEMM + "u = Relu(r) v = Softmax(r) y = Add(u, v)", "y"),
        (GEMM + "u = Mul(r, half) y = Softmax(u)", "y"),
        (GEMM + "u = Relu(r) v = Mul(u, channels) y = Softmax(v)", "v, y"),
        (GEMM + "u = Mul(r, long) v = Relu(u) y = Softmax(v)", "y"),
        ("a = Softmax(x) r = Reshape(a, rows) u = Relu(r) y = Neg(u)", "y"),
    ],
    ids=[
        *("an output", "seen before", "seen in front", "two readers", "a scale"),
        *("behind it numbers for channels", "more dimensions", "no product"),
    ],
)
def test_what_others_read_or_is_no_activation_stays(body, outputs):
    names = check(body, outputs)
    if "channels" in body:
        assert names == ["a", "g", "u", "r", "v", "y"]
    else:
        written = [part.split(" = ")[0].split()[-1] for part in body.split("(")[:-1]]
        assert names == written


def test_an_activation_for_another_device_stays():
    body = GEMM + "u = Relu(r) y = Softmax(u)"
    assert check(body, devices={"u": "llvm"}) == ["a", "g", "r", "u", "y"]
    assert check(body) == ["a", "g", "u", "r", "y"]
