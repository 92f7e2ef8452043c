# SPDX-License-Identifier: Apache-2.0
"""Models of float16 and bfloat16 on `llvm` alone, and `-precision=bf16`: how far from float64."""

import re
from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper
from tests.backends.test_llvm_free_bits import Sketch, check
from tests.codegen.halves_models import EPSILON, feeds_in_halves, in_halves, relative_error
from tests.codegen.lower.small_models import feeds_of, small_model
from tests.codegen.lower.test_interpreted import run_program

import intarsia
from intarsia.arrays import np_dtype
from intarsia.backends.float64 import evaluate
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.unit import AVX512, LoweringOptions
from intarsia.errors import TargetError
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot


def convolutions():
    """Dense, depthwise and by Winograd's tiles; a norm behind one; poolings and a product."""
    body = """
        a = Conv(x, w1) b = BatchNormalization(a, g, h, m, v) c = Relu(b)
        d = Conv<group = 20, kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(c, w2)
        e = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(d)
        f = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(e, w3, z) i = Add(f, e) k = Relu(i)
        n = AveragePool<kernel_shape = [2, 2]>(k) o = LRN<size = 3>(n)
        p = GlobalAveragePool(o) q = Flatten(p) y = Gemm<transB = 1>(q, w4)"""
    statistics = dict.fromkeys("ghm", (20,)) | {"v": np.linspace(0.5, 2, 20, dtype=np.float32)}
    weights = {"w1": (20, 12, 1, 1), "w2": (20, 1, 3, 3), "w3": (20, 20, 3, 3), "z": (20,)}
    return small_model("y", body, {"x": (1, 12, 9, 11)}, weights | {"w4": (7, 20)} | statistics)


def transformer():
    """Attention as exporters spell it, a norm, a Gelu; a product so long that its sum has parts."""
    body = """
        q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)
        kt = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, kt) t = Mul(s, scale)
        p = Softmax(t) o = MatMul(p, v) r = Add(o, x) n = LayerNormalization(r, g, b)
        h = MatMul(n, w1) i = Div(h, root) e = Erf(i) f = Add(e, one) u = Mul(h, f) d = Mul(u, half)
        m = MatMul(d, w2) l = Add(m, n) c = Concat<axis = 1>(l, x) y = Gather<axis = 1>(c, i0)"""
    rng = np.random.default_rng(3)

    def weight(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    weights = {name: weight(32, 32) for name in ("wq", "wk", "wv")}
    weights |= {"w1": weight(32, 2100), "w2": weight(2100, 32), "g": weight(32), "b": weight(32)}
    numbers = {"scale": 32**-0.5, "root": 2**0.5, "one": 1.0, "half": 0.5}
    weights |= {name: np.float32(number) for name, number in numbers.items()}
    weights["i0"] = np.array([3, 0, 40], np.int64)
    return small_model("y", body, {"x": (2, 24, 32)}, weights)


MODELS = {"convolutions": convolutions, "transformer": transformer}


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize("name", MODELS)
def test_models_of_halves_are_native(backends, name, dtype):
    model = in_halves(MODELS[name](), dtype)
    feeds = feeds_in_halves(feeds_of(MODELS[name]()), dtype)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    assert {region.backend for region in exe.placement.regions} == {"llvm"}
    got = exe.run(feeds)["y"]
    assert got.dtype == np_dtype(dtype)
    (want,) = evaluate(model, feeds)
    # Only the result is rounded, as what is computed on the way is float32.
    assert EPSILON[dtype] / 32 < relative_error(got, want) < EPSILON[dtype]


def test_weights_are_kept_as_halves(backends):
    model = in_halves(transformer(), "float16")
    constants = (
        intarsia.compile(model, "llvm", num_threads=1, backends=backends).artifacts[0].constants
    )
    large = [item.data for item in constants if item.data.size >= 32 * 32]
    assert {array.dtype for array in large} == {np.dtype(np.uint16)}
    assert sum(array.size for array in large) >= 2 * 32 * 2100


@pytest.mark.parametrize(
    "dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.exhaustive)]
)
def test_both_programs_of_a_model_of_halves_give_the_same_bits(dtype):
    sketch = Sketch()
    value = sketch.add("MatMul", "x", sketch.weight(2100, 70, scale=0.03))
    value = sketch.add("Gelu", value)
    value = sketch.add("LayerNormalization", value, sketch.weight(70), axis=-1)
    shares = sketch.add("Softmax", value, axis=1)
    model = in_halves(sketch.model({"x": ["batch", "seq", 2100]}, [shares]), dtype)
    rng = np.random.default_rng(1)

    def draw(_name, shape):
        return rng.standard_normal(shape).astype(np_dtype(dtype))

    check(model, [{"batch": 1, "seq": 1}, {"batch": 2, "seq": 31}], draw)


def test_numbers_that_are_scattered_are_rounded_once(backends):
    """A kernel that adds to what it wrote does so in float32."""
    body = 'y = ScatterElements<axis = 0, reduction = "add">(x, i, u)'
    indices = np.zeros((400, 3), np.int64)
    inputs = {"x": (2, 3), "u": (400, 3)}
    model = in_halves(small_model("y", body, inputs, {"i": indices}, opset=18), "float16")
    rng = np.random.default_rng(0)
    feeds = {name: rng.random(shape).astype(np.float16) for name, shape in inputs.items()}
    got = intarsia.compile(model, "llvm", num_threads=1, backends=backends).run(feeds)["y"]
    want = feeds["x"].astype(np.float64)
    want[0] += feeds["u"].astype(np.float64).sum(0)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2.0**-11)


