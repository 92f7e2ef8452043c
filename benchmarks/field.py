# SPDX-License-Identifier: Apache-2.0
"""The field: twenty networks in every runtime that can be had, each in a process of its own.

    python benchmarks/field.py --install FOLDER
    python benchmarks/field.py --venvs FOLDER --keep RESULTS.jsonl [NETWORK ...] [--threads 1 2]
        [--numbers f32 bf16 int8 int4]
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

In narrow numbers a network is what ONNX Runtime's quantiser makes of it: in int8 QDQ, weights by
channel, ranges of two inputs, a last Softmax in float32; in int4 the weights of products in blocks
of 32, of those networks that have such, at the level at which activations may become bytes, as
OpenVINO has them in any case. MNN and, in int8, LiteRT have the float32 network, and
quantise by their own converters. In bfloat16 all have the float32 network and a setting of their
own. Errors are then the root mean square of the difference to the float32 network in float64, as a
part of its own; they are told, and wrong is what is further off than twice what ONNX Runtime makes
of the quantised network without optimisations, or in bfloat16 as far off as the numbers are large.
A deep network of random weights may lose all its numbers to int8 (errors about 1): then only what
is no number, or of another size, counts as wrong. What a runtime computes in float32 all the same,
it has not in bfloat16.
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
from itertools import product
from pathlib import Path
from random import Random
from typing import IO, Any

import numpy as np
import onnx
import onnxruntime
from field_runtimes import FROM_FLOATS
from onnx import version_converter

import intarsia
from intarsia.backends.float64 import evaluate
from intarsia.bench.models import BenchModel, make_bench_model
from intarsia.cost.machine import find_cpu
from intarsia.errors import IntarsiaError
from intarsia.files import whole_file
from intarsia.measure.racing import paired_ratio, take_round
from intarsia.quantizing.quantizers import Scheme, make_quantizer
from intarsia.runtime.feeds import sample_feeds
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
"""How far numbers may be off in float32, as a part of the largest one."""

NUMBERS = ("f32", "bf16", "int8", "int4")
LEAST_BF16 = 1e-4
"""What is less off was computed in float32: one rounding to bfloat16 is off by up to 4e-3."""
BYTES_LEVEL = 4
"""`accuracy_level` of MatMulNBits: activations may be int8."""
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Identity")
SLACK = 0.02
"""What a runtime in integers may be off beyond twice what the quantised network is."""

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
        error: Largest difference to float64, as a part of the largest number; in narrow numbers
            the root mean square of the difference to the float32 network, as a part of its own.
        why: What refused the network, or what went wrong; empty if nothing did.
        numbers: Those that it computes in.
    """

    network: str
    runtime: str
    threads: int
    version: str = ""
    seconds: list[float] = field(default_factory=list)
    set_up_seconds: float = 0.0
    error: float = 0.0
    why: str = ""
    numbers: str = "f32"


@dataclass(frozen=True)
class Subject:
    """A network in some numbers.

    Attributes:
        floats: Its float32 model and its inputs.
        path: The model that most runtimes have.
        numbers: Those that it is to be computed in.
        expected: The float32 model's outputs in float64, by name.
        most: How far off a runtime's may be.
    """

    floats: BenchModel
    path: str
    numbers: str
    expected: dict[str, Any]
    most: float


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
    subject: Subject, runtimes: dict[str, Path], rounds: int, threads: int
) -> Iterator[Row]:
    """Yield what becomes of a network in each runtime."""
    model, numbers = subject.floats, subject.numbers
    rows = {name: Row(model.name, name, threads, numbers=numbers) for name in runtimes}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        np.savez(folder / "inputs.npz", **model.feeds)
        processes: dict[str, RuntimeProcess] = {}
        for name, python in runtimes.items():
            own, row = folder / name, rows[name]
            own.mkdir()
            outputs = own / "outputs.npz"
            path = model.path if (name, numbers) in FROM_FLOATS else subject.path
            arguments = [path, folder / "inputs.npz", outputs, own, threads, numbers]
            arguments += subject.expected
            process = stack.enter_context(RuntimeProcess(python, name, [*map(str, arguments)]))
            try:
                facts = process.answer(SET_UP_SECONDS)
            except EOFError as error:
                facts = {"error": str(error)}
            row.why = facts.get("error", "").replace(str(folder), "FOLDER")
            row.version, row.set_up_seconds = (
                facts.get("version", ""),
                facts.get("set_up_seconds", 0.0),
            )
            if not row.why:
                row.why, row.error = judge(subject, outputs)
            if not row.why:
                processes[name] = process
            print(f"  {name}: {row.why or f'ready in {row.set_up_seconds:.1f} s'}", file=sys.stderr)

        def take(name: str) -> float:
            try:
                times = processes[name].answer(ROUND_SECONDS, str(BLOCK_SECONDS))
            except EOFError as error:
                rows[name].why = str(error)
                return float("nan")
            return statistics.median(times[len(times) > 1 :]) / 1e3

        random = Random(0)
        for _ in range(rounds):
            for name, seconds in take_round([*processes], take, random).items():
                rows[name].seconds.append(seconds)
    yield from rows.values()


