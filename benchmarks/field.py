# SPDX-License-Identifier: Apache-2.0
"""The field: twenty networks in every runtime that can be had, each in a process of its own.

    python benchmarks/field.py --install FOLDER
    python benchmarks/field.py --venvs FOLDER --keep RESULTS.jsonl [NETWORK ...] [--threads 2]
    python benchmarks/field.py --keep RESULTS.jsonl --table

`--install` makes a virtual environment for each runtime that ours does not bring (about 9 GB in
all), with the versions that `PEERS` pins; without it, ours, ONNX Runtime and OpenVINO run. Networks
are in the operator set that exporters write today. Each runtime has its best plain settings: those
that its documentation names for the shortest latency of one request, no search that takes hours,
nothing narrower than float32. They take turns, in an order drawn anew for each round; a figure is
the median of the rounds' median runs, a ratio that of the rounds' ratios with its interval of 95 %.
Outputs are compared with ONNX's reference evaluator in float64: numbers that are off by more than
1e-3 of the largest one are called wrong, and their times do not count. What a runtime does not
convert is told in its own words. A network that is done is written to `--keep`, and the same
command goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from random import Random
from typing import IO, Any

import numpy as np
import onnx
from onnx import version_converter

from intarsia.backends.float64 import evaluate
from intarsia.bench.models import BenchModel, make_bench_model
from intarsia.cost.machine import find_cpu
from intarsia.errors import IntarsiaError
from intarsia.files import whole_file
from intarsia.measure.racing import paired_ratio, take_round
from intarsia.zoo import build

# fmt: off
NETWORKS = (
    "squeezenet", "shufflenet", "mobilenet_v2", "resnet18", "resnet50", "densenet121",
    "inception_v1", "inception_v2", "vgg19", "detector", "deit_small", "vit_b16", "swin_tiny",
    "segformer_b0", "mobilevit_small", "efficientformer_l1", "minilm", "bert_base", "gpt2",
    "whisper_encoder",
)
# fmt: on

HERE = ("intarsia", "intarsia-llvm", "onnxruntime", "openvino")
"""Runtimes that run under the Python of this process."""

PEERS: dict[str, tuple[str, ...]] = {
    "mnn": ("MNN==3.6.1", "numpy"),
    "ncnn": ("ncnn==1.0.20261020", "pnnx==20261020", "numpy"),
    "litert": ("ai-edge-litert==2.3.0", "onnx2tf==1.29.24"),
    "iree": ("iree-base-compiler[onnx]==3.13.0", "iree-base-runtime==3.13.0"),
    "inductor": ("torch==2.14.1", "torchvision==0.29.1", "onnx2torch==1.5.15"),
    "tvm": ("apache-tvm==0.27.0.post1", "onnx", "numpy"),
}
"""Packages of runtimes that have an environment of their own."""

PART_OF_LARGEST = 1e-3
"""How far numbers may be off, as a part of the largest one."""

OPERATOR_SET = 17
"""Older networks are converted: some converters read only what exporters write today."""

BLOCK_SECONDS = 0.3
SET_UP_SECONDS = 600
ROUND_SECONDS = 120


@dataclass
class Row:
    """What became of a network in a runtime.

    Attributes:
        network: Its name.
        runtime: Likewise.
        threads: Of one run.
        version: Of the runtime's package.
        seconds: The median run of each round.
        set_up_seconds: Reading, converting, compiling and the first run.
        error: Largest difference to float64, as a part of the largest number.
        why: What refused the network, or what went wrong; empty if nothing did.
    """

    network: str
    runtime: str
    threads: int
    version: str = ""
    seconds: list[float] = field(default_factory=list)
    set_up_seconds: float = 0.0
    error: float = 0.0
    why: str = ""


class RuntimeProcess:
    """A runtime's process; a deadline ends it."""

    def __init__(self, python: Path, runtime: str, arguments: Sequence[str]) -> None:
        script = str(Path(__file__).with_name("field_runtimes.py"))
        self._log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", script, runtime, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip

    def __enter__(self) -> RuntimeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def answer(self, seconds: float, question: str = "") -> Any:
        """Send a line, and return what comes back; raise `EOFError` if the process ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            if question:
                self._process.stdin.write(question + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._log.seek(0)
        last = (self._log.read().strip().splitlines() or [""])[-1][:200]
        raise EOFError(f"its process ended with {code} (limit {seconds:g} s): {last}".rstrip(": "))


def measure(
    model: BenchModel, runtimes: dict[str, Path], rounds: int, threads: int
) -> Iterator[Row]:
    """Yield what becomes of a network in each runtime."""
    proto = onnx.load(model.path)
    names = [output.name for output in proto.graph.output]
    expected = dict(zip(names, evaluate(proto, model.feeds), strict=True))
    rows = {name: Row(model.name, name, threads) for name in runtimes}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        np.savez(folder / "inputs.npz", **model.feeds)
        subjects: dict[str, RuntimeProcess] = {}
        for name, python in runtimes.items():
            own, row = folder / name, rows[name]
            own.mkdir()
            outputs = own / "outputs.npz"
            arguments = [model.path, folder / "inputs.npz", outputs, own, threads, *names]
            subject = stack.enter_context(RuntimeProcess(python, name, [*map(str, arguments)]))
            try:
                facts = subject.answer(SET_UP_SECONDS)
            except EOFError as error:
                facts = {"error": str(error)}
            row.why = facts.get("error", "").replace(str(folder), "FOLDER")
            row.version, row.set_up_seconds = (
                facts.get("version", ""),
                facts.get("set_up_seconds", 0.0),
            )
            if not row.why:
                row.why, row.error = judge(expected, outputs)
            if not row.why:
                subjects[name] = subject
            print(f"  {name}: {row.why or f'ready in {row.set_up_seconds:.1f} s'}", file=sys.stderr)

        def take(name: str) -> float:
            try:
                times = subjects[name].answer(ROUND_SECONDS, str(BLOCK_SECONDS))
            except EOFError as error:
                rows[name].why = str(error)
                return float("nan")
            return statistics.median(times[len(times) > 1 :]) / 1e3

        random = Random(0)
        for _ in range(rounds):
            for name, seconds in take_round([*subjects], take, random).items():
                rows[name].seconds.append(seconds)
    yield from rows.values()


def judge(expected: dict[str, Any], outputs: Path) -> tuple[str, float]:
    """Return what is wrong with a runtime's outputs, and how far they are off."""
    with np.load(outputs) as arrays:
        actual = {name: arrays[name] for name in arrays.files}
    largest = 0.0
    for name, wanted in expected.items():
        if name not in actual:
            return f"output '{name}' is missing", 0.0
        computed = actual[name].astype(np.float64)
        if computed.shape != wanted.shape:
            if computed.size != wanted.size:
                return f"output '{name}' is {[*computed.shape]}, not {[*wanted.shape]}", 0.0
            computed = computed.reshape(wanted.shape)  # a dimension of one is lost on the way
        scale = max(float(np.abs(wanted).max()), 1e-30)
        off = float(np.abs(computed - wanted).max()) / scale
        if not off <= PART_OF_LARGEST:  # NaN is not
            return f"wrong numbers: off by {off:.1e} of the largest", off
        largest = max(largest, off)
    return "", largest


