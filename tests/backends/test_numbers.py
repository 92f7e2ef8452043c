# SPDX-License-Identifier: Apache-2.0
"""Every built-in backend computes what ONNX's reference says, alone and as a whole."""

import numpy as np
import onnx
import pytest

import intarsia

TARGETS = ("reference", "onnxruntime", "openvino, onnxruntime", "fake, reference")

MODELS = {
    "elementwise": """
        g (float[2,3] x) => (float[2,3] y) { a = Sigmoid(x) b = Mul(a, x) y = Add(b, x) }""",
    "convolution": """
        g (float[1,2,6,6] x) => (float[1,3,4,4] y)
        <float[3] bias = {0.5, -1.0, 0.25}>
        {
            shape = Constant<value_ints = [3, 2, 3, 3]>()
            ones = ConstantOfShape<value = float[1] {0.125}>(shape)
            c = Conv(x, ones, bias)
            y = Relu(c)
        }""",
    "attention": """
        g (float[4,8] q, float[8,4] k, float[4,2] v) => (float[4,2] y)
        { s = MatMul(q, k) p = Softmax<axis = -1>(s) y = MatMul(p, v) }""",
    "shapes": """
        g (float[2,6] x) => (float[3,4] y, float[2,3] low)
        <int64[2] new = {3, 4}>
        { low, high = Split<axis = 1, num_outputs = 2>(x) t = Concat<axis = 1>(high, low)
          y = Reshape(t, new) }""",
    "reductions": """
        g (float[3,4] x) => (float[3,1] y, int64[3] best)
        <int64[1] axes = {1}>
        { y = ReduceMean(x, axes) best = ArgMax<axis = 1, keepdims = 0>(x) }""",
    "half": "g (float16[5] x) => (float16[5] y) { a = Neg(x) y = Abs(a) }",
    "logic": "g (bool[4] a, bool[4] b) => (bool[4] y) { c = And(a, b) y = Not(c) }",
    "scalar": "g (float x) => (float y) { a = Mul(x, x) y = Add(a, x) }",
    "empty": "g (float[0,3] x) => (float[0,3] y) { a = Mul(x, x) y = Add(a, x) }",
    "double": "g (double[4] x) => (double[4] y) { a = Exp(x) y = Log(a) }",
    "long": "g (int64[4] x) => (int64[4] y) { a = Add(x, x) y = Mul(a, a) }",
    "branch": """
        g (bool c, float[2] x) => (float[2] y) {
            y = If(c) <then_branch = t () => (float[2] a) { a = Add(x, x) },
                       else_branch = e () => (float[2] b) { b = Neg(x) }>
        }""",
    "loop": """
        g (float[2] x) => (float[2] y) <int64 n = {3}, bool go = {1}> {
            y = Loop(n, go, x) <body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] so)
                { co = Identity(ci) so = Add(s, x) }>
        }""",
    "scan": """
        g (float[2] s0, float[4,2] x) => (float[2] s, float[4,2] y) {
            s, y = Scan<num_scan_inputs = 1,
                        body = b (float[2] si, float[2] xi) => (float[2] so, float[2] yo)
                        { so = Add(si, xi) yo = Mul(so, si) }>(s0, x)
        }""",
    "inner dynamic shape": """
        g (float[2,3] x) => (float[2,3] z, float total) <int64[1] all = {0}> {
            z = Relu(x) where = NonZero(z) f = Cast<to = 1>(where)
            total = ReduceSum<keepdims = 0>(f)
        }""",
    "dynamic output": """
        g (float[2,3] x) => (int64[2,n] y) { z = Relu(x) y = NonZero(z) }""",
    "strings": "g (string[2] x) => (string[4] y) { y = Concat<axis = 0>(x, x) }",
    "inner sequence": """
        g (float[4,2] x) => (float[2,2] y) <int64 two = {2}, int64 one = {1}>
        { s = SplitToSequence<axis = 0>(x, two) y = SequenceAt(s, one) }""",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_the_reference(
    name, target, parse_model, random_feeds, evaluate, assert_same, backends
):
    model = parse_model(MODELS[name])
    exe = intarsia.compile(model, target, num_threads=1, backends=backends)
    for seed in range(2):
        if name == "strings":
            feeds = {"x": np.array(["Straße", f"naïve {seed}"], object)}
        else:
            feeds = random_feeds(model, seed)
        expected = evaluate(model, feeds)
        rtol = 1e-2 if name == "half" else 1e-5
        assert_same(exe.run(feeds), expected, rtol=rtol)


@pytest.mark.parametrize("target", ["reference", "onnxruntime"])
def test_sequences_enter_and_leave(target, parse_model, backends):
    text = "g (seq(float[2]) x) => (float[n] y, seq(float[2]) z) {{ {} z = Identity(x) }}"
    model = parse_model(text.format("y = ConcatFromSequence<axis = 0>(x)"))
    exe = intarsia.compile(model, target, num_threads=1, backends=backends)
    given = [np.array([1, 2], np.float32), np.array([3, 4], np.float32)]
    outputs = exe.run({"x": given})
    np.testing.assert_array_equal(outputs["y"], [1, 2, 3, 4])
    np.testing.assert_array_equal(outputs["z"], given)


@pytest.mark.parametrize("target", TARGETS)
def test_large_constants_are_referred_to_and_not_copied(
    target, parse_model, random_feeds, evaluate, assert_same, backends
):
    model = parse_model(
        "g (float[2,256] x, float[256,256] w) => (float[2,256] y) { a = MatMul(x, w) y = Relu(a) }"
    )
    weights = np.random.default_rng(1).standard_normal((256, 256)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    exe = intarsia.compile(model, target, num_threads=1, backends=backends)
    (artifact,) = exe.artifacts
    assert len(artifact.payload) < 2_000
    assert [constant.data.nbytes for constant in artifact.constants] == [weights.nbytes]
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), evaluate(model, feeds), rtol=1e-4, atol=1e-4)


