# SPDX-License-Identifier: Apache-2.0
"""What `-weights=f16` brings on dense layers of one row, and the bandwidth that they reach.

Each layer is compiled with float32 and with float16 weights; runs of both take turns. Printed are
the medians over the rounds, with the bytes of the weights per second, and the median of the ratios
of neighbouring runs. The layers are those of AlexNet and VGG.

    python benchmarks/half_weights.py [--rounds 41] [--threads 1] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import intarsia
from intarsia.measure.racing import paired_ratio, take_turns
from intarsia.runtime.executor import PlanExecutable

LAYERS = {"alexnet fc6": (9216, 4096), "fc7": (4096, 4096), "fc8": (4096, 1000)}
TARGETS = ("llvm", "llvm -weights=f16")


def dense(k: int, n: int) -> onnx.ModelProto:
    """Return `y = x @ w.T` with x of f32[1, k] and w of f32[n, k]."""
    weights = (np.random.default_rng(0).standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
        "dense",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, k])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, n])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(k: int, n: int, rounds: int, threads: int) -> dict[str, Any]:
    """Return the medians of one layer: milliseconds, GB/s, and how many times as fast."""
    model = dense(k, n)
    programs: list[PlanExecutable] = [
        intarsia.compile(model, target, num_threads=threads) for target in TARGETS
    ]
    contexts = [program.context() for program in programs]

    def seconds(which: int) -> float:
        start = time.perf_counter()
        contexts[which].run()
        return time.perf_counter() - start

    samples = [taken[1:] for taken in take_turns((0, 1), seconds, rounds + 1).values()]
    full, half = map(statistics.median, samples)
    return {
        "float32 ms": full * 1e3,
        "float32 GB/s": k * n * 4 / full / 1e9,
        "float16 ms": half * 1e3,
        "float16 GB/s": k * n * 2 / half / 1e9,
        "best float32 GB/s": k * n * 4 / min(samples[0]) / 1e9,
        "best float16 GB/s": k * n * 2 / min(samples[1]) / 1e9,
        "times": paired_ratio(*samples).value,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {
        name: measure(*shape, options.rounds, options.threads) for name, shape in LAYERS.items()
    }
    if options.json:
        print(json.dumps(results, indent=1))
        return
    for name, figures in results.items():
        print(f"{name:12}", ", ".join(f"{key} {value:.2f}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
