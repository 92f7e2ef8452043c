# SPDX-License-Identifier: Apache-2.0
"""What a plan costs beside its backends: microseconds per step.

A chain of small operators alternates between two targets, so that each is a step of its own. One
run of the whole plan is compared with the same bound backend calls without the plan: what
remains is the plan's own time. `run()` adds what happens once per call: checking the inputs, and
copying inputs and outputs. Blocks of all take turns; medians over the rounds are printed.

    python benchmarks/overhead.py [--rounds 15] [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

import intarsia
from intarsia.measure.racing import take_turns
from intarsia.plan.plan import RegionStep

STEP_LIMIT_MICROSECONDS = 20.0


def chain(length: int, elements: int) -> onnx.ModelProto:
    """Return a chain of Relu and Neg nodes over f32[elements]."""
    nodes = [
        helper.make_node(("Relu", "Neg")[i % 2], [f"t{i}"], [f"t{i + 1}"], name=f"node{i}")
        for i in range(length)
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("t0", onnx.TensorProto.FLOAT, [elements])],
        [helper.make_tensor_value_info(f"t{length}", onnx.TensorProto.FLOAT, [elements])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def seconds_per_call(call: Callable[[], Any], calls: int) -> float:
    """Return the mean seconds of a call in one block, its first third left out."""
    for _ in range(calls // 3):
        call()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def measure(target: str, length: int, elements: int, rounds: int) -> dict[str, Any]:
    """Return the medians of one case, in microseconds."""
    pins = {f"node{i}": ("openvino", "onnxruntime")[i % 2] for i in range(length)}
    executable = intarsia.compile(
        chain(length, elements), target, pins=pins if "," in target else {}, num_threads=1
    )
    context = executable.context()
    feeds = {"t0": np.ones(elements, np.float32)}
    bare = context.backend_steps()
    steps = sum(isinstance(step, RegionStep) for step in executable.plan.steps)

    def backends_alone() -> None:
        for step in bare:
            step()

    calls = max(30, 3000 // steps)
    timed: dict[str, Callable[[], object]] = {
        "backends": backends_alone,
        "plan": context.run,
        "run": lambda: executable.run(feeds),
    }
    samples = take_turns(list(timed), lambda name: seconds_per_call(timed[name], calls), rounds)
    paired = [
        (plan - alone) / steps
        for plan, alone in zip(samples["plan"], samples["backends"], strict=True)
    ]
    whole = [
        (run - alone) / steps
        for run, alone in zip(samples["run"], samples["backends"], strict=True)
    ]
    micro = 1e6
    return {
        "target": target,
        "steps": steps,
        "backends_us_per_step": statistics.median(samples["backends"]) / steps * micro,
        "plan_overhead_us_per_step": statistics.median(paired) * micro,
        "run_overhead_us_per_step": statistics.median(whole) * micro,
        "run_overhead_us_low": min(whole) * micro,
        "run_overhead_us_high": max(whole) * micro,
    }


def main() -> int:
    """Measure, print, and return 1 if a step costs more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = [
        ("onnxruntime", 8, 1024),
        ("openvino, onnxruntime", 2, 1024),
        ("openvino, onnxruntime", 16, 1024),
        ("openvino, onnxruntime", 64, 1024),
        ("openvino, onnxruntime", 16, 65536),
    ]
    rows = [
        {**measure(target, length, elements, options.rounds), "elements": elements}
        for target, length, elements in cases
    ]
    worst = max(row["plan_overhead_us_per_step"] for row in rows)
    passed = worst <= STEP_LIMIT_MICROSECONDS
    if options.json:
        print(json.dumps({"machine": platform.platform(), "rows": rows, "passed": passed}))
        return 0 if passed else 1
    print(f"{platform.platform()}, Python {platform.python_version()}, one thread")
    print("target                  steps  elements  backends  plan's own   run()'s own  [min, max]")
    for row in rows:
        print(
            f"{row['target']:22}  {row['steps']:5d}  {row['elements']:8d}  "
            f"{row['backends_us_per_step']:8.2f}  {row['plan_overhead_us_per_step']:11.2f}  "
            f"{row['run_overhead_us_per_step']:12.2f}  "
            f"[{row['run_overhead_us_low']:.2f}, {row['run_overhead_us_high']:.2f}]"
        )
    print(f"microseconds per step; limit for the plan's own: {STEP_LIMIT_MICROSECONDS}")
    print(f"{'passed' if passed else 'FAILED'}: the worst is {worst:.2f}")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
