# SPDX-License-Identifier: Apache-2.0
"""What layouts between regions are worth: plans that alternate, with them and with plain tensors.

Of each network the 3x3 convolutions without strides are pinned to `llvm`; `dnnl` has the rest. The
two programs take turns. Printed are medians, the least of each, and the median of the ratios of
neighbouring runs with its 10th and 90th percentile.

    python benchmarks/plan_layouts.py [--networks squeezenet resnet50] [--rounds 41]
        [--threads 1] [--models FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import onnx

import intarsia
from intarsia.measure.racing import take_turns
from intarsia.zoo import build

if TYPE_CHECKING:
    from intarsia.runtime.executor import PlanExecutable

NETWORKS = ("squeezenet", "resnet50", "inception_v1", "inception_v2")


def pins_of(model: onnx.ModelProto) -> dict[str, str]:
    """Return the pins of what `llvm` is to have."""
    pins = {}
    for node in model.graph.node:
        given = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        is_small = list(given.get("kernel_shape", ())) == [3, 3] and given.get("group", 1) == 1
        if node.op_type == "Conv" and is_small and list(given.get("strides", (1, 1))) == [1, 1]:
            pins[node.name] = "llvm"
    return pins


def compile_both(model: onnx.ModelProto, threads: int) -> tuple[PlanExecutable, PlanExecutable]:
    """Return the program with its layouts, and the same one with plain tensors."""

    def make() -> PlanExecutable:
        pins = pins_of(model)
        return intarsia.compile(
            model, "dnnl, llvm", pins=pins, placement="greedy", num_threads=threads
        )

    blocked = make()
    with patch("intarsia.place.schedule.choose_layouts", return_value={}):
        return blocked, make()


def measure(model: onnx.ModelProto, rounds: int, threads: int) -> dict[str, Any]:
    """Return the medians of one network."""
    programs = compile_both(model, threads)
    (spec,) = programs[0].inputs
    x = np.random.default_rng(0).standard_normal(spec.shape or ()).astype(np.float32)
    contexts = [program.context() for program in programs]
    for context in contexts:
        context.write_inputs([x])
        context.run()
    blocked, plain_output = (next(iter(context.read_outputs().values())) for context in contexts)
    np.testing.assert_allclose(
        blocked, plain_output, rtol=1e-3, atol=1e-3 * float(np.abs(plain_output).max())
    )

    def take(which: int) -> float:
        start = time.perf_counter()
        contexts[which].run()
        return time.perf_counter() - start

    seconds = list(take_turns((0, 1), take, rounds).values())
    ratios = sorted(plain / own for own, plain in zip(*seconds, strict=True))
    return {
        "regions": len(programs[0].placement.regions),
        "tensors in blocks": len(programs[0].plan.layouts),
        "blocked ms": 1e3 * statistics.median(seconds[0]),
        "least ms": 1e3 * min(seconds[0]),
        "plain ms": 1e3 * statistics.median(seconds[1]),
        "plain least ms": 1e3 * min(seconds[1]),
        "plain to blocked": statistics.median(ratios),
        "low": ratios[rounds // 10],
        "high": ratios[rounds * 9 // 10],
    }


def main() -> None:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", help="a folder with NAME.onnx; else they are built")
    parser.add_argument("--json", action="store_true")
    choices = parser.parse_args()
    for name in choices.networks:
        model = onnx.load(f"{choices.models}/{name}.onnx") if choices.models else build(name)
        row = {"network": name, **measure(model, choices.rounds, choices.threads)}
        if choices.json:
            print(json.dumps(row))
        else:
            print(
                ", ".join(
                    f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
                )
            )


if __name__ == "__main__":
    main()
