# SPDX-License-Identifier: Apache-2.0
"""What native code prints, kept from the terminal: libraries of TFLite have no switch for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

STANDARD_ERROR = 2


@contextmanager
def without_lines(unwanted: str, descriptor: int = STANDARD_ERROR) -> Iterator[None]:
    """Leave out lines of what the process writes to a descriptor; all others come at the end.

    The descriptor is that of the whole process, its threads and what they start meanwhile, so this
    is for moments. It leads to a file and not to a pipe, whose reader would have to outlive those
    who write. Native code that aborts inside says nothing.

    Args:
        unwanted: How the lines begin that are left out.
        descriptor: Where native code writes them.
    """
    with _one_at_a_time:
        try:
            kept = os.dup(descriptor)
        except OSError:  # it is closed: nobody reads it
            yield
            return
        try:
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed below
        except OSError:  # a line too many is better than an error
            os.close(kept)
            yield
            return
        with file:
            os.dup2(file.fileno(), descriptor)
            try:
                yield
            finally:
                os.dup2(kept, descriptor)
                os.close(kept)
                file.seek(0)
                _pass_on(file.readall(), unwanted.encode(), descriptor)


_one_at_a_time = Lock()
"""Of two that lead a descriptor elsewhere, one has to wait."""


def _renew() -> None:
    """Forget in a child what another thread of its parent holds."""
    global _one_at_a_time  # noqa: PLW0603 - a lock that nobody will give back
    _one_at_a_time = Lock()


os.register_at_fork(after_in_child=_renew)


def _pass_on(said: bytes, unwanted: bytes, descriptor: int) -> None:
    """Write to a descriptor what is wanted of some lines, if it can be written to."""
    lines = said.splitlines(keepends=True)
    left = memoryview(b"".join(line for line in lines if not line.startswith(unwanted)))
    with suppress(OSError):  # as of any message: a full pipe or a closed terminal ends no work
        while left:
            left = left[os.write(descriptor, left) :]
