# SPDX-License-Identifier: Apache-2.0
"""The cycles of one call of a kernel: what its pipes need, and what moves between its caches.

The execution-cache-memory model: the cycles in the core, as if all data were in the first cache,
and those in which lines move between each two levels. A line is loaded again if what is touched
between two uses of it does not fit the cache (*layer conditions*). Where a core's caches work
beside one another the longest of these counts; elsewhere transfers add up, and what is computed
beside them counts where it takes longer.

Source:
    Treibig and Hager, "Introducing a performance model for bandwidth-limited loop kernels", 2010;
    Stengel, Treibig, Hager and Wellein, "Quantifying performance bottlenecks of stencil
    computations using the execution-cache-memory model", ICS 2015; Hammer, Eitzinger, Hager and
    Wellein, "Kerncraft: a tool for analytic performance modeling of loop kernels", 2017; Hofmann et
    al., "Bridging the architecture gap", 2020 (CPUs of AMD).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from intarsia.codegen import ir
from intarsia.codegen.cycles.instructions import Instructions, Slots, instructions_of, throughput
from intarsia.codegen.cycles.nest import LINE, KernelNest, Nest

ROOM = 0.5
"""Part of a cache that counts as room for what is used again (Stengel et al., section 4.2)."""

_WAYS = 8
"""Lines of a set; most caches have 8, or as many more as they are larger."""

_LONG = 32
"""From so many turns on, the end of a loop is not foreseen."""

_LOOP_SLOTS = 2.0
"""Micro-operations that a turn takes beside its body: counting, and comparing with a branch."""


X86_BYTES = 7.0
"""An instruction on vectors: a prefix of 2 to 4 bytes, opcode, operands, mostly an offset (Intel 64
and IA-32 Architectures Software Developer's Manual, volume 2, sections 2.3 and 2.7)."""

WORD_BYTES = 4.0
"""An instruction of Arm's and RISC-V's vectors."""

_Step = tuple[ir.Operation, Slots, float]
"""An operation with its slots by class, and its latency."""

_Like = tuple[type, ir.Type, int, int]
"""What operations have in common that take the same instructions: kind, type, stride, count."""

_Held = ir.IrValue | ir.TileRegister
"""What an operation may wait for."""

Place = tuple[Nest, ir.Buffer]
"""A loop, and memory that it touches by itself."""


@dataclass(frozen=True, slots=True)
class LoopCost:
    """What a loop takes of a core in one call of its kernel, without the loops inside of it.

    Attributes:
        nest: The loop.
        core: Cycles in the core.
        loads: Part of them that loads and stores alone need.
        counted: Instructions, about.
    """

    nest: Nest
    core: float
    loads: float
    counted: float


@dataclass(frozen=True, slots=True)
class KernelCost:
    """What one call of a kernel takes of a core.

    Attributes:
        loops: Each of them.
        code: Bytes of its instructions, about.
        words: Words that are loaded or stored, by buffer.
        nest: All loops.
        traffic: By cache, lines that come into it from behind.
    """

    loops: tuple[LoopCost, ...]
    code: float
    words: Mapping[ir.Buffer, float]
    nest: KernelNest
    traffic: tuple[Mapping[Place, float], ...]


@lru_cache(maxsize=128)
def kernel_cost(function: ir.Function, isa: Instructions) -> KernelCost:
    """Return what one call of a kernel takes, all turns of its parallel loop together.

    Sketches of many regions have the same kernels, which are looked at once.

    Args:
        function: An expanded kernel; free extents are taken as typical ones.
        isa: What it is for.
    """
    nest = KernelNest(function)
    loops: list[LoopCost] = []
    words: dict[ir.Buffer, float] = defaultdict(float)
    _add(nest.root, isa, loops, words)
    traffic = tuple(_traffic(nest, nest.root, level.nbytes // LINE) for level in isa.core.caches)
    written = sum(each.counted / each.nest.executions for each in loops if each.nest.executions)
    code = written * (X86_BYTES if isa.is_x86 else WORD_BYTES)
    return KernelCost(tuple(loops), code, words, nest, traffic)


def _add(
    nest: Nest, isa: Instructions, loops: list[LoopCost], words: dict[ir.Buffer, float]
) -> float:
    """Add a loop with those inside of it; return the instructions of one turn."""
    core = isa.core
    loaded = {
        each.result
        for each in nest.straight
        if isinstance(each, ir.Load) and each.result.type.lanes == 1
    }
    known: dict[_Like, tuple[Slots, float]] = {}
    steps = [(each, *_instructions_of(each, isa, loaded, known)) for each in nest.straight]
    slots, issued = _slots(nest, steps, isa)
    memory = Slots({kind: slots[kind] for kind in ("load", "store")})
    path, carried = _latencies(nest, steps, isa)
    position = len(loops)
    inner = issued
    for child in nest.children:
        inner += child.turns * _add(child, isa, loops, words)
    cycles = max(throughput(slots, issued, core), carried)
    extra = 0.0
    if core.in_order:
        cycles = max(cycles, path)
    elif nest.children and inner > core.window:
        cycles = max(cycles, path)  # the next turn is too far away to begin meanwhile
    for child in nest.children:
        entered = min(nest.executions, child.executions)
        extra += entered * core.branch * (child.turns > _LONG)
    if nest.loop is not None and not nest.children and nest.loop.carried:
        entered = nest.executions / max(1.0, nest.turns)
        extra += entered * path * (nest.turns * issued > core.window / 2)  # its last turn ends
    total = nest.executions * (cycles + core.taken) + extra
    loads = nest.executions * throughput(memory, 0.0, core)
    loops.insert(position, LoopCost(nest, total, loads, nest.executions * issued))
    for access in nest.accesses:
        words[access.buffer] += nest.executions * max(1, access.nbytes // 4)
    return inner


def _instructions_of(
    operation: ir.Operation,
    isa: Instructions,
    loaded: Collection[ir.IrValue],
    known: dict[_Like, tuple[Slots, float]],
) -> tuple[Slots, float]:
    """Return what `instructions_of` does, of the most frequent kinds looked up once."""
    match operation:
        case ir.Fma(result=result):
            like: _Like = ir.Fma, result.type, 0, 0
        case ir.Load(result=result, stride=stride, count=count):
            like = ir.Load, result.type, stride, count
        case ir.Store(value=value, stride=stride, count=count):
            like = ir.Store, value.type, stride, count
        case _:
            return instructions_of(operation, isa, loaded)
    found = known.get(like)
    if found is None:
        found = known[like] = instructions_of(operation, isa)
    return found


def _slots(nest: Nest, steps: Sequence[_Step], isa: Instructions) -> tuple[Slots, float]:
    """Return the slots of one turn of a body without inner loops, and its issued instructions."""
    uses = Counter(value for each in nest.body for value in ir.operands(each))
    total, issued = Slots(), 0.0
    if nest.loop is not None:
        total["scalar"] += _LOOP_SLOTS
        issued += 1.0 if isa.is_x86 else _LOOP_SLOTS
    places = {(access.buffer, access.terms) for access in nest.accesses if access.terms}
    pointers = 0.0 if isa.is_x86 else float(len(places))  # others add to them, a load each
    total["scalar"] += pointers
    issued += pointers
    for operation, slots, _ in steps:
        if isinstance(operation, ir.IndexValue | ir.Constant):
            continue  # folded into addresses, or done once outside
        total.add(slots)
        count = sum(slots.values())
        if isinstance(operation, ir.Load) and isa.is_x86 and uses[operation.result] == 1:
            count -= min(count, 1.0)  # an operand of what uses it
        if slots.get("divide"):
            count = 1.0
        issued += count
    return total, issued


def _latencies(nest: Nest, steps: Sequence[_Step], isa: Instructions) -> tuple[float, float]:
    """Return the longest chain in a body, and the longest from one turn to the next."""
    ready: dict[_Held, float] = {}
    since: dict[_Held, float] = {}
    if nest.loop is not None:
        since = dict.fromkeys([*nest.loop.carried, *_summed_tiles(nest)], 0.0)
    summed, longest, has_tiles = isa.latency("sum"), 0.0, _has_tiles(nest)
    for operation, _, latency in steps:
        addend = operation.addend if isinstance(operation, ir.Fma) and latency else None
        end, last = latency, -1.0
        waits: tuple[_Held, ...] = ir.operands(operation)
        written: tuple[_Held, ...] = ir.results(operation)
        if has_tiles:
            waits = *waits, *_read_tiles(operation)
            written = *written, *_written_tiles(operation)
        for value in waits:
            part = min(latency, summed) if value is addend else latency
            end = max(end, ready.get(value, 0.0) + part)
            if value in since:
                last = max(last, since[value] + part)
        longest = max(longest, end)
        for value in written:
            ready[value] = end
            if last >= 0.0:
                since[value] = last
    kept: list[_Held] = []
    if nest.loop is not None:
        kept = [*nest.loop.yielded, *_summed_tiles(nest)]
    return longest, max([since.get(value, 0.0) for value in kept], default=0.0)


def _summed_tiles(nest: Nest) -> Sequence[ir.TileRegister]:
    """Return the tiles that a turn finds as the turn before left them, and adds to."""
    begun: set[ir.TileRegister] = set()
    summed: list[ir.TileRegister] = []
    for operation in nest.straight if _has_tiles(nest) else ():
        summed += [tile for tile in _read_tiles(operation) if tile not in begun]
        begun.update(_written_tiles(operation))
    return summed


def _has_tiles(nest: Nest) -> bool:
    return any(isinstance(each, _TILE_OPERATIONS) for each in nest.straight)


_TILE_OPERATIONS = ir.TileDot | ir.TileStore | ir.TileZero | ir.TileLoad


def _read_tiles(operation: ir.Operation) -> tuple[ir.TileRegister, ...]:
    match operation:
        case ir.TileDot(total=total, left=left, right=right):
            return total, left, right
        case ir.TileStore(tile=tile):
            return (tile,)
        case _:
            return ()


def _written_tiles(operation: ir.Operation) -> tuple[ir.TileRegister, ...]:
    match operation:
        case ir.TileZero(tile=tile) | ir.TileLoad(tile=tile):
            return (tile,)
        case ir.TileDot(total=total):
            return (total,)
        case _:
            return ()


def _traffic(nest: KernelNest, loop: Nest, size: int) -> dict[Place, float]:
    """Return the lines that come into a cache while a loop turns once through.

    Args:
        nest: The kernel.
        loop: One of its loops.
        size: Lines of the cache.
    """
    sets = max(1, size // _WAYS)
    whole = nest.footprints(loop, loop.depth)
    inner: dict[Place, float] = {}
    own = nest.footprints(loop.alone, loop.depth + 1)
    for buffer, each in own.items():
        inner[loop, buffer] = each.lines
    for child in loop.children:
        entered = min(1.0, child.turns)
        for place, count in _traffic(nest, child, size).items():
            inner[place] = entered * count
    turns = max(1.0, loop.turns)
    fits = sum(each.room(sets) for each in whole.values()) <= ROOM * size
    if not fits:  # what turns share stays from one to the next if one turn has room
        turn = nest.footprints(loop, loop.depth + 1)
        fits = sum(each.room(sets) for each in turn.values()) <= ROOM * size
    left = {buffer: each.lines for buffer, each in whole.items()}
    found = {}
    for place, count in inner.items():
        total = turns * count
        if fits:  # who touches it first has it brought
            total = min(total, left[place[1]])
            left[place[1]] -= total
        found[place] = total
    return found
