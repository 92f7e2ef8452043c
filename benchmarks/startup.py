# SPDX-License-Identifier: Apache-2.0
"""What a session costs until it is ready: CPU seconds and wall time, over ONNX Runtime's.

Each sample is a fresh interpreter that imports a library and opens a model; its CPU time is that of
the process and its children, user and system. All take turns within a round; the figures are
ratios of medians. *Cold* is an empty folder of kernels and programs, *warm* the same again. What is
tried once on each machine, libraries in processes of their own, is done before and printed apart.
Bytecode is written beforehand, as pip does.

Then from the start of a process to the first output, with one thread: a package on `llvm`, and the
same found among the caches, over ONNX Runtime's session on the model; both figures are of the
process until it has the output.

    python benchmarks/startup.py [--rounds 5] [--model MODEL.onnx] [--first] [--limits] [--json]
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import intarsia
from intarsia.measure.racing import take_turns
from intarsia.zoo import build

TARGETS = (None, "onnxruntime", "openvino, onnxruntime")
LIMITS = {"warm": 1.5, "cold": 6.0}
"""CPU time of the default target, over ONNX Runtime's."""

FIRST = {"resnet50": "1,3,224,224", "minilm:free": "1,128"}
"""Networks whose first output is timed, with the shape of their inputs."""
FIRST_LIMIT = 1.2
"""How many times ONNX Runtime's time over that of a package."""

_FEEDS = (
    "import sys, time\nimport numpy as np\n"
    "shape = tuple(map(int, sys.argv[2].split(',')))\n"
    "dtype = np.float32 if len(shape) == 4 else np.int64\n"
)
_PRINT = "print(time.process_time(), time.time())\n"
FIRST_OUTPUT = {
    "onnxruntime": f"{_FEEDS}import onnxruntime\n"
    "options = onnxruntime.SessionOptions()\noptions.intra_op_num_threads = 1\n"
    "session = onnxruntime.InferenceSession(sys.argv[1], options)\n"
    "names = [one.name for one in session.get_inputs()]\n"
    f"session.run(None, {{name: np.ones(shape, dtype) for name in names}})\n{_PRINT}",
    "package": f"{_FEEDS}import intarsia\nexe = intarsia.load(sys.argv[1], num_threads=1)\n"
    f"exe.run({{spec.name: np.ones(shape, dtype) for spec in exe.inputs}})\n{_PRINT}",
    "cached": f"{_FEEDS}import intarsia\n"
    "exe = intarsia.compile(sys.argv[1], 'llvm', num_threads=1)\n"
    f"exe.run({{spec.name: np.ones(shape, dtype) for spec in exe.inputs}})\n{_PRINT}",
}

OURS = (
    "import sys, intarsia\n"
    "intarsia.InferenceSession(sys.argv[1], targets=sys.argv[2] if sys.argv[2:] else None)\n"
)
PEERS = {
    "onnxruntime": "import sys, onnxruntime\nonnxruntime.InferenceSession(sys.argv[1])\n",
    "openvino": "import sys, openvino\nopenvino.Core().compile_model(sys.argv[1], 'CPU')\n",
}
COMPILED = ("installed", "kernels", "programs")
"""Kinds of entries of the cache that a cold start does without."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one process: CPU seconds of it and its children, and wall time."""

    cpu: float
    wall: float


def measure(code: str, arguments: list[str], cache: Path) -> Sample:
    """Return what a fresh interpreter takes."""
    environment = {**os.environ, "INTARSIA_CACHE_DIR": str(cache)}  # noqa: TID251
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments}: exit {process.returncode}")
    return Sample(usage.ru_utime + usage.ru_stime, wall)


def run(model: str, rounds: int, folder: Path) -> dict[str, list[Sample]]:
    """Return the samples of each start, by what it is called."""
    cache = folder / "cache"
    samples: dict[str, list[Sample]] = {}
    for target in TARGETS:
        arguments = [model, *filter(None, [target])]
        samples[f"{target or 'default'}, first on a machine"] = [measure(OURS, arguments, cache)]

    def start(subject: tuple[str, str | None]) -> dict[str, Sample]:
        runtime, target = subject
        if runtime in PEERS:
            return {runtime: measure(PEERS[runtime], [model], cache)}
        for kind in COMPILED:
            shutil.rmtree(cache / kind, ignore_errors=True)
        arguments = [model, *filter(None, [target])]
        name = target or "default"
        return {f"{name}, {state}": measure(OURS, arguments, cache) for state in ("cold", "warm")}

    subjects = [*((peer, None) for peer in PEERS), *(("intarsia", target) for target in TARGETS)]
    for starts in take_turns(subjects, start, rounds).values():
        for name in starts[0]:
            samples[name] = [each[name] for each in starts]
    return samples


