# SPDX-License-Identifier: Apache-2.0
"""From C, C++ and objects to a program, a library or one object, for this machine or another.

This machine's C compiler links for this machine. For others the wheel `ziglang` does, which is
Clang, LLD and the C libraries of many systems: nothing has to be installed for a target.

    Linker.find(cpu, caches) -> which compiler, with which options
           .link(form, output, files) -> the file
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from intarsia.errors import BackendError
from intarsia.native.machine import NativeCpu, triple_words
from intarsia.native.native_target import is_platform_here

_CACHE = "zig"
"""The folder of the wheel's own cache inside ours: C libraries, built when first linked with."""

_SHOWN = 800
"""How much of what a compiler says is quoted: its end."""

_C_PLUS_PLUS = (".cc", ".cpp", ".cxx")


class BinaryKind(StrEnum):
    """What is linked."""

    EXECUTABLE = "executable"
    SHARED = "shared"
    OBJECT = "object"  # relocatable: all in one, to be linked by others


@dataclass(frozen=True, slots=True)
class Linker:
    """A compiler that links for one machine.

    Attributes:
        name: How messages call it.
        c: The command that compiles C, and links.
        cxx: The same for C++.
        zig_cache: The folder of the wheel's cache; None for other compilers.
    """

    name: str
    c: tuple[str, ...]
    cxx: tuple[str, ...]
    zig_cache: Path | None = None

    @classmethod
    def find(cls, cpu: NativeCpu, caches: Path) -> Linker:
        """Return the compiler for a machine: the system's for this one, the wheel for others.

        Args:
            cpu: What the program is for.
            caches: The folder of all caches.

        Raises:
            BackendError: There is none.
        """
        is_here = is_platform_here(cpu.triple)
        if is_here and not cpu.triple.endswith("musl"):  # a C library that few systems have
            found = _system_compilers()
            if found is not None:
                return cls(found[0], (found[0],), (found[1],))
        triple = cpu.triple or "this machine"
        if not has_zig():
            nothing = f"there is no C compiler that links for {triple}"
            hint = 'pip install "intarsia[cross]"'
            raise BackendError(
                nothing, hint=f"install gcc or clang, or {hint}" if is_here else hint
            )
        options: list[str] = []
        if cpu.triple:
            options += ["-target", zig_target(cpu.triple)]
            options += [f"-mcpu={_zig_cpu(cpu)}"] if cpu.name or cpu.features else []
        zig = (sys.executable, "-m", "ziglang")
        return cls("zig cc", (*zig, "cc", *options), (*zig, "c++", *options), caches / _CACHE)

    def link(
        self,
        form: BinaryKind,
        output: Path,
        files: Sequence[str | Path],
        *,
        options: Sequence[str] = (),
        libraries: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        """Compile sources and link them with objects.

        Args:
            form: What to make.
            output: The file to write.
            files: C and C++ sources, assembly, objects and archives.
            options: Of the compiler, before the files; without them it is `-O2`.
            libraries: What to link with, by name, such as `m`; an object is linked with none.
            folder: Where the compiler runs: sources say files relative to it. None means here.

        Raises:
            BackendError: The compiler failed, or could not be started.
        """
        is_cxx = any(Path(file).suffix in _C_PLUS_PLUS for file in files)
        command = [*(self.cxx if is_cxx else self.c), "-O2", *_FORMS[form], *options]
        command += map(str, files)
        command += [f"-l{name}" for name in libraries if form is not BinaryKind.OBJECT]
        command += ["-o", str(output.resolve())]
        self.run(command, f"link {output.name}", folder)

    def run(self, command: Sequence[str], purpose: str, folder: Path | None = None) -> None:
        """Run a command of this compiler.

        Args:
            command: `c` or `cxx` with arguments.
            purpose: What it does, after "failed to".
            folder: Where it runs; None means here.

        Raises:
            BackendError: It failed, or could not be started.
        """
        # What the user has set stands: many share one cache of the wheel's.
        cache = {} if self.zig_cache is None else {"ZIG_GLOBAL_CACHE_DIR": str(self.zig_cache)}
        environment = {**cache, **os.environ}  # noqa: TID251 - handed on, not read
        hint = "look at what it says; --emit c writes sources for another compiler"
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                check=False,
                capture_output=True,
                text=True,
                errors="replace",  # it quotes sources, whose names may be anything
            )
        except OSError as error:
            said = f"{self.name} failed to {purpose}: {error.strerror or error}"
            raise BackendError(said, hint=hint) from error
        if done.returncode:
            said = done.stderr.strip()[-_SHOWN:] or f"it ended with {done.returncode}"
            raise BackendError(f"{self.name} failed to {purpose}: {said}", hint=hint)


_FORMS: dict[BinaryKind, tuple[str, ...]] = {
    BinaryKind.EXECUTABLE: (),
    BinaryKind.SHARED: ("-fPIC", "-shared"),
    BinaryKind.OBJECT: ("-fPIC", "-r", "-nostdlib"),
}


def has_zig() -> bool:
    """Tell whether the wheel `ziglang` is installed."""
    return importlib.util.find_spec("ziglang") is not None


def has_system_compiler() -> bool:
    """Tell whether this machine has a C compiler of its own."""
    return _system_compilers() is not None


def _system_compilers() -> tuple[str, str] | None:
    """Return the system's compilers of C and C++; None if it has none of C."""
    for c, cxx in (("cc", "c++"), ("gcc", "g++"), ("clang", "clang++")):
        path = shutil.which(c)
        if path is not None:
            return path, shutil.which(cxx) or cxx
    return None


# How the wheel calls machines

_ARCHITECTURES = {"i386": "x86", "systemz": "s390x"}
_SYSTEMS = {"": "freestanding", "darwin": "macos", "macosx": "macos", "wasip1": "wasi"}
_C_LIBRARIES = {"arm": "gnueabihf", "thumb": "gnueabihf"}
"""What a triple for Linux means that names no C library; others `gnu`."""


def zig_target(triple: str) -> str:
    """Return how zig calls what LLVM calls a triple, as in `aarch64-linux-gnu`.

    It has no vendor, and no part of an architecture, which the CPU says.

    Raises:
        BackendError: LLVM is not installed.
    """
    architecture, system, environment = triple_words(triple)
    architecture = _ARCHITECTURES.get(architecture, architecture)
    if system == "linux" and not environment:
        environment = _C_LIBRARIES.get(architecture, "gnu")
    return "-".join(filter(None, (architecture, _SYSTEMS.get(system, system), environment)))


def _zig_cpu(cpu: NativeCpu) -> str:
    """Return a CPU and its features as zig spells them: `cortex_a76+sve`."""
    name = (cpu.name or "baseline").replace("-", "_")
    flags = (flag[0] + flag[1:].replace("-", "_") for flag in filter(None, cpu.features.split(",")))
    return (name + "".join(flags)).replace(".", "_")
