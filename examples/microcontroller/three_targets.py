# SPDX-License-Identifier: Apache-2.0
"""One int8 network on an Ethos-U, CMSIS-NN and plain C: planned, written, built, run and compared.

    python examples/microcontroller/three_targets.py [--library CMSIS-NN] [--out FOLDER]

It makes `three.onnx`, prints which target has which nodes and why, writes one C program for a
Cortex-M55, builds it with `arm-none-eabi-gcc`, runs it under `qemu-system-arm` (MPS3 with AN547),
and compares its outputs with those of our kernels (`-requantise=tflite`) and of ONNX Runtime.

There is no NPU in an emulator: a stand-in answers for its driver. It knows each command stream by
its bytes, and computes the same integer network in C. Without `--library`, a stand-in answers for
CMSIS-NN as well. It returns 1 if numbers are more than three steps of the output's codes apart.
"""

import argparse
import logging
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
STANDINS = HERE.parents[1] / "tests" / "backends"
LIBRARY = STANDINS / "cmsis_nn" / "cmsis_nn_standin"
DRIVER = STANDINS / "ethos_u" / "driver"
TOOLS = ("arm-none-eabi-gcc", "arm-none-eabi-size", "qemu-system-arm", "make")
KINDS = ("ethos-u", "cmsis-nn", "c")
MOST_STEPS = 3
"""Of codes of the last tensor, from ONNX Runtime's numbers: TFLite rounds otherwise than ONNX, and
a step of a layer is carried on by those behind it."""
SLOPE = 2 / math.sqrt(math.pi)
"""Of Erf, the network's last layer, where it is steepest."""

sys.path[:0] = [str(HERE), str(DRIVER)]


def target_of(library: Path) -> str:
    """Return the machine: an NPU, what it leaves to Arm's library, and what that leaves to C."""
    return (
        f"ethos-u -accelerator_config=ethos-u55-128, cmsis-nn -cmsis_nn_path={library}, "
        "c -mcpu=cortex-m55"
    )


def build_and_run(model: Path, library: Path, folder: Path, board: str = "mps3-an547") -> str:
    """Write, build and run the program on `input.raw` of a folder; its output is `output.raw`.

    Returns:
        What the build and the emulator printed.

    Raises:
        subprocess.CalledProcessError: The build failed, or the program returned an error.
    """
    from networks import write_networks

    from intarsia.export import export_c

    source, _ = export_c(model, folder, target_of(library))
    made, _ = write_networks(model, target_of(library), folder)
    more = [*sorted((library / "Source").rglob("*.c")), DRIVER / "ethosu_standin.c", *made]
    words = [
        "make", "-s", "-f", HERE / "Makefile", f"BOARD={board}", f"BUILD={folder / 'build'}",
        f"NETWORK={source.with_suffix('')}", f"INCLUDES={library / 'Include'} {DRIVER}",
        f"SOURCES={' '.join(map(str, more))}", "all", "run",
    ]  # fmt: skip
    done = subprocess.run(
        [str(word) for word in words],
        check=True, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.stdout


def last_scale(model: Path) -> float:
    """Return the scale of the codes that the last DequantizeLinear reads."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(model).graph
    name = [node.input[1] for node in graph.node if node.op_type == "DequantizeLinear"][-1]
    (scale,) = (one for one in graph.initializer if one.name == name)
    return float(numpy_helper.to_array(scale))


def compare(model: Path, folder: Path, x: np.ndarray) -> dict[str, float]:
    """Return how far the program's outputs are from what others compute, at most."""
    import onnxruntime

    import intarsia

    got = np.fromfile(folder / "output.raw", np.float32)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {session.get_inputs()[0].name: x})
    ours = intarsia.compile(model, target="llvm -requantise=tflite")(x)
    others = {"our kernels with -requantise=tflite": ours, "ONNX Runtime": wanted}
    return {who: float(np.abs(got - one.ravel()).max()) for who, one in others.items()}


def main(words: list[str] | None = None) -> int:
    """Show all of it; return 1 if the numbers are wrong, 2 if something is not installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, default=LIBRARY, help="folder of CMSIS-NN")
    parser.add_argument("--out", type=Path, help="where the program is written and kept")
    given = parser.parse_args(words)
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        print(f"error: a program with ethos-u is built and run by {', '.join(missing)}")
        print("hint: scripts/bring_foreign.sh installs what builds and runs for other machines")
        return 2
    with tempfile.TemporaryDirectory(prefix="three-") as work:
        return _show(given.library.resolve(), given.out or Path(work))


def _show(library: Path, folder: Path) -> int:
    """Plan, write, build, run and compare in a folder."""
    from make_networks import main as make_networks

    from intarsia.compiler import read_setting
    from intarsia.errors import IntarsiaError
    from intarsia.place.request import Request
    from intarsia.tuning.absent.explaining import explain_absent

    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    logging.disable(logging.WARNING)  # the quantiser's advice about larger networks
    make_networks(folder)
    logging.disable(logging.NOTSET)
    model = folder / "three.onnx"
    try:
        setting = read_setting(Request(model=model, target=target_of(library), is_here=False))
        explanation = explain_absent(setting, "auto")
        x = np.random.default_rng(7).standard_normal((1, 1, 32, 32), np.float32)
        (folder / "input.raw").write_bytes(x.tobytes())
        printed = build_and_run(model, library, folder)
    except IntarsiaError as error:
        print(f"error: {error}")
        return 2
    regions = explanation.placement.regions
    kinds = [region.target.partition(" ")[0] for region in regions]
    for number, (kind, region) in enumerate(zip(kinds, regions, strict=True)):
        print(f"region {number} on {kind}: {region.operators}")
        print(f"    {region.reason}; {explanation.regions[number]}")
    print(
        f"one program of {', '.join(kind for kind in KINDS if kind in kinds)}; stand-ins answer for"
    )
    print("the NPU's driver" + (" and for the library" if library == LIBRARY else ""))
    print("\n".join(line for line in printed.splitlines() if ": " in line))
    apart = compare(model, folder, x)
    scale = last_scale(model)
    for who, most in apart.items():
        print(f"at most {most:.6f} from {who}, where a step of the last codes is {scale:.6f}")
    if set(kinds) != set(KINDS):
        print(f"error: only {', '.join(sorted(set(kinds)))} have regions")
    return int(set(kinds) != set(KINDS) or max(apart.values()) > MOST_STEPS * scale * SLOPE)


if __name__ == "__main__":
    sys.exit(main())