def run_first(rounds: int, folder: Path) -> dict[str, dict[str, Sample]]:
    """Return the medians up to the first output, by network and by what is started."""
    environment = {**os.environ, "INTARSIA_CACHE_DIR": str(folder / "cache")}  # noqa: TID251
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    medians = {}
    for network, shape in FIRST.items():
        model, package = folder / "first.onnx", folder / "first.intarsia"
        model.write_bytes(build(network).SerializeToString())
        code = (
            "import sys, intarsia\n"
            "intarsia.compile(sys.argv[1], 'llvm', num_threads=1).save(sys.argv[2])\n"
        )
        command = [sys.executable, "-c", code, str(model), str(package)]
        subprocess.run(command, env=environment, check=True)
        time.sleep(3)  # what was just written is not remembered as read

        def start(
            kind: str, shape: str = shape, model: Path = model, package: Path = package
        ) -> Sample:
            file = package if kind == "package" else model
            command = [sys.executable, "-c", FIRST_OUTPUT[kind], str(file), shape]
            begin = time.time()
            done = subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            )
            cpu, end = map(float, done.stdout.split()[-2:])
            return Sample(cpu, end - begin)

        for kind in FIRST_OUTPUT:
            start(kind)  # the second is the first warm one
        medians[network] = {
            kind: Sample(
                statistics.median(one.cpu for one in taken),
                statistics.median(one.wall for one in taken),
            )
            for kind, taken in take_turns(list(FIRST_OUTPUT), start, rounds).items()
        }
    return medians


def print_first(medians: dict[str, dict[str, Sample]]) -> bool:
    """Print the medians up to the first output; return whether the limit holds."""
    is_met = True
    print("\nto the first output, one thread             CPU s  wall s  ONNX Runtime's over it")
    for network, by_kind in medians.items():
        peer = by_kind["onnxruntime"]
        for kind, median in by_kind.items():
            ratio = peer.cpu / median.cpu
            is_met &= kind != "package" or ratio >= FIRST_LIMIT
            print(
                f"{network + ', ' + kind:42s} {median.cpu:5.2f}  {median.wall:6.2f}"
                f" {ratio:5.2f} {peer.wall / median.wall:5.2f}"
            )
    return is_met


def main() -> int:
    """Print the medians and their ratios; return 1 if a limit is to hold and does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", type=Path, help="default: ResNet-18 of the zoo")
    parser.add_argument("--limits", action="store_true", help="fail above the limits")
    parser.add_argument("--first", action="store_true", help="only up to the first output")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    compileall.compile_dir(Path(intarsia.__file__).parent, quiet=2)
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), options.model
        first = run_first(options.rounds, folder)
        if options.first:
            return int(not print_first(first) and options.limits)
        if model is None:
            model = folder / "resnet18.onnx"
            model.write_bytes(build("resnet18").SerializeToString())
        samples = run(str(model), options.rounds, folder)
    medians = {
        name: Sample(*(statistics.median(values) for values in zip(*pairs, strict=True)))
        for name, pairs in (
            (name, [(sample.cpu, sample.wall) for sample in taken])
            for name, taken in samples.items()
        )
    }
    peer = medians["onnxruntime"]
    rows = [
        {"what": name, "cpu": median.cpu, "wall": median.wall}
        | {"cpu_ratio": median.cpu / peer.cpu, "wall_ratio": median.wall / peer.wall}
        for name, median in medians.items()
    ]
    failed = [
        f"{state}: {medians[f'default, {state}'].cpu / peer.cpu:.2f}, more than {limit}"
        for state, limit in LIMITS.items()
        if medians[f"default, {state}"].cpu / peer.cpu > limit
    ]
    if options.json:
        print(json.dumps({"platform": platform.platform(), "rows": rows, "failed": failed}))
    else:
        print(f"{platform.platform()}, Python {platform.python_version()}, {options.rounds} rounds")
        print(f"{'':42s} CPU s  wall s   CPU  wall over ONNX Runtime's")
        for row in rows:
            print(
                f"{row['what']:42s} {row['cpu']:5.2f}  {row['wall']:6.2f}"
                f" {row['cpu_ratio']:5.2f} {row['wall_ratio']:5.2f}"
            )
        print("\n".join(failed) or "all limits hold")
        if not print_first(first):
            failed.append(f"first output: below {FIRST_LIMIT}")
    return int(bool(failed) and options.limits)


if __name__ == "__main__":
    sys.exit(main())
