# SPDX-License-Identifier: Apache-2.0
"""How a plain convolution is cut: picked from shapes and the vector unit, never from the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from intarsia.codegen.kernels.conv_plain.spec import PlainConv, PlainConvSchedule
from intarsia.codegen.kernels.window import Split, normalise
from intarsia.codegen.tile import fitting_widths, step_cost, tile_rows
from intarsia.codegen.unit import VectorUnit


def schedule(spec: PlainConv) -> PlainConvSchedule:
    """Return the schedule that a convolution has, or that is picked for it."""
    if spec.schedule:
        return spec.schedule
    window, *_ = normalise(spec.window, spec.x, spec.y, spec.epilogue)
    return choose_schedule(window.out[-1], spec.out_channels // spec.groups, spec.unit)


def channel_tiles(spec: PlainConv) -> Split:
    """Return a group's output channels, cut into register tiles."""
    return Split.of(spec.out_channels // spec.groups, schedule(spec).channels)


def choose_schedule(width: int, channels: int, unit: VectorUnit) -> PlainConvSchedule:
    """Return the schedule of a plain convolution.

    Args:
        width: Positions along the last dimension.
        channels: Output channels of a group.
        unit: What it is shaped for.
    """
    needed = -(-width // row_lanes(width, unit))

    def cost(vectors: int) -> float:
        # Rows that the group has no channels for are not computed.
        rows = min(tile_rows(vectors, unit), max(1, channels))
        steps = -(-needed // vectors) * -(-channels // rows)
        return steps * step_cost(rows, vectors)

    vectors = min(range(1, min(needed, 8) + 1), key=cost, default=1)
    return PlainConvSchedule(tile_rows(vectors, unit), vectors)


def row_lanes(width: int, unit: VectorUnit) -> int:
    """Return the lanes of a vector: no more than hold a row of so many positions."""
    return min(unit.lanes(), 1 << max(0, width - 1).bit_length())


def candidates(spec: PlainConv) -> Iterator[PlainConvSchedule]:
    """Yield schedules to compare."""
    heuristic = schedule(spec)
    for vectors in fitting_widths(spec.unit, heuristic.vectors + 1):
        yield replace(heuristic, vectors=vectors, channels=tile_rows(vectors, spec.unit))
