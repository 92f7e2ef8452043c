# SPDX-License-Identifier: Apache-2.0
"""How a depthwise convolution is cut: picked from shapes and the vector unit, not from the host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from intarsia.codegen.kernels.depthwise.spec import Depthwise, DepthwiseSchedule
from intarsia.codegen.kernels.window import Window, normalise
from intarsia.codegen.tile import around
from intarsia.codegen.unit import VectorUnit


def schedule(spec: Depthwise) -> DepthwiseSchedule:
    """Return the schedule that a convolution has, or that is picked for it."""
    if spec.schedule:
        return spec.schedule
    window, *_ = normalise(spec.window, spec.x, spec.y, spec.epilogue)
    return choose_schedule(window, spec.batch * spec.blocks, spec.unit)


def choose_schedule(window: Window, blocks: int, unit: VectorUnit) -> DepthwiseSchedule:
    """Return the schedule of a depthwise convolution.

    Args:
        window: Normalised.
        blocks: Images times blocks of channels.
        unit: What it is shaped for.
    """
    registers = unit.registers - (2 if unit.has_fma else 3)  # an input entry, and one to spare
    unrolled, held = 0, 1
    for count in (1, 2):
        taps = math.prod(window.kernel[-count:])
        # Beside weights in registers there must be 8 sums, or each waits for the one before
        # (`step_cost`).
        if 1 < taps <= registers - _FEW_PIXELS:
            unrolled, held = count, taps
    pixels = min(registers - held, _MANY_PIXELS)
    flop = 2 * unit.lanes() * math.prod(window.out) * window.taps
    bands = max(1, min(_TURNS // max(1, blocks), flop // _TURN_FLOP))
    return DepthwiseSchedule(pixels, unrolled, bands)


_FEW_PIXELS = 8
_MANY_PIXELS = 14
"""With 9 taps in registers: it is bound by loads, of which neighbours share most. On Cascade Lake
96 channels at 56 x 56 were 2.0 times as fast as in ONNX Runtime, 384 at 14 x 14 3.6 times."""
_TURNS = 64
_TURN_FLOP = 1 << 17
"""Work below which a turn of its own does not pay; memory bounds it, so less than for others."""


def candidates(spec: Depthwise) -> Iterator[DepthwiseSchedule]:
    """Yield schedules to compare."""
    heuristic = schedule(spec)
    for pixels in (4, 7, 10, 14, 20):
        if pixels + 2 <= spec.unit.registers:
            most = heuristic.pixels if heuristic.unrolled else pixels  # weights are in registers
            yield replace(heuristic, pixels=min(pixels, most))
    for unrolled in range(heuristic.unrolled):
        yield replace(heuristic, unrolled=unrolled)
    for bands in around(heuristic.bands):
        yield replace(heuristic, bands=bands)
