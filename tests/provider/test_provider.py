# SPDX-License-Identifier: Apache-2.0
"""Programs of ONNX Runtime that use Intarsia's provider: an unmodified program, but for two lines."""

import gc
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest

import intarsia

onnxruntime = pytest.importorskip("onnxruntime", minversion="1.24")

NAME = "IntarsiaExecutionProvider"
RELU = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 3] x, float[3, 4] w) => (float[2, 4] y) { p = MatMul (x, w) y = Relu (p) }"""
FREE = """<ir_version: 8, opset_import: ["": 17]>
    g (float[batch, 3] x) => (float[batch, 3] y) { a = Add (x, x) y = Softmax (a) }"""


@pytest.fixture(scope="module")
def devices():
    onnxruntime.register_execution_provider_library("intarsia", intarsia.onnxruntime_library())
    yield [one for one in onnxruntime.get_ep_devices() if one.ep_name == NAME]
    gc.collect()  # sessions end before their provider's library
    onnxruntime.unregister_execution_provider_library("intarsia")


@pytest.fixture
def open_session(devices):
    def open_session(model, entries=None, **options):
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        settings.add_provider_for_devices(devices, {"target": "llvm", **options})
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for key, value in (entries or {}).items():
            settings.add_session_config_entry(key, value)
        if isinstance(model, str) and model.lstrip().startswith("<"):
            model = onnx.parser.parse_model(model)
        if isinstance(model, onnx.ModelProto):
            model = model.SerializeToString()
        return onnxruntime.InferenceSession(model, settings)

    return open_session


def owners(session):
    """Return how many nodes each provider has."""
    return Counter(
        {
            part.ep_name: sum(1 for _ in part.get_nodes())
            for part in session.get_provider_graph_assignment_info()
        }
    )


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_there_is_one_device(devices):
    (device,) = devices
    assert (device.ep_vendor, device.device.type.name) == ("Intarsia", "CPU")


def test_a_session_computes_as_the_program_itself(open_session):
    session = open_session(RELU)
    assert owners(session) == {NAME: 2}
    program = intarsia.compile(onnx.parser.parse_model(RELU), "llvm", cache=False)
    for seed in range(4):  # copied at first, bound when addresses come again
        feeds = {"x": draw(2, 3, seed=seed), "w": draw(3, 4, seed=seed + 10)}
        for _ in range(3):
            (y,) = session.run(None, feeds)
            np.testing.assert_array_equal(y, program.run(feeds)["y"])


def test_free_dimensions_stay_free(open_session):
    session = open_session(FREE)
    assert set(owners(session)) == {NAME}
    reference = onnx.reference.ReferenceEvaluator(onnx.parser.parse_model(FREE))
    for batch in (1, 5, 2, 5, 1):
        x = draw(batch, 3, seed=batch)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-6
        )


def test_python_may_end_while_there_is_a_session(tmp_path):
    code = f"""
import numpy, onnx.parser, onnxruntime, intarsia
onnxruntime.register_execution_provider_library("intarsia", intarsia.onnxruntime_library())
settings = onnxruntime.SessionOptions()
settings.add_provider_for_devices(
    [one for one in onnxruntime.get_ep_devices() if one.ep_name == {NAME!r}], {{}})
model = onnx.parser.parse_model({RELU!r}).SerializeToString()
session = onnxruntime.InferenceSession(model, settings)
print(session.run(None, {{"x": numpy.ones((2, 3), "f"), "w": numpy.ones((3, 4), "f")}})[0].sum())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "24.0"), done.stderr
