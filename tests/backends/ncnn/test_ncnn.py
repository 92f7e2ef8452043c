# SPDX-License-Identifier: Apache-2.0
"""The kind `ncnn` keeps the kit's promises, says why it refuses, and is weighed by `tune`."""

import numpy as np
import onnx
import onnxruntime
import pytest

import intarsia
from intarsia.backends.ncnn.backend import BACKEND
from intarsia.testing import conformance

pytest.importorskip("ncnn")

test_conformance = pytest.mark.sample(16)(conformance(BACKEND, target="ncnn, onnxruntime"))

NETWORK = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 4, 11, 9] x) => (float[1, 5] y, float[1, 6, 11, 9] r, float[1, 6, 11, 9] c) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w, b) t = Relu (c) d = Conv <group = 6> (t, v)
        e = Relu (d) q = Pad <mode = "reflect"> (e, p) s = Sigmoid (e) m = Mul (e, s)
        i = Div (q, h) j = Clip (i, l, u) r = Add (c, j)
        k = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (m)
        a = GlobalAveragePool (k) f = Flatten (a) z = Gemm <transB = 1> (f, o) y = Softmax (z)
    }"""


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    made = onnx.parser.parse_model(NETWORK)
    shapes = {"w": (6, 4, 3, 3), "b": (6,), "v": (6, 1, 3, 3), "o": (5, 6)}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    arrays["p"] = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    arrays |= {name: np.float32(number) for name, number in (("h", 2), ("l", -1), ("u", 1))}
    for name, array in arrays.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return made


def test_a_network_runs_there_but_for_what_it_refuses(model, tmp_path):
    x = np.random.default_rng(1).standard_normal((1, 4, 11, 9), np.float32)
    kept = x.copy()
    program = intarsia.compile(model, "ncnn, onnxruntime", cache=False)
    where = {node.op_type: one.backend for one in program.placement.regions for node in one.nodes}
    assert {op_type for op_type, name in where.items() if name != "ncnn"} == {"Pad"}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    program.save(tmp_path / "saved.intarsia")
    for one in (program, intarsia.load(tmp_path / "saved.intarsia", trust=True)):
        for made, wanted in zip(one(x), expected, strict=True):
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(x, kept)  # layers that work in place have a copy


@pytest.mark.exhaustive
def test_tune_weighs_it():
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[64, 64] x) => (float[64, 64] y)'
        " { y = MatMul (x, x) }"
    )
    program = intarsia.tune(made, "ncnn, onnxruntime", num_threads=1, cache=False)
    report = program.explain().tuning
    assert {plan.name for plan in report.finalists} == {"ncnn alone", "onnxruntime alone"}
    assert not report.failures


@pytest.mark.parametrize(
    ("shape", "node", "reason"),
    [
        ("2, 4, 5, 5", "Relu (x)", "ncnn has no tensors of the shape (2, 4, 5, 5)"),
        ("1, 4, 5, 5", "Sinh (x)", "there is no Sinh in the table"),
        ("1, 4, 5, 5", "Clip (x, x)", "its limits are computed"),
        ("1, 4, 5, 5", "Softmax <axis = 0> (x)", "it is along the batch"),
        ("1, 4, 5, 5", "Div (x, x)", "its divisor is computed, or 0: ncnn makes NaN of x / 0"),
    ],
)
def test_what_is_not_taken_has_a_reason(shape, node, reason):
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{shape}] x) => (float[{shape}] y)'
        f" {{ y = {node} }}"
    )
    program = intarsia.compile(made, "ncnn, onnxruntime", cache=False)
    assert reason in {refusal.reason for refusal in program.placement.refusals}
