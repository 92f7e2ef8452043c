# SPDX-License-Identifier: Apache-2.0
"""What many programs on one machine cost: private memory of processes, and turns of threads.

*Memory*: so many processes load one package of `llvm` and run it, all at once. Before, each has
loaded and run a program of one small layer, so that it has the same imports. The figure is what
each has of its own beyond that (`Private_Clean` and `Private_Dirty` of Linux's `smaps_rollup`, the
unique set size), over the bytes of the weights: after loading, after a run, and after a run without
the memory that the run itself needs (its arena, inputs and outputs, and what its kernels had of the
heap), which no two runs can share.

*Turns*: two programs of one process, each on a thread of its own, run at once on all CPUs' threads.
The figure is the 99th percentile of their times over twice the median of a run alone, their fair
share.

*Threads*: one program run from 1, 2, 8 and 64 threads: runs in a second over those from one.

    python benchmarks/many_models.py [--part memory|turns|threads] [--network resnet50]
        [--processes 8] [--seconds 10]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx

import intarsia
from intarsia.cpus import available_cpus
from intarsia.runtime.executor import PlanExecutable
from intarsia.zoo import build

MEMORY_LIMIT = 0.02
"""Of the weights, in private memory of each process."""
TURNS_LIMIT = 1.3
"""99th percentile of two at once, over twice the median of one alone."""
CALLERS = (1, 2, 8, 64)

_CHILD = """
import sys
import numpy as np
import intarsia
from intarsia.garbage import give_memory_back

def private():
    lines = open("/proc/self/smaps_rollup").read().splitlines()[1:]
    sizes = {line.split()[0]: int(line.split()[1]) for line in lines}
    print(sizes["Private_Clean:"] + sizes["Private_Dirty:"], flush=True)

small = intarsia.load(sys.argv[1], num_threads=1)
small.run(small.sample_feeds())
feeds = dict(np.load(sys.argv[3]))
kept = []
for order in sys.stdin:
    if order == "load\\n":
        kept.append(intarsia.load(sys.argv[2], num_threads=1))
    if order == "run\\n":
        kept.append(kept[0].run(feeds))
    if order == "trim\\n":
        give_memory_back()
    private() if order == "size\\n" else print("done", flush=True)
"""


@contextmanager
def children(count: int, *files: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Yield processes that do what they are told."""
    command = [sys.executable, "-c", _CHILD, *map(str, files)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.communicate()


def tell(processes: list[subprocess.Popen[str]], order: str) -> list[str]:
    """Give all an order, one after the other, and return what they answer."""
    answers = []
    for process in processes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{order}\n")
        process.stdin.flush()
        answers.append(process.stdout.readline().strip())
    return answers


def run_bytes(program: PlanExecutable) -> int:
    """Return what one run needs in memory: arena, scratch, copies of inputs, outputs and those."""
    inputs = sum(spec.nbytes for spec in program.inputs)
    outputs = sum(spec.nbytes for spec in program.outputs)
    scratch = max((one.scratch_bytes for one in program.executables), default=0)
    return sum(program.plan.arena_bytes) + scratch + inputs + 2 * outputs


def weigh(network: str, count: int, folder: Path) -> bool:
    """Print what processes of one package have of their own; return whether the limit holds."""
    layer = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
    )
    small, package, feeds = folder / "small.intarsia", folder / "large.intarsia", folder / "x.npz"
    intarsia.compile(layer, "llvm", num_threads=1).save(small)
    model = build(network)
    weights = sum(onnx.numpy_helper.to_array(one).nbytes for one in model.graph.initializer)
    program = intarsia.compile(model, "llvm", num_threads=1)
    program.save(package)
    assert isinstance(program, PlanExecutable)
    np.savez(feeds, **program.sample_feeds())
    own = run_bytes(program)
    time.sleep(3)  # what was just written is not remembered as read
    intarsia.load(package, num_threads=1)
    sizes = {}
    with children(count, small, package, feeds) as processes:
        for order in ("start", "load", "run", "trim"):
            tell(processes, order)
            sizes[order] = [1024 * int(size) for size in tell(processes, "size")]
    print(f"{network}: {weights} bytes of weights, {count} processes; a run needs {own} bytes")
    worst = {
        "after loading": max(_more(sizes["load"], sizes["start"])),
        "after a run": max(_more(sizes["run"], sizes["start"])),
        "after a run, without its memory": max(_more(sizes["trim"], sizes["start"])) - own,
    }
    for what, nbytes in worst.items():
        print(f"{what}: at most {nbytes} private bytes, {nbytes / weights:.2%} of the weights")
    return worst["after a run, without its memory"] <= MEMORY_LIMIT * weights


