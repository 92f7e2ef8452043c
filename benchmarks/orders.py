# SPDX-License-Identifier: Apache-2.0
"""Greedy plans by the order of the targets: which order is the best without tuning.

    python benchmarks/orders.py [MODEL ...] [--orders ORDER ...] [--threads 2] [--rounds 5]

A MODEL is a name of the zoo or a file. Every order is compiled greedily in a process of its own,
and runs in turn with the plain runtimes in the same rounds; orders that give the same plan are
measured once. A ratio is the other's time through the order's: above 1 means that the order is
faster; `better peer` is the better of the plain runtimes, `first order` the first one of
`--orders`. `cold s` is how long compiling took with empty caches, `warm s` with full ones. Exits
with 1 if an order is slower than the first by more than 3 % with its whole interval.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.bench.compare import LEAD_SECONDS, LEAST_RUNS, LEAST_SECONDS
from intarsia.bench.models import BenchModel, make_bench_model
from intarsia.errors import BackendError
from intarsia.measure.agreement import compare_outputs
from intarsia.measure.racing import paired_ratio, take_turns
from intarsia.process.workers import CallOutcome, Worker
from intarsia.zoo import build

ORDERS = (
    "openvino, onnxruntime",
    "openvino, llvm, dnnl, onnxruntime",
    "llvm, dnnl, openvino, onnxruntime",
    "llvm, openvino, onnxruntime",
)
PEERS = ("onnxruntime", "openvino")
NETWORKS = (
    *("alexnet", "bert_base", "densenet121", "detector", "gpt2", "inception_v1", "inception_v2"),
    *("llama_decode", "minilm", "mobilenet_v2", "resnet50", "shufflenet", "squeezenet", "vgg19"),
    *("vit_b16", "whisper_encoder", "zfnet512"),
)
SLACK = 1.03
SUBJECT = "intarsia.bench.subject"


@dataclass(frozen=True)
class Row:
    """One order on one model; times in seconds.

    Attributes:
        orders: All that give this plan.
        coverage: Nodes by target.
        error: Largest difference from ONNX Runtime's outputs, as a part of their largest value.
    """

    model: str
    orders: tuple[str, ...]
    regions: int
    coverage: Mapping[str, int]
    seconds: float
    cold_seconds: float
    warm_seconds: float
    to_peer: tuple[float, float, float]
    to_first: tuple[float, float, float]
    error: float


def main() -> int:
    """Print a Markdown row for each plan, and return 1 if one is slower than the first order's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", default=NETWORKS)
    parser.add_argument("--orders", nargs="+", default=ORDERS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    print(
        "| model | plan of | nodes | regions | ms | better peer | interval | first order | "
        "interval | cold s | warm s | error |"
    )
    print("|---|---|---|---:|---:|---:|---|---:|---|---:|---:|---:|")
    rows: list[Row] = []
    for name in options.names:
        rows += measure(name, options)
        if options.json:
            options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    for order in options.orders:
        chosen = [row for row in rows if order in row.orders]
        mean = statistics.geometric_mean([row.to_peer[0] for row in chosen])
        worst = min(chosen, key=lambda row: row.to_peer[0])
        print(
            f"\n{order}: {len(chosen)} models, geometric mean {mean:.3f} to the better peer, "
            f"worst {worst.to_peer[0]:.3f} ({worst.model})"
        )
    slow = [row for row in rows if row.to_first[2] < 1 / SLACK]
    for row in slow:
        print(f"slower than the first order: {row.model} by {row.orders[0]}", file=sys.stderr)
    return 1 if slow else 0


def measure(name: str, options: argparse.Namespace) -> list[Row]:
    """Compile a model for every order, run all in turn, and print a row for each plan."""
    path = Path(name)
    if path.suffix != ".onnx":
        path = options.out / f"{name.replace(':', '-')}.onnx"
        if not path.exists():
            path.write_bytes(build(name).SerializeToString())
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        model = make_bench_model(path, Path(folder))
        plans: dict[str, list[str]] = {}
        workers: dict[str, Worker] = {}
        facts: dict[str, dict[str, Any]] = {}
        for order in options.orders:
            cache = {"INTARSIA_CACHE_DIR": f"{folder}/{len(facts)}"}
            with Worker(cache) as worker:
                cold = set_up(worker, model, order, options.threads)
            worker = stack.enter_context(Worker(cache))
            fact = set_up(worker, model, order, options.threads)
            fact["cold_seconds"] = cold["set_up_seconds"]
            facts[order] = fact
            used = {target: count for target, count in fact["coverage"].items() if count}
            fact["coverage"] = {target.split()[0]: count for target, count in used.items()}
            key = json.dumps([used, fact["steps"]], sort_keys=True)
            if key in plans:
                worker.close()
            else:
                workers[order] = worker
            plans.setdefault(key, []).append(order)
        for peer in PEERS:
            workers[peer] = stack.enter_context(Worker())
            arguments = ("set_up_peer", peer, model.path, options.threads)
            call(workers[peer], *arguments, feeds=model.feeds)
        outputs = {name: read(worker) for name, worker in workers.items()}
        blocks = run_in_turn(workers, options.rounds)
    first = blocks[next(iter(plans.values()))[0]]
    best = min((blocks[peer] for peer in PEERS), key=statistics.median)
    rows = []
    for orders in plans.values():
        own, fact = blocks[orders[0]], facts[orders[0]]
        rows.append(
            Row(
                path.stem,
                tuple(orders),
                fact["steps"],
                fact["coverage"],
                statistics.median(own),
                fact["cold_seconds"],
                fact["set_up_seconds"],
                ratio(best, own),
                ratio(first, own),
                largest_error(outputs["onnxruntime"], outputs[orders[0]]),
            )
        )
        print_row(rows[-1])
    return rows


def set_up(worker: Worker, model: BenchModel, order: str, threads: int) -> dict[str, Any]:
    """Compile a model greedily, and return the facts of the plan."""
    arguments = (model.path, order, threads, {"placement": "greedy"})
    facts: dict[str, Any] = call(worker, "set_up_ours", *arguments, feeds=model.feeds).value
    return facts


def run_in_turn(workers: Mapping[str, Worker], rounds: int) -> dict[str, list[float]]:
    """Return by subject the median seconds of its block in each round."""

    def time_block(name: str) -> float:
        arguments = (LEAD_SECONDS, LEAST_RUNS, LEAST_SECONDS)
        return statistics.median(call(workers[name], "run_block", *arguments).value)

    return take_turns(list(workers), time_block, rounds)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """Return the median ratio of two series over the rounds, with its interval."""
    paired = paired_ratio(theirs, ours)
    return paired.value, paired.low, paired.high


def largest_error(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """Return the largest difference as a part of the largest value, of the worst output."""
    return max(
        compare_outputs([one], [other]).max_abs_error / (float(np.abs(one).max()) or 1.0)
        for one, other in zip(expected, actual, strict=True)
    )


def read(worker: Worker) -> list[Any]:
    """Return the outputs of a subject by position."""
    outcome = call(worker, "read_outputs")
    return [outcome.arrays[str(index)] for index in range(outcome.value)]


def call(
    worker: Worker, function: str, *arguments: Any, feeds: Mapping[str, Any] | None = None
) -> CallOutcome:
    """Call a function of the subject, or raise what it died of."""
    outcome = worker.call(f"{SUBJECT}:{function}", *arguments, arrays=feeds)
    if not outcome.is_ok:
        raise BackendError(f"{function}: {outcome.message}", backend=str(arguments[:1]))
    return outcome


def print_row(row: Row) -> None:
    """Print one plan."""
    nodes = ", ".join(f"{target} {count}" for target, count in row.coverage.items())
    cells = [
        *(row.model, "; ".join(row.orders), nodes, row.regions, f"{row.seconds * 1e3:.2f}"),
        *(f"{row.to_peer[0]:.3f}", f"{row.to_peer[1]:.3f} to {row.to_peer[2]:.3f}"),
        *(f"{row.to_first[0]:.3f}", f"{row.to_first[1]:.3f} to {row.to_first[2]:.3f}"),
        *(f"{row.cold_seconds:.1f}", f"{row.warm_seconds:.1f}", f"{row.error:.0e}"),
    ]
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
