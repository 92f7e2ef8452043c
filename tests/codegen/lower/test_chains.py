# SPDX-License-Identifier: Apache-2.0
"""Pointwise, depthwise and pointwise convolutions in bands of rows, against each by itself."""

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.lower.small_models import feeds_of, small_model

import intarsia
from intarsia.codegen.unit import AVX512
from intarsia.native import native_target

SAME = "pads = [1, 1, 1, 1]"
SHAPE = (1, 16, 29, 17)


def inverted(channels, window, *, tail="y = Clip(f, low, high)", x=SHAPE, taps=(3, 3), **weights):
    """Return expansion to some channels, a depthwise convolution and a projection to 16."""
    body = f"""
        a = Conv(x, w, b) c = Clip(a, low, high)
        d = Conv<group = {channels}, {window}>(c, v, u) e = Relu(d) f = Conv(e, p) {tail}"""
    low, high = np.array(-1, np.float32), np.array(2, np.float32)
    weights |= {"w": (channels, x[1], 1, 1), "b": (channels,), "low": low, "high": high}
    weights |= {"v": (channels, 1, *taps), "u": (channels,), "p": (16, channels, 1, 1)}
    return small_model("y", body, {"x": x}, weights)


CASES = {
    "same size": inverted(24, SAME),
    "a residual": inverted(24, SAME, tail="y = Add(f, x)"),
    "strides of 2, odd extents": inverted(20, f"{SAME}, strides = [2, 2]", x=(1, 16, 39, 21)),
    "strides of 2, even extents": inverted(32, f"{SAME}, strides = [2, 2]", x=(1, 16, 40, 22)),
    "a batch": inverted(24, SAME, tail="y = Add(f, x)", x=(3, *SHAPE[1:])),
    "a batch of small images": inverted(40, SAME, x=(9, 16, 5, 5)),
    "5 x 5 taps": inverted(24, "pads = [2, 2, 2, 2]", taps=(5, 5)),
    "uneven padding": inverted(24, "pads = [0, 2, 2, 1]"),
    "no padding": inverted(24, "strides = [2, 3]", x=(1, 16, 36, 20)),
    "taps that are apart": inverted(24, "pads = [3, 2, 3, 2], dilations = [3, 2]"),
    "columns that are all padding": inverted(24, "pads = [2, 6, 1, 5]"),
    "another convolution behind": inverted(
        24, SAME, tail="y = Conv<pads = [1, 1, 1, 1]>(f, q)", q=(20, 16, 3, 3)
    ),
    "operands of other shapes": inverted(
        24, SAME, tail="g = Mul(f, q) h = Sub(g, r) y = Add(h, s)", q=(29, 1), r=(16, 1, 1), s=(17,)
    ),
    "nothing behind": inverted(24, SAME, tail="y = GlobalMaxPool(e)", x=(1, 16, 24, 19)),
    "a first convolution with taps": small_model(
        "y",
        f"a = Conv<{SAME}, strides = [2, 2]>(x, w) b = Conv<group = 20, {SAME}>(a, v)"
        " y = Conv(b, p)",
        {"x": (2, 3, 47, 51)},
        {"w": (20, 3, 3, 3), "v": (20, 1, 3, 3), "p": (12, 20, 1, 1)},
    ),
    "a chain that ends where another one would begin": small_model(
        "y",
        f"a = Conv(x, w) b = Conv<group = 24, {SAME}>(a, v) c = Conv(b, p)"
        f" d = Conv<group = 24, {SAME}>(c, u) y = Conv(d, q)",
        {"x": SHAPE},
        {
            "w": (24, 16, 1, 1),
            "v": (24, 1, 3, 3),
            "p": (24, 24, 1, 1),
            "u": (24, 1, 3, 3),
            "q": (12, 24, 1, 1),
        },
    ),
    "biases that are not constant": small_model(
        "y",
        f"a = Conv(x, w, b) c = Relu(a) d = Conv<group = 24, {SAME}>(c, v, u) e = Conv(d, p, q)"
        " y = Relu(e)",
        {"x": SHAPE, "b": (24,), "u": (24,), "q": (12,)},
        {"w": (24, 16, 1, 1), "v": (24, 1, 3, 3), "p": (12, 24, 1, 1)},
    ),
}