def print_table(rows: Sequence[Row]) -> None:
    """Print the medians as Markdown, the ratios to ours, and what did not run."""
    runtimes = list(dict.fromkeys(row.runtime for row in rows))
    for threads in sorted({row.threads for row in rows}):
        at = {(row.network, row.runtime): row for row in rows if row.threads == threads}
        networks = list(dict.fromkeys(network for network, _ in at))
        print(f"\n{threads} thread{'s' * (threads > 1)}, milliseconds; the fastest is bold\n")
        print("| network | " + " | ".join(runtimes) + " | best peer over ours |")
        print("|---" + "|---:" * (len(runtimes) + 1) + "|")
        ratios = []
        for network in networks:
            times = {
                name: statistics.median(row.seconds)
                for name in runtimes
                if (row := at.get((network, name))) and row.seconds and not row.why
            }
            best = min(times.values(), default=0.0)
            cells = [
                "-" if name not in times
                else f"**{1e3 * times[name]:.2f}**" if times[name] == best
                else f"{1e3 * times[name]:.2f}"
                for name in runtimes
            ]  # fmt: skip
            peers = [name for name in times if not name.startswith("intarsia")]
            text = "-"
            if "intarsia" in times and peers:
                peer = min(peers, key=times.__getitem__)
                ratio = paired_ratio(at[network, peer].seconds, at[network, "intarsia"].seconds)
                ratios.append(ratio.value)
                text = f"{ratio} {peer}"
            print(f"| {network} | " + " | ".join(cells) + f" | {text} |")
        if ratios:
            middle = statistics.geometric_mean(ratios)
            lost = sum(ratio < 1 for ratio in ratios)
            print(
                f"\nOf the best peer of each network: {middle:.3f} (geometric mean), worst "
                f"{min(ratios):.3f}; {lost} of {len(ratios)} lost."
            )
    print("\n| runtime | version | networks | set-up, seconds, median |")
    print("|---|---|---:|---:|")
    for name in runtimes:
        right = [row for row in rows if row.runtime == name and not row.why]
        version = next((row.version for row in rows if row.runtime == name and row.version), "-")
        middle = statistics.median([row.set_up_seconds for row in right] or [0.0])
        everything = sum(row.runtime == name for row in rows)
        print(f"| {name} | {version} | {len(right)} of {everything} | {middle:.1f} |")
    print("\n| network | runtime | what became of it |\n|---|---|---|")
    for row in rows:
        if row.why:
            print(f"| {row.network} | {row.runtime} | {row.why.replace('|', '/')} |")


