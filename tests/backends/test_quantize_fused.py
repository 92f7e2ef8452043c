# SPDX-License-Identifier: Apache-2.0
"""`openvino -quantize=fused` takes quantised networks whole, at most a quantum off."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import intarsia


@pytest.fixture(scope="module")
def network():
    """Two quantised convolutions with a residual sum: uint8 activations, int8 weights."""
    rng = np.random.default_rng(0)
    nodes, constants = [], []

    def constant(array):
        constants.append(numpy_helper.from_array(np.asarray(array), f"k{len(constants)}"))
        return constants[-1].name

    def add(op_type, *inputs, **attributes):
        name = f"{op_type}{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def through_integers(value, scale):
        pair = constant(np.float32(scale)), constant(np.uint8(128))
        return add("DequantizeLinear", add("QuantizeLinear", value, *pair), *pair)

    def conv(value):
        weights = constant(rng.integers(-100, 100, (8, 8, 3, 3)).astype(np.int8))
        scales = constant(rng.uniform(1e-3, 2e-3, 8).astype(np.float32))
        zeros = constant(np.zeros(8, np.int8))
        floats = add("DequantizeLinear", weights, scales, zeros, axis=0)
        return add("Conv", value, floats, pads=[1, 1, 1, 1])

    x = through_integers("x", 0.03)
    first = through_integers(add("Relu", conv(x)), 0.03)
    total = through_integers(add("Add", conv(first), x), 0.05)
    nodes.append(helper.make_node("Identity", [total], ["y"], "y"))
    ends = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, 12, 12]) for n in "xy")
    graph = helper.make_graph(nodes, "g", *([end] for end in ends), constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def wide():
    """A quantised convolution whose sums of pairs of products pass 16 bits by far."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.choice(np.array([-127, 127], np.int8), (8, 64, 1, 1)),
        "w_scale": np.full(8, 1e-3, np.float32),
        "w_zero": np.zeros(8, np.int8),
        "scale": np.float32(0.02),
        "zero": np.uint8(0),
        "y_scale": np.float32(0.05),
        "y_zero": np.uint8(128),
    }
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["codes"], "q"),
        node("DequantizeLinear", ["codes", "scale", "zero"], ["floats"], "dq"),
        node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["weights"], "w_dq", axis=0),
        node("Conv", ["floats", "weights"], ["conv"], "conv"),
        node("QuantizeLinear", ["conv", "y_scale", "y_zero"], ["y_codes"], "y_q"),
        node("DequantizeLinear", ["y_codes", "y_scale", "y_zero"], ["y"], "y_dq"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 12, 12])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(network, target):
    exe = intarsia.compile(network, target, num_threads=1, cache=False)
    shape = [extent.dim_value for extent in network.graph.input[0].type.tensor_type.shape.dim]
    x = 4 * np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    peer = onnxruntime.InferenceSession(
        network.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    return exe, exe.run({"x": x})["y"], peer.run(None, {"x": x})[0]


def test_a_quantised_network_is_one_region_and_a_few_quanta_off(network):
    exe, y, expected = run(network, "openvino -quantize=fused, onnxruntime")
    assert len(exe.placement.regions) == 1
    assert exe.placement.coverage()["onnxruntime"] == 0
    quanta = np.abs(y - expected) / 0.05
    assert quanta.max() < 2.5  # a quantum of each of two layers, and its own
    assert (quanta > 0.5).mean() < 0.05


def test_without_it_every_number_is_as_onnx_says(network):
    exe, y, expected = run(network, "openvino, onnxruntime")
    assert len(exe.placement.regions) > 3
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_the_default_target_has_it_in_one_region(network):
    exe, y, expected = run(network, None)
    assert len(exe.placement.regions) == 1
    assert (np.abs(y - expected) > 0.025).mean() < 0.05


@pytest.mark.parametrize("target", ["openvino -quantize=fused, onnxruntime", None])
def test_sums_of_bytes_do_not_saturate(wide, target):
    exe, y, expected = run(wide, target)
    assert len(exe.placement.regions) == 1
    assert np.abs(expected).max() > 3  # of 6.4 that codes can say
    assert np.abs(y - expected).max() < 0.075  # a quantum
