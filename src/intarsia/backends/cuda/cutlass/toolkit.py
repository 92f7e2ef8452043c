# SPDX-License-Identifier: Apache-2.0
"""What compiles CUTLASS: nvcc with a C++ compiler, and CUTLASS's headers; and what it has compiled.

All of it comes by wheels but the C++ compiler. Nothing of it is needed to run what is compiled.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intarsia.cache import make_cache_folder, write_entry
from intarsia.errors import BackendError, SettingError
from intarsia.native.ptxas import KernelResources, counted

if TYPE_CHECKING:
    from intarsia.backends.cuda.cutlass.kernels import ProductKernel

logger = logging.getLogger(__name__)

BACKEND_NAME = "cutlass"
INSTALL = "pip install 'intarsia[cutlass]'"

_SECONDS = 600
_SECONDS_TO_START = 60
_FOLDER = "cutlass"
_RELEASE = re.compile(r"release ([\d.]+)")
_MACRO = re.compile(r"#define CUTLASS_(MAJOR|MINOR|PATCH)\s+(\d+)")


@dataclass(frozen=True, slots=True)
class Nvcc:
    """The compiler with the headers.

    Attributes:
        path: Of nvcc.
        headers: CUTLASS's `include`.
        version: Of both, and the C++ compiler's name.
        host: The C++ compiler; empty if it is the one that nvcc finds itself.
    """

    path: str
    headers: str
    version: str
    host: str = ""


class MachineCode(msgspec.Struct, frozen=True):
    """A compiled kernel, as the cache has it."""

    cubin: bytes
    needs: tuple[int, int, int, int]


@cache
def toolkit() -> Nvcc:
    """Return what compiles CUTLASS.

    Raises:
        BackendError: A part is not installed, or does not start.
    """
    nvcc, headers = _find_nvcc(), _find_headers()
    plain, other = shutil.which("g++"), shutil.which("clang++")
    missing = [
        what
        for what, found in (
            ("nvcc", nvcc),
            ("CUTLASS's headers", headers),
            ("a C++ compiler (g++ or clang++)", plain or other),
        )
        if found is None
    ]
    if nvcc is None or headers is None or missing:
        hint = INSTALL if missing[0] != missing[-1] or "++" not in missing[0] else "install g++"
        raise BackendError(
            f"cutlass: there is no {', nor '.join(missing)}", backend=BACKEND_NAME, hint=hint
        )
    try:
        release = _release(nvcc)
        text = (headers / "cutlass" / "version.h").read_text(encoding="utf-8")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        problem = " ".join(str(error).split())[:500]
        raise BackendError(
            f"cutlass: {nvcc} and CUTLASS's headers cannot be used: {problem}",
            backend=BACKEND_NAME,
            hint=INSTALL,
        ) from error
    number = ".".join(value for _, value in _MACRO.findall(text))
    version = f"CUTLASS {number}, nvcc {release}, {'g++' if plain else 'clang++'}"
    return Nvcc(str(nvcc), str(headers), version, "" if plain else str(other))


def _release(nvcc: Path) -> str:
    """Return which release an nvcc is of.

    Raises:
        OSError: It does not start.
        SubprocessError: It does not answer.
        ValueError: It answers something else.
    """
    done = subprocess.run(
        [str(nvcc), "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_TO_START,
    )
    release = _RELEASE.search(done.stdout)
    if done.returncode or release is None:
        raise ValueError(f"{nvcc} does not start: {done.stderr or done.stdout}")
    return release[1]


def _find_nvcc() -> Path | None:
    """Return nvcc: of its wheel, else what the system has."""
    for folder in _folders("nvidia"):
        for file in sorted(folder.glob("cu*/bin/nvcc"), reverse=True):
            if os.access(file, os.X_OK):
                return file
    found = shutil.which("nvcc")
    return Path(found) if found else None


def _find_headers() -> Path | None:
    """Return CUTLASS's headers, of its wheel."""
    for folder in _folders("cutlass_library"):
        headers = folder / "source" / "include"
        if (headers / "cutlass" / "cutlass.h").is_file():
            return headers
    return None


def _folders(package: str) -> list[Path]:
    spec = find_spec(package)
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []


def compile_kernel(kernel: ProductKernel, arch: str, caches: Path | None) -> MachineCode:
    """Return a kernel as machine code, from the cache if it was compiled before.

    Args:
        kernel: The kernel.
        arch: As in `sm_80`.
        caches: The cache folder; None keeps nothing.

    Raises:
        BackendError: A part of the toolkit is missing, or nvcc refuses the kernel.
    """
    nvcc = toolkit()
    key = sha256("\0".join((kernel.source, arch, nvcc.version)).encode()).hexdigest()
    entry = None if caches is None else caches / _FOLDER / f"{key}.msgpack"
    if entry is not None and entry.is_file():
        try:
            return msgspec.msgpack.decode(entry.read_bytes(), type=MachineCode)
        except (OSError, msgspec.DecodeError) as error:  # it is compiled again, and written over
            logger.info("a compiled kernel of the cache cannot be read: %s", error)
    made = _compile(nvcc, kernel, arch)
    if caches is not None and entry is not None:
        try:
            make_cache_folder(caches)
            write_entry(entry, msgspec.msgpack.encode(made))
        except (OSError, SettingError) as error:
            logger.warning("a compiled kernel is not kept: %s", error)
    return made


def _compile(nvcc: Nvcc, kernel: ProductKernel, arch: str) -> MachineCode:
    with tempfile.TemporaryDirectory() as folder:
        source, code = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        source.write_text(kernel.source, encoding="utf-8")
        command = [
            *(nvcc.path, "-cubin", f"-arch={arch}", "-std=c++17", "-O3", "-Xptxas", "-v"),
            *("--expt-relaxed-constexpr", f"-I{nvcc.headers}"),
            *((f"-ccbin={nvcc.host}",) if nvcc.host else ()),
            *(str(source), "-o", str(code)),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=folder
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendError(
                f"nvcc does not compile a kernel: {error}", backend=BACKEND_NAME
            ) from error
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[:2000]
            raise BackendError(
                f"nvcc refuses a kernel of CUTLASS for {arch}: {said}",
                backend=BACKEND_NAME,
                hint=f"it is {nvcc.path}; leave {BACKEND_NAME} out of the target",
            )
        found = {one.name: one for one in counted(done.stderr + done.stdout)}
        needs = found.get(kernel.name)
        if needs is None:
            raise BackendError(
                f"nvcc does not say what {kernel.name} needs of a GPU", backend=BACKEND_NAME
            )
        numbers = (
            *(needs.registers, needs.stack_bytes),
            *(needs.spilled_bytes, needs.shared_bytes),
        )
        return MachineCode(code.read_bytes(), numbers)


def resources(name: str, needs: tuple[int, int, int, int]) -> KernelResources:
    """Return what a kernel needs, from the numbers that are kept of it."""
    return KernelResources(name, *needs)
