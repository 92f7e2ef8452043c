# SPDX-License-Identifier: Apache-2.0
"""The zoo on oneDNN against ONNX Runtime and OpenVINO, and what each primitive takes.

    python benchmarks/dnnl.py [--networks resnet50 vgg19] [--rounds 7] [--threads 1 2] [--json FILE]
    python benchmarks/dnnl.py --primitives --networks resnet50 [--each]

Each runtime has a process of its own, and they take turns; a ratio is the peer's time through ours.
`--primitives` prints instead what oneDNN's own log says: per kind of implementation the number of
primitives, the time and its share, what the region takes beside its primitives, and the reorders at
its border and inside it. `--each` adds a row per primitive. Exits with 1 if a network of the bar is
below it against either peer with its whole interval.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np

import intarsia
from intarsia.backends.device import HostDevice, ThreadOptions
from intarsia.backends.dnnl.backend import DnnlBackend
from intarsia.backends.dnnl.forms import AssemblyBuffer, PrimitiveStep, Room
from intarsia.backends.dnnl.library import driver
from intarsia.bench.compare import Comparison
from intarsia.bench.compare import compare as compare_runtimes
from intarsia.bench.models import make_bench_model
from intarsia.errors import IntarsiaError
from intarsia.settings import Settings
from intarsia.zoo import build
from zoo import print_head, print_rows  # the script beside this one

TARGETS = ("dnnl, onnxruntime", "dnnl, llvm")
PEERS = ("onnxruntime", "openvino")
NETWORKS = (
    *("resnet50", "inception_v1", "inception_v2", "vgg19", "alexnet", "densenet121"),
    *("mobilenet_v2", "shufflenet", "squeezenet", "zfnet512", "detector", "minilm", "bert_base"),
)
BARS = {"resnet50": 1.1, "inception_v1": 1.1, "inception_v2": 1.1, "vgg19": 1.0}
_RUN = "intarsia-run"
_REORDERS = "intarsia-reorders"


def main() -> int:
    """Print Markdown tables, and return 1 if a network is below its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", metavar="NAME", default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--primitives", action="store_true")
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--log", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    paths = {name: _path(name, options.out) for name in options.networks}
    if options.log:
        for path in paths.values():
            log(path, options.threads[0], options.rounds)
        return 0
    library = driver(Settings.from_environment())
    print(f"oneDNN {'.'.join(map(str, library.version))}: {library.path} ({library.why})\n")
    if options.primitives:
        for name in paths:
            for threads in options.threads:
                print_primitives(name, threads, options)
        return 0
    return compare(paths, options)


