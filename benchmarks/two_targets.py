# SPDX-License-Identifier: Apache-2.0
"""What the second of two targets brings: CPU time of one thread, by turns, networks of the zoo.

Of two programs the one that is made second is often a little faster, so that both are made twice,
in the order A B B A. Printed are the medians, the mean ratio A / B over the pairs of programs, the
least and the largest of them, and the ratio of the first program to the same one made again.

    python benchmarks/two_targets.py "llvm -l2-cache=1048576" llvm squeezenet minilm [--rounds 11]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np

import intarsia
from intarsia.bench.models import make_bench_model
from intarsia.measure.racing import paired_ratio, take_turns
from intarsia.zoo import build


def measure(name: str, targets: list[str], rounds: int) -> str:
    """Return the row of a network."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(build(name).SerializeToString())
        model = make_bench_model(path, Path(folder))
        order = [targets[i] for i in (0, 1, 1, 0)]
        programs = [intarsia.compile(path, target, num_threads=1, cache=False) for target in order]
    runs = [program.context(inputs=model.feeds).run for program in programs]

    def seconds(which: int) -> float:
        runs[which]()  # brings its weights back into the caches
        start = time.process_time()
        runs[which]()
        return time.process_time() - start

    taken = take_turns(range(len(runs)), seconds, rounds)
    ratios = [paired_ratio(taken[a], taken[b]).value for a, b in product((0, 3), (1, 2))]
    first, second = (statistics.median([*taken[a], *taken[b]]) * 1e3 for a, b in ((0, 3), (1, 2)))
    noise = paired_ratio(taken[0], taken[3]).value
    return (
        f"| {name} | {first:.2f} | {second:.2f} | {np.mean(ratios):.3f} "
        f"| {min(ratios):.3f} to {max(ratios):.3f} | {noise:.3f} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs=2, metavar="TARGET")
    parser.add_argument("networks", nargs="+", metavar="NETWORK")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    print("| network | A ms | B ms | A / B | of four pairs | A / A |")
    print("|---|---:|---:|---:|---|---:|")
    for name in options.networks:
        print(measure(name, options.targets, options.rounds), flush=True)


if __name__ == "__main__":
    main()
