# SPDX-License-Identifier: Apache-2.0
"""What one process for all regions of a board saves, beside one for each region.

    python benchmarks/board_process.py                            # this machine as the board
    python benchmarks/board_process.py --emulated                 # aarch64 under qemu
    python benchmarks/board_process.py -t "llvm -runner=ssh://board"

A chain of `--regions` products is placed on the board, with a Softmax here between each two. Both
ways run in processes of their own, by turns: programs that are brought there, their bytes, and CPU
time of all processes here (the board's own counts if it is this machine or an emulator) for loading
and the first run, and for a run after it. Printed are medians of `--rounds`, and the ratio.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx.parser

import intarsia
from intarsia.backends import native_remote
from intarsia.native.agent import Agent

EMULATED = 'llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -runner="qemu-aarch64-static"'
RUNS = 200
WAYS = ("a process each", "one process")


def chain(regions: int) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a model, and which of its nodes stay here."""
    lines, last = [], "x"
    for i in range(regions):
        end = "y" if i == regions - 1 else f"m{i}"
        lines.append(f"{end} = MatMul({last}, w)")
        if end != "y":
            lines.append(f"s{i} = Softmax({end})")
            last = f"s{i}"
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> chain (float[1, 256] x) => (float[1, 256] y) '
        f"<float[256, 256] w> {{ {' '.join(lines)} }}"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    for node in model.graph.node:
        node.name = node.output[0]
    return model, {f"s{i}": "onnxruntime" for i in range(regions - 1)}


def apart(objects: Any, runner: Any, cpu: Any, threads: int, caches: Path, seconds: float) -> Any:
    """Give a region a program of its own, as `join_board` would a joint one."""
    program = native_remote.BoardProgram(cpu, threads, caches)
    number = program.join(objects)
    return Agent(program.link, runner, seconds), number


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(package: Path, way: str, runs: int) -> dict[str, float]:
    """Load a package, run it, and end all that it started."""
    join = apart if way == WAYS[0] else native_remote.join_board
    link = native_remote.link_program
    agents: dict[int, Agent] = {}
    linked: list[bytes] = []

    def join_and_tell(*arguments: Any) -> tuple[Agent, int]:
        agent, number = join(*arguments)
        agents[id(agent)] = agent
        return agent, number

    def link_and_tell(*arguments: Any) -> bytes:
        linked.append(link(*arguments))
        return linked[-1]

    begin = cpu_seconds()
    with (
        mock.patch.object(native_remote, "join_board", join_and_tell),
        mock.patch.object(native_remote, "link_program", link_and_tell),
    ):
        program = intarsia.load(package)
        x = np.ones((1, 256), np.float32)
        for _ in range(runs):
            program(x)
    for agent in agents.values():
        agent.close()
    return {
        "programs": sum(agent.starts for agent in agents.values()),
        "kib": sum(map(len, linked)) / 1024,
        "seconds": cpu_seconds() - begin,
    }


def ask(package: Path, way: str, runs: int) -> dict[str, float]:
    """Measure in a new process."""
    command = [sys.executable, __file__, "--one", str(package), "--way", way, "--runs", str(runs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Compare both ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-t", "--target", default="llvm -runner=here")
    parser.add_argument("--emulated", action="store_true", help="aarch64 under qemu")
    parser.add_argument("--regions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.way, given.runs)))
        return
    model, pins = chain(given.regions)
    target = EMULATED if given.emulated else given.target
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "chain.intarsia"
        intarsia.compile(model, f"{target}, onnxruntime", pins=pins, strict=True).save(package)
        rows: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
        for turn in range(given.rounds + 1):
            for way in WAYS:
                first, many = (ask(package, way, runs) for runs in (1, 1 + given.runs))
                each = (many["seconds"] - first["seconds"]) / given.runs
                if turn:  # the first one links
                    rows[way].append((first["programs"], first["kib"], first["seconds"], each))
    medians = {
        way: [statistics.median(column) for column in zip(*rows[way], strict=True)] for way in WAYS
    }
    for way, (programs, kib, start, each) in medians.items():
        print(
            f"{way:16} {programs:3.0f} programs of {kib:7.0f} KiB in all, load and first run "
            f"{start:6.3f} s, a run {each * 1e3:7.3f} ms of CPU time"
        )
    ratios = [a / b for a, b in zip(*(medians[way] for way in WAYS), strict=True)]
    print("each / one:", ", ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
