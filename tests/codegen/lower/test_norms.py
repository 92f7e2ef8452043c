# SPDX-License-Identifier: Apache-2.0
"""Normalisations in every spelling: each is one kernel."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import feeds_of, small_model


def scalar(number):
    return np.array(number, np.float32)


NUMBERS = {
    "two": scalar(2),
    "half": scalar(0.5),
    "minus_half": scalar(-0.5),
    "one": scalar(1),
    "eps": scalar(1e-5),
}
CENTRED = "m = ReduceMean<axes = [-1]>(x) d = Sub(x, m)"
POWER = "p = Pow(d, two) v = ReduceMean<axes = [-1]>(p) e = Add(v, eps)"
PRODUCT = "p = Mul(d, d) v = ReduceMean<axes = [2]>(p) e = Add(eps, v)"
ROOT = "s = Sqrt(e)"
SHIFTED = "g = Mul(q, w) y = Add(g, b)"
RMS_POWER = "p = Pow(x, two) v = ReduceMean<axes = [-1]>(p) e = Add(v, eps)"
RMS_PRODUCT = "p = Mul(x, x) v = ReduceMean<axes = [-1]>(p) e = Add(eps, v)"
QUOTIENTS = {
    "divided by the root": f"{ROOT} q = Div(VALUE, s)",
    "times the reciprocal": f"{ROOT} r = Reciprocal(s) q = Mul(VALUE, r)",
    "times the reciprocal, swapped": f"{ROOT} r = Reciprocal(s) q = Mul(r, VALUE)",
    "times one over the root": f"{ROOT} r = Div(one, s) q = Mul(VALUE, r)",
    "times a power": "r = Pow(e, minus_half) q = Mul(VALUE, r)",
    "divided by a power": "r = Pow(e, half) q = Div(VALUE, r)",
}
LAYER = {
    "operator": "y = LayerNormalization(x, w, b)",
    "operator without shift": "y = LayerNormalization(x, w)",
    **{
        f"{square}, {how}": f"{CENTRED} {text} {quotient.replace('VALUE', 'd')} {SHIFTED}"
        for square, text in (("power", POWER), ("product", PRODUCT))
        for how, quotient in QUOTIENTS.items()
    },
    "without scale": f"{CENTRED} {POWER} {ROOT} y = Div(d, s)",
    "scale only": f"{CENTRED} {POWER} {ROOT} q = Div(d, s) y = Mul(q, w)",
    "subtracted twice": (
        f"{CENTRED} n = ReduceMean<axes = [2]>(x) f = Sub(x, n) {POWER} {ROOT} q = Div(f, s)"
        f" {SHIFTED}"
    ),
    "added to the deviation": (
        f"{CENTRED} {POWER.replace('e = Add(v, eps)', '')} t = Sqrt(v) s = Add(t, eps)"
        f" q = Div(d, s) {SHIFTED}"
    ),
    "TensorFlow's": (
        f"{CENTRED} {PRODUCT} {ROOT} r = Reciprocal(s) f = Mul(r, w) h = Mul(x, f)"
        " n = Mul(m, f) k = Sub(b, n) y = Add(h, k)"
    ),
}
RMS = {
    **{
        f"{square}, {how}": f"{text} {quotient.replace('VALUE', 'x')} y = Mul(q, w)"
        for square, text in (("power", RMS_POWER), ("product", RMS_PRODUCT))
        for how, quotient in QUOTIENTS.items()
    },
    "scale in front": f"{RMS_POWER} {ROOT} q = Div(x, s) y = Mul(w, q)",
}
SPELLINGS = {
    **{f"layer: {name}": text for name, text in LAYER.items()},
    **{f"RMS: {name}": text for name, text in RMS.items()},
}


def model_of(spelling, shape=(2, 5, 40), first="", outputs="y"):
    weights = {
        name: number
        for name, number in NUMBERS.items()
        if any(f"{mark[0]}{name}{mark[1]}" in spelling for mark in ("()", "(,", " )"))
    }
    weights |= {name: (shape[-1],) for name in "wb" if f" {name})" in spelling}
    weights |= {name: (shape[-1],) for name in "wb" if f" {name}," in spelling}
    weights |= {name: (shape[-1],) for name in "wb" if f"({name}," in spelling}
    return small_model(outputs, f"{first} {spelling}", {"x": shape}, weights)


def calls_of(lower_model, model):
    program, _ = lower_model(model)
    return sum(bool(call.nodes) for call in program.calls)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelling_is_one_kernel(spelling, run_both, lower_model):
    model = model_of(SPELLINGS[spelling])
    assert calls_of(lower_model, model) == 1
    run_both(model, feeds_of(model), rtol=1e-5)


@pytest.mark.parametrize("spelling", [*LAYER][2:])
def test_what_is_far_from_zero_stays_exact(spelling, run_both):
    """The mean of squares less the square of the mean would have no digit left."""
    model = model_of(LAYER[spelling])
    feeds = {name: array + 1000 for name, array in feeds_of(model).items()}
    weights = {t.name: np.frombuffer(t.raw_data, np.float32) for t in model.graph.initializer}
    x = feeds["x"].astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    eps = float(NUMBERS["eps"])
    is_outside = spelling == "added to the deviation"
    divisor = np.sqrt(variance) + eps if is_outside else np.sqrt(variance + eps)
    exact = centred / divisor * weights.get("w", 1) + weights.get("b", 0)
    exe = run_both(model, feeds, rtol=1e-3)
    fused = small_model(
        "y",
        "y = LayerNormalization(x, w, b)",
        {"x": x.shape},
        {
            "w": np.asarray(weights.get("w", np.ones(40)), np.float32),
            "b": np.asarray(weights.get("b", np.zeros(40)), np.float32),
        },
    )
    wanted = np.abs(evaluate(fused, feeds)["y"] - exact).max()
    assert np.abs(exe.run(feeds)["y"] - exact).max() <= wanted + 2.0**-20


OTHERS = {
    "a mean over another dimension": (
        f"m = ReduceMean<axes = [1]>(x) d = Sub(x, m) {POWER} {ROOT} q = Div(d, s) {SHIFTED}"
    ),
    "another exponent": (
        f"{CENTRED} p = Pow(d, half) v = ReduceMean<axes = [-1]>(p) e = Add(v, eps) {ROOT}"
        f" q = Div(d, s) {SHIFTED}"
    ),
    "another numerator": f"{CENTRED} {POWER} {ROOT} r = Div(two, s) q = Mul(d, r) {SHIFTED}",
    "another power of the variance": (f"{CENTRED} {POWER} r = Pow(e, two) q = Mul(d, r) {SHIFTED}"),
    "a vector for epsilon": (
        f"{CENTRED} {POWER.replace('eps', 'w')} t = Abs(e) s = Sqrt(t) q = Div(d, s)"
        " y = Identity(q)"
    ),
}


@pytest.mark.parametrize("spelling", OTHERS)
def test_what_is_not_a_normalisation_stays_several_kernels(spelling, run_both, lower_model):
    model = model_of(OTHERS[spelling])
    assert calls_of(lower_model, model) > 1
    feeds = {name: np.abs(array) for name, array in feeds_of(model).items()}
    if spelling != "another exponent":  # whose roots of negative numbers are NaN
        run_both(model, feeds)


@pytest.mark.parametrize("seen", ["m", "d", "v", "s"])
def test_what_is_read_elsewhere_is_still_made(seen, run_both):
    model = model_of(LAYER["power, divided by the root"], outputs=f"y, {seen}")
    run_both(model, feeds_of(model))


AXES = {
    "channels": ("x", (2, 20, 5, 6), [1]),
    "channels behind a convolution": ("c", (2, 20, 5, 6), [1]),
    "images behind a convolution": ("c", (2, 20, 5, 6), [2, 3]),
    "all but the first": ("c", (2, 20, 5, 6), [1, 2, 3]),
    "all": ("x", (3, 4, 5), [0, 1, 2]),
    "first and last": ("x", (3, 4, 17), [0, 2]),
}


@pytest.mark.parametrize("case", AXES)
@pytest.mark.parametrize("kind", ["layer", "RMS"])
def test_over_other_dimensions(case, kind, run_both, lower_model):
    source, shape, axes = AXES[case]
    first = "c = Conv(x, k)" if source == "c" else ""
    spelling = LAYER["without scale"] if kind == "layer" else f"{RMS_POWER} {ROOT} y = Div(x, s)"
    text = spelling.replace("[-1]", str(axes)).replace("x", source).replace(f"a{source}es", "axes")
    text = text.replace(f"a{source}is", "axis") + " z = Relu(y)"
    weights = {"two": NUMBERS["two"], "eps": NUMBERS["eps"]}
    if first:
        weights["k"] = (20, 20, 1, 1)
    model = small_model("z", f"{first} {text}", {"x": shape}, weights)
    assert calls_of(lower_model, model) == (2 if first else 1)
    run_both(model, feeds_of(model))


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from([*SPELLINGS]),
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 150)),
)
def test_random_shapes(run_both, spelling, shape):
    model = model_of(SPELLINGS[spelling], shape)
    # A row of one number has no deviation but epsilon's: its rounding is all that there is.
    run_both(model, feeds_of(model), rtol=1e-3)


GROUPS = (
    "r = Reshape(x, to) i = InstanceNormalization<epsilon = 0.001>(r, one, zero)"
    " y = Reshape(i, back)"
)
GROUP_SPELLINGS = {
    "alone": (f"{GROUPS}", "y", False),
    "scaled": (f"{GROUPS} g = Mul(y, w) z = Add(g, b)", "z", False),
    "with SiLU": (f"{GROUPS} g = Mul(y, w) h = Add(g, b) s = Sigmoid(h) z = Mul(h, s)", "z", False),
    "scaled by group": (f"{GROUPS} z = Relu(y)", "z", True),
}


@pytest.mark.parametrize("shape", [(2, 12, 5, 6), (1, 8, 33), (3, 4, 1, 2, 3)])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("spelling", GROUP_SPELLINGS)
def test_groups_as_channels_of_images(run_both, lower_model, spelling, groups, shape):
    text, output, is_scaled = GROUP_SPELLINGS[spelling]
    rng = np.random.default_rng(groups)
    weights = {
        "to": np.array([0, groups, -1]),
        "back": np.array(shape),
        "one": rng.standard_normal(groups, np.float32)
        if is_scaled
        else np.ones(groups, np.float32),
        "zero": np.full(groups, is_scaled, np.float32),
    }
    if "w)" in text:
        weights |= dict.fromkeys("wb", (shape[1], *[1] * (len(shape) - 2)))
    model = small_model(output, text, {"x": shape}, weights)
    assert calls_of(lower_model, model) == 1
    run_both(model, feeds_of(model), rtol=1e-5)


def test_an_image_of_other_channels_is_not_one_of_groups(run_both, lower_model):
    weights = {"to": np.array([4, 3, -1]), "back": np.array((2, 12, 5))}
    weights |= {"one": np.ones(3, np.float32), "zero": np.zeros(3, np.float32)}
    model = small_model("z", f"{GROUPS} z = Relu(y)", {"x": (2, 12, 5)}, weights)
    assert calls_of(lower_model, model) == 2
    run_both(model, feeds_of(model), rtol=1e-5)
