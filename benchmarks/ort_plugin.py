# SPDX-License-Identifier: Apache-2.0
"""Intarsia as a provider of ONNX Runtime beside direct use: the same networks, one thread each.

    python benchmarks/ort_plugin.py [--rounds 15] [--cpu] [--target llvm] [--json] [NETWORK ...]

Of each network `session.run` with our provider and `run` of the program compiled from the same
model take turns; the ratio of a round is direct use by the session, and its median is printed with
the smallest and the largest. Then the calls of a tiny model, in microseconds: what a call takes
more than direct use, and ONNX Runtime's own kernels beside. `--cpu` counts the CPU time of the
thread, for a machine that is shared. The answer is no (1) below 0.97 or above 20 us.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from overhead import seconds_per_call, tiny

import intarsia
from intarsia import zoo
from intarsia.measure.racing import take_turns
from intarsia.provider.options import NAME

NETWORKS = ("resnet50", "mobilenet_v2", "squeezenet", "minilm", "deit_small")
LEAST_RATIO = 0.97
MOST_MICROSECONDS = 20.0
BLOCK_SECONDS = 0.2


def devices() -> list[Any]:
    """Return the devices of our provider."""
    onnxruntime.register_execution_provider_library("intarsia", intarsia.onnxruntime_library())
    return [one for one in onnxruntime.get_ep_devices() if one.ep_name == NAME]


def session_of(model: bytes, found: list[Any], target: str) -> Any:
    """Return a session with our provider, on one thread; without devices, with none."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if found:
        settings.add_provider_for_devices(found, {"target": target, "num_threads": "1"})
    session = onnxruntime.InferenceSession(model, settings)
    others = {part.ep_name for part in session.get_provider_graph_assignment_info()} - {NAME}
    if found and others:
        print(f"some nodes are on {', '.join(others)}", file=sys.stderr)
    return session


def measure(
    name: str, found: list[Any], target: str, rounds: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Return the times of a network, in seconds, and their ratio."""
    model = zoo.build(name).SerializeToString()
    session = session_of(model, found, target)
    program = intarsia.compile(model, target, num_threads=1)
    feeds = program.sample_feeds()
    expected = program.run(feeds)
    for result, value in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(value, expected[result.name])
    timed: dict[str, Callable[[], object]] = {
        "session": lambda: session.run(None, feeds),
        "direct": lambda: program.run(feeds),
    }
    once = max(seconds_per_call(timed["direct"], 3, clock), 1e-6)
    calls = max(1, round(BLOCK_SECONDS / once))
    samples = take_turns(
        list(timed), lambda one: seconds_per_call(timed[one], calls, clock), rounds
    )
    pairs = zip(samples["direct"], samples["session"], strict=True)
    ratios = [direct / session for direct, session in pairs]
    return {
        "network": name,
        "session_s": statistics.median(samples["session"]),
        "direct_s": statistics.median(samples["direct"]),
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
    }


def measure_calls(
    found: list[Any], target: str, rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Return what calls of a tiny model take, in microseconds."""
    model = tiny(1).SerializeToString()
    session, plain = session_of(model, found, target), session_of(model, [], target)
    program = intarsia.compile(model, target, num_threads=1)
    free = session_of(tiny("rows").SerializeToString(), found, target)
    feeds = {"t0": np.ones((1, 8), np.float32)}
    binding = session.io_binding()
    binding.bind_cpu_input("t0", feeds["t0"])
    binding.bind_output("t3")
    timed: dict[str, Callable[[], object]] = {
        "run": lambda: program.run(feeds),
        "session.run": lambda: session.run(None, feeds),
        "session.run_with_iobinding": lambda: session.run_with_iobinding(binding),
        "session.run, free rows": lambda: free.run(None, feeds),
        "session.run of ONNX Runtime alone": lambda: plain.run(None, feeds),
    }
    samples = take_turns(list(timed), lambda one: seconds_per_call(timed[one], 2000, clock), rounds)
    return {name: statistics.median(taken) * 1e6 for name, taken in samples.items()}


def main() -> int:
    """Measure, and print a line for each network and call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    clock = time.thread_time if arguments.cpu else time.perf_counter
    found = devices()
    calls = measure_calls(found, arguments.target, arguments.rounds, clock)
    for name, micro in calls.items():
        print(f"{name:34} {micro:8.2f} us", flush=True)
    more = calls["session.run"] - calls["run"]
    print(f"{'a call, more than direct use':34} {more:8.2f} us", flush=True)
    rows = []
    for name in arguments.networks:
        row = measure(name, found, arguments.target, arguments.rounds, clock)
        rows.append(row)
        ours, direct = row["session_s"] * 1e3, row["direct_s"] * 1e3
        print(
            f"{name:16} session {ours:9.3f} ms  direct {direct:9.3f} ms"
            f"  ratio {row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})",
            flush=True,
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"calls": calls, "networks": rows}, indent=1))
    is_met = more <= MOST_MICROSECONDS and all(row["ratio"] >= LEAST_RATIO for row in rows)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
