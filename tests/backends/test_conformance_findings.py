# SPDX-License-Identifier: Apache-2.0
"""What ONNX's own backend tests found stays right; see docs/onnx_conformance.md."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import intarsia

TARGET = "openvino, onnxruntime"
INF = np.float32(np.inf)

MODELS = {
    "an output that is an input": (
        "g (float[3] x) => (float[3] y) { y = Max(x) }",
        {"x": np.array([1, 2, 3], np.float32)},
    ),
    "an Einsum that moves nothing": (
        'g (float[2,3] x) => (float[2,3] y) { y = Einsum<equation = "ij->ij">(x) }',
        {"x": np.arange(6, dtype=np.float32).reshape(2, 3)},
    ),
    "the larger of two infinities": (
        """g (float[2,2] x, float i) => (bool[2,1] y) <int64[1] axes = {1}>
        { m = ReduceMax(x, axes) y = Equal(m, i) }""",
        {"x": np.array([[-INF, -INF], [1, 2]], np.float32), "i": np.array(-INF)},
    ),
    "an aspect ratio that is kept": (
        """g (float[1,1,2,4] x) => (float[1,1,2,3] y) <int64[2] sizes = {1, 3}>
        { y = Resize<axes = [2,3], keep_aspect_ratio_policy = "not_smaller", mode = "nearest">(
            x, , , sizes) }""",
        {"x": np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)},
    ),
    "peepholes": (
        """g (float[2,1,3] x, float[1,8,3] w, float[1,8,2] r, float[1,6] p)
        => (float[2,1,1,2] y) { y = LSTM<hidden_size = 2>(x, w, r, , , , , p) }""",
        {
            "x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 1, 3),
            "w": np.linspace(-1, 1, 24, dtype=np.float32).reshape(1, 8, 3),
            "r": np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 8, 2),
            "p": np.linspace(1, 2, 6, dtype=np.float32).reshape(1, 6),
        },
    ),
    "sums with a last state": (
        """g (float[2,1,3] x, float[1,6,3] w) => (float[2,1,1,2] y, float[1,1,2] s)
        <float[1,6,2] r = {1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1}, float one = {1.5}>
        { y, h = GRU<hidden_size = 2>(x, w, r) s = Pow(h, one) }""",
        {
            "x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 1, 3),
            "w": np.linspace(-1, 1, 18, dtype=np.float32).reshape(1, 6, 3),
        },
    ),
    "a quantised tie": (
        """g (float[6] x) => (uint8[6] y, float s, uint8 z)
        { y, s, z = DynamicQuantizeLinear(x) }""",
        {"x": np.array([0, 2, -3, -2.5, 1.34, 0.5], np.float32)},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_onnx(name, parse_model, backends):
    pytest.importorskip("openvino")
    text, feeds = MODELS[name]
    model = parse_model(text)
    exe = intarsia.compile(model, TARGET, backends=backends)
    peer = intarsia.compile(model, "onnxruntime", backends=backends).run(feeds)
    for output, array in exe.run(feeds).items():
        np.testing.assert_allclose(array, peer[output], rtol=1e-5, err_msg=output)


def test_a_weight_that_is_a_transposed_view_can_be_shared(parse_model, backends):
    weights = np.linspace(-1, 1, 200, dtype=np.float32).reshape(10, 20)
    model = parse_model(
        "g (float[2,20] x) => (float[2,10] y) <float[10,20] w> "
        "{ t = Transpose<perm = [1,0]>(w) y = MatMul(x, t) }".replace(
            "<float[10,20] w>", "<float[10,20] w = {" + ",".join(["0"] * 200) + "}>"
        )
    )
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    x = np.ones((2, 20), np.float32)
    for target in ("onnxruntime", "reference"):
        exe = intarsia.compile(model, target, backends=backends)
        np.testing.assert_allclose(exe(x), x @ weights.T, rtol=1e-5, atol=1e-6)


def test_an_operator_whose_declared_body_onnx_cannot_infer_is_loaded(backends):
    node = onnx.helper.make_node("MeanVarianceNormalization", ["x"], ["y"])
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node], "g", [make("x", 1, [1, 1, 2, 2])], [make("y", 1, [1, 1, 2, 2])]
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=7
    )
    x = np.array([[[[1, 3], [1, 3]]]], np.float32)
    exe = intarsia.compile(model, "onnxruntime", backends=backends)
    np.testing.assert_allclose(exe(x), x - 2, rtol=1e-5)


def test_shapes_that_do_not_fit_are_still_an_error(backends):
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["a", "b"], ["y"])],
        "g",
        [make("a", 1, [2]), make("b", 1, [3])],
        [make("y", 1, None)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    model.ir_version = 9
    with pytest.raises(intarsia.IntarsiaError, match="do not fit"):
        intarsia.compile(model, "onnxruntime", backends=backends)
