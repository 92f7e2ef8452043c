# SPDX-License-Identifier: Apache-2.0
"""How far estimates of kernels, from the description of a CPU alone, are from measurements.

    python benchmarks/estimates.py                       judge all records in benchmarks/estimates/
    python benchmarks/estimates.py --record [MODEL ...]  measure the zoo's kernels on this machine
    python benchmarks/estimates.py --instructions        count instructions on Arm's cores

A record has the kernels of zoo networks on `llvm`, one thread: microseconds of CPU time of each
call, in the order of a run, so that data lies where it lies in a run; medians of rounds, those of
all networks by turns, less what reading the clock takes. It is filed under LLVM's name of the CPU.
`znver4-rows.json` has what `benchmarks/kernels.py` once measured on a Zen 4: of one kernel that is
called again and again, on a machine with nothing else to do (`is_quiet`): its core has all of the
cache that others share; estimates are of the same operators alone.

The error of an estimate is max(estimate / measured, measured / estimate). Printed are its median
and 90th percentile, and the part of pairs of kernels, whose measured times differ by 20 per cent or
more, that estimates rank right. Calls below `LEAST` microseconds are left out: the clock's own time
is as long. Exits with 1 if less than nine tenths of the pairs of a record are ranked right.

`--instructions` needs no board: layers become programs of `examples/microcontroller`, built by
`arm-none-eabi-gcc -O2` and run by `qemu-system-arm -icount shift=0`, which takes a nanosecond for
each instruction; for aarch64 they are objects of `llvm`, with `aarch64_board` around them, under
`qemu-system-aarch64`. No seconds follow from that; printed is the part of pairs, whose instructions
differ by a fifth or more, that estimated cycles rank as the instructions do.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import intarsia
from intarsia.backends.values import Candidate
from intarsia.codegen.cycles.program import ProgramEstimate, estimate_program
from intarsia.compiler import read_setting
from intarsia.export import export_c, export_object
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot
from intarsia.native.estimates import estimate_region, find_instructions, sketch_program
from intarsia.place.decide import Policy, decide_in_order
from intarsia.place.request import Request
from intarsia.place.schedule import make_draft
from intarsia.target import Target
from intarsia.target.cpu import host_cpu
from intarsia.zoo import build

NETWORKS = (
    "alexnet",
    "deit_small",
    "densenet121",
    "efficientformer_l1",
    "gpt2",
    "inception_v1",
    "llama_decode",
    "minilm",
    "mobilenet_v2",
    "mobilevit_small",
    "resnet18",
    "resnet50",
    "segformer_b0",
    "shufflenet",
    "squeezenet",
    "swin_tiny",
)

FOLDER = Path(__file__).parent / "estimates"
LEAST = 5.0
"""Microseconds."""
APART = 1.2
PAIRS = 0.9
"""Part of the pairs that have to be ranked right."""


def calls_of(name: str) -> list[tuple[Any, Any]]:
    """Return the kernels of a network's run, each with the step that runs it."""
    program = intarsia.compile(build(name), "llvm", num_threads=1)
    context = program.context()
    feeds = program.sample_feeds()
    context.write_inputs([feeds[spec.name] for spec in program.inputs])
    calls = list(context.calls(lambda *_: None, by_kernel=True))
    if any(kernel is None for _, kernel, _ in calls):
        raise SystemExit(f"{name}: not all of it is native code")
    return [(kernel, step) for _, kernel, step in calls]


def record(names: list[str], rounds: int) -> Path:
    """Measure networks by turns, and write what was found."""
    runs = {name: calls_of(name) for name in names}
    samples: dict[str, list[list[int]]] = {name: [] for name in names}
    clock = time.thread_time_ns
    idle = statistics.median([-clock() + clock() for _ in range(1000)])
    for turn in range(rounds + 1):
        for name, calls in runs.items():
            for _, step in calls:  # bring back what the networks before have put out of caches
                step()
            times = []
            # The first only brings back the clock and this loop, which a run puts out of caches.
            for step in (_nothing, *(step for _, step in calls)):
                step()
                times.append(clock())
            if turn:  # the first one touches memory for the first time
                samples[name].append([after - before for before, after in pairwise(times)])
    networks = {
        name: [
            [kernel.kernel, kernel.shape, round((statistics.median(times) - idle) / 1e3, 2)]
            for (kernel, _), times in zip(runs[name], zip(*samples[name], strict=True), strict=True)
        ]
        for name in names
    }
    cpu = host_cpu()
    facts = {
        "target": str(Target({"kind": "llvm", "mcpu": "native"})),
        "machine": platform.platform(),
        "date": datetime.now(UTC).date().isoformat(),
        "rounds": rounds,
        "unit": "microseconds of CPU time of one thread; [kernel, shape, median] of each call",
    }
    file = FOLDER / f"{cpu.name}.json"
    FOLDER.mkdir(exist_ok=True)
    text = ",\n".join(
        f"  {json.dumps(name)}: [\n   " + ",\n   ".join(map(json.dumps, rows)) + "]"
        for name, rows in networks.items()
    )
    head = json.dumps(facts, indent=1)[:-2]
    file.write_text(f'{head},\n "networks": {{\n{text}\n }}\n}}\n')
    return file


