# SPDX-License-Identifier: Apache-2.0
"""Plans by sizes at lengths that were not measured, against each single target there.

    python benchmarks/plans_by_sizes.py [MODEL] [-t TARGETS] [--sizes 8,64,384] [--budget 600]

`tune` measures at some lengths, and where one plan gives way to another. Then, at other lengths
between them, the program of the plan that is meant for each runs in turns with those of each target
alone and with the greedy one. Rows: what each of these takes over what ours takes, and the best of
the single targets over ours; below 1 ours is slower. The last row is the geometric mean.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time

import numpy as np
from free_sizes import make_feeds

import intarsia
from intarsia.runtime.executor import PlanExecutable
from intarsia.runtime.free import FreeExecutable
from intarsia.zoo import build


def main() -> int:
    """Print the plans, then a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="minilm:free", metavar="MODEL")
    parser.add_argument("-t", "--target", default="llvm, onnxruntime, openvino")
    parser.add_argument("--sizes", default="8,64,384", help="lengths at which plans are measured")
    parser.add_argument("--lengths", type=int, default=8, help="others at which they are tried")
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu", action="store_true", help="CPU time instead of wall-clock time")
    options = parser.parse_args()
    model = build(options.name).SerializeToString()
    measured = [int(size) for size in options.sizes.split(",")]
    common = {"num_threads": options.threads, "cache": False}
    greedy = intarsia.compile(model, options.target, placement="greedy", **common)
    assert isinstance(greedy, FreeExecutable)
    dimension = greedy.symbols[-1].name
    tuned = intarsia.tune(
        model, options.target, sizes={dimension: measured}, budget=options.budget, **common
    )
    assert isinstance(tuned, FreeExecutable)
    print(tuned.plans)
    fallback = greedy.targets[-1]  # takes what a target leaves, such as one that is not complete
    singles = [
        intarsia.compile(model, list(dict.fromkeys((one, fallback))), placement="greedy", **common)
        for one in greedy.targets
    ]
    names = ["greedy", *(target.partition(" ")[0] for target in greedy.targets)]
    print(
        f"\n| {dimension} | {' | '.join(names)} | best single |\n|---:{'|---:' * (len(names) + 1)}|"
    )
    spread = np.geomspace(min(measured), max(measured), options.lengths + 2)[1:-1]
    best = []
    for length in sorted({round(float(one)) for one in spread} - set(measured)):
        sizes = {dimension: length}
        programs = [one.specialise(sizes) for one in (tuned, greedy, *singles)]
        ours, *others = interleaved(programs, length, options.rounds, is_cpu=options.cpu)
        ratios = [other / ours for other in others]
        best.append(min(ratios[1:]))
        print(
            f"| {length} | {' | '.join(f'{one:.3f}' for one in (*ratios, best[-1]))} |", flush=True
        )
    mean = math.exp(statistics.fmean(map(math.log, best)))
    print(f"| mean |{' |' * len(names)} {mean:.3f} |")
    return 0


def interleaved(
    programs: list[PlanExecutable], length: int, rounds: int, *, is_cpu: bool
) -> list[float]:
    """Return the median seconds of a run of each, in turns."""
    clock = time.process_time if is_cpu else time.perf_counter
    feeds = make_feeds([spec.name for spec in programs[0].inputs], 1, length)
    times: list[list[float]] = [[] for _ in programs]
    for _ in range(rounds + 1):
        for row, program in zip(times, programs, strict=True):
            start = clock()
            program.run(feeds)
            row.append(clock() - start)
    return [statistics.median(row[1:]) for row in times]


if __name__ == "__main__":
    sys.exit(main())