@pytest.fixture
def compile_for(monkeypatch, backends):
    """A function that compiles a model for a second cache of some bytes."""

    def compile_(model, l2_bytes, threads=1):
        found = native_target.lowering_options
        with monkeypatch.context() as patch:

            def small(target, caches):
                options = found(target, caches)
                return replace(options, unit=replace(options.unit, l2_bytes=l2_bytes))

            patch.setattr(native_target, "lowering_options", small)
            return intarsia.compile(model, "llvm", num_threads=threads, backends=backends)

    return compile_


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", CASES)
def test_bands_give_the_numbers_of_each_convolution_alone(case, compile_for, run_both):
    model = CASES[case]
    alone = run_both(model, feeds := feeds_of(model)).run(feeds)["y"]
    banded = compile_for(model, SMALL)
    banded.run({name: np.full_like(array, np.nan) for name, array in feeds.items()})
    got = banded.run(feeds)["y"]
    np.testing.assert_allclose(got, alone, rtol=1e-5, atol=1e-5 * np.abs(alone).max())


@pytest.mark.parametrize("case", ["a batch", "strides of 2, odd extents"])
def test_any_number_of_threads_gives_the_same_bits(case, compile_for):
    model = CASES[case]
    feeds = feeds_of(model)
    one, three = (compile_for(model, SMALL, threads).run(feeds)["y"] for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


SMALL = 8 << 10
"""A second cache so small that a few thousand elements are far larger."""


def calls_of(lower_model, model, l2_bytes=SMALL):
    program, _ = lower_model(model, replace(AVX512, l2_bytes=l2_bytes))
    return [call.nodes for call in program.calls if call.nodes]


@pytest.mark.parametrize("case", CASES)
def test_every_case_is_cut(case, lower_model):
    calls = calls_of(lower_model, CASES[case])
    assert len(calls) > len(set(calls))


def test_calls_go_band_by_band(lower_model):
    calls = calls_of(lower_model, CASES["a batch"])
    once = list(dict.fromkeys(calls))
    assert [len(names) for names in once] == [2, 2, 2]
    assert calls == once * (len(calls) // 3)


@pytest.mark.parametrize("case", ["same size", "5 x 5 taps", "taps that are apart"])
def test_no_row_is_computed_twice(case, lower_model):
    """Rows that two bands need are moved, and each row of the first result is made by one call."""
    program, _ = lower_model(CASES[case], replace(AVX512, l2_bytes=SMALL))
    first = next(call.nodes for call in program.calls if call.nodes)
    made = [call.shape.split("x") for call in program.calls if call.nodes == first]
    assert len(made) > 1
    assert sum(int(shape[-2]) for shape in made) == SHAPE[2]


def test_what_a_cache_holds_is_not_cut(lower_model):
    calls = calls_of(lower_model, CASES["a batch"], 1 << 20)
    assert len(calls) == len(set(calls)) == 3


def test_rows_that_are_all_padding_are_not_cut(lower_model, run_both):
    model = inverted(24, "pads = [3, 1, 1, 1]")
    calls = calls_of(lower_model, model)
    assert len(calls) == len(set(calls))
    run_both(model, feeds_of(model))


def test_what_others_read_too_is_not_cut(lower_model):
    body = f"a = Conv(x, w) y = Conv<group = 24, {SAME}>(a, v) z = Relu(a)"
    weights = {"w": (24, 16, 1, 1), "v": (24, 1, 3, 3)}
    for outputs in ("y, z", "y, a"):
        text = body if outputs == "y, z" else body.replace(" z = Relu(a)", "")
        calls = calls_of(lower_model, small_model(outputs, text, {"x": SHAPE}, weights))
        assert len(calls) == len(set(calls))