def judge(subject: Subject, outputs: Path) -> tuple[str, float]:
    """Return what is wrong with a runtime's outputs, and how far they are off."""
    with np.load(outputs) as arrays:
        actual = {name: arrays[name] for name in arrays.files}
    largest = 0.0
    for name, wanted in subject.expected.items():
        if name not in actual:
            return f"output '{name}' is missing", 0.0
        computed = actual[name].astype(np.float64)
        if computed.shape != wanted.shape:
            if computed.size != wanted.size:
                return f"output '{name}' is {[*computed.shape]}, not {[*wanted.shape]}", 0.0
            computed = computed.reshape(wanted.shape)  # a dimension of one is lost on the way
        off = distance(computed, wanted, subject.numbers)
        if not off <= subject.most:  # NaN is not
            return f"wrong numbers: off by {off:.1e} of {_unit(subject.numbers)}", off
        largest = max(largest, off)
    if subject.numbers == "bf16" and largest < LEAST_BF16:
        return f"computes in float32 all the same: off by {largest:.1e}", largest
    return "", largest


def distance(computed: Any, wanted: Any, numbers: str) -> float:
    """Return how far an output is off: at most in float32, in others by root mean squares."""
    if numbers == "f32":
        return float(np.abs(computed - wanted).max() / max(np.abs(wanted).max(), 1e-30))
    return float(np.sqrt(np.mean((computed - wanted) ** 2) / max(np.mean(wanted**2), 1e-60)))


def _unit(numbers: str) -> str:
    return "the largest" if numbers == "f32" else "their root mean square"


