# SPDX-License-Identifier: Apache-2.0
"""What it costs that regions of different runtimes take turns: microseconds per boundary.

A chain of small convolutions alternates between two targets. The same bound steps run in two
orders: in turn, as the plan has them, and each several times in a row, so that its runtime's
threads are still awake and another's have gone to sleep. The difference over the number of
boundaries is what handing over between the runtimes' threads costs. `team` is native code on
oneDNN's OpenMP threads, as plans have it; `own pool` is native code on threads of its own beside
them. Rounds of all cases take turns; medians are printed, and the least.

    python benchmarks/boundaries.py [--rounds 25] [--threads 2] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import intarsia
from intarsia.backends.dnnl.backend import DnnlBackend
from intarsia.measure.racing import take_turns

LENGTH, CHANNELS, EXTENT = 12, 32, 28
REPEATS = 8
CASES = {
    "dnnl, llvm: team": ("dnnl", "llvm"),
    "dnnl, llvm: own pool": ("dnnl", "llvm"),
    "dnnl, onnxruntime": ("dnnl", "onnxruntime"),
    "openvino, onnxruntime": ("openvino", "onnxruntime"),
}

Step = Callable[[], None]


def chain() -> onnx.ModelProto:
    """Return a chain of 3x3 convolutions."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / 17
    nodes = [
        helper.make_node("Conv", [f"t{i}", "w"], [f"t{i + 1}"], name=f"node{i}", pads=[1, 1, 1, 1])
        for i in range(LENGTH)
    ]
    shape = [1, CHANNELS, EXTENT, EXTENT]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("t0", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"t{LENGTH}", onnx.TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@contextmanager
def without_team() -> Iterator[None]:
    """Hide oneDNN's threads from native code, for comparison."""
    original = DnnlBackend.gomp_parallel
    DnnlBackend.gomp_parallel = lambda self: 0  # type: ignore[method-assign]
    try:
        yield
    finally:
        DnnlBackend.gomp_parallel = original  # type: ignore[method-assign]


def bind(case: str, threads: int) -> tuple[Any, Sequence[Step]]:
    """Return a context of a case, and its bound steps."""
    targets = CASES[case]
    pins = {f"node{i}": targets[i % 2] for i in range(LENGTH)}

    def make() -> Any:
        return intarsia.compile(chain(), ", ".join(targets), pins=pins, num_threads=threads)

    if "own pool" in case:
        with without_team():
            program = make()
    else:
        program = make()
    context = program.context()
    steps = context.backend_steps()
    assert len(steps) == LENGTH, f"{case}: {len(steps)} steps"
    return context, steps


def microseconds(steps: Sequence[Step]) -> float:
    """Return how long steps take in this order."""
    start = time.perf_counter()
    for step in steps:
        step()
    return (time.perf_counter() - start) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bound = {case: bind(case, options.threads) for case in CASES}

    def in_turn_and_apart(case: str) -> tuple[float, float]:
        _, steps = bound[case]
        in_turn = [*steps] * REPEATS
        grouped = [*steps[::2] * REPEATS, *steps[1::2] * REPEATS]
        microseconds(grouped)
        apart = microseconds(grouped)
        microseconds(in_turn)
        return microseconds(in_turn), apart

    rows = {}
    for case, pairs in take_turns(list(bound), in_turn_and_apart, options.rounds).items():
        count = LENGTH * REPEATS
        rows[case] = {
            "median": statistics.median(turn - apart for turn, apart in pairs) / count,
            "least": (min(t for t, _ in pairs) - min(a for _, a in pairs)) / count,
            "step in turn": statistics.median(turn for turn, _ in pairs) / count,
            "step in a row": statistics.median(apart for _, apart in pairs) / count,
        }
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for case, figures in rows.items():
        print(f"{case:24}", ", ".join(f"{key} {value:.1f} us" for key, value in figures.items()))


if __name__ == "__main__":
    main()
