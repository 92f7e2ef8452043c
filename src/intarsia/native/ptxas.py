# SPDX-License-Identifier: Apache-2.0
"""What kernels in PTX need of a GPU, as NVIDIA's assembler counts it.

The assembler is a program of CUDA's toolkit and of the wheel `nvidia-cuda-nvcc-cu12`. It needs no
GPU, and running code does not need it: the driver has one of its own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from intarsia.errors import BackendError

INSTALL = "pip install nvidia-cuda-nvcc-cu12"

_TARGET = re.compile(r"^\.target (\w+)", re.MULTILINE)
_NAME = re.compile(r"Compiling entry function '([^']+)'")
_COUNTS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spilled_bytes": re.compile(r"(\d+) bytes spill stores"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
}


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What one kernel needs.

    Attributes:
        name: Of its function.
        registers: Of a thread.
        stack_bytes: Memory of a thread's own.
        spilled_bytes: Part of it that registers are written to.
        shared_bytes: Shared memory of a block.
    """

    name: str
    registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.registers} registers, {self.stack_bytes} bytes of stack, "
            f"{self.spilled_bytes} spilled, {self.shared_bytes} of shared memory"
        )


def find_ptxas() -> Path | None:
    """Return the assembler, of the wheel or of a toolkit; None if there is none."""
    try:
        spec = find_spec("nvidia.cuda_nvcc")
    except ModuleNotFoundError:
        spec = None
    for folder in spec.submodule_search_locations or () if spec else ():
        for name in ("ptxas", "ptxas.exe"):
            file = Path(folder) / "bin" / name
            if file.is_file():
                return file
    found = shutil.which("ptxas")
    return Path(found) if found else None


def assemble(ptx: str) -> tuple[KernelResources, ...]:
    """Return what the kernels of a module need, on the architecture that it names.

    Raises:
        BackendError: There is no assembler, or it refuses the module.
    """
    ptxas, target = find_ptxas(), _TARGET.search(ptx)
    if ptxas is None:
        raise BackendError("there is no ptxas", backend="cuda", hint=INSTALL)
    arch = target[1] if target else ""
    with tempfile.TemporaryDirectory() as folder:
        source, code = Path(folder) / "kernels.ptx", Path(folder) / "kernels.cubin"
        source.write_text(ptx)
        command = [str(ptxas), "-v", f"-arch={arch}", str(source), "-o", str(code)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(
            f"ptxas refuses the kernels: {' '.join(done.stderr.split())[:2000]}",
            backend="cuda",
            hint=f"it is {ptxas}",
        )
    return counted(done.stderr)


def counted(said: str) -> tuple[KernelResources, ...]:
    """Return what kernels need, from what the assembler says with `-v`."""
    _, *pieces = _NAME.split(said)
    return tuple(
        KernelResources(
            name,
            *(int(match[1]) if (match := count.search(text)) else 0 for count in _COUNTS.values()),
        )
        for name, text in zip(pieces[::2], pieces[1::2], strict=True)
    )
