# SPDX-License-Identifier: Apache-2.0
"""The cycles of a program: kernel after kernel, each with its data where the ones before left it.

What a call touches again that was touched before is in the first cache that holds all that was
touched between (the distance of reuse of a stack of least recently used blocks). Tensors that have
the same bytes of the arena, one after another, are the same lines. Programs are taken to run again
and again, so weights are where the last run left them, and so are the instructions of each kernel.

Source:
    Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems
    Journal 9(2), 1970.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from intarsia.codegen import ir
from intarsia.codegen.cycles.instructions import Instructions
from intarsia.codegen.cycles.kernel import KernelCost, kernel_cost
from intarsia.codegen.cycles.nest import LINE, Nest
from intarsia.codegen.lower.program import Call, Program
from intarsia.codegen.storage import StorageKind
from intarsia.extents import typical
from intarsia.target.cores import Core

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
    """When each byte was touched last, in bytes touched since the start.

    Attributes:
        touched: Bytes touched since the start.
    """

    def __init__(self) -> None:
        self.touched = 0.0
        self._spans: dict[Hashable, list[tuple[float, float, float]]] = {}

    def ages(self, span: _Span, now: float) -> list[tuple[float, float]]:
        """Return the parts of a span, each with the bytes that were touched since it was.

        Args:
            span: Of some memory.
            now: The moment of the question, in bytes touched since the start.
        """
        found = [
            ((min(end, span.end) - max(start, span.start)) / span.nbytes, now - when)
            for start, end, when in self._spans.get(span.memory, ())
            if start < span.end and end > span.start
        ]
        return [*found, (1.0 - sum(part for part, _ in found), math.inf)]

    def touch(self, span: _Span, when: float) -> None:
        """Take down that a span was touched."""
        kept = []
        for start, end, before in self._spans.get(span.memory, ()):
            kept += [
                (low, high, before)
                for low, high in ((start, min(end, span.start)), (max(start, span.end), end))
                if low < high
            ]
        self._spans[span.memory] = [*kept, (span.start, span.end, when)]


@dataclass(frozen=True, slots=True)
class _Span:
    """Memory that a call touches, at once or in parts.

    Attributes:
        memory: What it is a part of: a tensor, or the arena, whose bytes are those of one tensor
            after another.
        start: Its first byte.
        end: One behind its last.
    """

    memory: Hashable
    start: float
    end: float

    @property
    def nbytes(self) -> float:
        """Its size."""
        return self.end - self.start


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
    spans, waits = _place(program, call, cost, core)
    every = sum(each.lines * LINE for each in touched.values())
    # A line is touched somewhere in a call, and was in one before: half of each is between.
    middle = memory.touched + every / 2
    ages = {buffer: memory.ages(span, middle) for buffer, span in spans.items()}
    code = _Span(("code", call.kernel), 0.0, max(1.0, cost.code))
    code_ages = [(part, age) for part, age in memory.ages(code, middle) if part > 0.0]
    fetched = 0.0
    transfers: dict[Nest, list[float]] = {each.nest: [] for each in cost.loops}
    for level, cache in enumerate(core.caches):
        is_last = level + 1 == len(core.caches)
        rate = cache.bytes_per_cycle or _memory_rate(isa, threads)
        wait = (core.wait if is_last else cache.latency) / core.misses
        absent = {
            buffer: sum(part for part, age in parts if age > cache.nbytes)
            for buffer, parts in ages.items()
        }
        if any(age > cache.nbytes for _, age in code_ages):
            fetched += cost.code / LINE * (core.wait if is_last else cache.latency) / _FETCHED
        moved = dict.fromkeys(transfers, 0.0)
        for (nest, buffer), lines in cost.traffic[level].items():
            first = touched[buffer]
            if lines <= first.lines:
                lines *= absent.get(buffer, 0.0)  # noqa: PLW2901 - the others are there
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
    total += waits / used + CALL_CYCLES + fetched
    memory.touched += every
    for span in (*spans.values(), code):
        memory.touch(span, middle)
    levels = tuple(map(sum, zip(*transfers.values(), strict=True)))
    counted = sum(each.counted for each in cost.loops)
    return CallEstimate(function.name, total, every_core, levels, counted)


def _place(
    program: Program, call: Call, cost: KernelCost, core: Core
) -> tuple[dict[ir.Buffer, _Span], float]:
    """Return where the buffers of a call are, and the cycles that its constants wait for flash."""
    spans: dict[ir.Buffer, _Span] = {}
    waits = 0.0
    for buffer, argument in zip(program.kernels[call.kernel].buffers, call.arguments, strict=True):
        storage = program.storages[argument.storage]
        nbytes = max(1.0, float(typical(buffer.span) * buffer.item_bytes))
        start, where = float(typical(argument.offset)), (storage.kind, storage.index)
        if storage.kind is StorageKind.SCRATCH:  # its index is where it is in the arena
            start, where = start + storage.index, (storage.kind, 0)
        spans[buffer] = _Span(where, start, start + nbytes)
        if storage.kind is StorageKind.CONSTANT and core.constants:
            waits += core.constants * cost.words.get(buffer, 0.0)
    return spans, waits


_FETCHED = 2.0
"""Lines of instructions that are waited for at once: the one that is run, and the next, which is
foreseen (Intel, Optimization Reference Manual, prefetching of instructions)."""

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
