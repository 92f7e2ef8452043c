# SPDX-License-Identifier: Apache-2.0
"""The zoo through us against the plain peers: what going through us costs.

    python benchmarks/zoo.py [MODEL ...] [--rounds 7] [--most-rounds 56] [--threads 2] [--json FILE]
    python benchmarks/zoo.py [MODEL ...] --twins openvino

For each model, ours for `onnxruntime` against ONNX Runtime, and ours for `openvino, onnxruntime`
against both. A ratio is the peer's time through ours, the median over the rounds with its
interval; each runtime has a process of its own. While an interval contains 0.97 and is wider than
±1 % the rounds are doubled. Exits with 1 if a ratio against the runtime that does the same work is
below 0.97 with its whole interval.

With `--twins` a peer runs against itself in a second process: what is found where nothing differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import msgspec

from intarsia.bench.compare import BenchVerdict, Comparison, compare, compare_twins
from intarsia.bench.models import make_bench_model
from intarsia.errors import IntarsiaError
from intarsia.zoo import build, models

CASES = (
    ("onnxruntime", ("onnxruntime",)),
    ("openvino, onnxruntime", ("openvino", "onnxruntime")),
)
"""Targets of ours, and the peers; the first peer does the same work."""

BAR = 0.97


def main() -> int:
    """Measure, print Markdown, and return 1 if a model is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--most-rounds", type=int, default=56)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--twins", metavar="PEER")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    if options.twins:
        return compare_with_itself(options)
    comparisons: list[Comparison] = []
    below = []
    print_head()
    for name in options.names or models():
        path = model_file(name, options.out)
        for target, peers in CASES:
            try:
                comparison = measure(path, target, peers, options)
            except IntarsiaError as error:
                print(f"| {name} | {target} | | | | | | {error.message} |", flush=True)
                below.append(name)
                continue
            comparisons.append(comparison)
            print_rows(name, comparison)
            if comparison.peers[peers[0]].against(BAR) is BenchVerdict.BELOW:
                below.append(f"{name} for {target}")
    if comparisons:
        print(
            f"\n{comparisons[0].machine}; {options.threads} threads, "
            f"at least {options.rounds} rounds"
        )
    if options.json:
        options.json.write_text(json.dumps(msgspec.to_builtins(comparisons), indent=1))
    if below:
        print(f"below {BAR}: {', '.join(below)}", file=sys.stderr)
    return 1 if below else 0


def model_file(name: str, folder: Path) -> Path:
    """Return the file of a network of the zoo, made if need be."""
    path = folder / f"{name.replace(':', '-')}.onnx"
    if not path.exists():
        path.write_bytes(build(name).SerializeToString())
    return path


def measure(
    path: Path, target: str, peers: tuple[str, ...], options: argparse.Namespace
) -> Comparison:
    """Return one comparison."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_bench_model(path, Path(folder))
        is_first = len(peers) == 1  # the float64 reference is slow: once for each model
        return compare(
            model,
            target,
            peers,
            threads=options.threads,
            rounds=options.rounds,
            most_rounds=options.most_rounds,
            bar=BAR,
            check_errors=not is_first,
        )


def print_head() -> None:
    """Print the head of the table."""
    print("| model | target | ours ms | peer | peer ms | ratio | interval | rounds | errors |")
    print("|---|---|---:|---|---:|---:|---|---:|---|")


def print_rows(name: str, comparison: Comparison) -> None:
    """Print a row for each peer."""
    ours = comparison.ours
    for peer_name, peer in comparison.peers.items():
        errors = " / ".join(
            "-" if series.error is None else f"{series.error.max_abs_error:.1e}"
            for series in (ours, peer.series)
        )
        print(
            f"| {name} | {comparison.target} | {ours.median_seconds * 1e3:.2f} | {peer_name} | "
            f"{peer.series.median_seconds * 1e3:.2f} | {peer.ratio:.3f} | "
            f"{peer.low:.3f} to {peer.high:.3f} | {comparison.rounds} | {errors} |",
            flush=True,
        )


def compare_with_itself(options: argparse.Namespace) -> int:
    """Run a peer against itself."""
    print("| model | peer | ratio | interval |")
    print("|---|---|---|---|")
    for name in options.names or models():
        with tempfile.TemporaryDirectory() as folder:
            peer = compare_twins(
                make_bench_model(model_file(name, options.out), Path(folder)),
                options.twins,
                threads=options.threads,
                rounds=options.rounds,
                most_rounds=options.most_rounds,
            )
        interval = f"{peer.low:.3f} to {peer.high:.3f}"
        print(f"| {name} | {options.twins} | {peer.ratio:.3f} | {interval} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
