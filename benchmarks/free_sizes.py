# SPDX-License-Identifier: Apache-2.0
"""Encoders with a free batch and length: one program for random sizes, against other runtimes.

    python benchmarks/free_sizes.py [MODEL ...] [--threads 1] [--lengths 100] [--batch 1] [--cpu]
                                    [--only ROW ...] [--verbose]

Rows: how fast the program for all sizes (tier 0) and the one that is compiled for the sizes that
come often (tier 1) are over a build with static shapes, at the worst of some lengths; how much
longer the first run at an unseen length takes than later ones; resident memory after all lengths
over that after one; the time of the better peer, with the same dynamic model, for all lengths in
random order, over ours. Exits with 1 if a limit is missed. With `--only images`, the tiers of a
convolution whose best tiles go by the number of images, for each of some numbers.

Programs take turns, in an order drawn anew for each round, and only ratios within a round count. A
length has rounds until the intervals of its ratios leave out the limits, so that the worst of many
lengths is not the one that noise hit. With `--cpu` what counts is the CPU time of this process on
one thread: where other work runs beside, wall-clock time says little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx

import intarsia
from intarsia.measure.racing import Ratio, paired_ratio, take_round
from intarsia.runtime.free import FreeExecutable
from intarsia.zoo import build

TARGET = "llvm, onnxruntime"
LONGEST = 512
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LIMITS = {"tier 0": 0.9, "tier 1": 0.97, "first run": 5.0, "memory": 1.2, "peers": 1.1}
"""Ratios, but for milliseconds of the first run; what is measured is above them, or for memory and
the first run below."""
LOOKS = (7, 15, 31, 63)
"""After how many rounds a length may be settled."""
BUILDS = 3
"""Builds of each that take turns: where the weights of a build happen to lie in memory is worth up
to 7 per cent of a run with few rows (two static builds of BERT, Zen 3)."""
SHORTEST = 0.02
"""Seconds of a sample, at least: so many runs at a short length are one."""

Run = Callable[[Mapping[str, Any]], object]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of a model.

    Attributes:
        name: A key of `LIMITS`.
        value: It.
        note: What else there is to say.
    """

    name: str
    value: float
    note: str

    @property
    def is_missed(self) -> bool:
        """Whether it is on the wrong side of its limit."""
        limit = LIMITS[self.name]
        return self.value > limit if self.name in ("first run", "memory") else self.value < limit


@dataclass(frozen=True, slots=True)
class Bench:
    """A model with free sizes, and how it is measured.

    Attributes:
        name: Of the model.
        model: Its ONNX.
        options: Of the command.
        clock: Seconds, of the wall clock or of the CPU.
        lengths: In random order.
        make: Returns inputs, from the batch and a length.
    """

    name: str
    model: bytes
    options: argparse.Namespace
    clock: Clock
    lengths: tuple[int, ...]
    make: Callable[[int, int], dict[str, Any]]

    def compile(self, **more: Any) -> Any:
        """Compile the model, for all sizes unless shapes are given."""
        threads = self.options.threads
        return intarsia.compile(self.model, TARGET, num_threads=threads, cache=False, **more)

    def feeds(self, length: int) -> dict[str, Any]:
        """Return inputs of a length."""
        return self.make(self.options.batch, length)

    def seconds(self, run: Run, feeds: Mapping[str, Any], runs: int = 1) -> float:
        """Time some runs."""
        start = self.clock()
        for _ in range(runs):
            run(feeds)
        return (self.clock() - start) / runs

    def say(self, *words: object) -> None:
        """Print what is only wanted with `--verbose`."""
        if self.options.verbose:
            print(*words, file=sys.stderr, flush=True)