def make_subject(floats: BenchModel, numbers: str, folder: Path) -> Subject | None:
    """Return a network in some numbers; None if nothing of it would be in them."""
    proto = onnx.load(floats.path)
    names = [output.name for output in proto.graph.output]
    expected = dict(zip(names, evaluate(proto, floats.feeds), strict=True))
    if numbers in ("f32", "bf16"):
        most = PART_OF_LARGEST if numbers == "f32" else 1.0
        return Subject(floats, floats.path, numbers, expected, most)
    specs = intarsia.compile(floats.path, "onnxruntime", cache=False).inputs
    samples = [sample_feeds(specs, seed) for seed in (1, 2)]
    left = last_softmax(proto)
    narrow = make_quantizer(Scheme(to=numbers), proto, samples)[0].quantize(left)
    if not any(node.op_type in ("DequantizeLinear", "MatMulNBits") for node in narrow.graph.node):
        return None
    for node in narrow.graph.node:
        if node.op_type == "MatMulNBits":
            node.attribute.append(onnx.helper.make_attribute("accuracy_level", BYTES_LEVEL))
    path = folder / f"{numbers}.onnx"
    onnx.save(narrow, path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    made = dict(zip(names, plain.run(names, dict(floats.feeds)), strict=True))
    own = max(distance(made[name], expected[name], numbers) for name in names)
    return Subject(floats, str(path), numbers, expected, 2 * own + SLACK)


def last_softmax(proto: onnx.ModelProto) -> frozenset[str]:
    """Return the names of a Softmax that makes an output, and of what reshapes it; name nodes.

    ONNX Runtime gives a Softmax steps of 1/256: of a thousand classes nothing would be left.
    """
    makers = {}
    for number, node in enumerate(proto.graph.node):
        node.name = node.name or f"node_{number}"
        makers |= dict.fromkeys(node.output, node)
    found: set[str] = set()
    for output in proto.graph.output:
        chain, name = set(), output.name
        while name in makers and makers[name].op_type in (*_RESHAPES, "Softmax"):
            chain.add(makers[name].name)
            if makers[name].op_type == "Softmax":
                found |= chain
                break
            name = makers[name].input[0]
    return frozenset(found)


def print_table(rows: Sequence[Row]) -> None:
    """Print the medians as Markdown, the ratios to ours, and what did not run."""
    runtimes = list(dict.fromkeys(row.runtime for row in rows))
    for numbers, threads in sorted(
        {(row.numbers, row.threads) for row in rows},
        key=lambda one: (NUMBERS.index(one[0]), one[1]),
    ):
        chosen = [row for row in rows if (row.numbers, row.threads) == (numbers, threads)]
        at = {(row.network, row.runtime): row for row in chosen}
        networks = list(dict.fromkeys(network for network, _ in at))
        how = f"{numbers}, {threads} thread{'s' * (threads > 1)}"
        print(f"\n{how}, milliseconds; the fastest is bold\n")
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
        if numbers != "f32":
            print_errors(at, networks, runtimes, how)
    print("\n| runtime | version | networks | set-up, seconds, median |")
    print("|---|---|---:|---:|")
    for name in runtimes:
        right = [row for row in rows if row.runtime == name and not row.why]
        version = next((row.version for row in rows if row.runtime == name and row.version), "-")
        middle = statistics.median([row.set_up_seconds for row in right] or [0.0])
        everything = sum(row.runtime == name for row in rows)
        print(f"| {name} | {version} | {len(right)} of {everything} | {middle:.1f} |")
    print("\n| network | numbers | runtime | what became of it |\n|---|---|---|---|")
    for why in dict.fromkeys(
        f"{row.network} | {row.numbers} | {row.runtime} | {row.why.replace('|', '/')}"
        for row in rows
        if row.why
    ):
        print(f"| {why} |")


def print_errors(
    at: dict[tuple[str, str], Row], networks: Sequence[str], runtimes: Sequence[str], how: str
) -> None:
    """Print how far off each runtime is in narrow numbers."""
    print(f"\n{how}: the difference to float32, as a part of it (root mean squares)\n")
    print("| network | " + " | ".join(runtimes) + " |\n|---" + "|---:" * len(runtimes) + "|")
    for network in networks:
        found = (at.get((network, name)) for name in runtimes)
        cells = [
            f"{row.error:.1e}" if row and row.seconds and not row.why else "-" for row in found
        ]
        print(f"| {network} | " + " | ".join(cells) + " |")


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
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--numbers", nargs="+", choices=NUMBERS, default=NUMBERS)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.install:
        install(options.install)
        return 0
    rows: list[Row] = []
    if options.keep and options.keep.exists():
        rows = [Row(**json.loads(line)) for line in options.keep.read_text().splitlines()]
    runtimes = available(options.venvs)
    if options.only:
        runtimes = {name: runtimes[name] for name in options.only}
    for numbers, name in () if options.table else product(options.numbers, options.networks):
        done = {(one.network, one.numbers, one.threads, one.runtime) for one in rows}
        left = [
            threads
            for threads in options.threads
            if not all((name, numbers, threads, runtime) in done for runtime in runtimes)
        ]
        if not left:
            continue
        print(f"{name}, {numbers}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            path = folder / f"{name}.onnx"
            path.write_bytes(modern(build(name)).SerializeToString())
            subject = make_subject(make_bench_model(path, folder), numbers, folder)
            if subject is None:
                print("  nothing of it would be in these numbers", file=sys.stderr)
                continue
            for threads in left:
                # Ratios are of rounds that all had: with a runtime more, all are measured again.
                key = (name, numbers, threads)
                rows = [row for row in rows if (row.network, row.numbers, row.threads) != key]
                rows += measure(subject, runtimes, options.rounds, threads)
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
