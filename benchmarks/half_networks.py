# SPDX-License-Identifier: Apache-2.0
"""Networks of float16 on `llvm` alone against ONNX Runtime and OpenVINO, and against our float32.

    python benchmarks/half_networks.py [MODEL ...] [--rounds 9]

The model of float16 is what ONNX Runtime's converter makes of one of the zoo. All run in this
process by turns, on one thread, and what counts is the CPU time that they take. An error is the
root of the mean square of the differences from float64 over that of the outputs, of the model that
is run: that of float16 has rounded weights in float64 too, so that only the rounding of the runtime
is counted. `bf16` is the model of float32 with `-precision=bf16`, whose rounded weights count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx

import intarsia
from intarsia.backends.float64 import evaluate
from intarsia.backends.registry import load_backends
from intarsia.bench.models import make_bench_model
from intarsia.measure.racing import paired_ratio, take_round
from intarsia.settings import Settings
from intarsia.zoo import build

NETWORKS = ("resnet50", "mobilenet_v2", "minilm", "bert_base")
PEERS = ("onnxruntime", "openvino")
Arrays = Mapping[str, "np.ndarray[Any, np.dtype[Any]]"]


def main() -> None:
    """Print a Markdown table, a row for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    names = ("f16", "f32", "bf16", *PEERS)
    print(f"| network | {' | '.join(f'{name} ms (error)' for name in names)} | ratios |")
    print(f"|---|{'---:|' * len(names)}---|")
    for name in options.names:
        print(row(name, options.out, options.rounds), flush=True)


def row(name: str, folder: Path, rounds: int) -> str:
    """Return the row of a network."""
    # Imported late: this package puts its folder into the path of modules, before ours.
    from onnxruntime.transformers.float16 import convert_float_to_float16

    single, half = folder / f"{name}.onnx", folder / f"{name}-f16.onnx"
    if not single.exists():
        single.write_bytes(build(name).SerializeToString())
    models = {"f32": onnx.load(single)}
    models["f16"] = convert_float_to_float16(onnx.load(single), keep_io_types=False)
    half.write_bytes(models["f16"].SerializeToString())
    feeds: dict[str, Arrays] = {"f32": make_bench_model(single, folder).feeds}
    feeds["f16"] = {
        key: array.astype(np.float16) if array.dtype == np.float32 else array
        for key, array in feeds["f32"].items()
    }
    exact = {kind: evaluate(models[kind], feeds[kind])[0] for kind in models}
    runs: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    for kind, target in (("f16", "llvm"), ("f32", "llvm"), ("bf16", "llvm -precision=bf16")):
        given = "f16" if kind == "f16" else "f32"
        program = intarsia.compile({"f16": half, "f32": single}[given], target, num_threads=1)
        runs[kind] = program.context(inputs=feeds[given]).run
        errors[kind] = error(next(iter(program.run(feeds[given]).values())), exact[given])
    backends = load_backends(Settings.from_environment())
    for peer in PEERS:
        baseline = backends.baseline_of(peer)(half, feeds["f16"], 1)
        runs[peer] = baseline.run
        baseline.run()
        errors[peer] = error(baseline.outputs()[0], exact["f16"])

    def seconds(side: str) -> float:
        runs[side]()  # brings its weights back into the caches
        start = time.process_time()
        runs[side]()
        return time.process_time() - start

    order, samples = Random(0), {side: list[float]() for side in runs}
    for _ in range(rounds):
        for side, taken in take_round(list(runs), seconds, order).items():
            samples[side].append(taken)
    cells = [f"{statistics.median(samples[side]) * 1e3:.2f} ({errors[side]:.1e})" for side in runs]
    ratios = [
        f"{side} {paired_ratio(samples[side], samples['f16']).value:.2f}"
        for side in ("f32", *PEERS)
    ]
    return f"| {name} | {' | '.join(cells)} | {', '.join(ratios)} |"


def error(got: Any, want: Any) -> float:
    """Return how far results are from what they should be."""
    got = np.asarray(got, np.float64)
    return float(np.sqrt(np.sum((got - want) ** 2) / np.sum(np.square(want))))


if __name__ == "__main__":
    main()