def test_backends_share_one_copy_of_a_constant(parse_model, backends):
    model = parse_model("""
        g (float[2,256] x, float[256,256] w) => (float[2,256] y)
        { [left] a = MatMul(x, w) [right] b = MatMul(a, w) y = Add(a, b) }""")
    weights = np.ones((256, 256), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    exe = intarsia.compile(
        model, "openvino, onnxruntime", pins={"right": "onnxruntime"}, backends=backends
    )
    views = [c.data for artifact in exe.artifacts for c in artifact.constants]
    assert len(views) == 2
    assert np.shares_memory(*views)


def test_the_reference_infers_batch_normalization_of_old_operator_sets(parse_model, backends):
    # onnx.reference mixes batch statistics in below operator set 14; ONNX Runtime is the judge.
    model = parse_model(
        """norm (float[2,3,4,4] x, float[3] s, float[3] b, float[3] m, float[3] v)
        => (float[2,3,4,4] y) { y = BatchNormalization (x, s, b, m, v) }"""
    )
    model.opset_import[0].version = 9
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 3, 4, 4)).astype(np.float32)}
    feeds |= {name: rng.random(3).astype(np.float32) + 0.5 for name in "sbmv"}
    ours = intarsia.compile(model, "reference", backends=backends).run(feeds)
    theirs = intarsia.compile(model, "onnxruntime", backends=backends).run(feeds)
    np.testing.assert_allclose(ours["y"], theirs["y"], rtol=1e-5, atol=1e-5)


def test_the_reference_saturates_what_is_quantised(parse_model, backends):
    # onnx.reference wraps around beyond 2**31 quanta; ONNX Runtime is the judge.
    model = parse_model(
        """g (float[2,4] x) => (int8[2,4] y) <float[2] s = {1.0, 1e-20}, int8[2] z = {4, -3}>
        { y = QuantizeLinear<axis = 0>(x, s, z) }"""
    )
    x = np.array([[1e10, -1e10, np.inf, 1.5], [3e38, -3e38, 2e-20, -np.inf]], np.float32)
    ours = intarsia.compile(model, "reference", backends=backends)(x)
    np.testing.assert_array_equal(ours, intarsia.compile(model, "onnxruntime")(x))


def test_a_second_quantisation_rounds_once_more(parse_model, evaluate, backends):
    model = parse_model("""
        g (float[64] x) => (float[64] y)
        <float a = {0.46}, uint8 m = {123}, float b = {0.25}, uint8 n = {107}>
        { q = QuantizeLinear(x, a, m) d = DequantizeLinear(q, a, m)
          r = QuantizeLinear(d, b, n) y = DequantizeLinear(r, b, n) }""")
    feeds = {"x": np.linspace(-3, 3, 64, dtype=np.float32)}
    ours = intarsia.compile(model, "onnxruntime", backends=backends).run(feeds)
    np.testing.assert_allclose(ours["y"], evaluate(model, feeds)["y"], rtol=1e-5)


def test_large_angles_keep_their_sines(parse_model, backends):
    model = parse_model("g (float[8] x) => (float[8] s, float[8] c) { s = Sin(x) c = Cos(x) }")
    x = np.array([1e3, -1e6, 2**30, 1e12, -(2.0**50), 2**51, np.inf, 3e38], np.float32)
    exe = intarsia.compile(model, "llvm", backends=backends)
    outputs = exe.run({"x": x})
    for name, function in (("s", np.sin), ("c", np.cos)):
        expected = function(np.where(np.abs(x) <= 2.0**50, x, np.nan).astype(np.float64))
        np.testing.assert_allclose(outputs[name], expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_the_old_softmax_family_flattens_from_its_default_axis_on(op_type, parse_model, backends):
    text = f"g (float[2,3,1,1] x) => (float[2,3,1,1] y) {{ y = {op_type}(x) }}"
    model = parse_model(text, opset=9)
    x = np.random.default_rng(0).standard_normal((2, 3, 1, 1)).astype(np.float32)
    ours = intarsia.compile(model, "reference", backends=backends)(x)
    theirs = intarsia.compile(model, "onnxruntime", backends=backends)(x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino, onnxruntime", "reference"])
def test_large_constants_are_aligned(target, parse_model, backends):
    model = parse_model("g (float[1,33] x, float[33,65] w) => (float[1,65] y) { y = MatMul(x, w) }")
    del model.graph.input[1]
    weights = np.ones((33, 65), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    exe = intarsia.compile(model, target, backends=backends)
    (constant,) = exe.artifacts[0].constants
    assert constant.data.ctypes.data % 64 == 0
    np.testing.assert_array_equal(constant.data, weights)


def test_defaults_of_attributes_are_float32_for_doubles_too(parse_model):
    model = parse_model("g (double[1,5,4,4] x) => (double[1,5,4,4] y) { y = LRN<size=3>(x) }")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 5, 4, 4)) * 30}
    native, reference = (
        intarsia.compile(model, target).run(feeds)["y"] for target in ("llvm", "reference")
    )
    np.testing.assert_allclose(native, reference, rtol=1e-14)
