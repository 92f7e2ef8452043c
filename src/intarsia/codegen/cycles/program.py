# SPDX-License-Identifier: Apache-2.0
"""The cycles of a program: kernel after kernel, each with its data where the ones before left it.

What a call touches again that was touched before is in the first cache that holds all that was
touched between (the distance of reuse of a stack of least recently used blocks). Programs are taken
to run again and again, so weights are where the last run left them.

Source:
    Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems
    Journal 9(2), 1970.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from intarsia.codegen import ir
from intarsia.codegen.cycles.instructions import Instructions
from intarsia.codegen.cycles.kernel import KernelCost, kernel_cost
from intarsia.codegen.cycles.nest import LINE, Nest
from intarsia.codegen.lower.program import Call, Program
from intarsia.codegen.storage import StorageKind
from intarsia.extents import typical

CALL_CYCLES = 100.0
"""A kernel's call, its prologue and its last stores: what is not in its loops."""

_PASSES = 2


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """One call.

    Attributes:
        kernel: Its name.
        cycles: In all.
        core: Those in the core alone.
        transfers: Between caches, and of the last one with memory.
        counted: Instructions, about.
    """

    kernel: str
    cycles: float
    core: float
    transfers: tuple[float, ...]
    counted: float


@dataclass(frozen=True, slots=True)
class ProgramEstimate:
    """What a program takes.

    Attributes:
        calls: In order.
        cycles: Of one core's clock, with as many threads as were asked for.
        seconds: At the clock of the core's table.
        source: Where the core's figures are from.
    """

    calls: tuple[CallEstimate, ...]
    cycles: float
    seconds: float
    source: str


def estimate_program(
    program: Program, isa: Instructions, *, threads: int = 1, others: int = 0
) -> ProgramEstimate:
    """Return the cycles of a program, run again and again.

    Args:
        program: What is run; free sizes are taken as typical ones.
        isa: What runs it.
        threads: Of one run.
        others: Bytes that the rest of a model touches between two runs.
    """
    costs = [kernel_cost(kernel, isa) for kernel in program.kernels]
    memory = _Recency()
    estimates: list[CallEstimate] = []
    for _ in range(_PASSES):
        estimates.clear()
        memory.touched += others
        estimates += [
            _estimate(program, call, costs[call.kernel], memory, isa, threads)
            for call in program.calls
        ]
    cycles = sum(each.cycles for each in estimates)
    return ProgramEstimate(tuple(estimates), cycles, cycles / isa.core.hz, isa.core.source)


class _Recency:
    """When each block was touched last, in bytes touched since the start."""

    def __init__(self) -> None:
        self.touched = 0.0
        self.last: dict[Hashable, float] = {}

    def distance(self, block: Hashable) -> float:
        """Return how many bytes were touched since a block was; infinite if it never was."""
        return self.touched - self.last.get(block, float("-inf"))


def _estimate(
    program: Program,
    call: Call,
    cost: KernelCost,
    memory: _Recency,
    isa: Instructions,
    threads: int,
) -> CallEstimate:
    function, core = program.kernels[call.kernel], isa.core
    touched = cost.nest.footprints(cost.nest.root, 0)
    blocks: dict[ir.Buffer, Hashable] = {}
    waits = 0.0
    for buffer, argument in zip(function.buffers, call.arguments, strict=True):
        storage = program.storages[argument.storage]
        where = storage.kind, storage.index
        blocks[buffer] = (*where, argument.offset) if storage.kind is StorageKind.SCRATCH else where
        if storage.kind is StorageKind.CONSTANT and core.constants:
            waits += core.constants * cost.words.get(buffer, 0.0)
    bytes_of = {buffer: each.lines * LINE for buffer, each in touched.items()}
    every = sum(bytes_of.values())
    transfers: dict[Nest, list[float]] = {each.nest: [] for each in cost.loops}
    for level, cache in enumerate(core.caches):
        is_last = level + 1 == len(core.caches)
        rate = cache.bytes_per_cycle or _memory_rate(isa, threads)
        wait = (core.wait if is_last else cache.latency) / core.misses
        resident = {
            buffer
            for buffer, block in blocks.items()
            if memory.distance(block) + bytes_of.get(buffer, 0.0) <= cache.nbytes
        }
        moved = dict.fromkeys(transfers, 0.0)
        for (nest, buffer), lines in cost.traffic[level].items():
            first = touched[buffer]
            if lines <= first.lines and (buffer in resident or buffer not in blocks):
                continue
            both = 2.0 if buffer.is_written and (is_last or not core.overlaps) else 1.0
            # Only lines that follow others are foreseen.
            alone = min(1.0, _TRAINING * first.runs / first.lines)
            moved[nest] += lines * (both * LINE / rate + alone * wait)
        for nest, each in moved.items():
            transfers[nest].append(each)
    used = _used_threads(call, threads)
    total = every_core = 0.0
    for loop in cost.loops:
        moves = transfers[loop.nest]
        private = [each / used for each in moves[:-1]] + moves[-1:]
        in_core, loads = loop.core / used, loop.loads / used
        every_core += in_core
        if core.in_order:
            total += in_core + sum(private)
        elif core.overlaps:
            total += max([in_core, *private])
        else:
            total += max(in_core, loads + sum(private))
    total += waits / used + CALL_CYCLES
    memory.touched += every
    for block in blocks.values():
        memory.last[block] = memory.touched
    levels = tuple(map(sum, zip(*transfers.values(), strict=True)))
    counted = sum(each.counted for each in cost.loops)
    return CallEstimate(function.name, total, every_core, levels, counted)


_TRAINING = 3.0
"""Lines of a run that come before a prefetcher has seen that it is one (Intel, Optimization
Reference Manual, data prefetching: two or three misses)."""


def _memory_rate(isa: Instructions, threads: int) -> float:
    """Return the bytes from memory in a cycle, for all threads together."""
    one, every = isa.core.memory
    return min(one * threads, every) / isa.core.hz


def _used_threads(call: Call, threads: int) -> float:
    """Return by how much threads shorten a call: its turns are shared out whole."""
    turns = max(1, typical(call.extent))
    if threads == 1 or turns == 1:
        return 1.0
    return turns / -(-turns // threads)