def cast(dtype):
    to = {"float16": 10, "bfloat16": 16}[dtype]
    body = f"a = Mul(x, s) b = Cast<to = {to}>(a) c = Cast<to = 1>(b) y = Mul(c, s)"
    return small_model("y", body, {"x": (64,)}, {"s": np.float32(1.7)})


@pytest.mark.parametrize("dtype", EPSILON)
def test_casts_round_also_where_nothing_is_stored(backends, dtype):
    model, x = cast(dtype), np.random.default_rng(0).standard_normal(64).astype(np.float32)
    got = intarsia.compile(model, "llvm", num_threads=1, backends=backends).run({"x": x})["y"]
    s = np.float32(1.7)
    np.testing.assert_array_equal(got, (x * s).astype(np_dtype(dtype)).astype(np.float32) * s)


# -precision=bf16


def dense():
    body = "h = MatMul(x, w) y = Add(h, b)"
    rng = np.random.default_rng(4)
    weights = {"w": (rng.standard_normal((131, 40)) / 11).astype(np.float32), "b": (40,)}
    return small_model("y", body, {"x": (2, 9, 131)}, weights)


def precise(model, feeds, weights):
    """Return a product in float64, its weights rounded to bfloat16 or not, and its bound."""
    arrays = {t.name: t for t in model.graph.initializer}

    w, b = (numpy_helper.to_array(arrays[name]) for name in "wb")
    w = w.astype(np_dtype(weights)).astype(np.float64)
    return feeds["x"].astype(np.float64) @ w + b, np.abs(feeds["x"]) @ np.abs(w)


def test_weights_alone_are_rounded_where_no_instruction_multiplies_bfloat16(backends):
    model, target = dense(), "llvm -mattr=-avx512bf16 -precision=bf16"
    feeds = feeds_of(model)
    exe = intarsia.compile(model, target, num_threads=1, backends=backends)
    assert "1 x bfloat16 weights" in str(exe.explain())
    want, bound = precise(model, feeds, "bfloat16")
    np.testing.assert_allclose(exe.run(feeds)["y"], want, rtol=0, atol=3e-6 * bound.max())


def test_activations_are_rounded_too_where_one_does():
    """What runs on such CPUs, in the interpreter: within 2**-9 of what is multiplied."""
    model, feeds = dense(), feeds_of(dense())
    graph = snapshot(load(model))
    region = Region.of(graph, range(len(graph.nodes)))
    unit = replace(AVX512, dots=("avx512vl", "avx512vnni", "avx512bf16"))
    program = lower_region(region, LoweringOptions(unit, is_bf16=True))
    assert program.summary().endswith("1 x bfloat16")

    def run(call, arrays):
        interpret(program.kernels[call.kernel], arrays)

    got = run_program(program, region, feeds, run)["y"]
    want, bound = precise(model, feeds, "bfloat16")
    assert (np.abs(got - want) <= (2.0**-9 + 1e-6) * bound).all()
    assert np.abs(got - want).max() > 2.0**-14 * bound.max()
    # and as if the operands had been rounded before
    rounded = {"x": feeds["x"].astype(np_dtype("bfloat16")).astype(np.float32)}
    want, bound = precise(model, rounded, "bfloat16")
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * bound.max())


def test_convolutions_keep_weights_as_bfloat16(backends):
    model = small_model("y", "y = Conv(x, w)", {"x": (1, 32, 9, 9)}, {"w": (48, 32, 1, 1)})
    feeds = feeds_of(model)
    exact, narrow = (
        intarsia.compile(model, f"llvm{text}", num_threads=1, backends=backends)
        for text in ("", " -mattr=-amx-bf16 -precision=bf16")
    )
    sizes = [
        sum(item.data.nbytes for item in exe.artifacts[0].constants) for exe in (exact, narrow)
    ]
    assert sizes[1] * 2 == sizes[0]
    error = relative_error(narrow.run(feeds)["y"], exact.run(feeds)["y"])
    assert 2.0**-12 < error < 2.0**-9


def test_infinite_weights_stay(backends):
    model = dense()

    w = numpy_helper.to_array(model.graph.initializer[0]).copy()
    w[0, 0] = 3.4e38
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    exe = intarsia.compile(model, "llvm -precision=bf16", num_threads=1, backends=backends)
    assert "weights stay float32: bfloat16 does not hold them" in str(exe.explain())


def test_a_precision_is_one_of_two():
    with pytest.raises(TargetError, match=re.escape("precision")):
        intarsia.compile(dense(), "llvm -precision=f16")
