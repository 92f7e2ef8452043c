# SPDX-License-Identifier: Apache-2.0
"""What a region of native code, or of C, would take on a CPU that need not be here.

The region is lowered as for that CPU, without packing weights, and the kernels' loops are walked
with the description of its core (`codegen.cycles`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.codegen.cycles.instructions import Instructions, Slots, throughput
from intarsia.codegen.cycles.program import ProgramEstimate, estimate_program
from intarsia.codegen.lower.region import lower_region
from intarsia.cost.cost import Cost, CostSource
from intarsia.errors import TargetError
from intarsia.native.native_target import lowering_options, target_threads
from intarsia.target.cores import core_of

if TYPE_CHECKING:
    from intarsia.codegen.lower.program import Program
    from intarsia.graph.region import Region
    from intarsia.target import Target
    from intarsia.target.cores import Core

SPREAD = 6.0
"""Factor by which 95 of 100 estimates of kernels are off at most.

Source:
    `python benchmarks/estimates.py`; benchmarks/RESULTS.md, "Estimates of kernels".
"""

UNNAMED = 3.0
"""How many times as fast or slow a CPU may be as the typical one of its architecture."""


def sketch_program(
    region: Region, target: Target, threads: int = 1, caches: Path | None = None
) -> Program:
    """Return the program of a region as it would be compiled for a target, without large weights.

    Args:
        region: Of nodes that native code takes.
        target: Of native code or C.
        threads: Of one run.
        caches: See `lowering_options`: with it, kernels use the tiles that compiled ones do.

    Raises:
        TargetError: Its CPU is unknown.
    """
    return lower_region(
        region,
        lowering_options(target, caches),
        threads=target_threads(target, threads),
        is_sketch=True,
    )


@lru_cache(maxsize=16)
def find_instructions(target: Target) -> tuple[Instructions, bool] | None:
    """Return the instruction set and core of a target, and whether it names the CPU.

    Returns:
        None where no core like it is described.
    """
    found = core_of(target)
    if found is None:
        return None
    core, is_named = found
    unit = lowering_options(target).unit
    # Compilers of C make scalars of what we write as vectors where the CPU has none.
    bits = min(unit.bits, target.features.vector_width or 0) if target.kind.is_source else unit.bits
    unit = replace(unit, bits=bits, has_fma=unit.has_fma or target.features.arch != "x86")
    return Instructions(core, unit, target.features.arch or ""), is_named


def estimate_region(
    region: Region, target: Target, threads: int = 1, caches: Path | None = None
) -> ProgramEstimate | None:
    """Return what a region takes, run again and again among the rest of its model.

    Args:
        region: Of nodes that native code takes, of known shapes.
        target: Of native code or C.
        threads: Of one run.
        caches: As of `sketch_program`.

    Returns:
        None where nothing is known of the target's core.

    Raises:
        TargetError: Its CPU is unknown.
    """
    found = find_instructions(target)
    if found is None:
        return None
    program = sketch_program(region, target, threads, caches)
    graph = region.graph
    own = set(region.constants)
    others = sum(
        value.nbytes for value in graph.values if value.constant is not None and value.id not in own
    )
    used = target_threads(target, threads)
    return estimate_program(program, found[0], threads=used, others=others)


def estimate_cost(
    region: Region, target: Target, threads: int = 1, caches: Path | None = None
) -> Cost | None:
    """Return what a region costs, as an estimate whose interval is what estimates are off by.

    Args:
        region: Of nodes that native code or C takes.
        target: Of native code or C.
        threads: Of one run.
        caches: As of `sketch_program`.

    Returns:
        None where nothing is known of the target's core.
    """
    try:
        found = find_instructions(target)
        estimate = estimate_region(region, target, threads, caches)
    except TargetError:
        return None
    if found is None or estimate is None or not estimate.seconds:
        return None
    instructions, is_named = found
    return _cost_of(estimate.cycles, instructions.core, SPREAD, is_named=is_named)


def core_cost(
    target: Target, cycles_on: Callable[[Core], float | None], spread: float
) -> Cost | None:
    """Return what code that is not ours costs by its cycles on the core of a target.

    Args:
        target: That says which CPU it is.
        cycles_on: Tells the cycles of one run; None if it cannot.
        spread: The factor by which they may be off on a core that is named.

    Returns:
        None where nothing is known of the core, or of the cycles.
    """
    found = core_of(target)
    if found is None:
        return None
    core, is_named = found
    cycles = cycles_on(core)
    return None if cycles is None else _cost_of(cycles, core, spread, is_named=is_named)


def copy_cycles(core: Core, nbytes: int) -> float:
    """Return the cycles in which a core copies bytes, a register at a time."""
    width = core.bits // 8
    slots = Slots(load=1.0, store=1.0)
    return throughput(slots, 2.0, core) * nbytes / width


def _cost_of(cycles: float, core: Core, spread: float, *, is_named: bool) -> Cost:
    said = f"{cycles:.3g} cycles of {core.name} at {core.hz / 1e9:g} GHz"
    if not is_named:
        said += ", for want of a CPU's name"
    cost = Cost(cycles / core.hz, 0, CostSource.ESTIMATED, provenance=said)
    return cost.within(spread if is_named else spread * UNNAMED)
