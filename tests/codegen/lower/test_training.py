# SPDX-License-Identifier: Apache-2.0
"""Masks of Dropout, and BatchNormalization with statistics that are computed, against ONNX's."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from tests.codegen.lower.small_models import feeds_of, small_model

import intarsia
from intarsia.errors import UnsupportedError


def compare(backends, model, feeds):
    """Compare with ONNX's reference, since ONNX Runtime lacks some of it."""
    wanted = ReferenceEvaluator(model).run(None, feeds)
    exe = intarsia.compile(model, "llvm", strict=True, backends=backends)
    assert {region.backend for region in exe.placement.regions} == {"llvm"}
    got = exe.run(feeds)
    for value, want in zip(model.graph.output, wanted, strict=True):
        assert got[value.name].dtype == want.dtype
        np.testing.assert_allclose(got[value.name], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3), (2, 5, 4), (2, 20, 3, 3)])
@pytest.mark.parametrize("fed", [(), ("s",), ("m", "v"), ("s", "b", "m", "v")])
def test_statistics_that_are_fed(backends, shape, fed):
    arrays = {name: np.random.default_rng(0).random(shape[1], np.float32) for name in "sbmv"}
    feeds = {"x": np.random.default_rng(1).standard_normal(shape, np.float32)}
    feeds |= {name: arrays.pop(name) for name in fed}
    body = "c = Abs(x) n = BatchNormalization<epsilon = 0.01>(c, s, b, m, v) y = Relu(n)"
    compare(backends, small_model("y", body, feeds, arrays), feeds)


@pytest.mark.parametrize("shape", [(4, 3), (2, 5, 4), (2, 20, 3, 3)])
@pytest.mark.parametrize("results", ["y, u, w", "y, , w"])
def test_statistics_of_the_batch(backends, shape, results):
    arrays = {name: np.random.default_rng(0).random(shape[1], np.float32) for name in "sbmv"}
    feeds = {"x": np.random.default_rng(1).standard_normal(shape, np.float32) + 50}
    flags = "training_mode = 1, momentum = 0.7"
    body = f"y, u, w = BatchNormalization<{flags}>(x, s, b, m, v)"
    model = small_model("y, u, w", body, feeds, arrays)
    names = results.replace(" ", "").split(",")
    wanted = ReferenceEvaluator(model).run(None, feeds)
    kept = [output for output in model.graph.output if output.name in names]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    model.graph.node[0].output[:] = names
    got = intarsia.compile(model, "llvm", strict=True, backends=backends).run(feeds)
    for name, want in zip("yuw", wanted, strict=True):
        if name in names:
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("opset", [10, 13, 17])
def test_mask(backends, opset):
    model = small_model("y, m", "d, m = Dropout(x) y = Relu(d)", {"x": (3, 4)}, opset=opset)
    compare(backends, model, feeds_of(model))


def test_dropout_of_nothing_in_training(backends):
    weights = {"r": np.array(0, np.float32), "t": np.array(True)}
    model = small_model("y, m", "y, m = Dropout(x, r, t)", {"x": (3, 4)}, weights)
    compare(backends, model, feeds_of(model))


def test_dropout_in_training_is_for_others(backends):
    model = small_model("y", "y = Dropout(x, , t)", {"x": (3, 4)}, {"t": np.array(True)})
    with pytest.raises(UnsupportedError, match="it is in training mode"):
        intarsia.compile(model, "llvm", strict=True, backends=backends)


def test_an_old_batch_normalization_in_training_is_for_others(backends):
    x = onnx.helper.make_tensor_value_info("x", 1, (2, 3, 4))
    node = onnx.helper.make_node("BatchNormalization", list("xsbmv"), ["y"], name="n")
    arrays = [onnx.numpy_helper.from_array(np.ones(3, np.float32), name) for name in "sbmv"]
    result = onnx.helper.make_tensor_value_info("y", 1, (2, 3, 4))
    graph = onnx.helper.make_graph([node], "g", [x], [result], arrays)
    opsets = [onnx.helper.make_opsetid("", 6)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(UnsupportedError, match="BatchNormalization"):
        intarsia.compile(model, "llvm", strict=True, backends=backends)
