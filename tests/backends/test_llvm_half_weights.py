# SPDX-License-Identifier: Apache-2.0
"""`-weights=f16`: weights are rounded, once, and nothing else changes."""

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import intarsia
from intarsia.backends.native_region import decode_payload
from intarsia.codegen.lower.products import MOST_ERROR, half_error
from intarsia.errors import TargetError

K, N = 1024, 300


def gemm(rows, weights, k=K):
    """Return a dense layer."""
    parsed = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        f" g (float[{rows}, {k}] x) => (float[{rows}, {len(weights)}] y)"
        " { h = Gemm<transB = 1>(x, w, b) y = Relu(h) }"
    )
    bias = np.linspace(-1, 1, len(weights), dtype=np.float32)
    parsed.graph.initializer.extend(
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")]
    )
    return parsed


def matmul(weights):
    """Return a stack of products of one row each."""
    batch, k, n = weights.shape
    parsed = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        f" g (float[{batch}, 3, {k}] x) => (float[{batch}, 3, {n}] y) {{ y = MatMul(x, w) }}"
    )
    parsed.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return parsed


def random_weights(*shape, scale=0.03):
    return (np.random.default_rng(5).standard_normal(shape) * scale).astype(np.float32)


def expected(model, feeds):
    """Return ONNX Runtime's result."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)[0]


def sample(model):
    (value,) = model.graph.input
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(6).standard_normal(shape).astype(np.float32)}


def rounded(model):
    """Return the model with its weights rounded to float16."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    for item in other.graph.initializer:
        if item.name == "w":
            array = numpy_helper.to_array(item)
            item.CopyFrom(numpy_helper.from_array(array.astype("f2").astype("f4"), "w"))
    return other


def summary(exe):
    return str(exe.explain())


@pytest.mark.parametrize("cpu", ["", " -mcpu=haswell"])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_only_the_weights_are_rounded(rows, cpu):
    model = gemm(rows, random_weights(N, K))
    exe = intarsia.compile(model, f"llvm{cpu} -weights=f16", num_threads=1)
    feeds = sample(model)
    found = exe.run(feeds)["y"]
    want = expected(rounded(model), feeds)
    np.testing.assert_allclose(found, want, rtol=0, atol=3e-6 * np.abs(want).max())
    exact = expected(model, feeds)
    stated = float(re.search(r"float16 weights, relative error (\S+?)[;\s]", summary(exe) + " ")[1])
    assert 1e-5 < stated <= MOST_ERROR
    change = np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))
    assert change < 2 * stated, "the error of results is about that of the weights"


def test_stacks_of_products():
    model = matmul(random_weights(4, 512, 200))
    exe = intarsia.compile(model, "llvm -weights=f16", num_threads=1)
    feeds = sample(model)
    want = expected(rounded(model), feeds)
    assert "float16 weights" in summary(exe)
    np.testing.assert_allclose(exe.run(feeds)["y"], want, rtol=0, atol=3e-6 * np.abs(want).max())


def test_they_take_half_the_bytes():
    model = gemm(1, random_weights(N, K))
    full, half = (
        sum(
            item.data.nbytes
            for item in intarsia.compile(model, target, num_threads=1).artifacts[0].constants
        )
        for target in ("llvm", "llvm -weights=f16")
    )
    assert half < 0.51 * full


@pytest.mark.parametrize(
    ("bad", "says"), [(1e5, True), (np.inf, True), (np.nan, True), (65504.0, False)]
)
def test_what_float16_does_not_hold_stays(bad, says):
    weights = random_weights(N, K)
    weights[7, 5] = bad
    model = gemm(1, weights)
    exe = intarsia.compile(model, "llvm -weights=f16", num_threads=1)
    assert ("weights stay float32" in summary(exe)) == says
    feeds = sample(model)
    want = expected(model if says else rounded(model), feeds)
    atol = 1e-5 * np.abs(want[np.isfinite(want)]).max()
    np.testing.assert_allclose(exe.run(feeds)["y"], want, rtol=1e-5, atol=atol)


def test_small_numbers_would_lose_bits():
    weights = random_weights(K, N)
    assert half_error(weights) < MOST_ERROR
    weights[:, 3] *= 1e-6  # a column of its own, beside large ones
    assert half_error(weights) is None
    weights[:, 3] = 0
    assert half_error(weights) < MOST_ERROR


@pytest.mark.parametrize(("rows", "outputs"), [(64, N), (1, 8)])
def test_what_is_not_bound_by_memory_stays(rows, outputs):
    model = gemm(rows, random_weights(outputs, K))
    exe = intarsia.compile(model, "llvm -weights=f16", num_threads=1)
    assert "float16" not in summary(exe).replace("-weights=f16", "")
    names = {item.data.dtype.name for item in exe.artifacts[0].constants}
    assert names == {"float32"}
    assert len(decode_payload(exe.artifacts[0]).kernels) == 1


def test_float32_is_what_a_target_means_that_says_nothing():
    model = gemm(1, random_weights(N, K))
    plain, said = (
        intarsia.compile(model, target, num_threads=1) for target in ("llvm", "llvm -weights=f32")
    )
    feeds = sample(model)
    np.testing.assert_array_equal(plain.run(feeds)["y"], said.run(feeds)["y"])


def test_a_cpu_that_converts_nothing_is_refused():
    with pytest.raises(TargetError, match="needs a CPU that converts vectors of float16"):
        intarsia.compile(gemm(1, random_weights(N, K)), "llvm -mcpu=x86-64 -weights=f16")
