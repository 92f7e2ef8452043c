# SPDX-License-Identifier: Apache-2.0
"""Tuned plans against their rivals, and what tuning costs.

    python benchmarks/collage.py [MODEL ...] [--budget 120] [--rounds 7] [--threads 2] [--json FILE]
    python benchmarks/collage.py --statistics MODEL [--trials 20]
    python benchmarks/collage.py --mixing

For each model: it is tuned from an empty cost database and again from the full one; then the tuned
plan runs against ONNX Runtime and OpenVINO, each runtime in a process of its own. A ratio is the
rival's time through ours: above 1 means ours is faster. `best peer` is against the better of the
two for that model; `best single` against the best plan of a single backend, from the same rounds
in which the tuner chose. `prediction` is the median error of the first predictions of all mixed
plans that were run, before any of it was fed back; a plan of one backend is not predicted but
measured. Exits with 1 if a figure is below its bar.

With `--statistics` two plans of the model are raced many times: how often two equal plans are
declared different, and how often the wrong one of two wins that differ by 5 % or more.

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
from intarsia.backends.registry import load_backends
from intarsia.bench.compare import compare
from intarsia.bench.models import make_bench_model
from intarsia.compiler import resolve_targets
from intarsia.place.collage.candidates import single_plans
from intarsia.place.collage.measure import Laboratory, Probe
from intarsia.place.setting import Wishes, make_setting, quiet
from intarsia.plan.lock import lock_plan, write_lock
from intarsia.runtime.racing import confirm, paired_ratio
from intarsia.zoo import build

TARGET = "llvm, dnnl, openvino, onnxruntime"
PEERS = ("onnxruntime", "openvino")
NETWORKS = ("resnet50", "bert_base", "mobilenet_v2", "squeezenet", "inception_v1", "vit_b16")

PEER_BAR, WORST_BAR, SINGLE_BAR = 1.2, 0.99, 0.99
COLD_BAR, WARM_BAR, PREDICTION_BAR = 180.0, 5.0, 0.10


@dataclass(frozen=True)
class Row:
    """The figures of one network; times in seconds."""

    name: str
    winner: str
    regions: int
    seconds: float
    best_peer: float
    best_single: float
    cold_seconds: float
    warm_seconds: float
    prediction_error: float | None


def main() -> int:
    """Measure, print Markdown, and return 1 if a figure is below its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--statistics", metavar="MODEL")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--mixing", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    if options.statistics:
        return race_statistics(options)
    if options.mixing:
        return tune_mixing(options)
    print(
        "| model | plan that ships | regions | ms | best peer | best single | cold s | warm s | "
        "prediction |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    rows = []
    for name in options.names or NETWORKS:
        rows.append(measure(name, options))
        print_row(rows[-1])
    if options.json:
        options.json.write_text(json.dumps(msgspec.to_builtins(rows), indent=1))
    return summarise(rows)


def model_file(name: str, folder: Path) -> Path:
    """Return the file of a network of the zoo, made if need be."""
    path = folder / f"{name.replace(':', '-')}.onnx"
    if not path.exists():
        path.write_bytes(build(name).SerializeToString())
    return path


def measure(name: str, options: argparse.Namespace) -> Row:
    """Tune one network twice, and run the plan against the peers."""
    path = model_file(name, options.out)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        arguments = {
            "budget": options.budget,
            "num_threads": options.threads,
            "costs": str(folder / "costs.sqlite"),
        }
        start = time.perf_counter()
        tuned = intarsia.tune(path, options.target, **arguments)
        cold = time.perf_counter() - start
        start = time.perf_counter()
        intarsia.tune(path, options.target, **arguments)
        warm = time.perf_counter() - start
        lock = folder / "plan.lock.json"
        write_lock(lock_plan(tuned.plan), lock)
        report = tuned.explain().tuning
        del tuned
        found = compare(
            make_bench_model(path, folder),
            options.target,
            PEERS,
            threads=options.threads,
            rounds=options.rounds,
            options={"frozen": str(lock)},
            check_errors=False,
        )
    single = 1.0
    if report.single_seconds and report.seconds:
        single = report.single_seconds / report.seconds
    return Row(
        name,
        report.winner,
        report.finalists[0].regions,
        found.ours.median_seconds,
        min(peer.ratio for peer in found.peers.values()),
        single,
        cold,
        warm,
        _prediction_error(report.finalists),
    )


def _prediction_error(finalists) -> float | None:
    """Return the median error of all mixed plans that were run; None without any."""
    errors = [
        abs(plan.predicted_seconds / plan.seconds - 1)
        for plan in finalists
        if plan.predicted_seconds and plan.seconds
    ]
    return statistics.median(errors) if errors else None


def print_row(row: Row) -> None:
    """Print one network."""
    error = "-" if row.prediction_error is None else f"{row.prediction_error:.1%}"
    print(
        f"| {row.name} | {row.winner} | {row.regions} | {row.seconds * 1e3:.2f} | "
        f"{row.best_peer:.3f} | {row.best_single:.3f} | {row.cold_seconds:.1f} | "
        f"{row.warm_seconds:.1f} | {error} |",
        flush=True,
    )


def summarise(rows: list[Row]) -> int:
    """Print means and worst cases; return 1 if one is below its bar."""
    mean = math.exp(statistics.fmean(math.log(row.best_peer) for row in rows))
    single = math.exp(statistics.fmean(math.log(row.best_single) for row in rows))
    errors = [row.prediction_error for row in rows if row.prediction_error is not None]
    error = statistics.median(errors) if errors else 0.0
    figures = (
        ("best peer, geometric mean", mean, mean >= PEER_BAR),
        ("best peer, worst", *_least(rows, "best_peer", WORST_BAR)),
        ("best single, geometric mean", single, True),
        ("best single, worst", *_least(rows, "best_single", SINGLE_BAR)),
        ("cold tuning, longest, s", *_most(rows, "cold_seconds", COLD_BAR)),
        ("warm tuning, longest, s", *_most(rows, "warm_seconds", WARM_BAR)),
        ("prediction, median error", error, error <= PREDICTION_BAR),
    )
    print()
    for name, value, is_met in figures:
        print(f"{name}: {value:.3f}{'' if is_met else '  BELOW THE BAR'}")
    return 0 if all(is_met for *_, is_met in figures) else 1


def _least(rows: list[Row], field: str, bar: float) -> tuple[float, bool]:
    value = min(getattr(row, field) for row in rows)
    return value, value >= bar


def _most(rows: list[Row], field: str, bar: float) -> tuple[float, bool]:
    value = max(getattr(row, field) for row in rows)
    return value, value <= bar


def race_statistics(options: argparse.Namespace) -> int:
    """Race the plans of two backends many times, and one of them against itself."""
    backends = load_backends()
    setting = make_setting(
        model_file(options.statistics, options.out),
        resolve_targets(options.target, None, backends),
        backends,
        Wishes(),
        num_threads=options.threads,
        tell=quiet,
    )
    plans = [plan for plan in single_plans(setting) if plan.single >= 0][:2]
    probes = [Probe(plan.calls) for plan in plans]
    with Laboratory(setting) as lab:
        lab.prepare(probes)

        def take(rounds: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
            seconds = lab.race(probes, rounds=rounds).seconds
            return seconds[probes[0]], seconds[probes[1]]

        false_alarms, winners, every = 0, [], ([], [])
        for _ in range(options.trials):
            one, other = take(24)
            every[0].extend(one)
            every[1].extend(other)
            winners.append(paired_ratio(one, other).value < 1)
            equal = take(48)[0]  # its even and odd rounds are two plans that are equal

            def measure(keys, rounds, samples=(equal[::2], equal[1::2])):
                return {key: samples[key][:rounds] for key in keys}

            accepted = confirm(0, (1,), measure, looks=(24,)).is_accepted
            false_alarms += accepted or confirm(1, (0,), measure, looks=(24,)).is_accepted
    truth = paired_ratio(*every)
    wrong = sum(winner != (truth.value < 1) for winner in winners) / len(winners)
    difference = abs(math.log(truth.value))
    print(f"{plans[0].name} through {plans[1].name}: {truth}")
    print(f"equal plans declared different: {false_alarms / options.trials:.1%}")
    note = "" if difference > math.log(1.05) else " (they differ by less than 5%)"
    print(f"wrong winner: {wrong:.1%} of {len(winners)} trials{note}")
    return 0


MUST_MIX = """<ir_version: 9, opset_import: ["" : 20]>
must_mix (float[1,32,64,64] x) => (float[1,200] y, int64[1,200] where)
<float[4] sizes = {1.0, 1.0, 2.0, 2.0}, int64[1] count = {200}> {
    [enlarge] a = Resize<mode = "cubic">(x, , sizes)
    [again] b = Resize<mode = "cubic">(a, , sizes)
    [flat] c = Flatten(b)
    [largest] y, where = TopK(c, count)
}"""
"""Cubic resizing is several times as fast on OpenVINO, the largest of many on ONNX Runtime."""

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