def _nothing() -> None:
    """Take the place of a kernel."""


Rows = list[tuple[str, float, float]]
"""Of kernels: their family, microseconds that were measured, and that were estimated."""


def estimate(model: Any, target: Target) -> tuple[ProgramEstimate, float]:
    """Return the estimate of a whole model on native code, and the CPU seconds that it took."""
    setting = read_setting(Request(model=model, target=target, num_threads=1, is_here=False))
    (assigned,) = make_draft(setting, decide_in_order(setting, Policy.GREEDY)).regions
    candidate, _ = setting.pipeline.rewrite(
        Candidate.plain(assigned.region, assigned.capability.target)
    )
    found = find_instructions(target)
    assert found is not None, target
    start = time.process_time()
    program = sketch_program(candidate.region, target)
    result = estimate_program(program, found[0])
    return result, time.process_time() - start


def network_rows(record: dict[str, Any]) -> Rows:
    """Return the kernels of a record's networks, without networks that are other kernels today."""
    rows: Rows = []
    target = Target(record["target"])
    for name, measured in record["networks"].items():
        result, seconds = estimate(build(name), target)
        calls = result.calls
        if len(calls) != len(measured):
            print(f"{name}: {len(measured)} kernels were measured, today there are {len(calls)}")
            continue
        hz = result.cycles / result.seconds
        times = [each.cycles / hz * 1e6 for each in calls]
        rows += [(row[0], row[2], own) for row, own in zip(measured, times, strict=True)]
        whole = sum(row[2] for row in measured) / 1e3
        print(
            f"{name:20} {len(calls):4} calls, measured {whole:8.2f} ms, estimated "
            f"{result.seconds * 1e3:8.2f} ms in {seconds:.2f} s",
            flush=True,
        )
    return rows


