"""Rows, reductions and attention on devices that are GPUs by their description."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from tests import opencl, webgpu
from tests.backends.test_grid_products import kernels

import intarsia
from intarsia.backends.opencl import driver
from intarsia.settings import Settings

TEXT = """
<ir_version: 10, opset_import: ["" : 22]>
g (float[2,18,48] x, float[2,24,48] u) => (float[2,18,48] y, float[2,1,1] z) <
    int64[4] heads = {0, 0, 4, 12}, int64[3] whole = {0, 0, 48}, int64[2] last = {1, 2},
    float scale = {0.288675}>
{
    n = LayerNormalization(x, w, b)
    q0 = Reshape(n, heads)
    q = Transpose <perm=[0,2,1,3]> (q0)
    k0 = Reshape(u, heads)
    k = Transpose <perm=[0,2,3,1]> (k0)
    v = Transpose <perm=[0,2,1,3]> (k0)
    p = MatMul(q, k)
    s = Mul(p, scale)
    f = Softmax(s)
    a = MatMul(f, v)
    t = Transpose <perm=[0,2,1,3]> (a)
    h = Reshape(t, whole)
    r = Add(h, x)
    y = Softmax(r)
    m = Tanh(r)
    z = ReduceMax(m, last)
}"""
FAMILIES = {"grid_rows": 2, "grid_attention": 1, "grid_reduce": 1}


def make_model():
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name in ("w", "b"):
        weight = rng.standard_normal(48).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def check(exe, model):
    found = kernels(exe)
    assert {name: found.count(name) for name in FAMILIES} == FAMILIES, found
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((2, 18, 48)), "u": rng.standard_normal((2, 24, 48))}
    feeds = {name: value.astype("f4") for name, value in feeds.items()}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    got = exe.run(feeds)
    for name, peer in zip(("y", "z"), session.run(("y", "z"), feeds), strict=True):
        np.testing.assert_allclose(got[name], peer, rtol=2e-5, atol=1e-6)


@pytest.mark.exhaustive
def test_on_webgpu(backends):
    webgpu.first_device()
    model = make_model()
    check(intarsia.compile(model, "webgpu", backends=backends), model)


def test_on_opencl(backends, monkeypatch):
    """A device that runs groups at once has them; a CPU's keeps what suits CPUs."""
    opencl.first_device()
    model = make_model()
    (entry,) = driver.list_devices(Settings.from_environment())[:1]
    gpu = replace(entry, limits=replace(entry.limits, work_group=64))
    monkeypatch.setattr(driver, "_devices", lambda setting, caches: (gpu,))
    check(intarsia.compile(model, "opencl", backends=backends), model)
