# SPDX-License-Identifier: Apache-2.0
"""Quantised networks beside their products: what is done with codes, and that it changes no bit."""

from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.lower.small_models import small_model
from tests.codegen.lower.test_interpreted import run_program

import intarsia
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.lower import integer_convolution, recipes
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.patterns.codes import read_codes
from intarsia.codegen.printer import print_function
from intarsia.codegen.unit import AVX2
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

NUMBERS = {
    "s": np.float32(0.02),
    "t": np.float32(0.03),
    "z": np.uint8(120),
    "v": np.uint8(100),
    "k": np.array([1, 1, 2, 2], np.float32),
    "e": np.zeros(0, np.float32),
    "c": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
    "one": np.array([1], np.int64),
    "two": np.array([2], np.int64),
    "m": np.int8(-3),
    "u": np.float32(1 / 256),
    "n": np.uint8(0),
}
SHAPE = (1, 4, 6, 8)


def model_of(body, outputs="y", shape=SHAPE, dtype=np.uint8):
    words = "".join(letter if letter.isalnum() else " " for letter in body).split()
    inputs = {name: np.zeros(shape, dtype) for name in ("x", "w") if name in words}
    return small_model(outputs, body, inputs, {k: v for k, v in NUMBERS.items() if k in words}, 18)


def graph_of(model):
    return snapshot(load(model))


def feeds_of(model, seed=0):
    rng = np.random.default_rng(seed)
    feeds = {}
    for item in model.graph.input:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
        shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        limits = np.iinfo(dtype)
        feeds[item.name] = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return feeds


