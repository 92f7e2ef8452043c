"""Products of tiles in shared memory, where a device is a GPU by its description."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from tests import opencl, webgpu

import intarsia
from intarsia.backends.device_payload import decode
from intarsia.backends.opencl import driver
from intarsia.settings import Settings

TEXT = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[2,40,36] x, float[2,48,33] u) => (float[2,40,33] y, float[80,32] z)
<int64[2] form = {80, 48}> {
    a = MatMul(x, w)
    r = Relu(a)
    y = MatMul(r, u)
    f = Reshape(r, form)
    z = Gemm <transB=1, alpha=0.5> (f, v, c)
}"""


def make_model():
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (36, 48)), ("v", (32, 48)), ("c", (32,))):
        weight = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def kernels(exe):
    (artifact,) = exe.artifacts
    return [kernel.name.rsplit("_", 1)[0] for kernel in decode(artifact).kernels]


def check_numbers(exe, model):
    rng = np.random.default_rng(1)
    x, u = (rng.standard_normal(shape).astype("f4") for shape in ((2, 40, 36), (2, 48, 33)))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = exe.run({"x": x, "u": u})
    for name, peer in zip(("y", "z"), session.run(("y", "z"), {"x": x, "u": u}), strict=True):
        np.testing.assert_allclose(found[name], peer, rtol=1e-5, atol=1e-5 * np.abs(peer).max())


@pytest.mark.exhaustive
def test_on_webgpu(backends):
    webgpu.first_device()
    model = make_model()
    exe = intarsia.compile(model, "webgpu", backends=backends)
    assert kernels(exe) == ["grid_gemm"] * 3
    check_numbers(exe, model)


def test_on_opencl(backends, monkeypatch):
    """Of CPUs the schedule is a CPU's; a device that runs groups at once has a GPU's."""
    opencl.first_device()
    model = make_model()
    cpu = intarsia.compile(model, "opencl", backends=backends)
    (entry,) = driver.list_devices(Settings.from_environment())[:1]
    if entry.limits.work_group == 1:
        assert kernels(cpu) == ["gemm"] * 3
    gpu = replace(entry, limits=replace(entry.limits, work_group=64))
    monkeypatch.setattr(driver, "_devices", lambda setting, caches: (gpu,))
    exe = intarsia.compile(model, "opencl", backends=backends)
    assert kernels(exe) == ["grid_gemm"] * 3
    check_numbers(exe, model)
