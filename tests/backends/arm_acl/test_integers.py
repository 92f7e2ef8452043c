# SPDX-License-Identifier: Apache-2.0
"""Layers between Q and DQ run on the library's integers, within a step of ONNX Runtime each."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import intarsia


def network(dtype, zero):
    """Return a convolution, a depthwise one that reads it, and a sum of both, of codes."""
    rng = np.random.default_rng(1)
    nodes, constants = [], []

    def constant(name, array):
        constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def codes(value, name, scale, zero):
        names = [constant(f"{name}_s", np.float32(scale)), constant(f"{name}_z", dtype(zero))]
        nodes.append(helper.make_node("QuantizeLinear", [value, *names], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *names], [name]))
        return name

    def conv(value, name, scale, **attributes):
        group = attributes.get("group", 1)
        scales = (rng.uniform(0.5, 1.5, 16) * 0.01).astype(np.float32)
        weights = constant(f"{name}_w", rng.integers(-127, 128, (16, 16 // group, 3, 3), np.int8))
        bias = constant(f"{name}_b", rng.integers(-2000, 2000, 16).astype(np.int32))
        for operand, units, zeros in (
            (weights, scales, np.zeros(16, np.int8)),
            (bias, scales * np.float32(scale), np.zeros(16, np.int32)),
        ):
            names = [constant(f"{operand}_s", units), constant(f"{operand}_z", zeros)]
            nodes.append(
                helper.make_node("DequantizeLinear", [operand, *names], [f"{operand}_f"], axis=0)
            )
        operands = [value, f"{weights}_f", f"{bias}_f"]
        nodes.append(helper.make_node("Conv", operands, [name], pads=[1] * 4, **attributes))
        nodes.append(helper.make_node("Relu", [name], [f"{name}_r"]))
        return f"{name}_r"

    least = int(np.iinfo(dtype).min)
    first = codes(conv(codes("x", "in", 0.02, zero), "full", 0.02), "first", 0.1, least)
    second = codes(conv(first, "own", 0.1, group=16), "second", 0.08, least)
    nodes.append(helper.make_node("Add", [first, second], ["sum"]))
    codes("sum", "y", 0.12, zero)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "integers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 9, 9])],
        [helper.make_tensor_value_info("y_q", element, [1, 16, 9, 9])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "zero"), [(np.int8, 3), (np.uint8, 120)])
def test_layers_between_q_and_dq_run_on_integers(acl_target, dtype, zero):
    model = network(dtype, zero)
    x = np.random.default_rng(2).standard_normal((1, 16, 9, 9)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (expected,) = session.run(None, {"x": x})
    exe = intarsia.compile(model, target=f"{acl_target}, onnxruntime", placement="greedy")
    steps = np.abs(exe.run({"x": x})["y_q"].astype(int) - expected.astype(int))
    assert expected.std() > 10
    assert steps.max() <= 3, "a step of each layer"
    assert (steps > 0).mean() < 0.1
    told = str(exe.explain())
    assert "1 convolution" in told
    assert "1 depthwise" in told
    assert "dequantize" not in told.split("region 0:")[1].splitlines()[0]
