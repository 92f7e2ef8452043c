# SPDX-License-Identifier: Apache-2.0
"""Networks as programs for other machines: built here, run under emulators, compared.

    $ python benchmarks/cross.py aarch64 riscv64 --models squeezenet minilm

A program makes its inputs of a seed; so does this script, for ONNX Runtime. An error is the
greatest difference of any output from ONNX Runtime's, as a part of that output's greatest number.
Times are an emulator's and say nothing of the machine. Machines whose emulator is missing are
named and passed over. It needs the extra `cross`, qemu-user and the C libraries of the machines
(`scripts/bring_foreign.sh`). `acl` and `acl-mixed` are programs of Arm Compute Library and our
kernels, and need `INTARSIA_ACL_ROOT`.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from intarsia import zoo
from intarsia.codegen.emit.c_main import file_names, seeded_input
from intarsia.codegen.emit.c_program import Tensor
from intarsia.export import export_executable

QEMU = {
    "aarch64": ("aarch64", "max"),
    "acl": ("aarch64", "max"),
    "acl-mixed": ("aarch64", "max"),
    "neoverse-v1": ("aarch64", "max"),
    "armv7": ("arm", "max"),
    "riscv64": ("riscv64", "rv64,v=true,vlen=128"),
    "riscv64-256": ("riscv64", "rv64,v=true,vlen=256"),
    "riscv64-scalar": ("riscv64", "rv64"),
    "haswell": ("x86_64", "max"),
    "x86-64-v2": ("x86_64", "max"),
}
"""The emulator of a machine, and its CPU."""
TARGETS = {
    "aarch64": "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76",
    "acl": "acl, llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76",
    "acl-mixed": "arm_acl -disabled_ops=MaxPool,GlobalAveragePool, "
    "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76",
    "neoverse-v1": "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1",
    "armv7": "llvm -mtriple=armv7-linux-gnueabihf -mcpu=cortex-a9",
    "riscv64": "llvm -mtriple=riscv64-linux-gnu -mattr=+m,+a,+f,+d,+c,+v",
    "riscv64-256": "llvm -mtriple=riscv64-linux-gnu -mattr=+m,+a,+f,+d,+c,+v,+zvl256b",
    "riscv64-scalar": "llvm -mtriple=riscv64-linux-gnu -mattr=+m,+a,+f,+d,+c",
    "haswell": "llvm -mcpu=haswell",
    "x86-64-v2": "llvm -mcpu=x86-64-v2",
    "wasm32": "llvm -mtriple=wasm32-wasi -mattr=+simd128",
}
ROOTS = {
    "aarch64": "aarch64-linux-gnu",
    "arm": "arm-linux-gnueabihf",
    "riscv64": "riscv64-linux-gnu",
}


def command_of(machine: str) -> list[str] | str:
    """Return what runs a program, or what is missing."""
    if machine == "wasm32":
        node = shutil.which("node")
        return [node, "--no-warnings", "-e", _NODE] if node else "node"
    family, cpu = QEMU[machine]
    emulator = shutil.which(f"qemu-{family}-static") or shutil.which(f"qemu-{family}")
    if emulator is None:
        return f"qemu-{family}-static"
    root = f"/usr/{ROOTS[family]}" if family in ROOTS else "/"
    return [emulator, "-cpu", cpu, "-L", root] if Path(root).is_dir() else f"{root}/lib"


_NODE = """
const fs = require('fs'), { WASI } = require('node:wasi');
const [file, ...rest] = process.argv.slice(1);
const wasi = new WASI({ version: 'preview1', args: [file, ...rest], preopens: { '/': '/' } });
WebAssembly.instantiate(fs.readFileSync(file), wasi.getImportObject()).then(
    (made) => process.exit(wasi.start(made.instance)));
