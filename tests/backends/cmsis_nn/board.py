# SPDX-License-Identifier: Apache-2.0
"""The conformance kit's numbers on a board: cases of `cmsis-nn` as one program under an emulator.

    python tests/backends/cmsis_nn/board.py --board mps3-an547 --layers 20
    python tests/backends/cmsis_nn/board.py --page docs/microcontrollers.md    # both boards

Every case that the backend takes is in one C program, built by `arm-none-eabi-gcc` with the
stand-in for the library (or `--library FOLDER`) and run by `qemu-system-arm`. Cases of the kit are
compared with its reference, at most one step apart; random layers between Q and DQ nodes with
LiteRT's reference kernels, to the bit but for fully connected layers, which LiteRT rounds once.
Other checks of the kit ask the backend on this machine, where its host build is tested.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.compose
from onnx import helper

from intarsia.compiler import read_setting
from intarsia.export import export_c
from intarsia.place.request import Request
from intarsia.testing import case, constant, fed, weight
from intarsia.testing.case import DRAWS, problem_of
from intarsia.testing.cases import CASES as KIT

ROOT = Path(__file__).parents[3]
STANDIN = Path(__file__).parent / "cmsis_nn_standin"
EXAMPLE = ROOT / "examples" / "microcontroller"
BOARDS = {
    "mps3-an547": ("cortex-m55", ()),
    "mps2-an386": ("cortex-m4", ("-mfpu=fpv4-sp-d16",)),
}
TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")
sys.path.insert(0, str(ROOT / "benchmarks"))

import tflite_layers as tl  # noqa: E402 - benchmarks are no package

BEGIN, END = "<!-- kit on boards: begin -->", "<!-- kit on boards: end -->"


def scales(*steps):
    """Scales and zero points of int8, as inputs."""
    return [
        operand
        for scale, zero in steps
        for operand in (constant(np.float32(scale), "float32"), constant(zero, "int8"))
    ]


def codes(*shape):
    return fed(*shape, low=-128, high=127, dtype="int8")


def weights(*shape):
    return weight(*shape, low=-127, high=127, dtype="int8")


def bias(count):
    return weight(count, low=-900, high=900, dtype="int32")


X, W, Y = (0.05, -3), (0.02, 0), (0.6, 5)
INT8 = {"dtypes": ("int8",)}
CASES = (
    case("QLinearConv", "3x3", codes(1, 4, 7, 6), *scales(X), weights(5, 4, 3, 3), *scales(W, Y),
         bias(5), pads=(1, 1, 1, 1), **INT8),
    case("QLinearConv", "depthwise", codes(2, 4, 7, 6), *scales(X), weights(8, 1, 3, 3),
         *scales(W, Y), group=4, strides=(2, 2), **INT8),
    case("QLinearConv", "groups", codes(1, 4, 5, 5), *scales(X), weights(6, 2, 1, 3),
         *scales(W, Y), group=2, dilations=(1, 2), **INT8),
    case("QLinearConv", "1x1", codes(1, 8, 4, 4), *scales(X), weights(6, 8, 1, 1), *scales(W, Y),
         bias(6), **INT8),
    case("QLinearConv", "pads_of_one_side", codes(1, 3, 6, 6), *scales(X), weights(4, 3, 3, 3),
         *scales(W, Y), pads=(0, 0, 1, 1), strides=(2, 2), **INT8),
    case("QLinearConv", "one_channel", codes(1, 1, 9, 9), *scales(X), weights(4, 1, 5, 5),
         *scales(W, Y), **INT8),
    case("QLinearMatMul", "matrix", codes(3, 9), *scales(X), weights(9, 7), *scales(W, Y), **INT8),
    case("QLinearMatMul", "batch", codes(2, 3, 8), *scales(X), weights(8, 5), *scales(W, Y),
         **INT8),
    case("MaxPool", "codes", codes(1, 5, 8, 8), kernel_shape=(2, 2), strides=(2, 2), **INT8),
    case("MaxPool", "codes_padded", codes(1, 3, 7, 7), kernel_shape=(3, 3), strides=(2, 2),
         pads=(1, 1, 1, 1), **INT8),
    case("Flatten", "codes", codes(2, 3, 2, 2), **INT8),
    case("Reshape", "codes", codes(2, 12), constant([2, 3, 4]), **INT8),
)  # fmt: skip
"""Operators on int8; the kit's own table is of floats, integers of other types, and bool."""


