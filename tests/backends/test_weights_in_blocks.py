# SPDX-License-Identifier: Apache-2.0
"""Products with int8 weights in blocks are those of floats: no library makes activations int8."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import intarsia


@pytest.mark.parametrize("target", ["onnxruntime", "openvino, onnxruntime"])
def test_activations_stay_floats(target):
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (96, 4)).astype(np.int8)
    scale = rng.uniform(0.001, 0.01, (3, 4)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, 1, 96))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, 1, 4))],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(scale, "s")],
    )
    opset = helper.make_opsetid("", 21)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    program = intarsia.compile(model, target, num_threads=1, probe=False)
    x = rng.standard_normal((3, 1, 96)).astype(np.float32)
    wanted = x @ (weight * np.repeat(scale, 32, axis=0))
    off = np.abs(program.run({"x": x})["y"] - wanted)
    assert off.max() < 1e-5 * np.sqrt(np.mean(np.square(wanted)))
