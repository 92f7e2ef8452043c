# SPDX-License-Identifier: Apache-2.0
"""Transformers on `llvm` alone, in float32, against ONNX Runtime and OpenVINO.

    python benchmarks/native_transformers.py [MODEL ...] [--threads 1 2] [--rounds 5] [--cpu]
                                             [--exports FOLDER]

A ratio is the time of the better peer through ours in the same rounds; each runtime has a process
of its own, and OpenVINO is held to float32. Exits with 1 if a limit is missed: the geometric mean
over networks of 1.1, and 0.97 for the worst.

With `--exports` the networks are the ONNX files of a folder, such as
`torch_exports.py --export --full` writes: what torch itself makes of published networks.

With `--cpu` all three run in this process by turns, on one thread, and what counts is the CPU time
that they take: where other work runs beside, wall-clock time says little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
import numpy as np
from native_convnets import PEERS, better

import intarsia
from intarsia.backends.registry import load_backends
from intarsia.bench.compare import compare
from intarsia.bench.models import BenchModel, make_bench_model
from intarsia.measure.racing import Ratio, paired_ratio, take_round
from intarsia.settings import Settings
from intarsia.zoo import build

NETWORKS = (
    *("bert_base", "vit_b16", "gpt2", "minilm", "whisper_encoder"),
    *("deit_small", "segformer_b0", "swin_tiny", "mobilevit_small", "efficientformer_l1"),
)
MEAN, WORST = 1.1, 0.97


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of ours and of each peer, by name, and the ratio to the better peer."""

    seconds: dict[str, float]
    ratio: Ratio


def main() -> int:
    """Print a Markdown table for each number of threads, and what became of the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", default=())
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    parser.add_argument("--exports", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.exports:
        options.out = options.exports
        options.names = options.names or sorted(path.stem for path in options.out.glob("*.onnx"))
    options.names = options.names or NETWORKS
    options.out.mkdir(exist_ok=True)
    tables: dict[int, dict[str, Row]] = {}
    missed = []
    for threads in [1] if options.cpu else options.threads:
        of_what = "CPU time, " if options.cpu else ""
        print(f"\n{of_what}{threads} thread{'s' * (threads > 1)}\n", flush=True)
        tables[threads] = table(options, threads)
        missed += [f"{threads} threads: {line}" for line in judge(tables[threads])]
    print(f"\n{options.rounds} rounds")
    if options.json:
        options.json.write_text(json.dumps(msgspec.to_builtins(tables), indent=1))
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def table(options: argparse.Namespace, threads: int) -> dict[str, Row]:
    """Print a row for each network, and return the rows by name."""
    print("| network | ours ms | onnxruntime ms | openvino ms | ratio | interval |")
    print("|---|---:|---:|---:|---:|---|")
    rows: dict[str, Row] = {}
    for name in options.names:
        path = options.out / f"{name.replace(':', '-')}.onnx"
        if not path.exists():
            path.write_bytes(build(name).SerializeToString())
        with tempfile.TemporaryDirectory() as folder:
            model = make_bench_model(path, Path(folder))
            row = (
                cpu_row(model, options.rounds)
                if options.cpu
                else wall_row(model, threads, options.rounds)
            )
        rows[name] = row
        times = " | ".join(f"{seconds * 1e3:.2f}" for seconds in row.seconds.values())
        interval = f"{row.ratio.low:.3f} to {row.ratio.high:.3f}"
        print(f"| {name} | {times} | {row.ratio.value:.3f} | {interval} |", flush=True)
    return rows


def wall_row(model: BenchModel, threads: int, rounds: int) -> Row:
    """Compare processes by wall-clock time."""
    comparison = compare(model, "llvm", PEERS, threads=threads, rounds=rounds, check_errors=False)
    seconds = {"ours": comparison.ours.median_seconds}
    seconds |= {peer: comparison.peers[peer].series.median_seconds for peer in PEERS}
    best = better(comparison)
    return Row(seconds, Ratio(best.ratio, best.low, best.high, comparison.rounds))


def cpu_row(model: BenchModel, rounds: int) -> Row:
    """Compare runtimes in this process by CPU time, one thread each."""
    runs: dict[str, Callable[[], object]] = {}
    feeds = {name: np.asarray(array, order="C") for name, array in model.feeds.items()}
    program = intarsia.compile(model.path, "llvm", num_threads=1)
    runs["ours"] = program.context(inputs=feeds).run
    backends = load_backends(Settings.from_environment())
    for peer in PEERS:
        runs[peer] = backends.baseline_of(peer)(model.path, feeds, 1).run

    def time_run(name: str) -> float:
        runs[name]()  # brings its weights back into the caches
        start = time.process_time()
        runs[name]()
        return time.process_time() - start

    order, blocks = Random(0), {name: list[float]() for name in runs}
    for _ in range(rounds):
        for name, seconds in take_round(list(runs), time_run, order).items():
            blocks[name].append(seconds)
    medians = {name: statistics.median(block) for name, block in blocks.items()}
    best = min(PEERS, key=medians.__getitem__)
    return Row(medians, paired_ratio(blocks[best], blocks["ours"]))


def judge(rows: dict[str, Row]) -> list[str]:
    """Print the mean and the worst network, and return the limits that are missed."""
    ratios = {name: row.ratio.value for name, row in rows.items()}
    mean, worst = statistics.geometric_mean(ratios.values()), min(ratios, key=ratios.__getitem__)
    print(f"\ngeometric mean {mean:.3f}, worst {ratios[worst]:.3f} ({worst})")
    missed = [f"mean {mean:.3f}, must {MEAN}"] if mean < MEAN else []
    if ratios[worst] < WORST:
        missed.append(f"{worst} {ratios[worst]:.3f}, must {WORST}")
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