def as_defined(model, feeds):
    """Return what ONNX Runtime computes node by node."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)[0]


D, Q = "DequantizeLinear", "QuantizeLinear"
BETWEEN = f"a = {D}(x, s, z)", f"y = {Q}(b, s, z)"
MOVED = {
    "transpose": "b = Transpose<perm = [0, 2, 3, 1]>(a)",
    "slice": "b = Slice(a, one, two, one)",
    "pool": "b = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a)",
    "pad": "b = Pad(a, c)",
    "resize": 'b = Resize<mode = "nearest">(a, e, k)',
    "two": "i = Transpose<perm = [0, 1, 3, 2]>(a) b = SpaceToDepth<blocksize = 2>(i)",
    "twice": "b = Concat<axis = 2>(a, a)",
}


@pytest.mark.parametrize("name", MOVED)
def test_codes_are_moved_as_they_are(backends, name):
    body = f"{BETWEEN[0]} {MOVED[name]} {BETWEEN[1]}"
    model = model_of(body)
    nodes = read_codes(graph_of(model).whole).graph.nodes
    assert {D, Q}.isdisjoint(node.op_type for node in nodes)
    feeds = feeds_of(model)
    got = intarsia.compile(model, "llvm", num_threads=1, strict=True, backends=backends).run(feeds)
    np.testing.assert_array_equal(got["y"], as_defined(model, feeds))


REWRITTEN = {
    "each reader dequantises": (
        f"a = {D}(x, s, z) b = Relu(a) c0 = {Q}(b, t, v) d = Neg(a) y = {Q}(d, t, v)",
        "c0, y",
        [D, "Relu", Q, D, "Neg", Q],
    ),
    "numbers are there for one, so for all": (
        f"a = {D}(x, s, z) b = Relu(a) y = {Q}(b, t, v) o = Softmax(a)",
        "y, o",
        [D, "Relu", Q, "Softmax"],
    ),
    "quantised before it is moved": (
        f"f = Sigmoid(g) b = Transpose(f) h = Flatten(b) y = {Q}(h, u, n)",
        "y",
        ["Sigmoid", Q, "Transpose", "Flatten"],
    ),
    "a part is quantised alone": (
        f"f = Sigmoid(g) b = Slice(f, one, two) y = {Q}(b, u, n)",
        "y",
        ["Sigmoid", "Slice", Q],
    ),
    "other scales": (
        f"a = {D}(x, s, z) b = Transpose(a) y = {Q}(b, t, v)",
        "y",
        ["Transpose", D, Q],
    ),
    "joined with two scales": (
        f"a = {D}(x, s, z) b = {D}(w, t, v) i = Concat<axis = 1>(a, b) y = {Q}(i, t, v)",
        "y",
        [D, Q, "Concat"],
    ),
    "numbers that others see": (
        f"a = {D}(x, s, z) b = Transpose(a) y = {Q}(b, s, z)",
        "b, y",
        ["Transpose", D, "Identity"],
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_where_nodes_go(name):
    body, outputs, expected = REWRITTEN[name]
    body = f"g = Cast<to = 1>(x) {body}" if "(g)" in body else body
    graph = read_codes(graph_of(model_of(body, outputs)).whole).graph
    found = [node.op_type for node in graph.nodes if node.op_type != "Cast"]
    assert sorted(found) == sorted(expected)


def test_a_function_of_codes_is_a_table():
    body = f"a = {D}(x, s, z) i = Sigmoid(a) b = Mul(a, i) y = {Q}(b, t, v)"
    program = lower_region(graph_of(model_of(body, shape=(1, 64, 8, 8))).whole, AVX2)
    assert [call.note for call in program.calls] == ["table", "by table"]
    program = lower_region(graph_of(model_of(body, shape=(1, 4, 8, 8))).whole, AVX2)
    assert len(program.calls) == 1


def test_what_follows_a_convolution_of_codes_is_a_table_but_for_what_is_added(backends):
    body = f"""
        i = {D}(x, s, z) j = {D}(h, r, m) l = Conv(i, j) c = {Q}(l, t, v)
        d = {D}(c, t, v) e = Sigmoid(d) f = {Q}(e, u, n) g = {D}(f, u, n) a = Mul(d, g)
        o = {Q}(a, t, v) p = {D}(o, t, v) b = {D}(w, s, z) q = Add(p, b) y = {Q}(q, t, v)"""
    taps = np.random.default_rng(0).integers(-60, 60, (16, 16, 1, 1)).astype(np.int8)
    numbers = {name: NUMBERS[name] for name in "stzvmun"} | {"h": taps, "r": np.float32(0.01)}
    given = {name: np.zeros((1, 16, 16, 16), np.uint8) for name in "xw"}
    one, all_ = (small_model(out, body, given, numbers, 18) for out in ("y", "y, c, d, e, g, a, p"))
    notes = [call.note for call in lower_region(graph_of(one).whole, AVX2).calls]
    assert notes.count("table") == notes.count("by table") == 1
    y, wanted = (
        intarsia.compile(item, "llvm", num_threads=1, strict=True, backends=backends)
        .run(feeds_of(one))["y"]
        for item in (one, all_)
    )  # fmt: skip
    np.testing.assert_array_equal(y, wanted)
    assert len(np.unique(y)) > 50


GELU = f"""
    d0 = {D}(w, s, z) i = {D}(x, s, z) j = {D}(h, r, m) l = MatMul(i, j)
    c = {Q}(l, t, v) d = {D}(c, t, v) e = Add(d, k) f = {Q}(e, u, n) g = {D}(f, u, n)
    o = Erf(g) p = {Q}(o, r, v) q = {D}(p, r, v) a = Mul(g, q)"""


@pytest.mark.parametrize(
    ("rest", "tables"),
    [
        (f"y = {Q}(a, t, v)", 1),
        (f"b = {Q}(a, t, v) o1 = {D}(b, t, v) o2 = Add(o1, d0) y = {Q}(o2, t, v)", 1),
        (f"b = Add(a, d) y = {Q}(b, t, v)", 0),
    ],
    ids=["all", "something is added", "what was before the codes is read again"],
)
def test_what_follows_the_bias_of_a_product_of_codes_is_a_table(backends, rest, tables):
    rng = np.random.default_rng(0)
    weights = rng.integers(-60, 60, (32, 32)).astype(np.int8)
    numbers = {name: NUMBERS[name] for name in "stzvmun"}
    numbers |= {"h": weights, "r": np.float32(0.01), "k": rng.standard_normal(32, np.float32)}
    given = {name: np.zeros((1, 160, 32), np.uint8) for name in "xw"}
    body = f"{GELU} {rest}"
    one, all_ = (small_model(out, body, given, numbers, 18) for out in ("y", "y, c, d, f, g, p, a"))
    notes = [call.note for call in lower_region(graph_of(one).whole, AVX2).calls]
    assert notes.count("table") == notes.count("by table") == tables
    y, wanted = (
        intarsia.compile(item, "llvm", num_threads=1, strict=True, backends=backends)
        .run(feeds_of(one))["y"]
        for item in (one, all_)
    )  # fmt: skip
    np.testing.assert_array_equal(y, wanted)
    assert len(np.unique(y)) > 20


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_table_has_the_bits_of_the_nodes(backends, dtype):
    zero = "m" if dtype == "int8" else "z"
    body = f"a = {D}(x, s, {zero}) i = Erf(a) b = Mul(a, i) y = {Q}(b, s, {zero})"
    one, all_ = (model_of(body, out, (1, 300, 16), np.dtype(dtype)) for out in ("y", "y, a, i, b"))
    feeds = feeds_of(one)
    y, wanted = (
        intarsia.compile(item, "llvm", num_threads=1, strict=True, backends=backends).run(feeds)[
            "y"
        ]
        for item in (one, all_)
    )
    assert len(np.unique(feeds["x"])) == 256
    np.testing.assert_array_equal(y, wanted)


QLINEAR = {
    "Add": "y = com.microsoft.QLinearAdd(x, s, z, w, t, v, t, z)",
    "AveragePool": """
        y = com.microsoft.QLinearAveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>
            (x, s, z, t, v)""",
    "Concat": "y = com.microsoft.QLinearConcat<axis = 1>(t, v, x, s, z, w, t, v)",
    "GlobalAveragePool": "y = com.microsoft.QLinearGlobalAveragePool(x, s, z, t, v)",
    "LeakyRelu": "y = com.microsoft.QLinearLeakyRelu<alpha = 0.2>(x, s, z, t, v)",
    "Mul": "y = com.microsoft.QLinearMul(x, s, z, w, t, v, t, v)",
    "Sigmoid": "y = com.microsoft.QLinearSigmoid(x, s, z, u, n)",
    "Softmax": "y = com.microsoft.QLinearSoftmax<axis = -1, opset = 13>(x, s, z, u, n)",
}


@pytest.mark.parametrize("name", QLINEAR)
def test_operators_on_codes(backends, name):
    model = model_of(QLINEAR[name])
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    feeds = feeds_of(model)
    got = intarsia.compile(model, "llvm", num_threads=1, strict=True, backends=backends).run(feeds)
    wanted = as_defined(model, feeds)
    assert np.ptp(wanted) > 1
    assert np.abs(got["y"].astype(int) - wanted).max() <= 1


STEPS = (
    *("Relu", "LeakyRelu", "HardSwish", "Sigmoid", "Tanh", "Clip", "Neg"),
    *("Add", "Add", "Mul", "Concat", "Join"),
    *("MaxPool", "AveragePool", "Transpose", "Pad", "Resize", "Again"),
)
IN_TEXT = {
    "LeakyRelu": "LeakyRelu<alpha = 0.3>({x})",
    "Clip": "Clip({x}, u, t)",
    "Concat": "Concat<axis = 3>({x}, {x})",
    "Join": "Concat<axis = 1>({x}, {other})",
    "Add": "Add({x}, {other})",
    "Mul": "Mul({x}, {other})",
    "MaxPool": "MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [1, 1]>({x})",
    "AveragePool": "AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>({x})",
    "Transpose": "Transpose<perm = [0, 1, 3, 2]>({x})",
    "Pad": "Pad({x}, c)",
    "Resize": 'Resize<mode = "nearest">({x}, e, k)',
    "Again": "Identity({x})",
}


def network(steps, seed):
    """Return the body of a network with Q and DQ around its operators, and its inner values."""
    rng = np.random.default_rng(seed)
    pairs = [("s", "z"), ("t", "v"), ("s", "z"), ("u", "n")]
    shape, made = SHAPE, {SHAPE: ["a0"]}
    body, inner, now = [f"a0 = {D}(x, s, z)"], ["a0"], "a0"
    for number, step in enumerate(steps):
        other = str(rng.choice(made[shape]))
        text = IN_TEXT.get(step, f"{step}({{x}})").format(x=now, other=other)
        scale, zero = pairs[rng.integers(len(pairs))]
        body.append(f"f{number} = {text} q{number} = {Q}(f{number}, {scale}, {zero})")
        now = f"d{number}"
        body.append(f"{now} = {D}(q{number}, {scale}, {zero})")
        if step == "Concat":
            shape = (*shape[:3], 2 * shape[3])
        elif step == "Join":
            shape = (1, 2 * shape[1], *shape[2:])
        elif step == "Transpose":
            shape = (*shape[:2], shape[3], shape[2])
        elif step == "Pad":
            shape = (*shape[:2], shape[2] + 2, shape[3] + 2)
        elif step == "Resize":
            shape = (*shape[:2], 2 * shape[2], 2 * shape[3])
        made.setdefault(shape, []).append(now)
        inner += [f"f{number}", now]
    body.append(f"y = {Q}({now}, t, v)")
    return " ".join(body), inner


@settings(max_examples=8)
@given(st.lists(st.sampled_from(STEPS), min_size=3, max_size=7), st.integers(0, 1000))
def test_random_networks_have_the_bits_of_their_nodes(backends, steps, seed):
    body, inner = network(steps, seed)
    fused, apart = model_of(body), model_of(body, ", ".join(["y", *inner]))
    feeds = feeds_of(fused, seed)
    y, wanted = (
        intarsia.compile(item, "llvm", num_threads=1, strict=True, backends=backends).run(feeds)[
            "y"
        ]
        for item in (fused, apart)
    )
    np.testing.assert_array_equal(y, wanted)
    # Each operator may round once otherwise, by a step; what follows may make more of it.
    off = np.abs(y.astype(int) - as_defined(fused, feeds))
    assert np.mean(off > 1) < 0.02


@pytest.mark.parametrize("shape", [(), (1,), (6,), (5, 1)])
def test_constants_are_dequantised_without_a_kernel(run_both, shape):
    weights = {"k": np.full(shape, 77, np.int8), "s": np.float32(0.02), "m": np.int8(-3)}
    body = f"d = {D}(k, s, m) y = Mul(x, d)"
    model = small_model("y", body, {"x": (3, 5, 6)}, weights)
    assert len(lower_region(graph_of(model).whole, AVX2).calls) == 1
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 5, 6)).astype(np.float32)}
    run_both(model, feeds)
    seen = small_model("y, d", body, {"x": (3, 5, 6)}, weights)
    run_both(seen, feeds)


def test_what_is_broadcast_is_dequantised_before(run_both):
    body = f"""
        a = {D}(x, s, z) g = Relu(a) p = GlobalAveragePool(g) i = {Q}(p, s, z)
        j = {D}(i, s, z) f = Mul(j, g) y = {Q}(f, t, v)"""
    model = model_of(body)
    run_both(model, feeds_of(model))


def test_batch_norms_of_dequantised_parameters_are_in_the_epilogue(run_both):
    rng = np.random.default_rng(0)
    channels = rng.integers(1, 60, (4, 4)).astype(np.int8)
    weights = {"h": rng.integers(-60, 60, (4, 4, 1, 1)).astype(np.int8), "r": np.float32(0.05)}
    weights |= {name: channels[row] for row, name in enumerate("abdf")}
    body = f"""
        i = {D}(x, s, z) j = {D}(h, r, m) l = Conv(i, j) o = {Q}(l, t, v) p = {D}(o, t, v)
        aa = {D}(a, r, m) bb = {D}(b, r, m) dd = {D}(d, r, m) ff = {D}(f, r, m)
        q = BatchNormalization(p, aa, bb, dd, ff) y = {Q}(q, t, v)"""
    numbers = {name: NUMBERS[name] for name in "stzvm"}
    model = small_model("y", body, {"x": np.zeros((1, 4, 6, 8), np.uint8)}, numbers | weights, 18)
    graph = read_codes(graph_of(model).whole).graph
    assert [node.op_type for node in graph.nodes].count(D) == 3  # of the codes and of weights
    run_both(model, feeds_of(model))


def test_codes_that_are_made_and_read_again_stay_integers(lower_model, monkeypatch):
    """Fewer steps between the nodes of a kernel, and the same bits."""
    rng = np.random.default_rng(4)
    x = rng.integers(0, 255, (1, 16, 3, 4), np.uint8, endpoint=True)
    body = """
        a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, t, i) c = Conv(a, b)
        d = QuantizeLinear(c, u, z) e = DequantizeLinear(d, u, z) f = Add(e, a)
        g = QuantizeLinear(f, v, z) h = DequantizeLinear(g, v, z) k = Relu(h)
        y = QuantizeLinear(k, v, z)"""
    constants = {"s": np.float32(0.02), "z": np.uint8(97), "t": np.float32(0.01)}
    constants |= {"i": np.int8(0), "u": np.float32(0.31), "v": np.float32(0.33)}
    constants["w"] = rng.integers(-127, 127, (16, 16, 1, 1), np.int8, endpoint=True)
    model = small_model("y", body, {"x": x}, constants)
    codes, steps = [], []
    for is_kept in (True, False):
        if not is_kept:
            monkeypatch.setattr(recipes, "_without_round_trips", lambda body, sources: body)
        program, region = lower_model(model, AVX2)
        assert len(region.outputs) == 1
        texts = [print_function(kernel) for kernel in program.kernels]
        steps.append(sum(text.count(" = cast") + text.count(" - ") for text in texts))
        run = partial(_interpret, program)
        codes.append(run_program(program, region, {"x": x}, run)["y"])
    np.testing.assert_array_equal(*codes)
    assert steps[0] < steps[1]


def _interpret(program, call, arrays):
    interpret(program.kernels[call.kernel], arrays)


@pytest.mark.parametrize(
    ("extents", "after"), [((14, 14), 2), ((30, 30), 2), ((15, 15), 1), ((7, 7), 1)]
)
def test_blocks_that_would_lie_pages_apart_get_a_wider_border(extents, after):
    pads = ((1, 1), (1, 1))
    wider = integer_convolution._kept_apart(extents, pads, 16)
    assert wider == ((1, 1), (1, after))
    nbytes = [
        16 * np.prod([extent + sum(pad) for extent, pad in zip(extents, border, strict=True)])
        for border in (pads, wider)
    ]
    assert (nbytes[0] % 4096 == 0) == (after == 2)
    assert nbytes[1] % 4096
