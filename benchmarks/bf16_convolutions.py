# SPDX-License-Identifier: Apache-2.0
"""Convolutions by groups, of each channel and of images: `-precision=bf16` against our float32.

    python benchmarks/bf16_convolutions.py [--rounds 15] [--only TEXT]

Shapes are those of ResNeXt, RegNet, MobileNet, VGG and of first layers. Each is a network of its
own with a Relu behind it, so that what is copied for tiles counts; or a bottleneck of three, in
which neighbours are products of tiles too. An error is the root of the mean
square of the differences from float64 over that of the outputs. All is CPU time of one thread, by
turns; figures are medians, ratios those of one round, with the quartiles of these.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import intarsia
from intarsia.backends.float64 import evaluate
from intarsia.measure.racing import paired_ratio, take_turns

LAYERS = {
    # channels in and out, groups, rows and columns, taps, stride
    "32 groups of 16, 28 x 28": (512, 512, 32, 28, 3, 1),
    "32 groups of 32, 14 x 14": (1024, 1024, 32, 14, 3, 1),
    "8 groups of 64, 14 x 14": (512, 512, 8, 14, 3, 1),
    "4 groups of 48, 28 x 28": (192, 192, 4, 28, 3, 1),
    "2 groups of 64 by 2, 56 x 56": (128, 128, 2, 56, 3, 2),
    "32 groups of 8, 56 x 56": (256, 256, 32, 56, 3, 1),
    "32 groups of 4, 56 x 56": (128, 128, 32, 56, 3, 1),
    "64 groups of 4 by 2, 28 x 28": (256, 256, 64, 28, 3, 2),
    "32 groups of 2, 56 x 56": (64, 64, 32, 56, 3, 1),
    "2 groups of 12 to 24, 28 x 28": (24, 48, 2, 28, 1, 1),
    "each of 96 channels, 56 x 56": (96, 96, 96, 56, 3, 1),
    "each of 384 channels, 14 x 14": (384, 384, 384, 14, 3, 1),
    "an image, 7 x 7 by 2, 224 x 224": (3, 64, 1, 224, 7, 2),
    "an image, 3 x 3 by 2, 224 x 224": (3, 32, 1, 224, 3, 2),
    "an image, 3 x 3, 224 x 224": (3, 64, 1, 224, 3, 1),
}
TARGETS = {"f32": "llvm", "bf16": "llvm -precision=bf16"}
BOTTLENECKS = {
    # channels outside and inside, groups, rows and columns, stride of the middle one
    "32 groups of 4, 56 x 56": (256, 128, 32, 56, 1),
    "32 groups of 8, 28 x 28": (512, 256, 32, 28, 1),
    "32 groups of 8 by 2, 56 x 56": (256, 256, 32, 56, 2),
    "16 groups of 8, 56 x 56": (256, 128, 16, 56, 1),
}
CALLS = 4
WARM_UP = 2
"""Rounds that do not count."""


def layer(
    inputs: int, outputs: int, groups: int, extent: int, taps: int, stride: int
) -> onnx.ModelProto:
    """Return a network of one convolution and what follows."""
    shape = (outputs, inputs // groups, taps, taps)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(shape, np.float32) / np.float32(np.prod(shape[1:]) ** 0.5)
    window: dict[str, Any] = {"pads": [taps // 2] * 4, "strides": [stride] * 2}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["h"], group=groups, **window),
            helper.make_node("Relu", ["h"], ["y"]),
        ],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, inputs, extent, extent))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(weights, "w"),
            numpy_helper.from_array(rng.standard_normal(outputs).astype(np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def bottleneck(outside: int, inside: int, groups: int, extent: int, stride: int) -> onnx.ModelProto:
    """Return 1 x 1, 3 x 3 by groups and 1 x 1, each with a Relu: what lies around groups."""
    text, arrays, rng = [], [], np.random.default_rng(0)
    convolutions = [
        ("x", "h", inside, (inside, outside, 1, 1), {}),
        ("h", "k", inside, (inside, inside // groups, 3, 3), {"group": groups, "pads": [1] * 4}),
        ("k", "y", outside, (outside, inside, 1, 1), {}),
    ]
    convolutions[1][-1]["strides"] = [stride] * 2
    for source, name, outputs, shape, window in convolutions:
        weights = rng.standard_normal(shape, np.float32) / np.float32(np.prod(shape[1:]) ** 0.5)
        arrays.append(numpy_helper.from_array(weights, f"w_{name}"))
        bias = rng.standard_normal(outputs).astype(np.float32)
        arrays.append(numpy_helper.from_array(bias, f"b_{name}"))
        inputs = [source, f"w_{name}", f"b_{name}"]
        text.append(helper.make_node("Conv", inputs, [f"{name}_sum"], **window))
        text.append(helper.make_node("Relu", [f"{name}_sum"], [name]))
    shape = (1, outside, extent, extent)
    graph = helper.make_graph(
        text,
        "bottleneck",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        arrays,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def error(found: Any, exact: Any) -> float:
    """Return the error of a result."""
    difference = np.asarray(found, np.float64) - exact
    return float(np.sqrt(np.mean(difference**2) / np.mean(np.square(exact))))


def row(name: str, rounds: int) -> str:
    """Return the row of a layer."""
    inputs, _, _, extent, *_ = LAYERS[name]
    shape = (1, inputs, extent, extent)
    feeds = {"x": np.random.default_rng(1).standard_normal(shape, np.float32)}
    return f"| {name} | {compared(layer(*LAYERS[name]), feeds, rounds)} |"


def compared(model: onnx.ModelProto, feeds: dict[str, Any], rounds: int) -> str:
    """Return the cells of a network's row, without its name."""
    exact = evaluate(model, feeds)[0]
    programs = {k: intarsia.compile(model, t, num_threads=1) for k, t in TARGETS.items()}
    contexts = {kind: program.context(feeds) for kind, program in programs.items()}

    def take(kind: str) -> float:
        run = contexts[kind].run
        start = time.thread_time()
        for _ in range(CALLS):
            run()
        return (time.thread_time() - start) / CALLS

    samples = take_turns(list(contexts), take, rounds + WARM_UP)
    samples = {kind: found[WARM_UP:] for kind, found in samples.items()}
    times = {kind: 1e6 * statistics.median(found) for kind, found in samples.items()}
    errors = {
        kind: error(next(iter(program.run(feeds).values())), exact)
        for kind, program in programs.items()
    }
    cells = [f"{times[kind]:.0f} ({errors[kind]:.1e})" for kind in TARGETS]
    is_tiled = "bfloat16 tiles" in str(programs["bf16"].explain())
    ratio = paired_ratio(samples["f32"], samples["bf16"])
    return f"{' | '.join(cells)} | {ratio} | {'tiles' if is_tiled else '-'}"


def main() -> None:
    """Print a Markdown table, a row for each layer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", metavar="TEXT", help="layers whose name has it")
    options = parser.parse_args()
    print("| layer | f32 us (error) | bf16 us (error) | times as fast | |")
    print("|---|---:|---:|---|---|")
    for name in LAYERS:
        if options.only in name:
            print(row(name, options.rounds), flush=True)
    for name, sizes in BOTTLENECKS.items():
        if options.only in name:
            x = np.random.default_rng(1).standard_normal((1, sizes[0], *[sizes[3]] * 2), np.float32)
            cells = compared(bottleneck(*sizes), {"x": x}, options.rounds)
            print(f"| {name}, between 1 x 1 | {cells} |", flush=True)


if __name__ == "__main__":
    main()
