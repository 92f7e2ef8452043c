# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels on disk: what was compiled once for a CPU is not compiled again.

An entry is found by the kernel's text, the CPU, its features, the version of what compiled it and
the passes. One that does not define what the text defines is as good as none: it could not be
linked, ever.
"""

from __future__ import annotations

import re
from pathlib import Path

from intarsia.native.entries import Entries
from intarsia.native.machine import NativeCpu, compile_object, generator_version

KIND = "kernels"
"""The folder of the entries inside the cache folder."""

LIMIT_BYTES = 512 << 20
"""Entries together."""

_LEVEL = "0"
"""What kernels are compiled with, see `compile_object`."""

_DEFINITION = "\ndefine "
_DEFINED = re.compile(r"(?!internal |private )[^@\n]*@([\w.$]+)\(")
"""What follows."""


class ObjectCache(Entries):
    """Object files by what they are made of.

    Args:
        folder: The folder of all caches; None keeps nothing.
        limit_bytes: Of all entries together.
    """

    __slots__ = ()

    def __init__(self, folder: Path | None, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__(folder, KIND, ".o", limit_bytes)

    def object_of(self, text: str, cpu: NativeCpu) -> bytes:
        """Return the object file of a module of LLVM IR, from the folder if it is there.

        Raises:
            BackendError: LLVM refused the module.
        """
        code = self.find_object(text, cpu)
        if code is None:
            code = compile_object(text, cpu)
            self.keep_object(text, cpu, code)
        return code

    def find_object(self, text: str, cpu: NativeCpu) -> bytes | None:
        """Return the object file of a module, if it is there and sound."""
        code = self.find(_parts(text, cpu))
        return code if code is not None and _fits(code, text) else None

    def keep_object(self, text: str, cpu: NativeCpu, code: bytes) -> None:
        """Keep the object file of a module, if that is what it is."""
        if _fits(code, text):
            self.keep(_parts(text, cpu), code)


def _fits(code: bytes, text: str) -> bool:
    """Tell whether an object file names all that a module defines for others."""
    # Names stand as they are in an object's table of strings, whatever its format. A regular
    # expression alone would look at each line of the text, which has thousands.
    defined = map(_DEFINED.match, f"\n{text}".split(_DEFINITION)[1:])
    return all(match[1].encode() in code for match in defined if match)


def _parts(text: str, cpu: NativeCpu) -> tuple[str, ...]:
    return text, cpu.triple, cpu.name, cpu.features, generator_version(), _LEVEL
