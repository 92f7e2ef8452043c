# SPDX-License-Identifier: Apache-2.0
"""Whether sums of products of bytes are right: quantised convolutions against ONNX's definition.

    ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/byte_sums.py

A layer is QDQ as ONNX Runtime's tool writes it: uint8 activations, int8 weights of a normal
distribution, scaled for each channel to all of their 8 bits. *Untouched* is the model in OpenVINO's
own API. Columns are the largest difference in quanta of the result and the share of codes that
differ, from ONNX Runtime without optimisations. The variable holds oneDNN, which OpenVINO has
inside, to instructions without VNNI, as on CPUs that have none.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper, numpy_helper

import intarsia

Array = np.ndarray[Any, np.dtype[Any]]

TARGETS = (
    "openvino -quantize=fused, onnxruntime",
    "openvino, onnxruntime",
    "dnnl, onnxruntime",
    "llvm",
)
LAYERS = ((64, 64, 3, 1.7), (256, 64, 1, 1.7), (64, 64, 3, 5.0))
"""Channels in and out, extent of the kernel, spread of the activations."""
_EXTENT = 14
_STEP = np.float32(0.02)


def main() -> int:
    """Print a row for each layer and target."""
    print("| layer | spread | computed by | largest, quanta | codes that differ |")
    print("|---|---:|---|---:|---:|")
    for channels, outputs, kernel, spread in LAYERS:
        model, quantum = make_layer(channels, outputs, kernel)
        rng = np.random.default_rng(1)
        x = np.abs(rng.standard_normal((1, channels, _EXTENT, _EXTENT))) * spread
        feeds = {"x": x.astype(np.float32)}
        definition = run_untouched(model, feeds)
        results = {"openvino untouched": run_openvino(model, feeds)}
        for target in TARGETS:
            program = intarsia.compile(model, target, num_threads=1, cache=False)
            results[target] = program.run(feeds)["y"]
        for name, result in results.items():
            quanta = np.abs(result - definition) / quantum
            print(
                f"| {channels} to {outputs}, {kernel} x {kernel} | {spread} | `{name}` "
                f"| {quanta.max():.1f} | {100 * (quanta > 0.5).mean():.2f} % |",
                flush=True,
            )
    return 0


def make_layer(channels: int, outputs: int, kernel: int) -> tuple[ModelProto, np.float32]:
    """Return a quantised convolution and the quantum of its result."""
    rng = np.random.default_rng(channels)
    weights = rng.standard_normal((outputs, channels, kernel, kernel))
    scales = np.abs(weights).reshape(outputs, -1).max(1) / 127
    codes = np.rint(weights / scales[:, None, None, None]).astype(np.int8)
    quantum = np.float32(1.5 * _STEP * np.sqrt(channels * kernel**2))
    constants = {
        "w": codes,
        "w_scale": scales.astype(np.float32),
        "w_zero": np.zeros(outputs, np.int8),
        "x_scale": _STEP,
        "x_zero": np.uint8(0),
        "y_scale": quantum,
        "y_zero": np.uint8(128),
    }
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_codes"]),
        node("DequantizeLinear", ["x_codes", "x_scale", "x_zero"], ["x_floats"]),
        node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_floats"], axis=0),
        node("Conv", ["x_floats", "w_floats"], ["conv"], pads=[kernel // 2] * 4),
        node("QuantizeLinear", ["conv", "y_scale", "y_zero"], ["y_codes"]),
        node("DequantizeLinear", ["y_codes", "y_scale", "y_zero"], ["y"]),
    ]
    shape, result = [1, channels, _EXTENT, _EXTENT], [1, outputs, _EXTENT, _EXTENT]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), quantum


def run_untouched(model: ModelProto, feeds: dict[str, Array]) -> Array:
    """Return what each node computes as ONNX says."""
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    result: Array = ort.InferenceSession(model.SerializeToString(), settings).run(None, feeds)[0]
    return result


def run_openvino(model: ModelProto, feeds: dict[str, Array]) -> Array:
    """Return what OpenVINO's own API computes."""
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings)
    result: Array = compiled([feeds["x"]])[0]
    return result


if __name__ == "__main__":
    sys.exit(main())