"""


def quantised(path: Path) -> Path:
    """Return a model in int8, Q and DQ around its operators, calibrated on noise."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Noise(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [noise(path, seed) for seed in range(2)]

        def get_next(self) -> dict | None:
            return self.left.pop() if self.left else None

    written = path.with_name(f"{path.stem}_int8.onnx")
    # Weights of 7 bits: with 8, ONNX Runtime's sums of bytes saturate on CPUs without VNNI.
    options = {"quant_format": QuantFormat.QDQ, "reduce_range": True}
    options["op_types_to_quantize"] = ["Conv", "MaxPool", "Concat"]  # floats come out
    quantize_static(path, written, Noise(), **options)
    return written


def quantising_error(path: Path) -> float:
    """Return how far the model in int8 is from that in float32, both in ONNX Runtime."""
    plain = path.with_name(f"{path.stem.removesuffix('_int8')}.onnx")
    got, wanted = (
        onnxruntime.InferenceSession(one, providers=["CPUExecutionProvider"]).run(None, noise(path))
        for one in (path, plain)
    )
    return max(
        float(np.abs(one - other).max() / np.abs(one).max())
        for one, other in zip(got, wanted, strict=True)
    )


def tensors(values) -> list[Tensor]:
    """Return what a model says of its inputs or outputs."""
    return [
        Tensor(
            value.name,
            np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)).name,
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim),
        )
        for value in values
    ]


def noise(path: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the inputs that a program makes of a seed."""
    inputs = tensors(onnx.load(path, load_external_data=False).graph.input)
    return {one.name: seeded_input(one, number, seed) for number, one in enumerate(inputs)}


def error_of(program: Path, command: list[str], path: Path, folder: Path) -> tuple[float, float]:
    """Run a program; return its error, and the seconds of one run."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wanted = dict(zip(names, session.run(names, noise(path)), strict=True))
    start = time.monotonic()
    done = subprocess.run(
        [*command, str(program), "-o", str(folder)], check=False, capture_output=True, text=True
    )
    taken = time.monotonic() - start
    if done.returncode:
        print(f"    ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
        return math.inf, taken
    errors = []
    files = file_names([Tensor(name, "", ()) for name in names])
    for file, want in zip(files, wanted.values(), strict=True):
        got = np.load(folder / f"{file}.npy")
        scale = float(np.abs(want.astype(np.float64)).max(initial=1e-30))
        errors.append(float(np.abs(got.astype(np.float64) - want).max(initial=0)) / scale)
    return max(errors), taken


def main() -> int:
    """Build, run and compare; return how many went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machines", nargs="*", choices=[*TARGETS, []], default=[])
    parser.add_argument("--models", nargs="*", default=["squeezenet", "mobilenet_v2", "minilm"])
    parser.add_argument("--int8", nargs="*", default=["squeezenet"])
    parser.add_argument("--bound", type=float, default=1e-4, help="greatest error, of floats")
    parser.add_argument("--bound-int8", type=float, default=0.1)
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        paths = []
        for name in dict.fromkeys([*options.models, *options.int8]):
            paths.append(folder / f"{name}.onnx")
            onnx.save(zoo.build(name), paths[-1])
        paths += [quantised(folder / f"{name}.onnx") for name in options.int8]
        for machine in options.machines or TARGETS:
            command = command_of(machine)
            if isinstance(command, str):
                print(f"{machine}: skipped without {command}")
                continue
            for path in paths:
                start = time.process_time()
                program, _ = export_executable(path, folder / machine, TARGETS[machine])
                built = time.process_time() - start
                error, taken = error_of(program, command, path, folder)
                is_int8, told = path.stem.endswith("_int8"), ""
                bound = options.bound_int8 if is_int8 else options.bound
                if is_int8 and machine.startswith("acl"):
                    # The library rounds sums in fixed point, and layers add up: no more than what
                    # quantising changes.
                    bound = quantising_error(path)
                    told = f"  quantising changes {bound:.1e}"
                wrong += not error <= bound
                verdict = "ok" if error <= bound else "WRONG"
                print(
                    f"{machine:14} {path.stem:20} {verdict:5} error {error:.1e}  "
                    f"built in {built:.1f} s, {program.stat().st_size / 1e6:.1f} MB, "
                    f"emulated in {taken:.1f} s{told}",
                    flush=True,
                )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
