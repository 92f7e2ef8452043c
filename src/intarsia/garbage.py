# SPDX-License-Identifier: Apache-2.0
"""Fewer collections of garbage while a model is compiled, a package is loaded, or we are imported.

Compiling makes hundred thousands of objects that live until it ends (kernels are trees), so that
Python, which looks for garbage after each 700 of them, looks through all of them again and again:
0.17 of the 2.7 s of a ResNet-18. Once in 50,000 takes a third of that and holds back a few
megabytes; never at all would take what many models need. What imports and packages make stays: of
the half second up to a first output, looking for garbage took 0.03.
"""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_OBJECTS = 50_000
"""New objects between two collections."""

_lock = threading.Lock()
_depth = 0
_before: tuple[int, int, int] = (0, 0, 0)


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Let garbage wait; the process's own settings come back when the last one leaves.

    What is set meanwhile stays, and so does what is set higher, or off.
    """
    global _depth, _before  # noqa: PLW0603 - settings of the process
    with _lock:
        _depth += 1
        if _depth == 1:
            _before = gc.get_threshold()
            if 0 < _before[0] < _OBJECTS:
                gc.set_threshold(_OBJECTS, *_before[1:])
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth and gc.get_threshold() == (_OBJECTS, *_before[1:]):
                gc.set_threshold(*_before)