def _more(sizes: list[int], before: list[int]) -> list[int]:
    return [size - earlier for size, earlier in zip(sizes, before, strict=True)]


def take_times(program: PlanExecutable, seconds: float) -> list[float]:
    """Return how long each run took, of those that began within some seconds."""
    feeds, taken = program.sample_feeds(), list[float]()
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        program.run(feeds)
        taken.append(time.perf_counter() - start)
    return taken


def together(programs: list[PlanExecutable], seconds: float) -> list[list[float]]:
    """Return the times of programs that run at once, each on a thread of its own."""
    found: list[list[float]] = [[] for _ in programs]

    def work(number: int) -> None:
        found[number] = take_times(programs[number], seconds)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def take_turns(network: str, seconds: float) -> bool:
    """Print how two programs at once share the CPUs; return whether the limit holds."""
    model = build(network)
    programs = [intarsia.compile(model, "llvm") for _ in range(2)]
    alone = [take_times(one, seconds / 2) for one in programs]
    both = together(programs, seconds)
    is_met = True
    for number, (before, taken) in enumerate(zip(alone, both, strict=True)):
        single, single_late = np.percentile(before, [50, 99])
        middle, late = np.percentile(taken, [50, 99])
        ratio = late / (2 * single)
        is_met &= ratio <= TURNS_LIMIT
        print(
            f"{network}, program {number} on {available_cpus()} CPUs: alone {1e3 * single:.2f} ms "
            f"(99th percentile {single_late / single:.2f} of it); "
            f"two at once: median {1e3 * middle:.2f}, 99th percentile {1e3 * late:.2f} ms, "
            f"{ratio:.2f} of its fair share ({len(taken)} runs)"
        )
    return is_met


def count_runs(network: str, seconds: float) -> bool:
    """Print how many runs a second there are from several threads; return whether none has fewer.

    Numbers are compared with those of the first run.
    """
    program = intarsia.compile(build(network), "llvm")
    assert isinstance(program, PlanExecutable)
    feeds = program.sample_feeds()
    expected = program.run(feeds)
    rates = {}
    for callers in CALLERS:
        done, wrong, lock = [0], [0], threading.Lock()
        end = time.perf_counter() + seconds

        def work(
            end: float = end,
            done: list[int] = done,
            wrong: list[int] = wrong,
            lock: threading.Lock = lock,
        ) -> None:
            while time.perf_counter() < end:
                outputs = program.run(feeds)
                is_right = all((outputs[name] == one).all() for name, one in expected.items())
                with lock:
                    done[0] += 1
                    wrong[0] += not is_right

        start = time.perf_counter()
        threads = [threading.Thread(target=work) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates[callers] = done[0] / (time.perf_counter() - start)
        print(
            f"{network} from {callers} threads: {rates[callers]:.1f} runs a second, "
            f"{rates[callers] / rates[1]:.2f} of those from one; {wrong[0]} wrong of {done[0]}"
        )
        if wrong[0]:
            return False
    return min(rates.values()) >= 0.97 * rates[1]  # equal rates differ by some per cent


def main() -> int:
    """Print the figures; return 1 if a limit does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("memory", "turns", "threads"))
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        if options.part in (None, "memory"):
            results["memory"] = weigh(options.network, options.processes, Path(name))
    if options.part in (None, "turns"):
        results["turns"] = take_turns(options.network, options.seconds)
    if options.part in (None, "threads"):
        results["threads"] = count_runs(options.network, options.seconds)
    print(", ".join(f"{part}: {'holds' if one else 'missed'}" for part, one in results.items()))
    return int(not all(results.values()))


if __name__ == "__main__":
    sys.exit(main())
