# SPDX-License-Identifier: Apache-2.0
"""Programs on a WebGPU device: numbers, other targets beside it, and what is said of errors."""

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.webgpu import first_device

import intarsia
from intarsia.backends.webgpu.driver import list_adapters
from intarsia.errors import BackendError, InputError
from intarsia.report.targets import availability
from intarsia.settings import Settings

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
