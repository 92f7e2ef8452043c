# SPDX-License-Identifier: Apache-2.0
"""How fast this core multiplies bfloat16, and whether estimates of such products rank as they run.

    python benchmarks/bf16_products.py [--rounds 15]

First, products a second of one core, thousands of millions, of sums that wait for nothing: by
multiply-adds of float32, by dot products of pairs (`vdpbf16ps`) and by products of tiles
(`tdpbf16ps`), as far as this CPU has them. Then matrix products as `llvm` computes them, and with
`-precision=bf16`: microseconds as measured and as estimated from the description of the CPU, where
there is one, and how many times as fast bfloat16 is by both. All is CPU time of one thread, by
turns; figures are medians, ratios those of one round.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import intarsia
from intarsia.backends.values import Candidate
from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.expand import expand
from intarsia.codegen.ir import DOT_GROUPS, TILE_ROWS, Function
from intarsia.compiler import read_setting
from intarsia.measure.racing import paired_ratio, take_turns
from intarsia.native.estimates import estimate_region
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import compile_assembly, compile_object
from intarsia.native.native_target import target_cpu
from intarsia.native.tiles import usable_tiles
from intarsia.place.assign import Policy
from intarsia.place.decide import decide_in_order
from intarsia.place.request import Request
from intarsia.place.schedule import make_draft
from intarsia.settings import Settings
from intarsia.target import Target
from intarsia.target.cpu import host_cpu

SHAPES = ((128, 768, 768), (128, 768, 3072), (196, 512, 512), (784, 256, 256), (3136, 64, 256))
"""Rows, terms and columns."""
TARGETS = {"f32": Target("llvm"), "bf16": Target("llvm -precision=bf16")}
TURNS = 200_000
_SUMS, _TILES = 12, 4
_LANES = 16


def vector_sums(*, is_paired: bool) -> tuple[Function, int]:
    """Return a kernel of multiply-adds, or of products of pairs, and its products."""
    b = Builder("vector_sums")
    group = DOT_GROUPS["uint16"] if is_paired else 1
    dtype = "uint16" if is_paired else "float32"
    x = b.argument("x", dtype, (group * _LANES,))
    y = b.argument("y", "float32", (_SUMS * _LANES,), is_written=True)
    with b.parallel(1):
        values = [b.load(y, i * _LANES, _LANES) for i in range(_SUMS)]
        factor = b.load(x, 0, group * _LANES)

        def turn(_: Any, *sums: Any) -> list[Any]:
            if is_paired:
                return [b.dot(factor, factor, each) for each in sums]
            return [b.fma(factor, factor, each) for each in sums]

        for i, value in enumerate(b.loop(0, TURNS, values, turn)):
            b.store(value, y, i * _LANES)
    return expand(b.finish()), TURNS * _SUMS * _LANES * group


def tile_sums() -> tuple[Function, int]:
    """Return a kernel of products of tiles, and its products."""
    b = Builder("tile_sums")
    b.argument("x", "uint16", (1,))
    y = b.argument("y", "float32", (_TILES * TILE_ROWS**2,), is_written=True)
    left, right = b.tile("left", "uint16"), b.tile("right", "uint16")
    totals = [b.tile(f"total{i}", "float32") for i in range(_TILES)]
    with b.parallel(1):
        for tile in (left, right, *totals):
            b.tile_zero(tile)
        with b.serial(0, TURNS // TILE_ROWS):
            for total in totals:
                b.tile_dot(total, left, right)
        for i, total in enumerate(totals):
            b.tile_store(total, y, i * TILE_ROWS**2, TILE_ROWS)
    return expand(b.finish()), TURNS // TILE_ROWS * _TILES * TILE_ROWS**3 * DOT_GROUPS["uint16"]


def print_rates(rounds: int) -> None:
    """Print the products a second of each kind of instruction."""
    cpu, unit = target_cpu(Target("llvm"))
    features = host_cpu().features
    kernels = {"multiply-add of float32": vector_sums(is_paired=False)}
    if "avx512bf16" in features:
        kernels["vdpbf16ps"] = vector_sums(is_paired=True)
    if "amx-bf16" in usable_tiles(features, Settings.from_environment().cache_folder()):
        kernels["tdpbf16ps"] = tile_sums()
    x, y = np.zeros(_LANES, np.float32), np.zeros(_TILES * TILE_ROWS**2, np.float32)
    table = np.array([x.ctypes.data, y.ctypes.data], np.int64)
    unit = replace(unit, dots=(*unit.dots, "avx512bf16"))  # left out where it is slow
    libraries = {}  # code is here as long as these are
    calls: dict[str, Callable[[], float]] = {}
    for name, (kernel, _) in kernels.items():
        text = emit_llvm(kernel, unit)
        code = compile_object(text, cpu)
        if name not in (
            "multiply-add of float32",
            *re.findall(r"\w+", compile_assembly(text, cpu)),
        ):
            raise SystemExit(f"{name} is not in the code")
        libraries[name] = library = LoadedCode({kernel.name: code})
        form = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        calls[name] = timed(form(library.addresses[kernel.name]), table.ctypes.data)
    samples = take_turns(list(calls), lambda name: calls[name](), rounds)
    print("| instruction | G products/s | instructions/s, G |\n|---|---:|---:|")
    for name, (_, products) in kernels.items():
        rate = products / statistics.median(samples[name]) / 1e9
        each = TILE_ROWS**3 * 2 if name == "tdpbf16ps" else _LANES * (1 + (name == "vdpbf16ps"))
        print(f"| {name} | {rate:.1f} | {rate / each:.2f} |")


def timed(function: Callable[..., None], table: int) -> Callable[[], float]:
    """Return what calls a kernel and returns the CPU seconds of this thread."""

    def call() -> float:
        start = time.thread_time()
        function(table, 0, 1)
        return time.thread_time() - start

    return call


def product(rows: int, terms: int, columns: int) -> onnx.ModelProto:
    """Return a matrix product with constant weights."""
    weights = np.random.default_rng(0).standard_normal((terms, columns), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, terms))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (rows, columns))],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def estimated_seconds(model: onnx.ModelProto, target: Target) -> float | None:
    """Return the estimate of a model on this CPU; None if its core is not described."""
    setting = read_setting(Request(model=model, target=target, num_threads=1))
    (assigned,) = make_draft(setting, decide_in_order(setting, Policy.GREEDY)).regions
    candidate, _ = setting.pipeline.rewrite(
        Candidate.plain(assigned.region, assigned.capability.target)
    )
    caches = setting.backends.settings.cache_folder()
    estimate = estimate_region(candidate.region, candidate.target.target, 1, caches)
    return None if estimate is None else estimate.seconds


def print_products(rounds: int) -> None:
    """Print what products take, and are estimated to."""
    kinds = tuple(TARGETS)
    print("\n| product | " + " | ".join(f"{kind} us (estimated)" for kind in kinds), end="")
    print(" | bf16 times as fast | estimated |\n|---|---:|---:|---:|---:|")
    for shape in SHAPES:
        model = product(*shape)
        feeds = {"x": np.ones(shape[:2], np.float32)}
        runs = {
            kind: intarsia.compile(model, target, num_threads=1).context(feeds).run
            for kind, target in TARGETS.items()
        }

        def take(kind: str, runs: dict[str, Any] = runs) -> float:
            start = time.thread_time()
            for _ in range(8):
                runs[kind]()
            return (time.thread_time() - start) / 8

        samples = take_turns(list(runs), take, rounds + 2)
        samples = {kind: found[2:] for kind, found in samples.items()}
        guesses = {kind: estimated_seconds(model, target) for kind, target in TARGETS.items()}
        cells = [
            f"{1e6 * statistics.median(samples[kind]):.0f}"
            f" ({'-' if guess is None else f'{1e6 * guess:.0f}'})"
            for kind, guess in guesses.items()
        ]
        ratio = paired_ratio(samples["f32"], samples["bf16"]).value
        own, narrow = guesses["f32"], guesses["bf16"]
        guessed = "-" if own is None or narrow is None else f"{own / narrow:.2f}"
        name = " x ".join(map(str, shape))
        print(f"| {name} | {' | '.join(cells)} | {ratio:.2f} | {guessed} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print_rates(options.rounds)
    print_products(options.rounds)


if __name__ == "__main__":
    main()
