# SPDX-License-Identifier: Apache-2.0
"""Quantised networks: in how many regions they run, how far off, and how fast.

    python benchmarks/quantised.py [NETWORK ...] [--threads 2] [--rounds 5] [--cpu]
        [--native "llvm -mcpu=haswell"]

Each network of the zoo is quantised by ONNX Runtime's tool (QDQ, uint8 activations, int8 weights
for each channel, calibrated on two random inputs; needs its dependencies: pip install sympy) and
compiled for each target. *From the definition* is the root mean square of the difference to ONNX
Runtime without optimisations, which computes each node as ONNX says; *from floats* that of the
difference to the network before it was quantised; both as a part of the latter's root mean square.
A ratio is ONNX Runtime's time through the target's, paired by round: above 1 is faster. The last
row is the network before it was quantised. With `--cpu` times are those of the process with one
thread, which what else the machine does disturbs less.

Older CPUs are tried by `--native` and a variable that limits oneDNN, in OpenVINO too:
`ONEDNN_MAX_CPU_ISA=AVX2` beside `-mcpu=haswell`, `AVX512_CORE_VNNI` beside `-mcpu=cascadelake`.
ONNX Runtime's own kernels have no such switch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime as ort
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

import intarsia
from intarsia.measure.racing import paired_ratio, take_turns
from intarsia.measure.timing import time_runs
from intarsia.runtime.feeds import sample_feeds
from intarsia.zoo import build

NETWORKS = ("resnet18", "mobilenet_v2")
TARGETS = (
    "onnxruntime",
    "dnnl, onnxruntime",
    "openvino, onnxruntime",
    "openvino -quantize=fused, onnxruntime",
)
_RUNS = 6
_OPSET = 17


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Hands out feeds."""

    def __init__(self, feeds: Sequence[Mapping[str, Any]]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next feeds, if there are more."""
        return next(self._feeds, None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each network and target."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--native", default="llvm", help="the target of our own code")
    options = parser.parse_args(arguments)
    threads = 1 if options.cpu else options.threads
    print("| network | target | regions | from the definition | from floats | ms | ratio |")
    print("|---|---|---:|---:|---:|---:|---|")
    for name in options.networks or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            measure(name, place, options.native, threads, options.rounds, is_cpu=options.cpu)
    return 0


def quantise(name: str, folder: Path) -> tuple[Path, Path, Mapping[str, Any]]:
    """Return the files of a network, before and after it was quantised, and feeds to run it on."""
    plain, quantised = folder / "plain.onnx", folder / "quantised.onnx"
    # Scales of channels have an axis, which DequantizeLinear knows from opset 13 on.
    model = build(name)
    if model.opset_import[0].version < _OPSET:
        model = onnx.version_converter.convert_version(model, _OPSET)
    onnx.save(model, plain)
    specs = intarsia.compile(plain, "onnxruntime").inputs
    given = [sample_feeds(specs, seed) for seed in range(3)]
    quantize_static(
        *(plain, quantised, Reader(given[:2])),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    return plain, quantised, given[2]


def measure(
    name: str, folder: Path, native: str, threads: int, rounds: int, *, is_cpu: bool
) -> None:
    """Print the rows of one network."""
    own = f"{native}, onnxruntime"
    of_floats = f"{own} (of floats)"
    plain, quantised, feeds = quantise(name, folder)
    floats, definition = (evaluate(path, feeds) for path in (plain, quantised))
    programs = {
        target: intarsia.compile(quantised, target, num_threads=threads, cache=False)
        for target in (*TARGETS, own)
    }
    programs[of_floats] = intarsia.compile(plain, own, num_threads=threads, cache=False)
    errors = {target: list(program.run(feeds).values()) for target, program in programs.items()}

    def seconds(target: str) -> float:
        run = _runner(programs[target], feeds)
        if is_cpu:
            run()
            begin = time.process_time()
            run()
            return time.process_time() - begin
        time_runs(run, _RUNS // 3)  # threads of what ran before may still spin
        return time_runs(run, _RUNS - _RUNS // 3).median_seconds

    samples = take_turns(list(programs), seconds, rounds)
    for target, program in programs.items():
        ratio = paired_ratio(samples[TARGETS[0]], samples[target])
        print(
            f"| {name} | `{target}` | {len(program.placement.regions)} "
            f"| {distance(errors[target], definition, floats):.2%} "
            f"| {distance(errors[target], floats, floats):.2%} "
            f"| {1e3 * median(samples[target]):.2f} | {ratio} |",
            flush=True,
        )


def _runner(program: Any, feeds: Mapping[str, Any]) -> Any:
    return lambda: program.run(feeds)


def evaluate(path: Path, feeds: Mapping[str, Any]) -> list[Any]:
    """Return the outputs of a model as each of its nodes is defined."""
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, dict(feeds))
    return outputs


def distance(ours: Sequence[Any], theirs: Sequence[Any], unit: Sequence[Any]) -> float:
    """Return the root mean square of a difference through that of a unit."""

    def square(arrays: Sequence[Any]) -> float:
        return float(np.sqrt(np.mean([np.mean(np.square(array)) for array in arrays])))

    return square([one - other for one, other in zip(ours, theirs, strict=True)]) / square(unit)


if __name__ == "__main__":
    sys.exit(main())
