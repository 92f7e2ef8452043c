# SPDX-License-Identifier: Apache-2.0
"""Runs the candidates of one kernel on made-up numbers, for the tuner.

Weights are read from a new place at each call, as far as they are small, so that they come from
beyond the second cache as they do in a network; inputs and outputs stay.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.expand import expand
from intarsia.codegen.ir import Buffer, Function
from intarsia.codegen.kernels.families import TunableSpec, tunable_family
from intarsia.codegen.printer import fingerprint
from intarsia.codegen.verifier import verify
from intarsia.native.callpath import make_step
from intarsia.native.chunks import call_work, chunk_count
from intarsia.native.compile_pool import CompilePool
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import NativeCpu
from intarsia.native.objects import ObjectCache
from intarsia.native.pool import find_pool
from intarsia.native.work import count_work

_BLOCK_SECONDS = 2e-3
"""What one side of a round takes, about."""
_FAR_BYTES = 8 << 20
"""Bytes of weights read before the first are read again: more than a second-level cache."""
# Each place is a bound call of its own; weights below 256 KiB are read again a little sooner.
_MOST_PLACES = 32
_WEIGHTS = ("w", "b")
"""Names of what kernels read that is constant as a rule."""
_LINE = 64


class NativeContest:
    """Candidates of one kernel, compiled and bound.

    Attributes:
        chunks: Into how many chunks a call of each candidate is cut.
    """

    def __init__(self, specs: Sequence[TunableSpec], cpu: NativeCpu, threads: int) -> None:
        kernels, flops = zip(*map(_build, specs), strict=True)
        code = _compile(specs, kernels, cpu)
        self._library = LoadedCode(code)
        self._threads = threads
        pool_ = find_pool(threads, is_shared=False)
        memory = _Memory(kernels)
        self._steps: list[list[Callable[[], None]]] = []
        self.chunks: list[int] = []
        for spec, kernel, flop in zip(specs, kernels, flops, strict=True):
            extent = kernel.extent
            assert extent is not None
            nbytes = sum(math.prod(buffer.shape) * buffer.item_bytes for buffer in kernel.buffers)
            work = call_work(count_work(kernel, spec.unit), flop, nbytes)
            chunks = chunk_count(extent, work, threads)
            self.chunks.append(chunks)
            address = self._library.addresses[kernel.name]
            self._steps.append(
                [
                    make_step([(address, table, extent)], (memory, self._library), pool_, [chunks])
                    for table in memory.tables(kernel)
                ]
            )
        self._turns = [0] * len(specs)
        self._counts = [self._count(number) for number in range(len(specs))]

    def seconds(self, candidate: int) -> float:
        """Run one for about 2 ms, and return the seconds of a call."""
        return self._run(candidate, self._counts[candidate])

    def close(self) -> None:
        """Give back its memory and code."""
        self._steps.clear()

    def _count(self, candidate: int) -> int:
        self._run(candidate, 1)
        return max(1, math.ceil(_BLOCK_SECONDS / max(self._run(candidate, 2), 1e-7)))

    def _run(self, candidate: int, count: int) -> float:
        # one thread's own time leaves out what other processes take from it
        clock = time.thread_time if self._threads == 1 else time.perf_counter
        steps, turn = self._steps[candidate], self._turns[candidate]
        # Once untimed: what ran before was another candidate, whose code and results fill the
        # caches.
        steps[turn % len(steps)]()
        start = clock()
        for number in range(turn + 1, turn + 1 + count):
            steps[number % len(steps)]()
        seconds = (clock() - start) / count
        self._turns[candidate] = turn + 1 + count
        return seconds


def _build(spec: TunableSpec) -> tuple[Function, int]:
    """Return the kernel of a description, with a name of its own, and its operations."""
    family = tunable_family(spec)
    function = family.build(spec)
    verify(function)
    function = expand(function)
    return replace(function, name=f"{function.name}_{fingerprint(function)[:12]}"), family.flops(
        spec
    )


def _compile(
    specs: Sequence[TunableSpec], kernels: Sequence[Function], cpu: NativeCpu
) -> dict[str, bytes]:
    """Return the objects of kernels; those of candidates are not worth a place in the cache."""
    with CompilePool(cpu, ObjectCache(None)) as compiling:
        texts = {
            kernel.name: emit_llvm(kernel, spec.unit)
            for spec, kernel in zip(specs, kernels, strict=True)
        }
        for name, text in texts.items():
            compiling.submit(name, text)
        return compiling.finish()


class _Memory:
    """Arrays for all candidates: they read the same numbers, and write to the same place."""

    def __init__(self, kernels: Sequence[Function]) -> None:
        sizes = [[_nbytes(buffer) for buffer in kernel.buffers] for kernel in kernels]
        written = max(
            sum(_room(size) for size, b in zip(row, kernel.buffers, strict=True) if b.is_written)
            for row, kernel in zip(sizes, kernels, strict=True)
        )
        fixed = max(sum(map(_room, row)) for row in sizes)
        random = np.random.default_rng(0)
        count = (fixed + max(fixed, _FAR_BYTES)) // 4 + 4 * _LINE
        numbers = np.tile(random.standard_normal(1 << 16, np.float32), count // (1 << 16) + 1)
        self._read, self._written = _aligned(numbers), _aligned(np.zeros(written + _LINE, np.uint8))
        self._fixed = fixed

    def tables(self, kernel: Function) -> list[list[int]]:
        """Return arguments of a kernel, with its weights at several places in turn."""
        names = [buffer.name for buffer in kernel.buffers]
        weights = next((names.index(name) for name in _WEIGHTS if name in names), -1)
        step = _room(_nbytes(kernel.buffers[weights])) if weights >= 0 else _FAR_BYTES
        places = max(1, min(_MOST_PLACES, _FAR_BYTES // step))
        tables = []
        for place in range(places):
            read, written = self._read.ctypes.data, self._written.ctypes.data
            table = []
            for number, buffer in enumerate(kernel.buffers):
                room = _room(_nbytes(buffer))
                if number == weights:
                    start = self._read.ctypes.data + _room(self._fixed) + place * step
                elif buffer.is_written:
                    start, written = written, written + room
                else:
                    start, read = read, read + room
                table.append(start)
            tables.append(table)
        return tables


def _nbytes(buffer: Buffer) -> int:
    """Return how many bytes from its first one on a buffer may span; one backwards as many."""
    dims = zip(buffer.shape, buffer.strides, strict=True)
    entries = [max(0, int(extent) - 1) * abs(int(step)) for extent, step in dims]
    return (1 + sum(entries)) * buffer.item_bytes


def _room(nbytes: int) -> int:
    """Return where the next buffer may begin; kernels may read a vector beyond the end."""
    return -(-nbytes // _LINE) * _LINE + _LINE


def _aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array without its first entries, so that it begins at a cache line."""
    skip = -array.ctypes.data % _LINE
    return array[skip // array.itemsize :]
