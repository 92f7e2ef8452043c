# SPDX-License-Identifier: Apache-2.0
"""What quantised networks have beside products, on `llvm` and in ONNX Runtime.

Each model is an operator between DequantizeLinear and QuantizeLinear, on 802,816 bytes, run by
both in turns, with one thread. Printed are medians of the process's CPU time over the rounds, and
the median of the ratios of neighbouring runs: above 1, `llvm` is faster. *Off* is the largest
difference in codes to ONNX Runtime without optimisations, which computes node by node.

    python benchmarks/quantised_elementwise.py [--rounds 15] [--only add,sigmoid]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import intarsia
from intarsia.measure.racing import paired_ratio, take_turns

SHAPE = (1, 64, 112, 112)
_RUNS = 5
_FROM = "a = DequantizeLinear(x, s, z)"
_OTHER = "b = DequantizeLinear(w, t, v)"
OPERATORS = {
    "add": f"{_FROM} {_OTHER} f = Add(a, b)",
    "add and relu": f"{_FROM} {_OTHER} c = Add(a, b) f = Relu(c)",
    "concat": f"{_FROM} {_OTHER} f = Concat<axis = 1>(a, b)",
    "relu": f"{_FROM} f = Relu(a)",
    "sigmoid": f"{_FROM} f = Sigmoid(a)",
    "silu": f"{_FROM} b = Sigmoid(a) f = Mul(a, b)",
    "hardswish": f"{_FROM} f = HardSwish(a)",
    "maxpool": f"{_FROM} f = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(a)",
    "averagepool": f"{_FROM} f = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(a)",
    "globalaveragepool": f"{_FROM} f = GlobalAveragePool(a)",
    "transpose": f"{_FROM} f = Transpose<perm = [0, 2, 3, 1]>(a)",
}
_KEEPING = ("maxpool", "transpose")
"""Operators between two nodes of one scale; others change it."""
_NUMBERS = {
    "s": np.float32(0.02),
    "z": np.uint8(120),
    "t": np.float32(0.03),
    "v": np.uint8(100),
}


def make_model(name: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model and its inputs."""
    after = "s, z" if name in _KEEPING else "t, v"
    body = f"{OPERATORS[name]} y = QuantizeLinear(f, {after})"
    names = ["x", "w"] if "(w," in body else ["x"]
    extents = ",".join(map(str, SHAPE))
    inputs = ", ".join(f"uint8[{extents}] {item}" for item in names)
    text = (
        f'<ir_version: 8, opset_import: ["": 18]> g ({inputs}) => (uint8[a,b,c,d] y) {{ {body} }}'
    )
    model = onnx.parser.parse_model(text)
    read = {item for node in model.graph.node for item in node.input}
    for number in read & _NUMBERS.keys():
        model.graph.initializer.append(
            numpy_helper.from_array(_NUMBERS[number].reshape(()), number)
        )
    rng = np.random.default_rng(0)
    return model, {item: rng.integers(0, 256, SHAPE).astype(np.uint8) for item in names}


def session(model: onnx.ModelProto, *, is_optimised: bool) -> Callable[[Any], Any]:
    """Return what runs a model in ONNX Runtime with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if not is_optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda feeds: made.run(None, feeds)[0]


def main() -> None:
    """Print a row for each operator."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(OPERATORS))
    options = parser.parse_args()
    print("| operator | ms | ONNX Runtime, ms | ratio | off |\n|---|---:|---:|---|---:|")
    for name in OPERATORS:
        if name not in options.only.split(","):
            continue
        model, feeds = make_model(name)
        program = intarsia.compile(model, "llvm", num_threads=1, strict=True)
        theirs = session(model, is_optimised=True)
        wanted = session(model, is_optimised=False)(feeds)
        off = np.abs(program.run(feeds)["y"].astype(int) - wanted).max()
        runs = {"ours": program.run, "theirs": theirs}

        def seconds(side: str, runs: Any = runs, feeds: Any = feeds) -> float:
            start = time.process_time()
            for _ in range(_RUNS):
                runs[side](feeds)
            return (time.process_time() - start) / _RUNS

        samples = take_turns(list(runs), seconds, options.rounds)
        ours, other = (statistics.median(samples[side]) * 1e3 for side in runs)
        ratio = paired_ratio(samples["theirs"], samples["ours"])
        print(f"| {name} | {ours:.3f} | {other:.3f} | {ratio} | {off} |", flush=True)


if __name__ == "__main__":
    main()
