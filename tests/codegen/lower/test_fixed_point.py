# SPDX-License-Identifier: Apache-2.0
"""TFLite's requantisation has the bits of LiteRT's reference kernels, and is a step from ONNX's.

`benchmarks/tflite_layers.py` makes the random layers, and runs a thousand of each operator.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import intarsia
from intarsia.codegen.fixed_point import FixedPointFactor, exponentials, factor_of

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import tflite_layers as tl

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
pytest.importorskip("tflite", reason="tflite is not installed")


def test_factors():
    assert factor_of(0.0) == FixedPointFactor(0, 0)
    assert factor_of(0.5) == FixedPointFactor(1 << 30, 0)
    assert factor_of(1.0) == FixedPointFactor(1 << 30, 1)
    assert factor_of(1 - 2.0**-40) == FixedPointFactor(1 << 30, 1)  # rounded up to the next power
    assert factor_of(2.0**-40) == FixedPointFactor(0, 0)


def test_exponentials():
    scale = 0.05
    exact = np.exp(-scale * np.arange(256)) * 2.0**31
    assert np.abs(exponentials(scale) - exact).max() < 1000  # of 2**31: the polynomial's error


def every_operator(count, seed):
    return [layer for name in tl.OPERATORS for layer in tl.layers(name, count, seed)]


def check(items, results):
    for layer, result in zip(items, results, strict=True):
        np.testing.assert_array_equal(result, layer.reference(), layer.name)
        apart = np.abs(result.astype(int) - tl.run_onnxruntime(layer))
        assert apart.max() <= 1, layer.name


def test_c_has_litert_bits(tmp_path):
    items = every_operator(2, seed=1)
    check(items, tl.run_c(items))


@pytest.mark.exhaustive
def test_llvm_has_litert_bits():
    items = every_operator(1, seed=2)
    check(items, tl.run_llvm(items))


def test_what_is_not_asked_for_is_onnx():
    """Without the attribute sums become codes as ONNX says; with it, some do not."""
    layer = next(tl.layers("average pool", 1, seed=3))
    ours = {
        how: intarsia.compile(layer.model, target=f"llvm -requantise={how}", strict=True).run(
            dict(layer.feeds)
        )["y"]
        for how in ("onnx", "tflite")
    }
    np.testing.assert_array_equal(ours["tflite"], layer.reference())
    assert (ours["onnx"] != ours["tflite"]).any()


def qlinear(layer):
    """The same convolution or product as a QLinear operator."""
    constants = {item.name: item for item in layer.model.graph.initializer}
    inputs = ["x", "x_s", "x_z", "w", "w_s", "w_z", "y_s", "y_z", "b"]
    (conv,) = (node for node in layer.model.graph.node if node.name == "op")
    node = helper.make_node("QLinearConv", inputs, ["y"])
    node.attribute.extend(conv.attribute)
    kept = [constants[name] for name in inputs[1:]]
    graph = helper.make_graph([node], "g", layer.model.graph.input, layer.model.graph.output, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_qlinear_operators_are_read_too():
    layers = tl.layers("conv", 20, seed=4)
    layer = next(
        item for item in layers if all(node.op_type != "Clip" for node in item.model.graph.node)
    )
    program = intarsia.compile(qlinear(layer), target="llvm -requantise=tflite", strict=True)
    np.testing.assert_array_equal(program.run(dict(layer.feeds))["y"], layer.reference())


def test_other_steps_of_softmax_stay_as_onnx_defines_them():
    (layer,) = tl.layers("softmax", 1, seed=5)
    model = onnx.ModelProto.FromString(layer.model.SerializeToString())
    (scale,) = (item for item in model.graph.initializer if item.name == "y_s")
    scale.CopyFrom(numpy_helper.from_array(np.float32(0.002), "y_s"))
    other = tl.Layer(layer.name, b"", model, layer.feeds)
    program = intarsia.compile(model, target="llvm -requantise=tflite", strict=True)
    np.testing.assert_array_equal(program.run(dict(layer.feeds))["y"], tl.run_onnxruntime(other))
