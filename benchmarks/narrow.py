# SPDX-License-Identifier: Apache-2.0
"""Products of quantised matrices, on `llvm` and in ONNX Runtime, beside float32.

Each product (`MatMulInteger` of uint8 and int8, `QLinearMatMul`, Q/DQ around a `MatMul`) is run by
both in turns, and so is `MatMul` of float32 natively. Printed are medians over the rounds:
milliseconds, billions of additions and multiplications a second, and the median of the ratios of
neighbouring runs. With `--cpu` the time is that of the process, which what else the machine does
disturbs less; one thread runs.

    python benchmarks/narrow.py --cpu [--rounds 15] [--only 64x768x768] [--kind integer] [--json]
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
from onnx import helper, numpy_helper

import intarsia
from intarsia.measure.racing import paired_ratio, take_turns

SHAPES = [(1, 768, 768), (64, 768, 768), (384, 768, 768), (1, 4096, 11008), (64, 4096, 11008)]
"""Rows, columns of the left operand, columns of the right one."""
KINDS = ("integer", "qlinear", "qdq")
_LEAST_SECONDS = 0.02
"""Of a sample: shorter runs are repeated."""


def make_model(kind: str, m: int, k: int, n: int) -> onnx.ModelProto:
    """Return a product of an input `x` with constant weights; `kind` may be float32, too."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 127, (k, n), np.int8, endpoint=True)
    scales = rng.uniform(0.001, 0.01, n).astype(np.float32)
    arrays: dict[str, Any] = {"w": codes}
    zero = {"z": np.uint8(128)}
    one = {"s": np.float32(0.02), "t": np.float32(0.5), "v": np.int8(0)}
    elements = {"integer": "UINT8", "qlinear": "UINT8", "qdq": "FLOAT", "float32": "FLOAT"}
    result = {"integer": "INT32", "qlinear": "UINT8", "qdq": "FLOAT", "float32": "FLOAT"}
    if kind == "integer":
        nodes = [helper.make_node("MatMulInteger", ["x", "w", "z"], ["y"])]
        arrays |= zero
    elif kind == "qlinear":
        inputs = ["x", "s", "z", "w", "c", "o", "t", "z"]
        nodes = [helper.make_node("QLinearMatMul", inputs, ["y"])]
        arrays |= zero | one | {"c": scales, "o": np.zeros(n, np.int8)}
        del arrays["v"]
    elif kind == "qdq":
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
            helper.make_node("DequantizeLinear", ["w", "c", "o"], ["wd"], axis=1),
            helper.make_node("MatMul", ["xd", "wd"], ["m"]),
            helper.make_node("QuantizeLinear", ["m", "t", "z"], ["mq"]),
            helper.make_node("DequantizeLinear", ["mq", "t", "z"], ["y"]),
        ]
        arrays |= zero | one | {"c": scales, "o": np.zeros(n, np.int8)}
        del arrays["v"]
    else:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        arrays = {"w": codes.astype(np.float32) * scales}
    graph = helper.make_graph(
        nodes,
        kind,
        [helper.make_tensor_value_info("x", getattr(onnx.TensorProto, elements[kind]), [m, k])],
        [helper.make_tensor_value_info("y", getattr(onnx.TensorProto, result[kind]), [m, n])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feed(kind: str, m: int, k: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the input of a model."""
    rng = np.random.default_rng(1)
    if kind in ("integer", "qlinear"):
        return rng.integers(0, 255, (m, k), np.uint8, endpoint=True)
    return rng.standard_normal((m, k)).astype(np.float32)


def ours(model: onnx.ModelProto, x: Any) -> Callable[[], Any]:
    """Return what runs a model natively."""
    program = intarsia.compile(model, "llvm", num_threads=1, strict=True)
    return lambda: program.run({"x": x})


def theirs(model: onnx.ModelProto, x: Any) -> Callable[[], Any]:
    """Return what runs a model in ONNX Runtime, as it is by default, with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"x": x})


def measure(
    kind: str, shape: tuple[int, int, int], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Return the medians of one product."""
    m, k, n = shape
    model, x = make_model(kind, m, k, n), feed(kind, m, k)
    runs = {
        "ours": ours(model, x),
        "onnxruntime": theirs(model, x),
        "float32": ours(make_model("float32", m, k, n), feed("float32", m, k)),
    }
    counts = {}
    for name, run in runs.items():
        run()
        start = clock()
        run()
        counts[name] = max(1, int(_LEAST_SECONDS / max(clock() - start, 1e-6)))

    def seconds(name: str) -> float:
        start = clock()
        for _ in range(counts[name]):
            runs[name]()
        return (clock() - start) / counts[name]

    samples = {
        name: taken[1:] for name, taken in take_turns(list(runs), seconds, rounds + 1).items()
    }
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    return {
        **{f"{name} ms": taken * 1e3 for name, taken in medians.items()},
        "ours GOP/s": 2 * m * k * n / medians["ours"] / 1e9,
        "to onnxruntime": paired_ratio(samples["onnxruntime"], samples["ours"]).value,
        "to float32": paired_ratio(samples["float32"], samples["ours"]).value,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu", action="store_true", help="measure the time of the process")
    parser.add_argument("--only", help="a shape, as in 64x768x768")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    results = {}
    for kind in options.kind or KINDS:
        for shape in SHAPES:
            name = "x".join(map(str, shape))
            if options.only in (None, name):
                results[f"{kind} {name}"] = figures = measure(kind, shape, options.rounds, clock)
                if not options.json:
                    text = ", ".join(f"{key} {value:.2f}" for key, value in figures.items())
                    print(f"{kind:8} {name:14} {text}", flush=True)
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
