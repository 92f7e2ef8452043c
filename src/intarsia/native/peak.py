# SPDX-License-Identifier: Apache-2.0
"""The most multiply-adds that this machine does in a second: a loop of nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.expand import expand
from intarsia.codegen.ir import Function
from intarsia.codegen.unit import VectorUnit
from intarsia.native.callpath import make_step
from intarsia.native.machine import LoadedCode, NativeCpu, compile_object
from intarsia.native.pool import find_pool

_CHAINS = 12
"""Independent sums: enough to hide the latency of a multiply-add."""
_STEPS = 20_000
_RUNS = 9


def measure_peak(
    cpu: NativeCpu,
    unit: VectorUnit,
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
    function = _kernel(unit, 4 * threads)
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


def _kernel(unit: VectorUnit, turns: int) -> Function:
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
