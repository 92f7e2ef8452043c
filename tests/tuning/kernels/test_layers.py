"""Layers between Q and DQ nodes are computed in float32 where, and only where, that was faster."""

import numpy as np
import onnx.version_converter
import pytest
from tests.codegen.lower.small_models import small_model

import intarsia
from intarsia.compiler import read_setting
from intarsia.place.request import Request
from intarsia.testing.integers import draw_codes, draw_layer
from intarsia.tuning.kernels.layers import BOTH_WAYS, RegionContest
from intarsia.tuning.kernels.tuning import tune_model_layers


@pytest.fixture(scope="module")
def model():
    """A convolution between Q and DQ nodes, of an operator set that the reference evaluator has."""
    return onnx.version_converter.convert_version(draw_layer("conv", 3, "uint8"), 21)


@pytest.fixture(autouse=True)
def schedules(tmp_path, monkeypatch):
    """Results of this test's own."""
    monkeypatch.setenv("INTARSIA_SCHEDULES", str(tmp_path / "schedules"))


class Told:
    """Takes as long as it is told: a layer in both ways, then the whole model."""

    def __init__(self, layer, whole):
        self.layer, self.whole = layer, whole

    def __call__(self, region, capability, ways):
        self.now = self.layer if ways is BOTH_WAYS else self.whole
        return self

    def seconds(self, candidate):
        return self.now[candidate]

    def close(self):
        pass


def tune(model, prepare=RegionContest, target="llvm"):
    setting = read_setting(Request(model=model, target=target, num_threads=1))
    return tune_model_layers(setting, tell=lambda moment: None, prepare=prepare)


def about(model, target="llvm"):
    program = intarsia.compile(model, target, num_threads=1)
    return program, str(program.explain())


def test_a_layer_that_is_faster_in_floats_is_and_is_named(model):
    feeds = draw_codes(model, 1)
    plain, before = about(model)
    (result,) = tune(model, Told((3e-3, 2e-3), (3e-3, 2.9e-3)))
    assert result.is_new
    assert result.kernel.startswith("Conv of codes uint8[")
    tuned, after = about(model)
    line = "between Q and DQ in float32, measured to be faster than integers: c (1.50)"
    assert line in after
    assert line not in before
    assert plain.artifacts[0].version == tuned.artifacts[0].version
    (one,), (other,) = (program.run(feeds).values() for program in (plain, tuned))
    assert np.abs(one.astype(int) - other).max() <= 1
    assert not tune(model)[0].is_new  # it is known


NO_BYTES = "llvm -mattr=-avx512vnni,-avxvnni,-amx-int8,-amx-tile"
"""A CPU on which 64 channels of 56 x 56 came out alike in both ways (benchmarks/RESULTS.md)."""


def test_a_layer_of_winograd_is_in_floats_where_and_only_where_it_was_faster():
    """64 channels, 3x3: told to be faster on a CPU without products of bytes, and on no other."""
    body = """
        a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, t, o)
        c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a, b) y = QuantizeLinear(c, u, v)"""
    rng = np.random.default_rng(0)
    taps = rng.integers(-127, 128, (64, 64, 3, 3)).astype(np.int8)
    numbers = {"s": np.float32(0.02), "z": np.uint8(120), "t": np.float32(2e-4), "o": np.int8(0)}
    numbers |= {"u": np.float32(0.02), "v": np.uint8(128), "w": taps}
    x = rng.integers(0, 256, (1, 64, 14, 14)).astype(np.uint8)
    model = small_model("y", body, {"x": x}, numbers, 17)
    before, _ = about(model, NO_BYTES)
    (result,) = tune(model, Told((3e-3, 2e-3), (3e-3, 2.9e-3)), NO_BYTES)
    assert result.entry.choice is not None
    after, told = about(model, NO_BYTES)
    assert "in float32, measured to be faster than integers" in told
    assert "F(" in told
    (one,), (other,) = (program.run({"x": x}).values() for program in (before, after))
    assert np.abs(one.astype(int) - other).max() <= 1
    assert len(np.unique(one)) > 50
    _, elsewhere = about(model, "llvm -mcpu=x86-64-v3")
    assert "in float32" not in elsewhere


@pytest.mark.parametrize(
    ("layer", "whole"), [((2e-3, 3e-3), None), ((3e-3, 2e-3), (3e-3, 3.1e-3))], ids=["own", "whole"]
)
def test_it_stays_in_integers_if_it_or_the_model_is_no_faster(model, layer, whole):
    (result,) = tune(model, Told(layer, whole))
    assert result.entry.choice is None
    assert "in float32" not in about(model)[1]


@pytest.mark.exhaustive
def test_tune_measures_layers_first(model, tmp_path):
    intarsia.tune(model, "llvm", budget=5, num_threads=1, costs=str(tmp_path / "costs.db"))
    (result,) = tune(model)
    assert result.entry.microseconds > 0
    assert not result.is_new


def test_a_model_without_such_layers_has_none():
    assert tune(draw_layer("relu", 1)) == []