@dataclass(frozen=True)
class BoardCase:
    """A model with what is fed and wanted.

    Attributes:
        name: Of the case.
        model: It.
        feeds: An array per input, for each run.
        wanted: The array of the output, likewise.
        steps: How far codes may be off.
    """

    name: str
    model: onnx.ModelProto
    feeds: tuple
    wanted: tuple
    steps: int


def kit_cases(cases=(*CASES, *KIT)):
    """Yield the kit's cases in every dtype, with the numbers of its reference."""
    for one in cases:
        for dtype in one.dtypes:
            problem = problem_of(one, dtype)
            output = problem.model.graph.output[0].name
            wanted = tuple(values[output] for values in problem.values)
            yield BoardCase(f"{one} {dtype}", problem.model, problem.feeds, wanted, 1)


def layer_cases(count, names=tuple(tl.OPERATORS)):
    """Yield random layers between Q and DQ nodes, with LiteRT's numbers."""
    for name in names:
        for number, layer in enumerate(tl.layers(name, count, seed=17)):
            feeds, wanted = (layer.feeds,) * DRAWS, (layer.reference(),) * DRAWS
            steps = 1 if name == "fully connected" else 0
            yield BoardCase(f"{name} {number}", layer.model, feeds, wanted, steps)


def refusal_of(one, target):
    """Return why the backend does not compute a case; empty if it does."""
    setting = read_setting(Request(model=one.model, target=target, is_here=False))
    (capability, *_) = setting.capabilities
    return next((refusal.reason for refusal in capability.refusals.values()), "")


def join(cases):
    """Return one model of several, side by side."""
    nodes, constants, inputs, outputs = [], [], [], []
    for number, one in enumerate(cases):
        graph = onnx.compose.add_prefix_graph(one.model.graph, f"c{number}_")
        nodes += graph.node
        constants += graph.initializer
        inputs += graph.input
        outputs += graph.output
    graph = helper.make_graph(nodes, "cases", inputs, outputs, constants)
    (opset,) = {one.model.opset_import[0].version for one in cases}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


_MAIN = """#include "cases.h"
#include "semihosting.h"
static union {{ int8_t bytes[{inputs}]; double aligned; }} from;
static union {{ int8_t bytes[{outputs}]; double aligned; }} to;
int main(void)
{{
    if (semihosting_read("input.raw", from.bytes, sizeof from.bytes) != (int)sizeof from.bytes)
        return 1;
    if (cases_run({passed}))
        return 2;
    return semihosting_write("output.raw", to.bytes, sizeof to.bytes);
}}
"""


