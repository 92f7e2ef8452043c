# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels on disk: what was compiled once for a CPU is not compiled again.

An entry is found by the kernel's text, the CPU, its features, LLVM's version and the passes.
"""

from __future__ import annotations

from pathlib import Path

from intarsia.codegen.entries import Entries
from intarsia.codegen.machine import Cpu, compile_object, llvm_version

KIND = "kernels"
"""The folder of the entries inside the cache folder."""

LIMIT_BYTES = 512 << 20
"""Entries together."""


class ObjectCache(Entries):
    """Object files by what they are made of.

    Args:
        folder: The folder of all caches; None keeps nothing.
        limit_bytes: Of all entries together.
    """

    __slots__ = ()

    def __init__(self, folder: Path | None, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__(folder, KIND, ".o", limit_bytes)

    def object_of(self, text: str, cpu: Cpu, level: int = 0) -> bytes:
        """Return the object file of a module of LLVM IR, from the folder if it is there.

        Raises:
            BackendError: LLVM refused the module.
        """
        found = self.find_object(text, cpu, level)
        if found is None:
            found = compile_object(text, cpu, level)
            self.keep_object(text, cpu, level, found)
        return found

    def find_object(self, text: str, cpu: Cpu, level: int = 0) -> bytes | None:
        """Return the object file of a module, if it is there and sound."""
        return self.find(_parts(text, cpu, level))

    def keep_object(self, text: str, cpu: Cpu, level: int, code: bytes) -> None:
        """Keep the object file of a module."""
        self.keep(_parts(text, cpu, level), code)


def _parts(text: str, cpu: Cpu, level: int) -> tuple[str, ...]:
    return text, cpu.triple, cpu.name, cpu.features, llvm_version(), str(level)
