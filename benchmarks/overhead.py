# SPDX-License-Identifier: Apache-2.0
"""What a plan costs beside its backends: microseconds per step.

A chain of small operators alternates between two targets, so that each is a step of its own. One
run of the whole plan is compared with the same bound backend calls without the plan: what
remains is the plan's own time. `run()` adds what happens once per call: checking the inputs, and
copying inputs and outputs. Blocks of all take turns; medians over the rounds are printed.

Then the calls of a tiny model, three small Gemms on `llvm`: `run` with a dict and a bound step,
against `InferenceSession.run` and `run_with_iobinding` of ONNX Runtime.

    python benchmarks/overhead.py [--rounds 15] [--cpu] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

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


def seconds_per_call(
    call: Callable[[], Any], calls: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the mean seconds of a call in one block, its first third left out."""
    for _ in range(calls // 3):
        call()
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


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


TINY_LIMIT = 4.0
"""How many times less than ONNX Runtime's a call of the tiny model has to take."""


def tiny(rows: int | str) -> onnx.ModelProto:
    """Return three small Gemms for some rows."""
    rng = np.random.default_rng(0)
    widths = (8, 16, 16, 4)
    nodes, constants = [], []
    for i, (terms, columns) in enumerate(itertools.pairwise(widths)):
        for name, shape in ((f"w{i}", (terms, columns)), (f"b{i}", (columns,))):
            array = rng.standard_normal(shape).astype(np.float32)
            constants.append(numpy_helper.from_array(array, name))
        nodes.append(helper.make_node("Gemm", [f"t{i}", f"w{i}", f"b{i}"], [f"t{i + 1}"]))
    ends = [
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [rows, width])]
        for name, width in (("t0", widths[0]), ("t3", widths[-1]))
    ]
    graph = helper.make_graph(nodes, "tiny", *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure_tiny(rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the medians of the calls of the tiny model, in microseconds."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(tiny(1).SerializeToString(), options)
    executable = intarsia.compile(tiny(1), "llvm", num_threads=1)
    free = intarsia.compile(tiny("rows"), "llvm", num_threads=1, frozen=True)
    feeds = {"t0": np.ones((1, 8), np.float32)}
    binding = session.io_binding()
    binding.bind_cpu_input("t0", feeds["t0"])
    binding.bind_output("t3")
    timed: dict[str, Callable[[], object]] = {
        "InferenceSession.run": lambda: session.run(None, feeds),
        "run_with_iobinding": lambda: session.run_with_iobinding(binding),
        "run": lambda: executable.run(feeds),
        "run, free rows": lambda: free.run(feeds),
        "bound": executable.bind(feeds, {"t3": np.empty((1, 4), np.float32)}),
    }
    samples = take_turns(
        list(timed), lambda name: seconds_per_call(timed[name], 10_000, clock), rounds
    )
    return {name: statistics.median(taken) * 1e6 for name, taken in samples.items()}


def main() -> int:
    """Measure, print, and return 1 if a step costs more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu", action="store_true", help="CPU time of the tiny model's calls")
    parser.add_argument("--only-tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    micro = measure_tiny(options.rounds, time.process_time if options.cpu else time.perf_counter)
    ratios = {
        name: micro[peer] / micro[name]
        for name, peer in (
            ("run", "InferenceSession.run"),
            ("run, free rows", "InferenceSession.run"),
            ("bound", "run_with_iobinding"),
        )
    }
    cases = [
        ("onnxruntime", 8, 1024),
        ("openvino, onnxruntime", 2, 1024),
        ("openvino, onnxruntime", 16, 1024),
        ("openvino, onnxruntime", 64, 1024),
        ("openvino, onnxruntime", 16, 65536),
    ]
    rows = (
        []
        if options.only_tiny
        else [
            {**measure(target, length, elements, options.rounds), "elements": elements}
            for target, length, elements in cases
        ]
    )
    worst = max((row["plan_overhead_us_per_step"] for row in rows), default=0.0)
    is_quick = ratios["run"] >= TINY_LIMIT and ratios["bound"] >= TINY_LIMIT
    passed = worst <= STEP_LIMIT_MICROSECONDS and is_quick
    if options.json:
        tiny_rows = {"microseconds": micro, "ratios": ratios}
        found = {"rows": rows, "tiny": tiny_rows, "passed": passed}
        print(json.dumps({"machine": platform.platform(), **found}))
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
    for name, value in micro.items():
        ratio = f"  {ratios[name]:.1f} times less" if name in ratios else ""
        print(f"tiny model, {name:22} {value:6.2f} us{ratio}")
    print(f"limit of the tiny model's run and bound: {TINY_LIMIT} times less")
    print(f"{'passed' if passed else 'FAILED'}: the worst is {worst:.2f}")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
