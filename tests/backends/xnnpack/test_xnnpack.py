# SPDX-License-Identifier: Apache-2.0
"""The kind `xnnpack` keeps the kit's promises, says why it refuses, and is weighed by `tune`."""

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.backends.xnnpack.backend import BACKEND, XnnpackBackend
from intarsia.process import selftest
from intarsia.settings import Settings
from intarsia.testing import conformance

pytest.importorskip("ai_edge_litert")

test_conformance = pytest.mark.sample(16)(conformance(BACKEND, target="xnnpack, onnxruntime"))

NETWORK = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 4, 11, 9] x) => (float[1, 5] y, float[1, 6, 11, 9] r) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w, b) t = HardSwish (c) d = Conv <group = 6> (t, v)
        q = Pad <mode = "reflect"> (d, p) s = Sigmoid (d) m = Mul (d, s)
        r = Add (c, q) k = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (m)
        a = GlobalAveragePool (k) f = Flatten (a) z = Gemm <transB = 1> (f, u) y = Softmax (z)
    }"""


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    made = onnx.parser.parse_model(NETWORK)
    shapes = {"w": (6, 4, 3, 3), "b": (6,), "v": (6, 1, 3, 3), "u": (5, 6)}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    arrays["p"] = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    for name, array in arrays.items():
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).standard_normal((1, 4, 11, 9), np.float32)


def test_a_network_runs_there_but_for_what_it_refuses(model, x, tmp_path, capfd):
    program = intarsia.compile(model, "xnnpack, onnxruntime", cache=False)
    where = {node.op_type: one.backend for one in program.placement.regions for node in one.nodes}
    assert {op_type for op_type, name in where.items() if name != "xnnpack"} == {"Pad"}
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    program.save(tmp_path / "saved.intarsia")
    for one in (program, intarsia.load(tmp_path / "saved.intarsia")):
        for made, wanted in zip(one(x), expected, strict=True):
            np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)
    assert "XNNPACK delegate" not in capfd.readouterr().err  # which LiteRT says of each network


@pytest.mark.exhaustive
def test_tune_weighs_it():
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[64, 64] x) => (float[64, 64] y)'
        " { y = MatMul (x, x) }"
    )
    program = intarsia.tune(made, "xnnpack, onnxruntime", num_threads=1, cache=False)
    report = program.explain().tuning
    assert {plan.name for plan in report.finalists} == {"xnnpack alone", "onnxruntime alone"}
    assert not report.failures


@pytest.mark.parametrize(
    ("shape", "node", "reason"),
    [
        ("1, 4, 5, 5", "Conv <group = 2> (x, w)", "it has 2 groups of 2 channels"),
        ("1, 4, 5, 5", "Sin (x)", "there is no Sin in the table"),
        ("1, 4, 5, 5", "Clip (x, x)", "its limits are computed"),
        ("2, 2, 2, 2, 2, 2, 2", "Add (x, x)", "XNNPACK does not take all of ADD"),
    ],
)
def test_what_is_not_taken_has_a_reason(shape, node, reason):
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{shape}] x) => (float[{shape}] y)'
        f" <float[4, 2, 1, 1] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{ y = {node} }}"
    )
    program = intarsia.compile(made, "xnnpack, reference", cache=False)
    assert reason in {refusal.reason for refusal in program.placement.refusals}


@pytest.mark.exhaustive
def test_a_library_that_aborts_is_refused_with_the_reason(tmp_path, monkeypatch):
    broken = tmp_path / "ai_edge_litert"
    broken.mkdir()
    (broken / "__init__.py").write_text("import os; os.abort()\n")
    monkeypatch.setattr(selftest, "_known", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    detection = XnnpackBackend(Settings(cache_dir=str(tmp_path / "caches"))).detect()
    assert not detection.targets
    assert "LiteRT with XNNPACK does not pass its self-test: it aborted (SIGABRT)" in (
        detection.reason
    )
