# SPDX-License-Identifier: Apache-2.0
"""Quantised products and networks on `llvm`, beside ONNX Runtime, OpenVINO and our float32.

    python benchmarks/narrow.py --cpu [--rounds 15] [--only 64x768x768] [--kind integer] [--json]
    python benchmarks/narrow.py --cpu --network minilm --network bert_base [--rounds 9]

A *product* (`MatMulInteger` of uint8 and int8, `QLinearMatMul`, Q/DQ around a `MatMul`) is in a
model as often, with other weights each, as it takes for `--mbytes` of weights (128: four times an
L3 of 32 MiB), so that they come from memory; so is `MatMul` of float32. Weights are normal numbers
quantised symmetrically, with one scale (`--per-channel`: one a column; `--uniform`: all codes are
as frequent, which no quantiser makes). Printed are medians over the rounds: milliseconds of a
product, billions of additions and multiplications a second, the median of the ratios of
neighbouring runs, and the share of results that are exactly those of the definition.

A *network* of the zoo is quantised by ONNX Runtime's tools: `qdq` statically (uint8 activations),
`qdq by channel`, `dynamic` (DynamicQuantizeLinear and MatMulInteger). Each runtime runs it in
turns. The error is the root mean square of the difference to the definition, through that of the
definition.

The definition is ONNX Runtime again: of Q and DQ nodes without optimisations, so that they are
computed one by one, and of integers with sums that do not saturate (`session.x64quantprecision`).

With `--cpu` the time is that of the process, which what else the machine does disturbs less; one
thread runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from attention import REST_SECONDS
from onnx import helper, numpy_helper
from quantised import Reader

import intarsia
from intarsia.measure.racing import paired_ratio, take_turns
from intarsia.runtime.feeds import sample_feeds
from intarsia.zoo import build

SHAPES = [(1, 768, 768), (64, 768, 768), (384, 768, 768), (1, 4096, 11008), (64, 4096, 11008)]
"""Rows, columns of the left operand, columns of the right one."""
KINDS = ("integer", "qlinear", "qdq")
FORMS = ("qdq", "qdq by channel", "dynamic")
"""What becomes of a network."""
_LEAST_SECONDS = 0.02
"""Of a sample: shorter runs are repeated."""
Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[], Mapping[str, Any]]


def make_weights(k: int, n: int, number: int, weights: str) -> tuple[Array, Array]:
    """Return codes of a right operand, and their scale for each column."""
    rng = np.random.default_rng(number)
    if weights == "uniform":
        codes = rng.integers(-127, 127, (k, n), np.int8, endpoint=True)
        return codes, rng.uniform(0.001, 0.01, n).astype(np.float32)
    numbers = rng.standard_normal((k, n), np.float32)
    largest = np.abs(numbers).max(0 if weights == "by channel" else None, keepdims=True)
    codes = np.rint(numbers / largest * 127).astype(np.int8)
    return codes, np.broadcast_to(largest / 127, (1, n))[0].copy()


def make_model(kind: str, shape: tuple[int, int, int], count: int, weights: str) -> onnx.ModelProto:
    """Return products of an input `x`, of which one row each is an output; also for float32."""
    m, k, n = shape
    elements = {"integer": "UINT8", "qlinear": "UINT8", "qdq": "FLOAT", "float32": "FLOAT"}
    result = {"integer": "INT32", "qlinear": "UINT8", "qdq": "FLOAT", "float32": "FLOAT"}
    arrays: dict[str, Any] = {
        "z": np.uint8(128),
        "s": np.float32(0.02),
        "t": np.float32(0.5),
        "first": np.array([0]),
        "last": np.array([1]),
    }
    nodes = []
    if kind == "qdq":
        nodes.append(helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]))
        nodes.append(helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]))
    for i in range(count):
        w, c, o, y = f"w{i}", f"c{i}", f"o{i}", f"p{i}"
        arrays[o] = np.zeros(n, np.int8)
        arrays[w], arrays[c] = make_weights(k, n, i, weights)
        if kind == "integer":
            nodes.append(helper.make_node("MatMulInteger", ["x", w, "z"], [y]))
        elif kind == "qlinear":
            inputs = ["x", "s", "z", w, c, o, "t", "z"]
            nodes.append(helper.make_node("QLinearMatMul", inputs, [y]))
        elif kind == "qdq":
            nodes += [
                helper.make_node("DequantizeLinear", [w, c, o], [f"wd{i}"], axis=1),
                helper.make_node("MatMul", ["xd", f"wd{i}"], [f"m{i}"]),
                helper.make_node("QuantizeLinear", [f"m{i}", "t", "z"], [f"mq{i}"]),
                helper.make_node("DequantizeLinear", [f"mq{i}", "t", "z"], [y]),
            ]
        else:
            nodes.append(helper.make_node("MatMul", ["x", w], [y]))
            arrays[w] = arrays[w].astype(np.float32) * arrays[c]
        nodes.append(helper.make_node("Slice", [y, "first", "last", "first"], [f"y{i}"]))
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        kind,
        [helper.make_tensor_value_info("x", getattr(onnx.TensorProto, elements[kind]), [m, k])],
        [
            helper.make_tensor_value_info(f"y{i}", getattr(onnx.TensorProto, result[kind]), [1, n])
            for i in range(count)
        ],
        [numpy_helper.from_array(np.asarray(arrays[name]), name) for name in arrays.keys() & read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feed(kind: str, m: int, k: int) -> Array:
    """Return the input of a model."""
    rng = np.random.default_rng(1)
    if kind in ("integer", "qlinear"):
        return rng.integers(0, 255, (m, k), np.uint8, endpoint=True)
    return rng.standard_normal((m, k)).astype(np.float32)


def ours(model: onnx.ModelProto | Path, feeds: Mapping[str, Any]) -> Run:
    """Return what runs a model natively."""
    program = intarsia.compile(model, "llvm", num_threads=1, strict=True)
    return lambda: program.run(feeds)


def theirs(model: onnx.ModelProto | Path, feeds: Mapping[str, Any], defines: str = "") -> Run:
    """Return what runs a model in ONNX Runtime, with one thread.

    Args:
        model: The model.
        feeds: Its inputs.
        defines: The kind or form of which the definition is wanted; empty for the defaults.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if defines.startswith("qdq"):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    elif defines:
        options.add_session_config_entry("session.x64quantprecision", "1")
    data = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda: dict(zip(names, session.run(None, feeds), strict=True))


