# SPDX-License-Identifier: Apache-2.0
"""Fewer collections of garbage while a model is compiled, a package is loaded, or we are imported.

And what loading a package leaves behind: memory that the allocator keeps for later.

Compiling makes hundred thousands of objects that live until it ends (kernels are trees), so that
Python, which looks for garbage after each 700 of them, looks through all of them again and again:
0.17 of the 2.7 s of a ResNet-18. Once in 50,000 takes a third of that and holds back a few
megabytes; never at all would take what many models need. What imports and packages make stays: of
the half second up to a first output, looking for garbage took 0.03.
"""

from __future__ import annotations

import gc
import sys
import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def give_memory_back() -> None:
    """Return free memory to the system where the C library holds on to it.

    Loading ResNet-50 leaves 2.4 MB of freed records in the heap, seven times what it keeps; each
    process that loads the package would have them.
    """
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    """Return `malloc_trim` of glibc (malloc_trim(3)); elsewhere what does nothing."""
    if sys.platform != "linux":
        return lambda _: None
    import ctypes  # who looks at targets alone needs none

    function: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    return function
