# SPDX-License-Identifier: Apache-2.0
"""Models with elements that numpy lacks: moved, computed with, converted, fused or not."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tests.codegen.lower.small_models import small_model

import intarsia
from intarsia.codegen.lower.region import refuse_node
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

OPSET = 24
MOVED = {
    "transposed": "y = Transpose<perm = [2, 0, 1]>(x)",
    "joined": "y = Concat<axis = 1>(x, x)",
    "cut": "a, b = Split<axis = 1, num_outputs = 2>(x) y = Concat<axis = 1>(b, a)",
    "picked": "y = Gather<axis = 1>(x, i)",
    "renamed": "a = Flatten(x) y = Identity(a)",
    "repeated": "y = Tile(x, r)",
    "turned round": "y = ReverseSequence<time_axis = 1, batch_axis = 0>(x, l)",
}
PARAMETERS = {"i": np.array([1, 0, 3]), "r": np.array([1, 2, 3]), "l": np.array([3, 4])}


def run(model, feeds, backends):
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    got = intarsia.compile(model, "llvm", num_threads=1, backends=backends).run(feeds)["y"]
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    return got, wanted


def numbers(dtype, shape=(2, 4, 5)):
    x = np.random.default_rng(0).standard_normal(shape) * 3
    return x.astype("float32").astype(getattr(ml_dtypes, dtype, dtype))


def as_bytes(array):
    return np.ascontiguousarray(array).view(np.uint8)


ALL_MOVED = [("bfloat16", case) for case in MOVED] + [
    (dtype, case)
    for dtype in ("float8_e4m3fn", "float8_e5m2fnuz", "int4", "uint4", "float4_e2m1fn")
    for case in ("transposed", "renamed")  # ONNX has no others of these
]


@pytest.mark.parametrize(("dtype", "case"), ALL_MOVED)
def test_elements_are_moved(backends, dtype, case):
    x = numbers(dtype)
    used = {name: array for name, array in PARAMETERS.items() if f", {name})" in MOVED[case]}
    opset = onnx.defs.onnx_opset_version() if case == "turned round" else OPSET
    model = small_model("y", MOVED[case], {"x": x}, used, opset)
    got, wanted = run(model, {"x": x}, backends)
    np.testing.assert_array_equal(as_bytes(got), as_bytes(wanted))


COMPUTED = {
    "sum": "y = Add(x, z)",
    "several": "a = Mul(x, z) b = Sigmoid(a) y = Sub(b, x)",
    "compared": "c = Less(x, z) y = Where(c, x, z)",
    "clipped": "y = Relu(x)",
    "converted": "a = Cast<to = 1>(x) b = Exp(a) y = Cast<to = 16>(b)",
    "like": "a = Cast<to = 1>(x) y = CastLike(a, z)",
    "twice": "a = Cast<to = 17>(x) y = Cast<to = 16>(a)",
}


@pytest.mark.parametrize("case", COMPUTED)
def test_bfloat16_is_computed_in_float32(backends, case):
    feeds = {"x": numbers("bfloat16"), "z": numbers("bfloat16")[:, ::-1].copy()}
    inputs = {name: feeds[name] for name in feeds if name == "x" or ", z)" in COMPUTED[case]}
    got, wanted = run(small_model("y", COMPUTED[case], inputs, opset=OPSET), inputs, backends)
    got, wanted = got.astype("float32"), wanted.astype("float32")
    np.testing.assert_allclose(got, wanted, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("to", [16, 17, 19, 22])
def test_what_a_convolution_makes_is_converted(backends, to):
    feeds = {"x": numbers("float32", (1, 20, 5, 6))}
    body = f"c = Conv(x, w) d = Cast<to = {to}>(c) y = Cast<to = 1>(d)"
    model = small_model("y", body, feeds, {"w": (20, 20, 3, 3)}, opset=OPSET)
    wanted = ReferenceEvaluator(model).run(None, feeds)[0]
    got = intarsia.compile(model, "llvm", num_threads=1, backends=backends).run(feeds)["y"]
    step = {16: 2**-7, 17: 2**-3, 19: 2**-2, 22: 1.0}[to]  # one more place where sums differ
    np.testing.assert_allclose(got, wanted, rtol=step, atol=step)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "int4"])
def test_constants(backends, dtype):
    table = numbers(dtype)
    model = small_model(
        "y", "c = Cast<to = 1>(t) y = Add(x, c)", {"x": (2, 4, 5)}, {"t": table}, 24
    )
    x = numbers("float32")
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    np.testing.assert_array_equal(exe.run({"x": x})["y"], x + table.astype("float32"))


def test_casts_that_do_not_saturate_stay_so(backends):
    x = np.array([1, 1e6, -1e6, np.inf, 300], "float32")
    for body in ("y = CastLike<saturate = 0>(x, l)", "y = Cast<to = 17, saturate = 0>(x)"):
        used = {"l": numbers("float8_e4m3fn")} if "l)" in body else {}
        model = small_model("y", body, {"x": x}, used, opset=OPSET)
        got = intarsia.compile(model, "llvm", backends=backends).run({"x": x})["y"]
        np.testing.assert_array_equal(np.isnan(got.astype("float32")), [0, 1, 1, 1, 0])


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ("y = BitCast<to = 9>(x)", "uint8"),
        ("y = Pad(x, p)", "float8_e4m3fn"),
    ],
)
def test_other_operators_are_refused(body, dtype):
    known = {"p": np.ones(6, "int64")}
    used = {name: array for name, array in known.items() if f", {name}" in body}
    opset = 26 if "BitCast" in body else OPSET
    model = small_model("y", body, {"x": numbers(dtype)}, used, opset)
    graph = snapshot(load(model))
    reason = refuse_node(graph, graph.nodes[0])[1]
    assert (dtype if "BitCast" not in body else "bool") in reason
    assert onnx.checker.check_model(model) is None
