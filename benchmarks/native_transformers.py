# SPDX-License-Identifier: Apache-2.0
"""Transformers on `llvm` alone, in float32, against ONNX Runtime and OpenVINO.

    python benchmarks/native_transformers.py [MODEL ...] [--threads 1 2] [--rounds 5]

A ratio is the time of the better peer through ours in the same rounds; each runtime has a process
of its own, and OpenVINO is held to float32. Exits with 1 if a limit is missed: the geometric mean
over networks of 1.1, and 0.97 for the worst.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec
from native_convnets import PEERS, better

from intarsia.bench.compare import Comparison, compare
from intarsia.bench.models import make_bench_model
from intarsia.zoo import build

NETWORKS = (
    *("bert_base", "vit_b16", "gpt2", "minilm", "whisper_encoder"),
    *("deit_small", "segformer_b0", "swin_tiny", "mobilevit_small", "efficientformer_l1"),
)
MEAN, WORST = 1.1, 0.97


def main() -> int:
    """Print a Markdown table for each number of threads, and what became of the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", default=NETWORKS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    comparisons: list[Comparison] = []
    missed = []
    for threads in options.threads:
        print(f"\n{threads} thread{'s' * (threads > 1)}\n", flush=True)
        compared = table(options, threads)
        missed += [f"{threads} threads: {line}" for line in judge(compared)]
        comparisons += compared.values()
    print(f"\n{comparisons[0].machine}; {options.rounds} rounds")
    if options.json:
        options.json.write_text(json.dumps(msgspec.to_builtins(comparisons), indent=1))
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def table(options: argparse.Namespace, threads: int) -> dict[str, Comparison]:
    """Print a row for each network, and return its comparison by its name."""
    print("| network | ours ms | onnxruntime ms | openvino ms | ratio | interval |")
    print("|---|---:|---:|---:|---:|---|")
    compared: dict[str, Comparison] = {}
    for name in options.names:
        path = options.out / f"{name.replace(':', '-')}.onnx"
        if not path.exists():
            path.write_bytes(build(name).SerializeToString())
        with tempfile.TemporaryDirectory() as folder:
            model = make_bench_model(path, Path(folder))
            comparison = compare(
                model, "llvm", PEERS, threads=threads, rounds=options.rounds, check_errors=False
            )
        compared[name], best = comparison, better(comparison)
        cells = [comparison.ours.median_seconds]
        cells += [comparison.peers[peer].series.median_seconds for peer in PEERS]
        times = " | ".join(f"{seconds * 1e3:.2f}" for seconds in cells)
        interval = f"{best.low:.3f} to {best.high:.3f}"
        print(f"| {name} | {times} | {best.ratio:.3f} | {interval} |", flush=True)
    return compared


def judge(compared: dict[str, Comparison]) -> list[str]:
    """Print the mean and the worst network, and return the limits that are missed."""
    ratios = {name: better(comparison).ratio for name, comparison in compared.items()}
    mean, worst = statistics.geometric_mean(ratios.values()), min(ratios, key=ratios.__getitem__)
    print(f"\ngeometric mean {mean:.3f}, worst {ratios[worst]:.3f} ({worst})")
    missed = [f"mean {mean:.3f}, must {MEAN}"] if mean < MEAN else []
    if ratios[worst] < WORST:
        missed.append(f"{worst} {ratios[worst]:.3f}, must {WORST}")
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
