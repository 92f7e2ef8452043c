# SPDX-License-Identifier: Apache-2.0
"""What native code prints, kept from the terminal: libraries of TFLite have no switch for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

STANDARD_ERROR = 2

_ONE_AT_A_TIME = Lock()
"""A descriptor belongs to the whole process: of two that lead it elsewhere, one has to wait."""
_CHUNK = 1 << 16


@contextmanager
def without_lines(unwanted: str, descriptor: int = STANDARD_ERROR) -> Iterator[None]:
    """Leave out lines of what the process writes to a descriptor; all others come at the end.

    What exceeds the system's pipe, 64 KiB as a rule, is lost.

    Args:
        unwanted: How the lines begin that are left out.
        descriptor: Where native code writes them.
    """
    with _ONE_AT_A_TIME:
        try:
            kept = os.dup(descriptor)
        except OSError:  # it is closed: nobody reads it
            yield
            return
        reader, writer = os.pipe()
        os.set_blocking(reader, False)  # a process that starts meanwhile keeps the other end open
        os.set_blocking(writer, False)  # and nobody reads before the end
        os.dup2(writer, descriptor)
        os.close(writer)
        try:
            yield
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)
            _pass_on(reader, unwanted.encode(), descriptor)


def _pass_on(reader: int, unwanted: bytes, descriptor: int) -> None:
    """Write to a descriptor what is left of what a pipe has, and close the pipe."""
    with open(reader, "rb", buffering=0) as pipe:
        said = b"".join(iter(lambda: pipe.read(_CHUNK) or b"", b""))
    left = b"".join(
        line for line in said.splitlines(keepends=True) if not line.startswith(unwanted)
    )
    if left:
        os.write(descriptor, left)
