# SPDX-License-Identifier: Apache-2.0
"""Tuned plans against their rivals, and what tuning costs.

    python benchmarks/collage.py [MODEL ...] [--budget 120] [--threads 2] [--json FILE]
    python benchmarks/collage.py --peers-only --locks FOLDER [MODEL ...] [--most-rounds 112]
    python benchmarks/collage.py --mixing

For each model: it is tuned from an empty cost database and again from the full one; then the tuned
plan runs against ONNX Runtime and OpenVINO, each runtime in a process of its own. A ratio is the
rival's time through ours: above 1 means ours is faster. `best peer` is against the better of the
two for that model, with its interval of 95 %. While that contains the bar and is wider than ±1 %
the rounds are doubled, up to `--most-rounds`; if it contains the bar in the end, that is not clear.
`best single` is against the best plan of a single backend, from the same rounds in which the tuner
chose. `prediction` is the median error of the first predictions of all mixed plans that were run,
before any of it was fed back; a plan of one backend is not predicted but measured. Exits with 1 if
a figure is below its bar.

With `--locks` the plans are kept in a folder, and with `--peers-only` taken from there: nothing is
tuned. How often races are wrong is told by `benchmarks/races.py`.

With `--mixing` two small models are tuned for OpenVINO and ONNX Runtime: one whose parts are each
several times as fast on another of the two, so that only a mix wins, and one that has no reason
to be mixed. Exits with 1 if the tuner decides otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import onnx

import intarsia
from intarsia.bench.compare import BenchVerdict, compare, verdict_of
from intarsia.bench.models import make_bench_model
from intarsia.plan.lock import lock_plan, write_lock
from zoo import model_file  # the script beside this one

TARGET = "llvm, dnnl, openvino, onnxruntime"
PEERS = ("onnxruntime", "openvino")
NETWORKS = ("resnet50", "bert_base", "mobilenet_v2", "squeezenet", "inception_v1", "vit_b16")

PEER_BAR, WORST_BAR, SINGLE_BAR = 1.2, 0.99, 0.99
BELOW = "BELOW THE BAR"
COLD_BAR, WARM_BAR, PREDICTION_BAR = 180.0, 5.0, 0.10


@dataclass(frozen=True)
class Tuned:
    """What tuning one network gave; times in seconds."""

    winner: str
    regions: int
    best_single: float
    cold_seconds: float
    warm_seconds: float
    prediction_error: float | None


@dataclass(frozen=True)
class Row:
    """The figures of one network; without what tuning gave if it was tuned before."""

    name: str
    seconds: float
    peer: str
    best_peer: float
    low: float
    high: float
    rounds: int
    tuned: Tuned | None = None

    @property
    def verdict(self) -> BenchVerdict:
        """What the interval says about the bar."""
        return verdict_of(self.low, self.high, WORST_BAR)


def main() -> int:
    """Measure, print Markdown, and return 1 if a figure is below its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--most-rounds", type=int, default=112)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--locks", type=Path)
    parser.add_argument("--peers-only", action="store_true")
    parser.add_argument("--mixing", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    if options.mixing:
        return tune_mixing(options)
    head = (
        "model",
        *(() if options.peers_only else TUNED),
        "ms",
        "best peer",
        "interval",
        "rounds",
    )
    print(f"| {' | '.join(head)} |")
    print(f"|{'---|' * len(head)}")
    rows = []
    for name in options.names or NETWORKS:
        rows.append(measure(name, options))
        print_row(rows[-1])
    if options.json:
        options.json.write_text(json.dumps(msgspec.to_builtins(rows), indent=1))
    return summarise(rows)


def measure(name: str, options: argparse.Namespace) -> Row:
    """Tune one network twice unless its plan is locked, and run the plan against the peers."""
    path = model_file(name, options.out)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        lock = (options.locks or folder) / f"{path.stem}.lock.json"
        tuned = None if options.peers_only else tune_twice(path, lock, folder, options)
        comparison = compare(
            make_bench_model(path, folder),
            options.target,
            PEERS,
            threads=options.threads,
            rounds=options.rounds,
            most_rounds=options.most_rounds,
            bar=WORST_BAR,
            options={"frozen": str(lock)},
            check_errors=False,
        )
    name_of_best = min(comparison.peers, key=lambda name: comparison.peers[name].ratio)
    best = comparison.peers[name_of_best]
    figures = (best.ratio, best.low, best.high, comparison.rounds)
    return Row(name, comparison.ours.median_seconds, name_of_best, *figures, tuned)


def tune_twice(path: Path, lock: Path, folder: Path, options: argparse.Namespace) -> Tuned:
    """Tune a model from an empty database and from the full one, and lock its plan."""
    arguments = {
        "budget": options.budget,
        "num_threads": options.threads,
        "costs": str(folder / "costs.sqlite"),
    }
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        tuned = intarsia.tune(path, options.target, **arguments)
        seconds.append(time.perf_counter() - start)
        if len(seconds) == 1:
            lock.parent.mkdir(exist_ok=True)
            write_lock(lock_plan(tuned.plan), lock)
            report = tuned.explain().tuning
    single = 1.0
    if report.single_seconds and report.seconds:
        single = report.single_seconds / report.seconds
    regions = report.finalists[0].regions
    return Tuned(report.winner, regions, single, *seconds, _prediction_error(report.finalists))


def _prediction_error(finalists) -> float | None:
    """Return the median error of all mixed plans that were run; None without any."""
    errors = [
        abs(plan.predicted_seconds / plan.seconds - 1)
        for plan in finalists
        if plan.predicted_seconds and plan.seconds
    ]
    return statistics.median(errors) if errors else None


TUNED = ("plan that ships", "regions", "best single", "cold s", "warm s", "prediction")


def print_row(row: Row) -> None:
    """Print one network."""
    cells = [row.name]
    if row.tuned is not None:
        tuned, error = row.tuned, row.tuned.prediction_error
        cells += [tuned.winner, str(tuned.regions), f"{tuned.best_single:.3f}"]
        cells += [f"{tuned.cold_seconds:.1f}", f"{tuned.warm_seconds:.1f}"]
        cells += ["-" if error is None else f"{error:.1%}"]
    note = "" if row.verdict is BenchVerdict.MET else f" {row.verdict}"
    cells += [f"{row.seconds * 1e3:.2f}", f"{row.best_peer:.3f} ({row.peer})"]
    cells += [f"{row.low:.3f} to {row.high:.3f}{note}", str(row.rounds)]
    print(f"| {' | '.join(cells)} |", flush=True)


def summarise(rows: list[Row]) -> int:
    """Print means and worst cases; return 1 if one is below its bar."""
    mean = math.exp(statistics.fmean(math.log(row.best_peer) for row in rows))
    figures = [
        ("best peer, geometric mean", mean, "" if mean >= PEER_BAR else BELOW),
        _worst_peer(rows),
    ]
    tuned = [row.tuned for row in rows if row.tuned is not None]
    if tuned:
        single = math.exp(statistics.fmean(math.log(row.best_single) for row in tuned))
        errors = [row.prediction_error for row in tuned if row.prediction_error is not None]
        error = statistics.median(errors) if errors else 0.0
        figures += [
            ("best single, geometric mean", single, ""),
            _judged("best single, worst", min(row.best_single for row in tuned), least=SINGLE_BAR),
            _judged("cold tuning, longest, s", max(row.cold_seconds for row in tuned), COLD_BAR),
            _judged("warm tuning, longest, s", max(row.warm_seconds for row in tuned), WARM_BAR),
            _judged("prediction, median error", error, PREDICTION_BAR),
        ]
    print()
    for name, value, note in figures:
        print(f"{name}: {value:.3f}  {note}".rstrip())
    return 1 if any(note == BELOW for *_, note in figures) else 0


def _worst_peer(rows: list[Row]) -> tuple[str, float, str]:
    """Return the worst ratio; it is below the bar only if a whole interval is."""
    verdicts = {row.verdict for row in rows}
    unclear = [row.name for row in rows if row.verdict is BenchVerdict.UNCLEAR]
    note = f"not clear: {', '.join(unclear)}" if unclear else ""
    worst = min(row.best_peer for row in rows)
    return "best peer, worst", worst, BELOW if BenchVerdict.BELOW in verdicts else note


def _judged(
    name: str, value: float, most: float = math.inf, least: float = -math.inf
) -> tuple[str, float, str]:
    return name, value, "" if least <= value <= most else BELOW


MUST_MIX = """<ir_version: 9, opset_import: ["" : 20]>
must_mix (float[1,32,64,64] x) => (int64[32,1] where)
<float[4] sizes = {1.0, 1.0, 2.0, 2.0}> {
    [enlarge] a = Resize<mode = "cubic">(x, , sizes)
    [again] b = Resize<mode = "cubic">(a, , sizes)
    [flat] c = Flatten<axis = 2>(b)
    [largest] where = ArgMax<axis = 1>(c)
}"""
"""Cubic resizing is several times as fast on OpenVINO, finding the largest on ONNX Runtime."""

NEED_NOT_MIX = """<ir_version: 9, opset_import: ["" : 20]>
need_not_mix (float[1,64,56,56] x) => (float[1,64,56,56] y) {
    [one] a = Tanh(x)
    [two] b = Mul(a, x)
    [three] c = Sigmoid(b)
    [four] d = Add(c, x)
    [five] y = Relu(d)
}"""
"""Elementwise operators that either runtime fuses: every cut costs more than it saves."""


def tune_mixing(options: argparse.Namespace) -> int:
    """Tune a model that must be mixed and one that need not; return 1 if it comes out otherwise."""
    is_right = True
    for text, is_mixed in ((MUST_MIX, True), (NEED_NOT_MIX, False)):
        model = onnx.parser.parse_model(text)
        with tempfile.TemporaryDirectory() as folder:
            tuned = intarsia.tune(
                model,
                "openvino, onnxruntime",
                budget=options.budget,
                num_threads=options.threads,
                costs=str(Path(folder) / "costs.sqlite"),
            )
        report = tuned.explain().tuning
        print(f"{model.graph.name}: {report}\n{tuned.placement}\n", flush=True)
        is_right = is_right and report.is_mixed == is_mixed
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
