# SPDX-License-Identifier: Apache-2.0
"""Convolutional networks on `llvm` alone against ONNX Runtime and OpenVINO.

    python benchmarks/native_convnets.py [MODEL ...] [--batch 1 8] [--threads 1 2] [--rounds 5]

Each network twice: all convolutions direct, and with Winograd's transforms as the target chooses
them. A ratio is the time of the better peer through ours in the same rounds; each runtime has a
process of its own. Exits with 1 if a limit is missed: the geometric mean over networks of 1.0
direct and 1.2 with Winograd, and 0.95 for the worst network with Winograd.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec

from intarsia.bench.compare import Comparison, Peer, compare
from intarsia.bench.models import make_bench_model
from intarsia.zoo import build

NETWORKS = (
    *("alexnet", "densenet121", "inception_v1", "inception_v2", "mobilenet_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
    *(f"random:{seed}" for seed in range(5)),
)
MODES = {"direct": "llvm -winograd=off", "winograd": "llvm -winograd=auto"}
PEERS = ("onnxruntime", "openvino")
MEANS = {"direct": 1.0, "winograd": 1.2}
WORST = 0.95


def main() -> int:
    """Print a Markdown table for each batch and number of threads, and what became of limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", default=NETWORKS)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    comparisons: list[Comparison] = []
    missed = []
    for batch in options.batch:
        for threads in options.threads:
            print(f"\nbatch {batch}, {threads} thread{'s' * (threads > 1)}\n", flush=True)
            ratios = table(options, batch, threads, comparisons)
            missed += [f"batch {batch}, threads {threads}: {line}" for line in judge(ratios)]
    print(f"\n{comparisons[0].machine}; {options.rounds} rounds")
    if options.json:
        options.json.write_text(json.dumps(msgspec.to_builtins(comparisons), indent=1))
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def table(
    options: argparse.Namespace, batch: int, threads: int, comparisons: list[Comparison]
) -> dict[str, dict[str, float]]:
    """Print a row for each network, and return the ratios by mode and network."""
    print("| network | mode | ours ms | onnxruntime ms | openvino ms | ratio | interval |")
    print("|---|---|---:|---:|---:|---:|---|")
    ratios: dict[str, dict[str, float]] = {mode: {} for mode in MODES}
    for name in options.names:
        path = options.out / f"{name.replace(':', '-')}.onnx"
        if not path.exists():
            path.write_bytes(build(name).SerializeToString())
        for mode, target in MODES.items():
            with tempfile.TemporaryDirectory() as folder:
                model = make_bench_model(path, Path(folder), batch=batch)
                comparison = compare(
                    model,
                    target,
                    PEERS,
                    threads=threads,
                    rounds=options.rounds,
                    check_errors=False,
                )
            comparisons.append(comparison)
            best = better(comparison)
            ratios[mode][name] = best.ratio
            cells = [comparison.ours.median_seconds]
            cells += [comparison.peers[peer].series.median_seconds for peer in PEERS]
            times = " | ".join(f"{seconds * 1e3:.2f}" for seconds in cells)
            interval = f"{best.low:.3f} to {best.high:.3f}"
            print(f"| {name} | {mode} | {times} | {best.ratio:.3f} | {interval} |", flush=True)
    return ratios


def better(comparison: Comparison) -> Peer:
    """Return the faster of the peers."""
    return min(comparison.peers.values(), key=lambda peer: peer.series.median_seconds)


def judge(ratios: dict[str, dict[str, float]]) -> list[str]:
    """Print means and the worst network, and return the limits that are missed."""
    missed = []
    for mode, by_name in ratios.items():
        mean = statistics.geometric_mean(by_name.values())
        worst = min(by_name, key=by_name.__getitem__)
        print(f"\n{mode}: geometric mean {mean:.3f}, worst {by_name[worst]:.3f} ({worst})")
        if mean < MEANS[mode]:
            missed.append(f"{mode}: mean {mean:.3f}, must {MEANS[mode]}")
        if mode == "winograd" and by_name[worst] < WORST:
            missed.append(f"{mode}: {worst} {by_name[worst]:.3f}, must {WORST}")
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
