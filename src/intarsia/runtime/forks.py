# SPDX-License-Identifier: Apache-2.0
"""What a child made by `fork` may run of what its parent loaded.

It has one thread. Runtimes with threads of their own do not know that theirs are gone, and wait for
them for ever; connections would be used by two processes. So only executables run there that say
that they can (`survives_fork`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from intarsia.backends.device import Executable, survives_fork
from intarsia.backends.values import Artifact
from intarsia.errors import ExecutionError


class ForkGuard:
    """Which process a program was loaded in.

    Args:
        artifacts: Its regions.
        executables: The same, loaded.
    """

    __slots__ = ("_backend", "_forks")

    def __init__(self, artifacts: Iterable[Artifact], executables: Iterable[Executable]) -> None:
        pairs = zip(artifacts, executables, strict=True)
        self._backend = next(
            (one.backend for one, loaded in pairs if not survives_fork(loaded)), ""
        )
        self._forks = _Process.forks

    def check(self) -> None:
        """Check that what was loaded may run in this process.

        Raises:
            ExecutionError: It may not.
        """
        if self._forks != _Process.forks and self._backend:
            raise ExecutionError(
                f"this process is a child, made by fork, of the one that loaded the program, and "
                f"has no threads for its regions of {self._backend}",
                backend=self._backend,
                hint="load the program in the child, and start it by spawn "
                "(multiprocessing.set_start_method)",
            )


class _Process:
    """How many forks lead to this process."""

    forks = 0


def _count() -> None:
    _Process.forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)
