# SPDX-License-Identifier: Apache-2.0
"""What a step costs in a process of its own: microseconds over the same step in this process.

A region of one layer on few and on many bytes, on each backend, bound once in this process and once
isolated, in turns; the figures are medians and minima of single calls, of which most is waking one
process from the other, and copying tensors to where both see them. One thread, on one CPU each.

    python benchmarks/isolation.py [--backends onnxruntime openvino] [--calls 2000] [--limits]
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import onnx

import intarsia

LIMIT = 50e-6
"""Seconds of a step with few bytes over that in this process."""
SIZES = (16, 65536)


def main() -> int:
    """Print the times; return 1 if the limit is to hold and does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", nargs="+", default=["onnxruntime", "openvino", "dnnl"])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--limits", action="store_true", help="fail above the limit")
    options = parser.parse_args()
    is_met = True
    print(f"{'':24s} here us   there us   over it: median, minimum")
    for backend in options.backends:
        for size in SIZES:
            model = onnx.parser.parse_model(
                f'<ir_version: 9, opset_import: ["": 20]> g (float[1, {size}] x) => '
                f"(float[1, {size}] y) {{ y = Relu(x) }}"
            )
            target = backend if backend == "onnxruntime" else f"{backend}, onnxruntime"
            steps = []
            for isolate in ((), (backend,)):
                program = intarsia.compile(model, target, num_threads=1, isolate=isolate)
                feeds = program.sample_feeds()
                bound = program.bind(feeds, {"y": np.empty((1, size), np.float32)})
                for _ in range(100):
                    bound()
                steps.append(bound)
            taken = np.zeros((options.calls, 2))
            for row in taken:
                for number, step in enumerate(steps):
                    start = time.perf_counter()
                    step()
                    row[number] = time.perf_counter() - start
            here, there = np.median(taken, axis=0)
            least = np.subtract(*taken.min(axis=0)[::-1])
            is_met &= size > SIZES[0] or there - here <= LIMIT
            print(
                f"{backend + ', ' + str(4 * size) + ' bytes':24s} {1e6 * here:7.1f}   "
                f"{1e6 * there:8.1f}   {1e6 * (there - here):7.1f} {1e6 * least:7.1f}"
            )
    return int(options.limits and not is_met)


if __name__ == "__main__":
    sys.exit(main())