def _path(name: str, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    if not path.exists():
        path.write_bytes(build(name).SerializeToString())
    return path


def compare(paths: dict[str, Path], options: argparse.Namespace) -> int:
    """Print a row per network, target, number of threads and peer."""
    comparisons: list[Comparison] = []
    below = []
    for threads in options.threads:
        print(f"{threads} thread{'s' * (threads > 1)}:\n")
        print_head()
        for name, path in paths.items():
            for target in TARGETS:
                try:
                    comparison = measure(path, target, threads, options)
                except IntarsiaError as error:
                    print(f"| {name} | {target} | | | | | | {error.message} |", flush=True)
                    below.append(f"{name} for {target}")
                    continue
                comparisons.append(comparison)
                print_rows(name, comparison)
                if any(peer.high < BARS.get(name, 0) for peer in comparison.peers.values()):
                    below.append(f"{name} for {target}, {threads} threads")
        print()
    if comparisons:
        print(f"{comparisons[0].machine}; {options.rounds} rounds")
    if options.json:
        options.json.write_text(json.dumps(msgspec.to_builtins(comparisons), indent=1))
    if below:
        print(f"below the bar: {'; '.join(below)}", file=sys.stderr)
    return 1 if below else 0


def measure(path: Path, target: str, threads: int, options: argparse.Namespace) -> Comparison:
    """Return one comparison; the reference of float64 is slow, and is asked for by `--errors`."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_bench_model(path, Path(folder))
        return compare_runtimes(
            *(model, target, PEERS),
            threads=threads,
            rounds=options.rounds,
            check_errors=options.errors,
        )


def log(path: Path, threads: int, runs: int) -> None:
    """Have oneDNN print the primitives of some runs, each after a line with what it took unlogged.

    The last lines name the reorders of each region: those that read or write its border, and
    those inside.
    """
    exe = intarsia.compile(path, TARGETS[0], num_threads=threads)
    rng = np.random.default_rng(0)
    feeds = {
        spec.name: rng.standard_normal(spec.shape).astype(spec.dtype)
        if spec.dtype == "float32"
        else np.ones(spec.shape or (), spec.dtype)
        for spec in exe.inputs
    }
    exe.run(feeds)
    context = exe.context(inputs=feeds)
    for _ in range(runs):
        start = time.perf_counter()
        context.run()
        print(_RUN, time.perf_counter() - start, flush=True)
        driver(Settings.from_environment()).call("dnnl_set_verbose", 1)
        context.run()
        driver(Settings.from_environment()).call("dnnl_set_verbose", 0)
    for artifact in exe.artifacts:
        if artifact.backend != DnnlBackend.name:
            continue
        made = (
            DnnlBackend(Settings.from_environment())
            .load(artifact, HostDevice(ThreadOptions(threads)))
            .assembly
        )
        rooms = [_ends(made.buffers, step) for step in made.steps if not step.nodes]
        inside = sum(ends == {Room.INNER} for ends in rooms)
        print(f"{_REORDERS} {len(made.steps)} {len(rooms) - inside} {inside}", flush=True)


def _ends(buffers: list[AssemblyBuffer], step: PrimitiveStep) -> set[Room]:
    """Return where a reorder reads and writes."""
    return {buffers[argument.form.buffer].room for argument in step.arguments}


def print_primitives(name: str, threads: int, options: argparse.Namespace) -> None:
    """Print tables of one network's primitives: the least of some runs each."""
    command = [sys.executable, __file__, "--log", "--networks", name, "--threads", str(threads)]
    command += ["--rounds", str(options.rounds), "--out", str(options.out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    walls, runs, reorders = [], [], []
    for line in done.stdout.splitlines():
        fields = line.split(",")
        if line.startswith(_RUN):
            walls.append(float(line.split()[1]) * 1e3)
            runs.append([])
        elif line.startswith(_REORDERS):
            reorders.append([int(field) for field in line.split()[1:]])
        elif fields[0] == "onednn_verbose" and "exec" in fields[1:4] and runs:
            runs[-1].append(fields[fields.index("exec") :])
    rows = []
    for same in zip(*runs, strict=True):
        _, _, kind, implementation, *_, problem, _ = same[0]
        rows.append((kind, implementation, problem, min(float(fields[-1]) for fields in same)))
    total = sum(row[3] for row in rows)
    logged = min(sum(float(fields[-1]) for fields in run) for run in runs)
    print(f"{name}, {threads} thread{'s' * (threads > 1)}:\n")
    print("| primitive | implementation | number | ms | share |\n|---|---|---:|---:|---:|")
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for kind, implementation, _, milliseconds in rows:
        groups[kind, implementation].append(milliseconds)
    for (kind, implementation), times in sorted(groups.items(), key=lambda item: -sum(item[1])):
        share = sum(times) / total
        print(f"| {kind} | {implementation} | {len(times)} | {sum(times):.3f} | {share:.1%} |")
    if options.each:
        print("\n| primitive | implementation | problem | ms |\n|---|---|---|---:|")
        for kind, implementation, problem, milliseconds in rows:
            print(f"| {kind} | {implementation} | {problem} | {milliseconds:.3f} |")
    wall = min(walls)
    print(
        f"\nThe least of {len(walls)}: {total:.2f} ms for each primitive's own least, "
        f"{logged:.2f} ms for a run's primitives, {wall:.2f} ms for the whole plan without the "
        "log, so that "
        f"{wall - logged:+.2f} ms ({(wall - logged) / wall:+.1%}) lie between."
    )
    for steps, border, inside in reorders:
        print(f"A region of {steps} primitives: {border} reorders at its border, {inside} inside.")
    print(flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