def openvino(path: Path, feeds: Mapping[str, Any]) -> Run:
    """Return what runs a model in OpenVINO, with one thread."""
    import openvino as ov

    core = ov.Core()
    hints = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    compiled = core.compile_model(core.read_model(path), "CPU", hints)
    return lambda: {
        name: array for output, array in compiled(feeds).items() for name in output.get_names()
    }


def race(
    runs: Mapping[str, Run], rounds: int, clock: Callable[[], float], threads: int = 1
) -> dict[str, Any]:
    """Return the seconds of a run of each, by rounds in which they take turns."""
    counts = {}
    for name, run in runs.items():
        run()
        start = clock()
        run()
        counts[name] = max(1, int(_LEAST_SECONDS / max(clock() - start, 1e-6)))

    def seconds(name: str) -> float:
        if threads > 1:
            # The threads of the side before still turn, on the cores of this one.
            time.sleep(REST_SECONDS)
            runs[name]()
        start = clock()
        for _ in range(counts[name]):
            runs[name]()
        return (clock() - start) / counts[name]

    taken = take_turns(list(runs), seconds, rounds + 1)
    return {name: samples[1:] for name, samples in taken.items()}


def measure_product(
    kind: str, shape: tuple[int, int, int], options: argparse.Namespace
) -> dict[str, float]:
    """Return the medians of one product."""
    m, k, n = shape
    nbytes = options.mbytes << 20
    weights = "uniform" if options.uniform else "by channel" if options.per_channel else "normal"
    counts = {"narrow": -(-nbytes // (k * n)), "float32": -(-nbytes // (4 * k * n))}
    feeds = {"x": feed(kind, m, k)}
    model = make_model(kind, shape, counts["narrow"], weights)
    definition = theirs(model, feeds, kind)()
    runs = {"ours": ours(model, feeds), "onnxruntime": theirs(model, feeds)}
    equal = {
        f"{name} equal": float(np.mean([np.mean(run()[y] == definition[y]) for y in definition]))
        for name, run in runs.items()
    }
    plain = make_model("float32", shape, counts["float32"], weights)
    runs["float32"] = ours(plain, {"x": feed("float32", m, k)})
    del model, plain, definition
    samples = {
        name: [taken / counts.get(name, counts["narrow"]) for taken in each]
        for name, each in race(runs, options.rounds, options.clock).items()
    }
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    return {
        **{f"{name} ms": taken * 1e3 for name, taken in medians.items()},
        "ours GOP/s": 2 * m * k * n / medians["ours"] / 1e9,
        "to onnxruntime": paired_ratio(samples["onnxruntime"], samples["ours"]).value,
        "to float32": paired_ratio(samples["float32"], samples["ours"]).value,
        **equal,
    }


def quantise(name: str, form: str, folder: Path) -> tuple[Path, Path, dict[str, Any]]:
    """Write a network and what becomes of it, and return both paths and feeds."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    plain, path = folder / "plain.onnx", folder / "quantised.onnx"
    onnx.save(build(name), plain)
    specs = intarsia.compile(plain, "onnxruntime").inputs
    *samples, feeds = (sample_feeds(specs, seed) for seed in range(3))
    if form == "dynamic":
        quantize_dynamic(plain, path, weight_type=QuantType.QInt8)
    else:
        quantize_static(
            *(plain, path, Reader(samples)),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=form == "qdq by channel",
        )
    return plain, path, feeds


def measure_network(name: str, form: str, options: argparse.Namespace) -> dict[str, float]:
    """Return the medians of one network."""
    with tempfile.TemporaryDirectory() as folder:
        plain, path, feeds = quantise(name, form, Path(folder))
        definition = theirs(path, feeds, form)()
        runs = {
            "ours": ours(path, feeds),
            "onnxruntime": theirs(path, feeds),
            "openvino": openvino(path, feeds),
        }
        errors = {f"{who} error": distance(run(), definition) for who, run in runs.items()}
        runs["float32"] = ours(plain, feeds)
        samples = race(runs, options.rounds, options.clock)
    peers = ("onnxruntime", "openvino")
    best = [min(pair) for pair in zip(*(samples[peer] for peer in peers), strict=True)]
    return {
        **{f"{who} ms": 1e3 * statistics.median(taken) for who, taken in samples.items()},
        "to the best peer": paired_ratio(best, samples["ours"]).value,
        "to float32": paired_ratio(samples["float32"], samples["ours"]).value,
        **errors,
    }


def distance(results: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """Return the root mean square of a difference through that of what is wanted."""
    squares = [
        (np.mean(np.square(results[name] - array)), np.mean(np.square(array)))
        for name, array in wanted.items()
    ]
    return float(np.sqrt(sum(pair[0] for pair in squares) / sum(pair[1] for pair in squares)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu", action="store_true", help="measure the time of the process")
    parser.add_argument("--only", help="a shape, as in 64x768x768")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--network", action="append", help="a network of the zoo, not products")
    parser.add_argument("--form", choices=FORMS, action="append")
    parser.add_argument("--mbytes", type=int, default=128, help="weights of a model of products")
    parser.add_argument("--per-channel", action="store_true")
    parser.add_argument("--uniform", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.clock = time.process_time if options.cpu else time.perf_counter
    results = {}

    def note(name: str, figures: dict[str, float]) -> None:
        results[name] = figures
        if not options.json:
            text = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            print(f"{name:24} {text}", flush=True)

    for network in options.network or ():
        for form in options.form or FORMS:
            note(f"{network} {form}", measure_network(network, form, options))
    for kind in () if options.network else options.kind or KINDS:
        for shape in SHAPES:
            name = "x".join(map(str, shape))
            if options.only in (None, name):
                note(f"{kind} {name}", measure_product(kind, shape, options))
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
