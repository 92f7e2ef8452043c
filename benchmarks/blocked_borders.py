# SPDX-License-Identifier: Apache-2.0
"""What a blocked border between two regions of native code is worth, and what a cut costs.

Each network is cut in two near its middle, where one tensor crosses that both regions would like
in blocks of channels. The two regions run one after the other with this tensor plain and with it
blocked, and the network as one region; the three take turns. Printed are medians, and the median
of the ratios of neighbouring runs.

    python benchmarks/blocked_borders.py [--networks squeezenet resnet50] [--rounds 41]
        [--threads 1] [--models FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.backends.borders import blocked_border
from intarsia.backends.device import HostDevice, ThreadOptions
from intarsia.backends.llvm import LlvmBackend
from intarsia.backends.values import BuildContext, Candidate
from intarsia.graph.arena import aligned_bytes
from intarsia.graph.graph import Graph
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.graph.state import PLAIN
from intarsia.measure.racing import paired_ratio, take_turns
from intarsia.passes.prepare import prepare
from intarsia.settings import Settings
from intarsia.target import CompilationConfig
from intarsia.zoo import build

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, np.dtype[Any]]


def find_cut(graph: Graph, context: BuildContext) -> tuple[Region, Region, int]:
    """Return two regions, and how many channels both want in a block of what is between them."""
    count = len(graph.nodes)
    for first in sorted(range(1, count), key=lambda node: abs(2 * node - count)):
        halves = Region.of(graph, range(first)), Region.of(graph, range(first, count))
        if halves[0].outputs != halves[1].inputs or len(halves[1].inputs) != 1:
            continue
        if max((graph.values[halves[1].inputs[0]].shape or ())[2:], default=1) == 1:
            continue  # it lies the same in both layouts
        listed = [
            LlvmBackend(Settings.from_environment()).states(
                Candidate.plain(half, context.target), context
            )
            for half in halves
        ]
        if all(listed):
            layouts = {listed[0][0][1][0].layout, listed[1][0][0][0].layout}
            if len(layouts) == 1 and layouts != {PLAIN}:
                return (*halves, 16 if layouts == {"nchw16c"} else 8)
    raise SystemExit("there is no cut through one tensor that both sides want in blocks")


def bind(
    candidates: Sequence[Candidate], context: BuildContext, x: Array, threads: int
) -> tuple[Callable[[], None], Array]:
    """Return the call that runs candidates one after the other, and the array of the result."""
    steps, given = [], x
    backend = LlvmBackend(Settings.from_environment())
    for candidate in candidates:
        artifact = backend.compile(candidate, context)
        loaded = backend.load(artifact, HostDevice(ThreadOptions(threads)))
        (spec,) = artifact.outputs
        buffer: Array = aligned_bytes(spec.nbytes).view(spec.dtype).reshape(spec.shape or ())
        steps.append(loaded.bind([given], [buffer], aligned_bytes(loaded.scratch_bytes)))
        given = buffer

    def run() -> None:
        for step in steps:
            step()

    return run, given


def measure(model: str | onnx.ModelProto, rounds: int, threads: int) -> dict[str, Any]:
    """Return the medians of one network."""
    graph = snapshot(prepare(load(model)).model)
    config = CompilationConfig.resolve("llvm")
    (placed,) = config.targets
    assert placed.target is not None
    context = BuildContext(placed, placed.target, config, threads)
    first, last, block = find_cut(graph, context)
    plain = [Candidate.plain(half, placed) for half in (first, last)]
    borders = [
        blocked_border(plain[0], [0] * len(first.inputs), [block]),
        blocked_border(plain[1], [block], [0] * len(last.outputs)),
    ]
    blocked = [replace(c, inputs=b[0], outputs=b[1]) for c, b in zip(plain, borders, strict=True)]
    whole = [Candidate.plain(graph.whole, placed)]
    (input_id,) = first.inputs
    shape = graph.values[input_id].shape or ()
    x = aligned_bytes(graph.values[input_id].nbytes).view(np.float32).reshape(shape)
    x[...] = np.random.default_rng(0).standard_normal(shape)
    runs, results = zip(
        *(bind(each, context, x, threads) for each in (plain, blocked, whole)), strict=True
    )

    def seconds(which: int) -> float:
        start = time.perf_counter()
        runs[which]()
        return time.perf_counter() - start

    turns = take_turns(range(len(runs)), seconds, rounds + 2)
    samples = [turns[which][2:] for which in range(len(runs))]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-3, atol=1e-3 * abs(x).max())
    crossing = graph.values[first.outputs[0]]
    return {
        "tensor": list(crossing.shape or ()),
        "plain ms": statistics.median(samples[0]) * 1e3,
        "blocked ms": statistics.median(samples[1]) * 1e3,
        "one region ms": statistics.median(samples[2]) * 1e3,
        "times": paired_ratio(samples[0], samples[1]).value,
        "one region times": paired_ratio(samples[0], samples[2]).value,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["squeezenet", "resnet50"])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", default="", help="a folder with the networks, else built")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = {}
    for name in options.networks:
        model = f"{options.models}/{name}.onnx" if options.models else build(name)
        rows[name] = measure(model, options.rounds, options.threads)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for name, row in rows.items():
        print(f"{name}: " + ", ".join(f"{key} {_show(value)}" for key, value in row.items()))


def _show(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
