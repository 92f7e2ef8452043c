# SPDX-License-Identifier: Apache-2.0
"""How much a kernel does, so whether several threads pay; and the most that a machine does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from intarsia.codegen.builder import Builder
from intarsia.codegen.expand import expand
from intarsia.codegen.ir import (
    TILE_ROWS,
    Barrier,
    Constant,
    Function,
    IndexValue,
    Load,
    Loop,
    Operation,
    Prefetch,
    Store,
    TileDot,
    TileLoad,
    TileStore,
    TileZero,
    Type,
)
from intarsia.codegen.unit import CpuModel
from intarsia.native.callpath import make_step
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import NativeCpu, compile_object
from intarsia.native.pool import find_pool

_UNKNOWN_TURNS = 8
"""Assumed iterations of a loop with bounds known only at run time: mostly a remainder."""

_MEMORY = 2
"""Cost of a load or store in operations: data may come from beyond the first cache."""

_TILE_DOT = 32
"""Cost of a product of tiles: 16 cycles, in which two operations of vectors each could be done."""

_CHAINS = 12
"""Independent sums: enough to hide the latency of a multiply-add."""
# 0.25 ms of work a run. Five results each on a shared AMD EPYC: 1,000 steps gave 105 to 118
# GFLOP/s, 20,000 always 118, 100,000 no more and took three times as long.
_STEPS = 20_000
_RUNS = 9


def count_work(function: Function, unit: CpuModel) -> int:
    """Return roughly how many operations of the vector unit one call runs, all turns together.

    Args:
        function: An expanded kernel.
        unit: What it is for.
    """
    return _work(function.body, unit)


def _work(body: tuple[Operation, ...], unit: CpuModel) -> int:
    total = 0
    for operation in body:
        match operation:
            case Loop():
                total += _turns(operation) * (1 + _work(operation.body, unit))
            case Constant() | IndexValue():
                pass
            case Load(result=value, stride=stride) | Store(value=value, stride=stride):
                is_apart = stride not in (0, 1)
                steps = value.type.lanes if is_apart else _registers(value.type, unit)
                total += _MEMORY * steps
            case Prefetch() | Barrier():
                total += 1
            case TileLoad() | TileStore():
                total += _MEMORY * TILE_ROWS
            case TileZero():
                total += 1
            case TileDot():
                total += _TILE_DOT
            case _:
                total += _registers(operation.result.type, unit)
    return total


def _turns(loop: Loop) -> int:
    span = loop.upper - loop.lower
    return _UNKNOWN_TURNS if span.terms else max(0, -(-span.const // loop.step))


def _registers(type_: Type, unit: CpuModel) -> int:
    """Return how many registers hold a value."""
    return -(-type_.lanes // unit.lanes(type_.dtype))


def measure_peak(
    cpu: NativeCpu,
    unit: CpuModel,
    threads: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    caches: Path | None = None,
) -> float:
    """Return the operations of float32 in a second that multiply-adds in registers come to.

    Args:
        cpu: What code is generated for; has to run here.
        unit: Its vector unit.
        threads: How many run at once.
        clock: In seconds; with one thread, `time.thread_time` leaves out what others run.
        caches: The folder of all caches, where the code of a pool of threads is kept.
    """
    from intarsia.codegen.emit.llvm import emit_llvm  # which a program that was kept never needs

    # Four turns for each thread, so that one that is late costs a quarter of its share.
    function = _fma_kernel(unit, 4 * threads)
    library = LoadedCode({function.name: compile_object(emit_llvm(function), cpu)})
    y = np.zeros(4 * threads * _CHAINS * unit.lanes(), np.float32)
    pool = find_pool(threads, is_shared=False, caches=caches)
    call = (library.addresses[function.name], [y.ctypes.data], 4 * threads)
    step = make_step([call], (library, y), pool, [4 * threads], caches)
    step()
    seconds = []
    for _ in range(_RUNS):
        start = clock()
        step()
        seconds.append(clock() - start)
    return 4 * threads * 2 * unit.lanes() * _CHAINS * _STEPS / min(seconds)


def _fma_kernel(unit: CpuModel, turns: int) -> Function:
    lanes = unit.lanes()
    b = Builder("peak")
    y = b.argument("y", "float32", (turns, _CHAINS * lanes), is_written=True, align=4)
    with b.parallel(turns) as turn:
        sums = [b.load(y, (turn, chain * lanes), lanes) for chain in range(_CHAINS)]
        factor = sums[0]
        sums = b.loop(0, _STEPS, sums, lambda _, *values: [b.fma(factor, v, v) for v in values])
        for chain, value in enumerate(sums):
            b.store(value, y, (turn, chain * lanes))
    return expand(b.finish())
