# SPDX-License-Identifier: Apache-2.0
"""Attention on `llvm` alone against the fused operators of ONNX Runtime and OpenVINO, in float32.

    python benchmarks/attention.py [--lengths N ...] [--queries N] [--key-heads N] [--threads 1]
                                   [--rounds 9]

12 heads of 64, one item, from f32[1, length, 768] to the same. Ours is torch's eager spelling, as
ONNX's main operators; the peers have `com.microsoft.MultiHeadAttention` and OpenVINO's
`ScaledDotProductAttention` between reshapes and transpositions. With fewer heads of keys than of
queries, ours and ONNX Runtime's are ONNX's own `Attention`. `--queries 1` is a step of decoding,
without its copy of the keys before; with `--key-heads 1` threads can share keys only. Runs take
turns in one process; a ratio is the median over the rounds of the better peer's time through ours:
CPU time of the process with one thread, which other processes disturb less, else wall time. Exits
with 1 if one is below 1.1 or results differ.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import intarsia
from intarsia.arrays import Array
from intarsia.measure.racing import take_turns

HEADS, SIZE = 12, 64
WIDTH = HEADS * SIZE
LEAST = 1.1
BLOCK_SECONDS = 0.05
"""What one side of a round takes, about."""
REST_SECONDS = 0.1
"""Until threads sleep that wait for work by turning."""
LONG, FEW_ROUNDS = 4096 * 4096, 3
"""Scores from which on a run takes seconds, and the rounds of these."""

Side = tuple[Callable[[], Any], Array]
"""A call, and the array that it writes."""


def main() -> int:
    """Print a row for each length, and return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 384, 2048, 8192])
    parser.add_argument("--queries", type=int, help="as many as keys unless told")
    parser.add_argument("--key-heads", type=int, default=HEADS, help="which 12 heads share")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for length in options.lengths:
        queries = options.queries or length
        rounds = options.rounds if queries * length < LONG else min(options.rounds, FEW_ROUNDS)
        row = measure(queries, length, options.key_heads, options.threads, rounds)
        rows.append(row)
        if not options.json:
            times = ", ".join(f"{name} {value:.1f}" for name, value in row["us"].items())
            print(
                f"{row['queries']} x {length}: {row['ratio']:.2f} "
                f"[{row['low']:.2f}, {row['high']:.2f}], {row['gflops']:.0f} GFLOP/s, us: {times}",
                flush=True,
            )
    if options.json:
        print(json.dumps(rows, indent=1))
    slow = [row["keys"] for row in rows if row["ratio"] < LEAST]
    if slow:
        print(f"below {LEAST}: {slow}", file=sys.stderr)
    return 1 if slow else 0


def measure(queries: int, keys: int, key_heads: int, threads: int, rounds: int) -> dict[str, Any]:
    """Return the medians of one shape: microseconds of each side, and the better peer's ratio."""
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal((1, length, heads * SIZE)).astype(np.float32)
        for name, length, heads in (
            ("q", queries, HEADS),
            ("k", keys, key_heads),
            ("v", keys, key_heads),
        )
    }
    sides = {
        "llvm": _ours(feeds, threads),
        "onnxruntime": _onnxruntime(feeds, threads),
        "openvino": _openvino(feeds, threads),
    }
    clock = time.process_time if threads == 1 else time.perf_counter
    counts = {}
    for name, (call, result) in sides.items():
        call()
        np.testing.assert_allclose(result, sides["llvm"][1], rtol=1e-4, atol=1e-5, err_msg=name)
        counts[name] = max(1, round(BLOCK_SECONDS / _seconds(call, 1, clock)))

    def timed(name: str) -> float:
        call = sides[name][0]
        if threads > 1:
            # The threads of the side before still turn, on the cores of this one.
            time.sleep(REST_SECONDS)
            call()
        return _seconds(call, counts[name], clock)

    samples = take_turns(list(sides), timed, rounds)
    peers = zip(samples["onnxruntime"], samples["openvino"], strict=True)
    ratios = sorted(min(pair) / ours for pair, ours in zip(peers, samples["llvm"], strict=True))
    seconds = {name: statistics.median(times) for name, times in samples.items()}
    return {
        "queries": queries,
        "keys": keys,
        "key_heads": key_heads,
        "us": {name: value * 1e6 for name, value in seconds.items()},
        "gflops": 4 * WIDTH * queries * keys / seconds["llvm"] / 1e9,
        "ratio": statistics.median(ratios),
        "low": ratios[min(1, len(ratios) - 1)],
        "high": ratios[max(-2, -len(ratios))],
    }