def modern(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in an operator set of today."""
    if any(each.domain == "" and each.version < OPERATOR_SET for each in proto.opset_import):
        return version_converter.convert_version(proto, OPERATOR_SET)
    return proto


def install(folder: Path) -> None:
    """Make an environment for each peer that has one of its own."""
    for name, packages in PEERS.items():
        place = folder / name
        if (place / "bin" / "python").exists():
            continue
        print(f"{name}: {' '.join(packages)}", file=sys.stderr)
        venv.create(place, with_pip=True)
        pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", *packages]
        if subprocess.run([*map(str, pip)], check=False).returncode:
            print(f"{name}: not installed", file=sys.stderr)


def available(folder: Path | None) -> dict[str, Path]:
    """Return the runtimes that are here, by name, with the Python that each runs under."""
    python = Path(sys.executable)
    runtimes = dict.fromkeys(HERE, python)
    for name in PEERS if folder else ():
        assert folder is not None
        path = folder / name / "bin" / "python"
        if path.exists():
            runtimes[name] = path
    return runtimes


def main() -> int:
    """Install, measure or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--install", type=Path, metavar="FOLDER")
    parser.add_argument("--venvs", type=Path, metavar="FOLDER")
    parser.add_argument("--only", action="append", metavar="RUNTIME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.install:
        install(options.install)
        return 0
    rows: list[Row] = []
    if options.keep and options.keep.exists():
        rows = [Row(**json.loads(line)) for line in options.keep.read_text().splitlines()]
    done = {(row.network, row.threads, row.runtime) for row in rows}
    runtimes = available(options.venvs)
    if options.only:
        runtimes = {name: runtimes[name] for name in options.only}
    for name in () if options.table else options.networks:
        if all((name, options.threads, runtime) in done for runtime in runtimes):
            continue
        # Ratios are of rounds that all had: what was measured without one is measured again.
        rows = [row for row in rows if (row.network, row.threads) != (name, options.threads)]
        print(name, file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            path.write_bytes(modern(build(name)).SerializeToString())
            model = make_bench_model(path, Path(folder))
            fresh = [*measure(model, runtimes, options.rounds, options.threads)]
        rows += fresh
        if options.keep:
            lines = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
            with whole_file(options.keep) as draft:
                draft.write_text(lines)
    print(f"{find_cpu().model}, {date.today()}")
    print_table(rows)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except IntarsiaError as error:
        sys.exit(str(error))
