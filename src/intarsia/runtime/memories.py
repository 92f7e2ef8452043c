# SPDX-License-Identifier: Apache-2.0
"""Memory for the runs of a program: as many at once as there are CPUs to run them, and one more."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from itertools import accumulate
from weakref import WeakSet

from intarsia.arrays import Array
from intarsia.cpus import available_cpus
from intarsia.graph.arena import ALIGNMENT, aligned_bytes


class RunMemory:
    """Host memory that contexts of several sizes use in turn, and the right to use them.

    Each begins at its first byte, so that a run at new sizes finds memory that the system has given
    before. It only grows.

    Attributes:
        block: `u8[...]`; a context is of use as long as it is the same.
    """

    __slots__ = ("block",)

    def __init__(self) -> None:
        self.block = aligned_bytes(0)

    def cut(self, sizes: Mapping[int, int]) -> dict[int, Array]:
        """Return its bytes from the first one on, as many for each key as it says.

        Raises:
            MemoryError: There are not so many.
        """
        ends = list(accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values()))
        if ends and ends[-1] > self.block.nbytes:
            # What nobody writes to takes no memory, and growing is seldom then.
            self.block = aligned_bytes(max(ends[-1], 2 * self.block.nbytes))
        starts = (0, *ends)
        return {
            key: self.block[start : start + size]
            for start, (key, size) in zip(starts, sizes.items(), strict=False)
        }


class MemoryPool:
    """The memory of a program's runs, or of those of programs that share it.

    Runs from more threads wait for their turn: they would only take memory, and CPUs from others.

    Attributes:
        idle: Memory that no run has. Last in, first out: what was used last is in the caches. Who
            is in a hurry may `pop` it, which needs no lock, and gives it back by `give`.
        most: How many there are at most.
    """

    def __init__(self, most: int | None = None) -> None:
        self.idle: deque[RunMemory] = deque()
        self.most = available_cpus() + 1 if most is None else most
        self._made = self._waiting = 0
        self._turn = threading.Condition()
        _pools.add(self)

    def limit(self, most: int) -> None:
        """Let no more than so many runs go on at once, at least one; before the first one."""
        self.most = max(1, min(self.most, most))

    def take(self) -> RunMemory:
        """Return memory, as soon as there is some."""
        try:
            return self.idle.pop()
        except IndexError:  # none is idle
            pass
        with self._turn:
            if self._made < self.most:
                self._made += 1
                return RunMemory()
            self._waiting += 1  # before the next look: who gives any back looks at it after that
            try:
                while True:
                    try:
                        return self.idle.pop()
                    except IndexError:
                        self._turn.wait()
            finally:
                self._waiting -= 1

    def give(self, memory: RunMemory) -> None:
        """Give memory back."""
        self.idle.append(memory)
        if self._waiting:
            with self._turn:
                self._turn.notify()

    def forget_others(self) -> None:
        """Go on in a child of `fork`, where the threads are gone that had memory or waited."""
        self._turn = threading.Condition()
        self._made, self._waiting = len(self.idle), 0


_pools: WeakSet[MemoryPool] = WeakSet()


def _forget_others() -> None:
    for pool in list(_pools):
        pool.forget_others()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_others)