def main() -> int:
    """Print a Markdown table for each model, and what became of the limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", default=["minilm:free"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int, default=100)
    parser.add_argument("--checked", type=int, default=5, help="lengths with a static build")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="CPU time of one thread")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS)[:-1], metavar="ROW")
    parser.add_argument("--verbose", action="store_true", help="what each length took, on stderr")
    parser.add_argument("--only-memory", action="store_true", help="what a child process does")
    options = parser.parse_args()
    if options.cpu and options.threads > 1:
        parser.error("--cpu is for one thread")
    rng = np.random.default_rng(0)
    lengths = tuple(int(length) for length in rng.integers(1, LONGEST + 1, options.lengths))
    clock = time.process_time if options.cpu else time.perf_counter
    missed = []
    for name in options.names:
        bench = Bench(name, build(name).SerializeToString(), options, clock, lengths, make_tokens)
        if options.only_memory:
            print_memory(bench)
            return 0
        of_what = "CPU time, " * options.cpu
        print(
            f"\n| {name}, {of_what}{options.threads} threads | measured | limit |\n|---|---:|---:|"
        )
        for measured in options.only:
            for row in ROWS[measured](bench):
                limit = LIMITS[row.name]
                print(f"| {row.name}: {row.note} | {row.value:.3f} | {limit:g} |", flush=True)
                if row.is_missed:
                    missed.append(f"{name}: {row.name} {row.value:.3f}, limit {limit:g}")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def measure_tiers(bench: Bench) -> Iterator[Row]:
    """Yield how fast both tiers are over a static build, at the worst length."""
    ours = [bench.compile() for _ in range(BUILDS)]
    if ours[0].generic is None:
        sys.exit(f"{bench.name} has no program for all sizes")
    lengths = sorted(set(bench.lengths))
    lengths = lengths[:: max(1, len(lengths) // bench.options.checked)]
    found = {length: tier_ratios(bench, ours, length) for length in lengths}
    for number, name in enumerate(("tier 0", "tier 1")):
        worst = min(lengths, key=lambda length: found[length][number].value)
        ratio = found[worst][number]
        note = f"worst of {len(lengths)} lengths ({worst}), {ratio.low:.3f} to {ratio.high:.3f}"
        yield Row(name, ratio.value, note)


def tier_ratios(bench: Bench, ours: Sequence[FreeExecutable], length: int) -> list[Ratio]:
    """Return how fast tier 0 and tier 1 are over a static build at a length."""
    feeds = bench.feeds(length)
    builds = [_tiers(bench, one, feeds, length) for one in ours]
    once = min(bench.seconds(run, feeds) for runs in builds for run in runs.values())
    block, order = max(1, round(SHORTEST / once)), Random(length)
    samples: dict[str, list[float]] = {name: [] for name in builds[0]}

    for look in LOOKS:
        while len(samples["static"]) < look:
            runs = builds[len(samples["static"]) % len(builds)]

            def take(name: str, runs: Mapping[str, Run] = runs) -> float:
                runs[name](feeds)  # brings its weights back into the caches
                return bench.seconds(runs[name], feeds, block)

            for name, seconds in take_round(list(runs), take, order).items():
                samples[name].append(seconds)
        ratios = [paired_ratio(samples["static"], samples[f"tier {tier}"]) for tier in (0, 1)]
        limits = (LIMITS["tier 0"], LIMITS["tier 1"])
        if not any(one.low < limit < one.high for one, limit in zip(ratios, limits, strict=True)):
            break
    medians = ", ".join(f"{statistics.median(row) * 1e3:.3f}" for row in samples.values())
    bench.say(f"{length}: {medians} ms; tier 0 {ratios[0]}, tier 1 {ratios[1]}, {look} rounds")
    return ratios


def _tiers(
    bench: Bench, ours: FreeExecutable, feeds: Mapping[str, Any], length: int
) -> dict[str, Run]:
    """Return both tiers of a build, and a static build for the shapes of these inputs."""
    sizes = {symbol.name: bench.options.batch for symbol in ours.symbols}
    sizes[ours.symbols[-1].name] = length
    assert ours.generic is not None
    return {
        "static": bench.compile(shapes={key: array.shape for key, array in feeds.items()}).run,
        "tier 0": ours.generic.at(sizes).run,
        "tier 1": ours.specialise(sizes).run,
    }


def measure_first_runs(bench: Bench) -> Iterator[Row]:
    """Yield how many milliseconds a run at an unseen length takes more than the next ones."""
    program, later = bench.compile(), []
    for length in dict.fromkeys(bench.lengths):
        feeds = bench.feeds(length)
        first, *others = (bench.seconds(program.run, feeds) for _ in range(3))
        second = statistics.median(others)
        later.append((first - second) * 1e3)
        bench.say(f"{length}: first run {later[-1]:.3f} ms more, {second * 1e3:.3f} ms later")
    yield Row("first run", statistics.median(later), f"ms more, median of {len(later)} lengths")


def measure_memory(bench: Bench) -> Iterator[Row]:
    """Yield the resident memory of a process of its own after all lengths, over after one."""
    options = bench.options
    command = [sys.executable, __file__, bench.name, "--only-memory"]
    command += [f"--{name}={getattr(options, name)}" for name in ("threads", "lengths", "batch")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, last = map(int, done.stdout.split()[-2:])
    yield Row("memory", last / first, f"after {options.lengths} lengths, over after one")


def measure_peers(bench: Bench) -> Iterator[Row]:
    """Yield the time of the better peer for all lengths in random order, over ours."""
    threads, order = bench.options.threads, Random(0)
    ours = bench.compile()
    runs = {
        "ours": ours.run,
        "onnxruntime": onnxruntime_run(bench.model, threads),
        "openvino": openvino_run(bench.model, threads),
    }
    totals = dict.fromkeys(runs, 0.0)
    for length in bench.lengths:
        feeds = bench.feeds(length)
        took = take_round(
            list(runs), lambda name, feeds=feeds: bench.seconds(runs[name], feeds), order
        )
        bench.say(f"{length}:", ", ".join(f"{name} {took[name] * 1e3:.3f}" for name in runs), "ms")
        totals = {name: totals[name] + took[name] for name in runs}
    _, *peers = runs
    best = min(peers, key=totals.__getitem__)
    ratios = ", ".join(f"{peer} {totals[peer] / totals['ours']:.3f}" for peer in peers)
    yield Row("peers", totals[best] / totals["ours"], f"over ours in total: {ratios}")


def measure_images(bench: Bench) -> Iterator[Row]:
    """Yield how fast both tiers of one convolution are over a static build, by images."""
    weights = np.random.default_rng(0).standard_normal((512, 512, 3, 3), np.float32) / 64
    text = '<ir_version: 9, opset_import: ["": 17]> g (float[N,512,7,7] x) => (float[N,512,7,7] y)'
    model = onnx.parser.parse_model(text + " { y = Conv <pads: ints = [1, 1, 1, 1]> (x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))

    def make(_: int, images: int) -> dict[str, Any]:
        rng = np.random.default_rng(images)
        return {"x": rng.standard_normal((images, 512, 7, 7), np.float32)}

    own = replace(bench, name="convolution", model=model.SerializeToString(), make=make)
    ours = own.compile()
    for images in (1, 2, 3, 8):
        for name, ratio in zip(("tier 0", "tier 1"), tier_ratios(own, [ours], images), strict=True):
            yield Row(name, ratio.value, f"{images} images, {ratio.low:.3f} to {ratio.high:.3f}")


ROWS = {
    "tiers": measure_tiers,
    "first": measure_first_runs,
    "memory": measure_memory,
    "peers": measure_peers,
    "images": measure_images,
}
"""What is measured, by what `--only` calls it; the last one is of no model that is given."""


def make_tokens(batch: int, length: int) -> dict[str, Any]:
    """Return inputs of an encoder."""
    return make_feeds(INPUTS, batch, length)


def make_feeds(inputs: Iterable[str], batch: int, length: int) -> dict[str, Any]:
    """Return tokens, a mask that hides nothing, and one kind of token."""
    rng = np.random.default_rng(length)
    return {
        name: np.ones((batch, length), np.int64)
        if "mask" in name
        else rng.integers(0, 2, (batch, length))
        for name in inputs
    }


def onnxruntime_run(model: bytes, threads: int) -> Run:
    """Return a run of ONNX Runtime on the dynamic model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, dict(feeds))


def openvino_run(model: bytes, threads: int) -> Run:
    """Return a run of OpenVINO on the dynamic model, in float32."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model)
        compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    return lambda feeds: compiled(dict(feeds))


def print_memory(bench: Bench) -> None:
    """Print the resident bytes after the longest length and after all."""
    program = bench.compile()
    program.run(bench.feeds(LONGEST))
    first = resident_bytes()
    for length in bench.lengths:
        program.run(bench.feeds(length))
    print(first, resident_bytes())


def resident_bytes() -> int:
    """Return the resident memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
