# SPDX-License-Identifier: Apache-2.0
"""What a region of native code, or of C, would take on a CPU that need not be here.

The region is lowered as for that CPU, without packing weights, and the kernels' loops are walked
with the description of its core (`codegen.cycles`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.codegen.cycles.instructions import Instructions
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

SPREAD = 6.0
"""Factor by which 95 of 100 estimates of kernels are off at most.

Source:
    `python benchmarks/estimates.py`; benchmarks/RESULTS.md, "Estimates of kernels".
"""

UNNAMED = 3.0
"""How many times as fast or slow a CPU may be as the typical one of its architecture."""


def sketch_program(region: Region, target: Target, threads: int = 1) -> Program:
    """Return the program of a region as it would be compiled for a target, without large weights.

    Args:
        region: Of nodes that native code takes.
        target: Of native code or C.
        threads: Of one run.

    Raises:
        TargetError: Its CPU is unknown.
    """
    options = lowering_options(target)
    return lower_region(
        region,
        options.unit,
        options.winograd,
        half_weights=options.half_weights,
        accuracy=options.accuracy,
        is_bf16=options.is_bf16,
        requantise=options.requantise,
        threads=target_threads(target, threads),
        is_sketch=True,
    )


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


def estimate_region(region: Region, target: Target, threads: int = 1) -> ProgramEstimate | None:
    """Return what a region takes, run again and again among the rest of its model.

    Args:
        region: Of nodes that native code takes, of known shapes.
        target: Of native code or C.
        threads: Of one run.

    Returns:
        None where nothing is known of the target's core.

    Raises:
        TargetError: Its CPU is unknown.
    """
    found = find_instructions(target)
    if found is None:
        return None
    program = sketch_program(region, target, threads)
    graph = region.graph
    own = set(region.constants)
    others = sum(
        value.nbytes for value in graph.values if value.constant is not None and value.id not in own
    )
    used = target_threads(target, threads)
    return estimate_program(program, found[0], threads=used, others=others)


def estimate_cycles(region: Region, target: Target) -> float | None:
    """Return the cycles of one run of a region on one core: for microcontrollers.

    Args:
        region: Of nodes that native code or C takes, of known shapes.
        target: Such as `c -mcpu=cortex-m55`.

    Returns:
        None where nothing is known of the target's core.

    Raises:
        TargetError: Its CPU is unknown.
    """
    estimate = estimate_region(region, target)
    return None if estimate is None else estimate.cycles


def estimate_cost(region: Region, target: Target, threads: int = 1) -> Cost | None:
    """Return what a region costs, as an estimate whose interval is what estimates are off by.

    Args:
        region: Of nodes that native code or C takes.
        target: Of native code or C.
        threads: Of one run.

    Returns:
        None where nothing is known of the target's core.
    """
    try:
        found = find_instructions(target)
        estimate = estimate_region(region, target, threads)
    except TargetError:
        return None
    if found is None or estimate is None or not estimate.seconds:
        return None
    instructions, is_named = found
    core = instructions.core
    said = f"{estimate.cycles:.3g} cycles of {core.name} at {core.hz / 1e9:g} GHz"
    if not is_named:
        said += ", for want of a CPU's name"
    cost = Cost(estimate.seconds, 0, CostSource.ESTIMATED, provenance=said)
    return cost.within(SPREAD if is_named else SPREAD * UNNAMED)