def run_on_board(cases, board, folder, library=STANDIN):
    """Return what a board computes: for each case an array for each run."""
    cpu, floats = BOARDS[board]
    model = join(cases)
    onnx.save(model, folder / "cases.onnx")
    export_c(folder / "cases.onnx", folder, f"cmsis-nn -cmsis_nn_path={library}, c -mcpu={cpu}")
    sizes = [
        [
            np.prod([dim.dim_value for dim in one.type.tensor_type.shape.dim], dtype=int)
            for one in side
        ]
        for side in (model.graph.input, model.graph.output)
    ]
    starts = [np.cumsum([0, *(-(-size // 8) * 8 for size in side)]) for side in sizes]
    passed = [f"from.bytes + {at}" for at in starts[0][:-1]]
    passed += [f"to.bytes + {at}" for at in starts[1][:-1]]
    main = _MAIN.format(inputs=starts[0][-1], outputs=starts[1][-1], passed=", ".join(passed))
    (folder / "main.c").write_text(main)
    sources = [*sorted(Path(library, "Source").rglob("*.c")), folder / "cases.c", folder / "main.c"]
    sources += [EXAMPLE / "startup.c", EXAMPLE / "semihosting.c"]
    command = [
        "arm-none-eabi-gcc", f"-mcpu={cpu}", "-mfloat-abi=hard", *floats, "-mthumb", "-std=gnu99",
        "-O2", "-w", "-ffunction-sections", "-fdata-sections", f"-I{folder}", f"-I{EXAMPLE}",
        f"-I{Path(library) / 'Include'}", *sources, "-nostartfiles", "-Wl,--gc-sections",
        "-T", EXAMPLE / f"{board}.ld", "--specs=nano.specs", "-o", folder / "cases.elf",
    ]  # fmt: skip
    subprocess.run([str(word) for word in command], check=True)
    results = []
    for draw in range(DRAWS):
        memory = np.zeros(starts[0][-1], np.int8)
        feeds = [one.feeds[draw][name.name] for one in cases for name in one.model.graph.input]
        for at, feed in zip(starts[0], feeds, strict=False):
            memory[at : at + feed.size] = feed.ravel()
        memory.tofile(folder / "input.raw")
        emulator = [
            "qemu-system-arm", "-M", board, "-nographic", "-monitor", "none", "-serial", "none",
            "-semihosting-config", "enable=on,target=native", "-kernel", "cases.elf",
        ]  # fmt: skip
        subprocess.run(emulator, cwd=folder, check=True, capture_output=True)
        out = np.fromfile(folder / "output.raw", np.int8)
        results.append([out[at : at + n] for at, n in zip(starts[1], sizes[1], strict=False)])
    return list(zip(*results, strict=True))


def examine_board(cases, board, library=STANDIN):
    """Return for each case what became of it: `passed`, `skipped: why` or `failed: why`."""
    target = f"cmsis-nn -cmsis_nn_path={library}, c -mcpu={BOARDS[board][0]}"
    verdicts, taken = {}, {}
    for one in cases:
        reason = refusal_of(one, target)
        if reason:
            verdicts[one.name] = f"skipped: {reason}"
        else:
            taken.setdefault(one.model.opset_import[0].version, []).append(one)
    for batch in taken.values():
        with tempfile.TemporaryDirectory() as folder:
            results = run_on_board(batch, board, Path(folder), library)
        for one, got in zip(batch, results, strict=True):
            apart = max(
                int(np.abs(array.astype(int) - wanted.ravel()).max())
                for array, wanted in zip(got, one.wanted, strict=True)
            )
            passed = apart <= one.steps
            verdicts[one.name] = "passed" if passed else f"failed: {apart} steps off"
    return verdicts


def table(verdicts):
    """Yield the lines of a table: of each kind of case, what became of it on each board."""
    boards = tuple(verdicts)
    counts = Counter(
        (re.sub(r" \d+$|-.*", "", name), board, verdict.partition(":")[0])
        for board in boards
        for name, verdict in verdicts[board].items()
    )
    kinds = dict.fromkeys(kind for kind, _, what in counts if what != "skipped")
    yield "| cases | " + " | ".join(f"{BOARDS[board][0]} ({board})" for board in boards) + " |"
    yield "|---|" + "---|" * len(boards)
    for kind in kinds:
        cells = (
            ", ".join(
                f"{counts[kind, board, what]} {what}"
                for what in ("passed", "failed", "skipped")
                if counts[kind, board, what]
            )
            for board in boards
        )
        yield f"| {kind} | {' | '.join(cells)} |"
    for board in boards:
        every = Counter(verdict.partition(":")[0] for verdict in verdicts[board].values())
        said = ", ".join(f"{n} {what}" for what, n in sorted(every.items()))
        yield f"\n{board}: {len(verdicts[board])} cases, {said}."


def write_page(page, verdicts):
    """Put the table between two comments of a page."""
    text = page.read_text(encoding="utf-8")
    before, has_begin, rest = text.partition(BEGIN)
    _, has_end, after = rest.partition(END)
    if not (has_begin and has_end):
        sys.exit(f"{page} lacks {BEGIN} and {END}")
    middle = "\n".join(table(verdicts))
    page.write_text(f"{before}{BEGIN}\n\n{middle}\n\n{END}{after}", encoding="utf-8")


def main():
    """Print what became of each case; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--board", action="append", choices=list(BOARDS), help="both if left out")
    parser.add_argument("--layers", type=int, default=20, help="random layers of each operator")
    parser.add_argument("--library", default=str(STANDIN), help="folder of CMSIS-NN")
    parser.add_argument("--all", action="store_true", help="list what is refused, too")
    parser.add_argument("--page", type=Path, help="that the table is written into")
    given = parser.parse_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        parser.error(f"not installed: {', '.join(missing)}")
    cases = [*kit_cases(), *layer_cases(given.layers)]
    verdicts = {
        board: examine_board(cases, board, given.library) for board in given.board or BOARDS
    }
    for board, own in verdicts.items():
        for name, verdict in own.items():
            if given.all or not verdict.startswith("skipped"):
                print(f"{board} {name}: {verdict}")
    print(*table(verdicts), sep="\n")
    if given.page:
        write_page(given.page, verdicts)
    return int(any(v.startswith("failed") for own in verdicts.values() for v in own.values()))


if __name__ == "__main__":
    sys.exit(main())
