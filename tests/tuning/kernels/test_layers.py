"""Layers between Q and DQ nodes are computed in float32 where, and only where, that was faster."""

import numpy as np
import onnx.version_converter
import pytest

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


def tune(model, prepare=RegionContest):
    setting = read_setting(Request(model=model, target="llvm", num_threads=1))
    return tune_model_layers(setting, tell=lambda moment: None, prepare=prepare)


def about(model):
    program = intarsia.compile(model, "llvm", num_threads=1)
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