def row_model(area: str, name: str) -> onnx.ModelProto:
    """Return the operator of a row of `benchmarks/kernels.py`, whose weights are constants."""
    attributes: dict[str, Any] = {}
    x: tuple[int, ...]
    others: list[tuple[int, ...]] = []
    words = name.replace("->", " ").replace("@", " ").split()
    match area:
        case "gemm" | "gemv":
            m, n, k = (int(word) for word in name.split(" x "))
            kind, x, others = "MatMul", (m, k), [(k, n)]
        case "depthwise" | "depthwise /2":
            channels, size, step = int(words[2]), int(words[3]), 1 + name.endswith("/2")
            kind, x, others = "Conv", (1, channels, size, size), [(channels, 1, 3, 3)]
            attributes = {"group": channels, "pads": [1] * 4, "strides": [step] * 2}
        case "memory" if words[0] == "add+relu":
            kind, x = "Relu", (int(words[1]),)
        case "memory" if words[0] == "layernorm":
            x, others = (int(words[1]), int(words[3])), [(int(words[3]),), (int(words[3]),)]
            kind = "LayerNormalization"
        case "memory":
            kind, x, attributes = "Gelu", (int(words[1]), int(words[3])), {}
        case "softmax":
            kind, x = "Softmax", (int(words[1]), int(words[3]))
        case "transpose":
            x = tuple(map(int, words[0].split("x")))
            kind, attributes = (
                "Transpose",
                {"perm": json.loads(name.split(" by ")[1].translate(_LIST))},
            )
        case _:
            taps, cin, cout, size = int(words[0][0]), *map(int, words[1:4])
            step = 1 + name.endswith("/2")
            kind, x, others = "Conv", (1, cin, size, size), [(cout, cin, taps, taps)]
            attributes = {"pads": [taps // 2] * 4, "strides": [step] * 2}
    weights = [
        numpy_helper.from_array(np.ones(s, np.float32), f"w{i}") for i, s in enumerate(others)
    ]
    nodes = [helper.make_node(kind, ["x", *(w.name for w in weights)], ["y"], "it", **attributes)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)]
    if kind == "Relu":
        nodes = [helper.make_node("Add", ["x", "z"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
        inputs.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, x))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "row", inputs, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


_LIST = str.maketrans("()", "[]")


def kernel_rows(record: dict[str, Any]) -> Rows:
    """Return the rows of a table of `benchmarks/kernels.py`; borders are not counted."""
    rows: Rows = []
    target = Target(record["target"])
    found = find_instructions(target)
    assert found is not None, target
    isa = replace(found[0], core=found[0].core.alone()) if record["is_quiet"] else found[0]
    for area, name, measured in record["rows"]:
        program = sketch_program(snapshot(load(row_model(area, name))).whole, target)
        result = estimate_program(program, isa)
        pairs = list(zip(result.calls, program.calls, strict=True))
        own = [each for each, call in pairs if call.nodes] or result.calls
        microseconds = sum(each.cycles for each in own) / isa.core.hz * 1e6
        rows.append((area, measured, microseconds))
        print(f"{area:14} {name:32} measured {measured:9.1f} us, estimated {microseconds:9.1f}")
    return rows


def judge(rows: Rows) -> float:
    """Print how good estimates are, and return the part of pairs that they rank right."""
    rows = [row for row in rows if row[1] >= LEAST]
    measured, estimated = (np.array([row[i] for row in rows]) for i in (1, 2))
    errors = np.maximum(estimated / measured, measured / estimated)
    right = pairs = 0
    for i in range(len(rows)):
        mine, others = measured[i], measured[i + 1 :]
        is_apart = (others >= APART * mine) | (mine >= APART * others)
        same = (others > mine) == (estimated[i + 1 :] > estimated[i])
        right, pairs = right + int(same[is_apart].sum()), pairs + int(is_apart.sum())
    print(
        f"{len(rows)} kernels of {LEAST:g} us and more: off by {np.median(errors):.2f} (median), "
        f"{np.quantile(errors, 0.9):.2f} (90th percentile), "
        f"{np.quantile(errors, 0.95):.2f} (95th), "
        f"estimated / measured {np.median(estimated / measured):.2f} (median)"
    )
    print(f"{right / pairs:.1%} of {pairs} pairs that differ by a fifth or more are ranked right")
    long = errors[measured >= LONG]
    print(
        f"{len(long)} of {LONG:g} us and more: {np.median(long):.2f}, {np.quantile(long, 0.9):.2f}"
    )
    families = defaultdict(list)
    for (family, mine, _), error in zip(rows, errors, strict=True):
        families[family].append((error, mine))
    for family, each in sorted(families.items()):
        off = [error for error, _ in each]
        share = sum(mine for _, mine in each) / measured.sum()
        print(
            f"  {family:20} {len(each):4}  off by {np.median(off):5.2f}  {share:6.1%} of the time"
        )
    return right / pairs


LONG = 50.0
"""Microseconds."""


_LAYERS = {
    **{
        f"conv {c} {size}": (
            f"float[1,{c},{size},{size}]",
            f"float[{n},{c},{k},{k}] w",
            "Conv(x, w)",
        )
        for c, size, n, k in ((3, 16, 8, 3), (8, 12, 8, 3), (16, 8, 16, 1), (4, 20, 6, 5))
    },
    "depthwise": ("float[1,16,12,12]", "float[16,1,3,3] w", "Conv<group = 16>(x, w)"),
    **{
        f"gemm {k} {n}": (f"float[1,{k}]", f"float[{k},{n}] w", "MatMul(x, w)")
        for k, n in ((32, 16), (64, 64), (256, 10), (128, 100))
    },
    "tanh": ("float[1,400]", "", "Tanh(x)"),
    "relu": ("float[1,1600]", "", "Relu(x)"),
    "softmax": ("float[8,40]", "", "Softmax(x)"),
    "exp": ("float[1,300]", "", "Exp(x)"),
    "max pool": ("float[1,8,16,16]", "", "MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)"),
    "mean": ("float[1,16,9,9]", "", "GlobalAveragePool(x)"),
    "transpose": ("float[16,48]", "", "Transpose(x)"),
    "square": ("float[1,900]", "", "Mul(x, x)"),
    "layer norm": ("float[8,64]", "float[64] w", "LayerNormalization(x, w)"),
}
"""By name of a layer: its input, a weight, and its operator."""

BOARDS = {"cortex-m4": "mps2-an386", "cortex-m55": "mps3-an547", "cortex-a72": ""}
"""Boards of Cortex-M by their CPU; the others are qemu's `virt`."""
ROOT = Path(__file__).parents[1]


def run_microcontroller(model: Path, cpu: str, folder: Path) -> tuple[str, str]:
    """Return what the program of a model says on a board, and the target of its estimate."""
    target = f"c -mcpu={cpu}"
    export_c(model, folder, target)
    command = ["make", "-s", "-B", "-f", ROOT / "examples" / "microcontroller" / "Makefile"]
    command += [f"BOARD={BOARDS[cpu]}", f"NETWORK={folder / 'layer'}", f"BUILD={folder / 'build'}"]
    return said_by([*command, "all", "run"], folder), target


def run_aarch64(model: Path, cpu: str, folder: Path) -> tuple[str, str]:
    """Return what the program of a model says on qemu's `virt`, and the target of its estimate."""
    said = run_on_virt(model, f"llvm -mtriple=aarch64-none-elf -mcpu={cpu}", cpu, folder)
    return said, f"llvm -mtriple=aarch64-linux-gnu -mcpu={cpu}"


def run_on_virt(model: Path, target: str, cpu: str, folder: Path) -> str:
    """Return what the program of a model for a target says on qemu's `virt` with a CPU of qemu's.

    The model's name is `layer`.
    """
    export_object(model, folder, target)
    board = Path(__file__).parent / "aarch64_board"
    compiler = ["aarch64-linux-gnu-gcc-12", "-O2", "-ffreestanding", "-fno-pie", "-nostdlib"]
    files = [board / "start.S", board / "main.c", folder / "layer.o"]
    linking = ["-static", "-no-pie", "-Wl,--build-id=none", "-T", board / "board.ld"]
    said_by([*compiler, "-I", folder, *linking, *files, "-o", folder / "layer.elf"], folder)
    machine = ["qemu-system-aarch64", "-M", "virt", "-cpu", cpu, "-m", "256", "-nographic"]
    machine += ["-nic", "none"]
    counting = ["-semihosting", "-icount", "shift=0", "-kernel", folder / "layer.elf"]
    return said_by([*machine, *counting], folder)


def said_by(command: list[Any], folder: Path) -> str:
    """Run a command; return all that it says."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"{words[0]} failed: {done.stderr}")
    return done.stdout + done.stderr


def count_instructions(name: str, cpu: str, folder: Path) -> tuple[float, float]:
    """Return the instructions of one run of a layer on a board, and the cycles of its estimate."""
    given, weight, operator = _LAYERS[name]
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> layer ({given} x) => (float[] y)'
        f"{f'<{weight}>' if weight else ''} {{ y = {operator} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = np.random.default_rng(0).standard_normal(shape, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    path = folder / "layer.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    said, target = (run_microcontroller if BOARDS[cpu] else run_aarch64)(path, cpu, folder)
    found = re.search(r"instructions: +(\d+)", said)
    assert found is not None, said
    setting = read_setting(Request(model=path, target=target, is_here=False))
    estimated = estimate_region(setting.graph.whole, Target(target))
    assert estimated is not None, target
    return float(found[1]), estimated.cycles


def compare_ranks(cpu: str) -> float:
    """Print instructions and estimates of layers; return the part of pairs that agree."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in _LAYERS:
            rows.append(count_instructions(name, cpu, Path(folder)))
            counted, estimated = rows[-1]
            print(f"  {name:12} {counted:10.0f} instructions  {estimated:10.0f} cycles estimated")
    apart = [
        (one, other)
        for at, one in enumerate(rows)
        for other in rows[at + 1 :]
        if max(one[0], other[0]) >= APART * min(one[0], other[0])
    ]
    right = sum((one[0] > other[0]) == (one[1] > other[1]) for one, other in apart)
    print(f"{cpu}: {right / len(apart):.1%} of {len(apart)} pairs are ranked as instructions are")
    return right / len(apart)


def main() -> int:
    """Record, judge, or compare ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", default=NETWORKS)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--cpu", action="append", choices=BOARDS, help="of --instructions")
    options = parser.parse_args()
    if options.instructions:
        return 0 if min(map(compare_ranks, options.cpu or BOARDS)) >= PAIRS else 1
    if options.record:
        print(record(options.names, options.rounds))
        return 0
    worst = 1.0
    for file in sorted(FOLDER.glob("*.json")):
        content = json.loads(file.read_text())
        print(f"\n{file.name}: {content['target']}, {content['date']}, {content['machine']}")
        rows = network_rows(content) if "networks" in content else kernel_rows(content)
        worst = min(worst, judge(rows))
    return 0 if worst >= PAIRS else 1


if __name__ == "__main__":
    raise SystemExit(main())
