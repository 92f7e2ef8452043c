# SPDX-License-Identifier: Apache-2.0
"""What a step costs in a process of its own: microseconds over the same step in this process.

A region of one layer on few and on many bytes, on each backend, bound once in this process and once
isolated, in turns; the figures are medians and minima of single calls, of which most is waking one
process from the other, and copying tensors to where both see them. One thread, on one CPU each.

With `--cpu` the figures are CPU time, of both processes: medians and minima of means of 100 calls.
It is what a busy machine can tell, and leaves out how long a process waits until it is woken.

    python benchmarks/isolation.py [--backends onnxruntime openvino] [--calls 2000] [--limits]
        [--cpu]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

import intarsia
from intarsia.backends.isolated import IsolatedExecutable

LIMIT = 50e-6
"""Seconds of a step with few bytes over that in this process."""
SIZES = (16, 65536)
BLOCK = 100
"""Calls between two readings of CPU time."""


def by_clock(steps: list[tuple[Callable[[], None], list[int]]], calls: int) -> np.ndarray:
    """Return the seconds of single calls, a column for each step, in turns."""
    taken = np.zeros((calls, len(steps)))
    for row in taken:
        for number, (step, _) in enumerate(steps):
            start = time.perf_counter()
            step()
            row[number] = time.perf_counter() - start
    return taken


def by_cpu(steps: list[tuple[Callable[[], None], list[int]]], calls: int) -> np.ndarray:
    """Return the CPU seconds of a call, here and in its process, as means of blocks of calls."""
    taken = np.zeros((max(1, calls // BLOCK), len(steps)))
    for row in taken:
        for number, (step, processes) in enumerate(steps):
            start = cpu_seconds(processes)
            for _ in range(BLOCK):
                step()
            row[number] = (cpu_seconds(processes) - start) / BLOCK
    return taken


def cpu_seconds(processes: list[int]) -> float:
    """Return the CPU time of this process and others so far (Linux)."""
    tasks = [task for pid in processes for task in Path(f"/proc/{pid}/task").iterdir()]
    others = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return time.process_time() + 1e-9 * others


def main() -> int:
    """Print the times; return 1 if the limit is to hold and does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", nargs="+", default=["onnxruntime", "openvino", "dnnl"])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--cpu", action="store_true", help="CPU time of both processes")
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
                hosts = (
                    one.host.pid
                    for one in program.executables
                    if isinstance(one, IsolatedExecutable)
                )
                steps.append((bound, sorted({pid for pid in hosts if pid is not None})))
            taken = (by_cpu if options.cpu else by_clock)(steps, options.calls)
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
