# SPDX-License-Identifier: Apache-2.0
"""Activations in every spelling: each is one kernel, also behind a product or a convolution."""

import math

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import feeds_of, small_model

import intarsia
from intarsia.codegen.lower.region import refuse_node
from intarsia.codegen.patterns import SPELLINGS as SPELLED
from intarsia.codegen.patterns.spelling import read_operations
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot


def scalar(number):
    return np.array(number, np.float32)


NUMBERS = {
    "half": scalar(0.5),
    "one": scalar(1),
    "three": scalar(3),
    "root": scalar(np.sqrt(2)),
    "over_root": scalar(np.sqrt(0.5)),
    "cubic": scalar(0.044715),
    "root_2_pi": scalar(np.sqrt(2 / np.pi)),
    "alpha": scalar(1.702),
    "six": scalar(6),
    "zero": scalar(0),
    "cap": scalar(30),
    "over_cap": scalar(1 / 30),
    "sixth": scalar(1 / 6),
}
GELU = "d = Div(x, root) e = Erf(d) f = Add(e, one)"
CUBIC = "c = Mul(cubic, p) d = Add(x, c) e = Mul(root_2_pi, d) t = Tanh(e) f = Add(t, one)"
SPELLINGS = {
    "Gelu": "y = Gelu(x)",
    "Gelu by tanh": 'y = Gelu<approximate = "tanh">(x)',
    "Gelu of com.microsoft": "y = com.microsoft.Gelu(x)",
    "FastGelu": "y = com.microsoft.FastGelu(x)",
    "FastGelu with bias": "y = com.microsoft.FastGelu(x, b)",
    "BiasGelu": "y = com.microsoft.BiasGelu(x, b)",
    "QuickGelu": "y = com.microsoft.QuickGelu(x)",
    "QuickGelu with alpha": "y = com.microsoft.QuickGelu<alpha = 1.25>(x)",
    "erf, half last": f"{GELU} g = Mul(x, f) y = Mul(g, half)",
    "erf, half before": f"{GELU} h = Mul(x, half) y = Mul(h, f)",
    "erf, half of the sum": f"{GELU} h = Mul(half, f) y = Mul(x, h)",
    "erf of a product": (
        "d = Mul(x, over_root) e = Erf(d) f = Add(one, e) g = Mul(f, x) y = Mul(half, g)"
    ),
    "tanh of a power": f"p = Pow(x, three) {CUBIC} h = Mul(x, half) y = Mul(h, f)",
    "tanh of products": f"q = Mul(x, x) p = Mul(x, q) {CUBIC} h = Mul(half, x) y = Mul(h, f)",
    "tanh, x taken out": (
        "q = Mul(x, x) r = Mul(q, cubic) u = Add(r, one) v = Mul(x, root_2_pi) z = Mul(v, u)"
        " t = Tanh(z) f = Add(one, t) h = Mul(x, half) y = Mul(h, f)"
    ),
    "SiLU": "s = Sigmoid(x) y = Mul(x, s)",
    "Swish": "y = Swish<alpha = 1.702>(x)",
    "quick, of operators": "a = Mul(x, alpha) s = Sigmoid(a) y = Mul(x, s)",
    "HardSwish": "y = HardSwish(x)",
    "HardSwish of HardSigmoid": "h = HardSigmoid<alpha = 0.1666667, beta = 0.5>(x) y = Mul(x, h)",
    "HardSwish of Clip": ("a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)"),
    "HardSwish of Clip and a product": (
        "a = Add(x, three) c = Clip(a, zero, six) d = Mul(c, sixth) y = Mul(x, d)"
    ),
    "Mish": "y = Mish(x)",
    "Mish of operators": "s = Softplus(x) t = Tanh(s) y = Mul(x, t)",
    "soft cap": "d = Div(x, cap) t = Tanh(d) y = Mul(t, cap)",
    "soft cap of a product": "d = Mul(x, over_cap) t = Tanh(d) y = Mul(cap, t)",
}
"""Of x, with a bias b and a skipped tensor s."""


def model_of(spelling, first="", shape=(2, 5, 19)):
    """Return a model of an activation, behind a node that makes `x` of `i` if one is given."""
    opset = 24 if "Swish" in spelling else 20
    names = [name for name in NUMBERS if f"{name}," in spelling or f" {name})" in spelling]
    names += [name for name in NUMBERS if f"({name}" in spelling]
    weights = {name: NUMBERS[name] for name in names}
    if " b" in spelling:
        weights["b"] = (shape[-1],)
    if "Conv" in first:
        weights["w"] = (shape[1], 8, 1, 1)
        inputs = {"i": (shape[0], 8, *shape[2:])}
    elif first:
        weights["w"] = (8, shape[-1])
        inputs = {"i": (*shape[:-1], 8)}
    else:
        inputs = {"x": shape}
    if " s)" in spelling and "s =" not in spelling:
        inputs["s"] = shape
    return small_model("y", f"{first} {spelling}", inputs, weights, opset)


def calls_of(lower_model, model):
    """Return how many calls compute nodes; the others are conversions of layouts."""
    program, _ = lower_model(model)
    return sum(bool(call.nodes) for call in program.calls)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelling_is_one_kernel(spelling, run_both, lower_model):
    model = model_of(SPELLINGS[spelling])
    assert calls_of(lower_model, model) == 1
    run_both(model, feeds_of(model), rtol=1e-5)


