# SPDX-License-Identifier: Apache-2.0
"""Programs on a WebGPU device: numbers, other targets beside it, and what is said of errors."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from tests import opencl
from tests.webgpu import first_device

import intarsia
from intarsia.backends.device import ThreadOptions
from intarsia.backends.opencl.device import OpenClDevice
from intarsia.backends.webgpu.device import WebGpuDevice
from intarsia.backends.webgpu.driver import driver, list_adapters
from intarsia.errors import BackendError, ExecutionError, InputError
from intarsia.report.targets import availability
from intarsia.settings import Settings
from intarsia.target import PlacedTarget

TEXT = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[1,3,9,9] x, int64[2] rows) => (float[1,4,3,3] y, float[2,4] picked, bool[1,4,3,3] signs)
<float zero = {0.0}, int64[2] form = {4, 9}> {
    a = Conv <pads=[1,1,1,1]> (x, w)
    b = Relu(a)
    y = MaxPool <kernel_shape=[3,3], strides=[3,3]> (b)
    flat = Reshape(y, form)
    soft = Softmax(flat)
    turned = Transpose(soft)
    picked = Gather <axis=0> (turned, rows)
    signs = Greater(y, zero)
}"""


@pytest.fixture(scope="session")
def webgpu(backends):
    first_device()
    return backends


@pytest.fixture(scope="session")
def model():
    made = onnx.parser.parse_model(TEXT)
    weight = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return made


@pytest.fixture(scope="session")
def program(webgpu, model):
    pins = {"MaxPool*": "llvm"}
    for node in model.graph.node:
        node.name = f"{node.op_type}_{node.output[0]}"
    return intarsia.compile(model, "webgpu, llvm", pins=pins, num_threads=1, backends=webgpu)


def feeds():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 3, 9, 9)).astype(np.float32)
    return {"x": x, "rows": np.array([-1, 2])}


def test_a_composite_agrees_with_onnxruntime(program, model, tmp_path):
    assert program.plan.devices == ("cpu:0", "webgpu:0")
    assert {region.backend for region in program.placement.regions} == {"webgpu", "llvm"}
    program.save(tmp_path / "p.intarsia")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    for exe in (program, intarsia.load(tmp_path / "p.intarsia")):
        found = exe.run(feeds())
        for name, peer in zip(names, session.run(names, feeds()), strict=True):
            np.testing.assert_allclose(found[name], peer, rtol=1e-4, atol=1e-5)


def test_an_index_out_of_bounds_is_an_error(program):
    with pytest.raises(InputError, match="rows"):
        program.run({**feeds(), "rows": np.array([0, 1 << 40])})


def test_an_interface_is_a_kind_of_its_own(webgpu, model):
    interfaces = {one.backend for one in list_adapters(Settings.from_environment())}
    for kind in ("vulkan", "metal"):
        if kind not in interfaces:
            with pytest.raises(BackendError, match=f"no device by the interface {kind}"):
                intarsia.compile(model, f"{kind}, llvm", backends=webgpu)
            assert availability(kind, webgpu).version is None
            continue
        exe = intarsia.compile(model, f"{kind}, llvm", pins={"MaxPool*": "llvm"}, backends=webgpu)
        assert exe.plan.devices == ("cpu:0", f"{kind}:0")
        session = onnxruntime.InferenceSession(model.SerializeToString())
        (peer,) = session.run(["picked"], feeds())
        np.testing.assert_allclose(exe.run(feeds())["picked"], peer, rtol=1e-4, atol=1e-5)


def test_an_interface_that_is_not_the_devices_is_an_error(webgpu, model):
    (first, *_) = list_adapters(Settings.from_environment())
    other = "metal" if first.backend != "metal" else "dx12"
    with pytest.raises(BackendError, match=f"through {first.backend}, not {other}") as caught:
        intarsia.compile(model, f"webgpu -backend={other}, llvm", backends=webgpu)
    assert first.name in caught.value.hint


@pytest.fixture
def device(webgpu):
    placed = PlacedTarget.parse("webgpu")
    return webgpu.named("webgpu").configured(webgpu.settings).open(placed, ThreadOptions())


def test_a_buffer_that_is_too_large_is_an_error_with_the_sizes(device):
    most = device.entry.most["max-buffer-size"]
    with pytest.raises(ExecutionError, match=f"no room for a buffer of {most * 4} bytes") as caught:
        device.allocate(most * 4)
    assert f"at most {most} bytes in one buffer" in caught.value.hint


def test_a_driver_without_memory_is_an_error_with_the_sizes(device, monkeypatch):
    def fail(*_arguments, **_keywords):
        raise driver().GPUOutOfMemoryError("Not enough memory left")

    monkeypatch.setattr(device.handle, "create_buffer", fail, raising=False)
    problem = "webgpu:0 has no room for a buffer of 4096 bytes: it is out of memory"
    with pytest.raises(ExecutionError, match=problem) as caught:
        device.allocate(4095)
    assert "place fewer nodes on it" in caught.value.hint


def counting(call, way, counts):
    """Return a method that counts its calls for each backend."""

    def counted(self, *arguments):
        counts[self.backend, way] += 1
        return call(self, *arguments)

    return counted


def test_two_runtimes_and_the_host_copy_each_value_once(webgpu, monkeypatch):
    """By count of what the runtimes are asked for in a run, not only by what a plan says."""
    opencl.first_device()
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
        g (float[4,6] x) => (float[4,6] y) {
            [n1] a = MatMul(x, w) [n2] b = Relu(a)
            [n3] c = Tanh(b) [n4] d = Add(c, b)
            [n5] e = Softmax(d) [n6] y = Mul(e, d)
        }""")
    weight = np.random.default_rng(1).standard_normal((6, 6)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    target = {"kind": "composite", "host": "llvm", "devices": ["webgpu", "opencl"]}
    pins = {"n1": "webgpu", "n2": "webgpu", "n3": "opencl", "n4": "opencl", "n5": "llvm"}
    pins["n6"] = "llvm"
    exe = intarsia.compile(model, target, pins=pins, num_threads=1, backends=webgpu)
    assert [(row.tensor, row.source, row.destination) for row in exe.explain().copies] == [
        ("x", "cpu:0", "webgpu:0"),
        ("b", "webgpu:0", "opencl:0"),
        ("d", "opencl:0", "cpu:0"),
    ]
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    exe.run({"x": x})
    counts = Counter()
    for kind in (WebGpuDevice, OpenClDevice):
        for way in ("queue_write", "queue_read"):
            monkeypatch.setattr(kind, way, counting(getattr(kind, way), way, counts))
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(exe.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)
    # From one device to another a value goes through the host: one read and one write.
    assert counts == {
        (kind, way): 1 for kind in ("webgpu", "opencl") for way in ("queue_write", "queue_read")
    }
