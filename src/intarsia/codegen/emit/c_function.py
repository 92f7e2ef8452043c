# SPDX-License-Identifier: Apache-2.0
"""A step of a C program that is not one of our kernels: a call into somebody else's C."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from intarsia.codegen.ir import Buffer, Function, row_major


@dataclass(frozen=True, slots=True)
class Linkage:
    """What a program is linked with that calls a library of C++.

    Attributes:
        cxx: The command of the compiler that links for the program's machine.
        objects: Machine code that calls the library.
        libraries: The library's archives.
    """

    cxx: tuple[str, ...]
    objects: tuple[bytes, ...]
    libraries: tuple[Path, ...]


@dataclass(eq=False, frozen=True, slots=True)
class CFunction(Function):
    """A function in C99 that stands among the kernels of a program.

    It has a kernel's buffers as its parameters, in their order, `const` unless they are written.
    Its `source` is a definition that calls a library or a driver, `static int NAME(...)`, which
    returns 0 or what makes the program return -1.

    Attributes:
        source: The definition, and what it needs of its own.
        includes: Headers, as they stand behind `#include`: `"<string.h>"`, `'"arm_math.h"'`.
        files: Sources that are compiled beside the program.
        stack_bytes: What it needs of the stack at most, calls included.
        align: Bytes to which its constants have to be aligned: a power of two.
        linkage: What it is linked with, in a program of machine code.
    """

    source: str = ""
    includes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    stack_bytes: int = 0
    align: int = 1
    linkage: Linkage | None = None


def c_function(
    name: str,
    buffers: tuple[Buffer, ...],
    source: str,
    *,
    includes: tuple[str, ...] = (),
    files: tuple[Path, ...] = (),
    stack_bytes: int = 0,
    align: int = 1,
    linkage: Linkage | None = None,
) -> CFunction:
    """Return a function of some buffers; see `CFunction`."""
    return CFunction(
        name,
        buffers,
        (),
        (),
        (),
        source=source,
        includes=includes,
        files=files,
        stack_bytes=stack_bytes,
        align=align,
        linkage=linkage,
    )


def dense(name: str, dtype: str, shape: tuple[int, ...], *, is_written: bool = False) -> Buffer:
    """Return a dense row-major parameter of such a function."""
    return Buffer(name, dtype, shape, row_major(shape), is_written=is_written)