PRODUCERS = {
    "product": ("x = MatMul(i, w)", (2, 5, 19)),
    "convolution": ("x = Conv(i, w)", (2, 20, 5, 6)),
}


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelling_joins_what_makes_its_operand(spelling, producer, run_both, lower_model):
    first, shape = PRODUCERS[producer]
    model = model_of(SPELLINGS[spelling], first, shape)
    assert calls_of(lower_model, model) == 1
    run_both(model, feeds_of(model), rtol=2e-5)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def fast_gelu(x):
    return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


EXACT = {
    "y = com.microsoft.Gelu(x)": gelu,
    "y = com.microsoft.FastGelu(x)": fast_gelu,
    "y = com.microsoft.QuickGelu(x)": lambda x: x * sigmoid(float(np.float32(1.702)) * x),
    "y = Mish(x)": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "y = Swish(x)": lambda x: x * sigmoid(x),
    "y = HardSwish(x)": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}


@pytest.mark.parametrize("spelling", EXACT)
def test_no_farther_off_than_onnxruntime(spelling, run_both):
    model = model_of(spelling, shape=(2001,))
    x = np.linspace(-8, 8, 2001, dtype=np.float32)
    exe = run_both(model, {"x": x})
    exact = EXACT[spelling](x.astype(np.float64))

    def error(result):
        return float(np.abs(result - exact).max())

    # A unit in the last place of the largest result is no difference.
    allowed = error(evaluate(model, {"x": x})["y"]) + 2.0**-21
    assert error(exe.run({"x": x})["y"]) <= allowed


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize(
    "text", ["FastGelu(x, b)", "FastGelu(x)", "BiasGelu(x, b)", "Gelu(x)", "QuickGelu(x)"]
)
def test_other_floats(text, dtype, backends):
    rng = np.random.default_rng(3)
    arrays = {name: rng.standard_normal(7).astype(dtype) for name in "xb" if name in text[-5:]}
    model = small_model(
        "y",
        f"y = com.microsoft.{text}",
        {"x": arrays["x"]},
        {"b": arrays["b"]} if "b" in arrays else {},
    )
    model.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(
        np.dtype(dtype)
    )
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    assert [region.backend for region in exe.placement.regions] == ["llvm"]
    wide = np.sum([array.astype(np.float64) for array in arrays.values()], axis=0)
    quick = EXACT["y = com.microsoft.QuickGelu(x)"]
    exact = {"F": fast_gelu, "B": gelu, "G": gelu, "Q": quick}[text[0]](wide)
    got = exe.run({"x": arrays["x"]})["y"]
    assert got.dtype == dtype
    np.testing.assert_allclose(
        got,
        exact,
        rtol=2e-3 if dtype == np.float16 else 1e-12,
        atol=1e-4 if dtype == np.float16 else 1e-13,
    )


def test_integers_are_refused():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
        " g (int32[4] x, int32[4] b) => (int32[4] y) { y = com.microsoft.BiasGelu(x, b) }"
    )
    graph = snapshot(load(model))
    code, reason = refuse_node(graph, graph.nodes[0])
    assert (code, reason) == ("op", "com.microsoft.BiasGelu of int32 has no native code")


@pytest.mark.parametrize("exponent", [2, 3, 4, 0.5, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_power_of_a_constant_is_that_of_numpy(exponent, dtype, backends):
    """Squares and cubes are products; the special cases of powers hold for both."""
    x = np.array([0.0, -0.0, 1, -1, 0.3, -2.7, 11, np.inf, -np.inf, np.nan, 1e-3], dtype)
    body = "y = Pow(x, e)"
    model = small_model("y", body, {"x": x}, {"e": np.array(exponent, dtype)})
    got = intarsia.compile(model, "llvm", num_threads=1, backends=backends).run({"x": x})["y"]
    with np.errstate(all="ignore"):
        wanted = np.power(x, np.full_like(x, exponent))  # of one number it takes roots
    tolerance = {"float32": 3e-7, "float64": 6e-16, "float16": 1e-3}[dtype]
    np.testing.assert_allclose(got, wanted, rtol=tolerance)
    is_zero = wanted == 0
    np.testing.assert_array_equal(np.signbit(got[is_zero]), np.signbit(wanted[is_zero]))


GELUS = {
    name: text
    for name, text in SPELLINGS.items()
    if name.startswith(("erf", "tanh")) and "Identity" not in text
}


@pytest.mark.parametrize("spelling", GELUS)
def test_a_spelled_gelu_is_one_step(spelling):
    graph = snapshot(load(model_of(GELUS[spelling])))
    region = Region.of(graph, range(len(graph.nodes)))
    (operation,) = read_operations(region, SPELLED)
    assert (operation.op_type, len(operation.nodes)) == ("Gelu", len(graph.nodes))


@pytest.mark.parametrize("spelling", GELUS)
@pytest.mark.parametrize("name", ["half", "one", "root", "over_root", "cubic", "root_2_pi"])
def test_with_another_constant_it_is_not_gelu(spelling, name, run_both):
    model = model_of(GELUS[spelling])
    if not any(name in node.input for node in model.graph.node):
        return
    tensor = next(item for item in model.graph.initializer if item.name == name)
    changed = numpy_helper.to_array(tensor) * np.float32(1.0002)
    tensor.CopyFrom(numpy_helper.from_array(changed, name))
    graph = snapshot(load(model))
    operations = read_operations(Region.of(graph, range(len(graph.nodes))), SPELLED)
    assert "Gelu" not in {operation.op_type for operation in operations}
    run_both(model, feeds_of(model), rtol=1e-5)
