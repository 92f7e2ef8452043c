# SPDX-License-Identifier: Apache-2.0
"""`-precision=bf16` on a CPU that multiplies bfloat16, against our float32 and OpenVINO's bfloat16.

    python benchmarks/bf16.py [MODEL ...] [--rounds 15] [--threads 1] [--cpu]

All run in this process by turns, in an order that changes from round to round. OpenVINO has
`INFERENCE_PRECISION_HINT` bf16 or f32; with bf16 it multiplies by AMX where there is AMX. An error
is the root of the mean square of the differences from float64 over that of the outputs. Ratios are
medians of the ratios of one round. With `--cpu`, the CPU time of the process counts: on a machine
that runs other things too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import intarsia
from intarsia.backends.float64 import evaluate
from intarsia.bench.models import make_bench_model
from intarsia.measure.racing import paired_ratio, take_turns
from intarsia.zoo import build

NETWORKS = ("bert_base", "resnet50")
OURS = {"llvm f32": "llvm", "llvm bf16": "llvm -precision=bf16"}
PEERS = {"openvino f32": "f32", "openvino bf16": "bf16"}
Arrays = dict[str, "np.ndarray[Any, np.dtype[Any]]"]


WARM_UP = 2
"""Rounds that do not count."""


def main() -> None:
    """Print a Markdown table, a row for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="measure the time of the process")
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    names = (*OURS, *PEERS)
    print(f"| network | {' | '.join(f'{name} ms (error)' for name in names)} | ratios |")
    print(f"|---|{'---:|' * len(names)}---|")
    for name in options.names:
        print(row(name, options), flush=True)


def row(name: str, options: argparse.Namespace) -> str:
    """Return the row of a network."""
    path = options.out / f"{name}.onnx"
    if not path.exists():
        path.write_bytes(build(name).SerializeToString())
    feeds = dict(make_bench_model(path, options.out).feeds)
    exact = evaluate(onnx.load(path), feeds)[0]
    runs: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    for kind, target in OURS.items():
        program = intarsia.compile(path, target, num_threads=options.threads)
        runs[kind] = program.context(inputs=feeds).run
        errors[kind] = error(next(iter(program.run(feeds).values())), exact)
    for kind, precision in PEERS.items():
        runs[kind], result = openvino_run(path, feeds, precision, options.threads)
        errors[kind] = error(result, exact)
    clock = time.process_time if options.cpu else time.perf_counter

    def take(kind: str) -> float:
        start = clock()
        runs[kind]()
        return clock() - start

    samples = take_turns(list(runs), take, options.rounds + WARM_UP)
    times = {kind: found[WARM_UP:] for kind, found in samples.items()}
    cells = [f"{1e3 * statistics.median(times[kind]):.2f} ({errors[kind]:.1e})" for kind in runs]
    ratios = [
        f"{paired_ratio(times[kind], times['llvm bf16']).value:.2f} times as fast as {kind}"
        for kind in ("llvm f32", "openvino bf16")
    ]
    return f"| {name} | {' | '.join(cells)} | {', '.join(ratios)} |"


def openvino_run(
    path: Path, feeds: Arrays, precision: str, threads: int
) -> tuple[Callable[[], Any], np.ndarray[Any, np.dtype[Any]]]:
    """Return what runs a model in OpenVINO, and its first result."""
    import openvino  # an extra

    core = openvino.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        names = [name for name in port.names if name in feeds]
        array = np.ascontiguousarray(feeds[names[0]])
        request.set_tensor(port, openvino.Tensor(array, shared_memory=True))
    request.infer()
    return request.infer, request.get_output_tensor(0).data.copy()


def error(found: Any, exact: Any) -> float:
    """Return the error of a result."""
    difference = np.asarray(found, np.float64) - exact
    return float(np.sqrt(np.mean(difference**2) / np.mean(np.square(exact, dtype=np.float64))))


if __name__ == "__main__":
    main()
