# SPDX-License-Identifier: Apache-2.0
"""How a pooling is cut: picked from shapes and the vector unit, never from the host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from intarsia.codegen.kernels.pool.spec import Pool, PoolSchedule
from intarsia.codegen.kernels.pool.tile import entries
from intarsia.codegen.tile import around
from intarsia.extents import least


def schedule(spec: Pool) -> PoolSchedule:
    """Return the schedule that a pooling has, or that is picked for it."""
    if spec.schedule:
        return spec.schedule
    # Sums, one for each entry that is read (`shared_tile`), leave three registers to work in.
    window, free = spec.window, spec.unit.registers - 3
    width = spec.interior(window.rank - 1)[1] - spec.interior(window.rank - 1)[0]
    positions = 1
    for count in range(2, min(_MANY_POSITIONS, max(1, width)) + 1):
        if len(entries(window, count)) <= free:
            positions = count
    turns = least(spec.batch) * spec.blocks * math.prod(window.out[:-2])
    rows = window.out[-2] if window.rank > 1 else 1
    return PoolSchedule(positions, _FEW_TAPS, max(1, min(rows, _TURNS // max(1, turns))))


# More share hardly more of what they read: 3 taps by stride 2 read 17 entries for 8 results, 33 for
# 16.
_MANY_POSITIONS = 8
# Windows of up to 8 rows have no loop inside a tile.
_FEW_TAPS = 8
# Turns that keep tens of threads busy.
_TURNS = 32


def candidates(spec: Pool) -> Iterator[PoolSchedule]:
    """Yield schedules to compare."""
    heuristic = schedule(spec)
    for positions in (1, 2, 4, 8):
        yield replace(heuristic, positions=min(positions, heuristic.positions))
    for unrolled in (1, 3, 16):
        yield replace(heuristic, unrolled=unrolled)
    for bands in around(heuristic.bands):
        yield replace(heuristic, bands=bands)
