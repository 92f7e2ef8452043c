# SPDX-License-Identifier: Apache-2.0
"""Products with weights of 4 or 8 bits in blocks, on `llvm`, in ONNX Runtime and in OpenVINO.

Each side runs the same `MatMulNBits` (blocks of 32, float32 scales, no zero points, accuracy level
4 unless `--level 0`) with several weights in turn, together at least `--mbytes`, so that no cache
has them. Sides take turns; printed are medians over the rounds: milliseconds of a product, bytes of
codes and scales a second, and the median of the ratios of neighbouring runs. With one row the first
line is what this machine reads at most: the maxima of the rows of a tensor, natively. The error is
that of the result of `llvm` against float64, as a share of its root mean square. With `--cpu` the
time is that of the process, which what else the machine does disturbs less; one thread runs then.

    python benchmarks/narrow_blocks.py [--threads 2] [--cpu] [--rounds 15] [--only 1x4096x4096 ...]
        [--bits 4] [--level 4] [--mbytes 128] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from narrow import race
from onnx import helper, numpy_helper

import intarsia
from intarsia.measure.racing import paired_ratio

SHAPES = [(1, 4096, 4096), (1, 4096, 11008), (64, 4096, 4096), (64, 4096, 11008)]
"""Rows, columns of the left operand, columns of the right one."""
BLOCK = 32
Run = Callable[[], Any]


def product_bytes(k: int, n: int, bits: int) -> int:
    """Return the bytes of codes and of float16 scales of one product."""
    return k * n * bits // 8 + 2 * (k // BLOCK) * n


def make_model(shape: tuple[int, int, int], bits: int, level: int, count: int) -> onnx.ModelProto:
    """Return products of one input with several weights."""
    m, k, n = shape
    rng = np.random.default_rng(0)
    blocks = k // BLOCK
    nodes, tensors = [], []
    for number in range(count):
        codes = rng.integers(0, 255, (n, blocks, BLOCK * bits // 8), np.uint8, endpoint=True)
        scales = rng.uniform(0.001, 0.01, (n, blocks)).astype(np.float32)
        tensors += [
            numpy_helper.from_array(codes, f"w{number}"),
            numpy_helper.from_array(scales, f"s{number}"),
        ]
        names = ["x", f"w{number}", f"s{number}"]
        attributes = {"K": k, "N": n, "bits": bits, "block_size": BLOCK, "accuracy_level": level}
        nodes.append(
            helper.make_node(
                "MatMulNBits", names, [f"y{number}"], domain="com.microsoft", **attributes
            )
        )
    number = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("x", number, [m, k])],
        [helper.make_tensor_value_info(f"y{i}", number, [m, n]) for i in range(count)],
        tensors,
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def exact(model: onnx.ModelProto, x: Any, bits: int) -> Any:
    """Return the first product in float64."""
    codes, scales = (numpy_helper.to_array(model.graph.initializer[i]) for i in range(2))
    if bits == 4:
        codes = np.stack((codes & 15, codes >> 4), -1).reshape(*codes.shape[:2], -1)
    weights = (codes.astype(np.float64) - (1 << (bits - 1))) * scales[..., None]
    return x.astype(np.float64) @ weights.reshape(len(codes), -1).T


def ours(model: onnx.ModelProto, x: Any, threads: int) -> Run:
    """Return what runs a model natively."""
    program = intarsia.compile(model, "llvm", num_threads=threads, strict=True)
    return lambda: program.run({"x": x})


def of_onnxruntime(model: onnx.ModelProto, x: Any, threads: int) -> Run:
    """Return what runs a model in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(threads > 1)))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"x": x})


def of_openvino(model: onnx.ModelProto, x: Any, threads: int) -> Run:
    """Return what runs a model in OpenVINO, which keeps weights of 4 bits packed."""
    import io

    import openvino

    core = openvino.Core()
    read = core.read_model(io.BytesIO(model.SerializeToString()))
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(read, "CPU", options).create_infer_request()
    request.set_input_tensor(openvino.Tensor(x))
    return request.infer


def reading(threads: int, nbytes: int) -> Run:
    """Return what reads so many bytes natively."""
    rows = 64
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{rows}, {nbytes // 4 // rows}] x)'
        f" => (float[{rows}, 1] y) {{ y = ReduceMax<axes = [1]>(x) }}"
    )
    program = intarsia.compile(model, "llvm", num_threads=threads, strict=True)
    x = np.ones((rows, nbytes // 4 // rows), np.float32)
    return program.bind({"x": x}, {"y": np.empty((rows, 1), np.float32)})


def measure(shape: tuple[int, int, int], options: argparse.Namespace) -> dict[str, float]:
    """Return the medians of products of one shape."""
    clock = time.process_time if options.cpu else time.perf_counter
    m, k, n = shape
    nbytes = product_bytes(k, n, options.bits)
    count = max(1, -(-(options.mbytes << 20) // nbytes))
    model = make_model(shape, options.bits, options.level, count)
    x = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
    sides = {"ours": ours, "onnxruntime": of_onnxruntime, "openvino": of_openvino}
    runs = {name: side(model, x, options.threads) for name, side in sides.items()}
    if m == 1:
        runs["reading"] = reading(options.threads, count * nbytes)
    results = runs["ours"]()
    want = exact(model, x, options.bits)
    error = np.sqrt(np.mean((results["y0"] - want) ** 2) / np.mean(want**2))
    taken = race(runs, options.rounds, clock, options.threads)
    samples = {name: [seconds / count for seconds in of_side] for name, of_side in taken.items()}
    figures = {}
    for name, taken in samples.items():
        figures[f"{name} ms"] = statistics.median(taken) * 1e3
        figures[f"{name} GB/s"] = nbytes / statistics.median(taken) / 1e9
    if m > 1:
        figures["ours GOP/s"] = 2 * m * k * n / statistics.median(samples["ours"]) / 1e9
    for name in runs:
        if name != "ours":
            figures[f"to {name}"] = paired_ratio(samples[name], samples["ours"]).value
    return {**figures, "error": float(error)}


def _shape(text: str) -> tuple[int, int, int]:
    """Return rows, terms and columns."""
    m, k, n = map(int, text.split("x"))
    return m, k, n


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="measure the time of the process")
    parser.add_argument(
        "--only", nargs="+", type=_shape, default=SHAPES, help="these shapes, as in 1x4096x4096"
    )
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--level", type=int, choices=(0, 4), default=4)
    parser.add_argument("--mbytes", type=int, default=128, help="of all weights together")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    for shape in options.only:
        name = "x".join(map(str, shape))
        results[name] = figures = measure(shape, options)
        if not options.json:
            text = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            print(f"{name:14} {text}", flush=True)
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