def _seconds(call: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


def _heads(array: Array) -> int:
    return array.shape[-1] // SIZE


def _shared(feeds: dict[str, Array]) -> onnx.ModelProto:
    """Return ONNX's own operator, for heads that share keys."""
    heads = {"q_num_heads": HEADS, "kv_num_heads": _heads(feeds["k"])}
    return _model([helper.make_node("Attention", list(feeds), ["y"], **heads)], feeds, {})


def eager(feeds: dict[str, Array]) -> onnx.ModelProto:
    """Return attention as torch's eager modules are exported."""
    nodes, constants = [], {"joined": np.array([1, -1, WIDTH]), "root": np.float32(SIZE**0.5)}
    for name in feeds:
        constants[f"{name}_split"] = np.array([1, -1, HEADS, SIZE])
        order = (0, 2, 3, 1) if name == "k" else (0, 2, 1, 3)
        nodes.append(helper.make_node("Reshape", [name, f"{name}_split"], [f"{name}4"]))
        nodes.append(helper.make_node("Transpose", [f"{name}4"], [f"{name}h"], perm=order))
    nodes += [
        helper.make_node("MatMul", ["qh", "kh"], ["s"]),
        helper.make_node("Div", ["s", "root"], ["d"]),
        helper.make_node("Softmax", ["d"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "vh"], ["c"]),
        helper.make_node("Transpose", ["c"], ["t"], perm=(0, 2, 1, 3)),
        helper.make_node("Reshape", ["t", "joined"], ["y"]),
    ]
    return _model(nodes, feeds, constants)


def _model(
    nodes: list[onnx.NodeProto], feeds: dict[str, Array], constants: dict[str, Any]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, feeds["q"].shape)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    domains = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=11)


def _ours(feeds: dict[str, Array], threads: int) -> Side:
    model = eager(feeds) if _heads(feeds["k"]) == HEADS else _shared(feeds)
    program = intarsia.compile(model, "llvm", num_threads=threads)
    assert {region.backend for region in program.placement.regions} == {"llvm"}
    result = np.zeros_like(feeds["q"])
    return program.bind(feeds, {"y": result}), result


def _onnxruntime(feeds: dict[str, Array], threads: int) -> Side:
    node = helper.make_node(
        "MultiHeadAttention", list(feeds), ["y"], domain="com.microsoft", num_heads=HEADS
    )
    is_shared = _heads(feeds["k"]) < HEADS
    model = _shared(feeds) if is_shared else _model([node], feeds, {})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    result = np.zeros_like(feeds["q"])
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y", "cpu", 0, np.float32, result.shape, result.ctypes.data)
    return lambda: session.run_with_iobinding(binding), result


def _openvino(feeds: dict[str, Array], threads: int) -> Side:
    import openvino
    from openvino import opset13

    order = opset13.constant(np.array([0, 2, 1, 3]))
    inputs = [opset13.parameter(array.shape, np.float32, name) for name, array in feeds.items()]
    heads = [
        opset13.transpose(
            opset13.reshape(
                item, opset13.constant(np.array([0, 0, _heads(array), SIZE])), special_zero=True
            ),
            order,
        )
        for item, array in zip(inputs, feeds.values(), strict=True)
    ]
    context = opset13.transpose(opset13.scaled_dot_product_attention(*heads), order)
    joined = opset13.constant(np.array([0, 0, WIDTH]))
    result = opset13.reshape(context, joined, special_zero=True)
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    compiled = openvino.Core().compile_model(openvino.Model([result], inputs), "CPU", options)
    request = compiled.create_infer_request()
    for number, array in enumerate(feeds.values()):
        request.set_input_tensor(number, openvino.Tensor(array, shared_memory=True))
    request.infer()
    return request.infer, request.get_output_tensor(0).data


if __name__ == "__main__":
    sys.exit(main())
