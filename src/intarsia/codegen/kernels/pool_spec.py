# SPDX-License-Identifier: Apache-2.0
"""What describes a pooling kernel, and the choices of how it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from intarsia.codegen.body import NOTHING, Fused, Layout
from intarsia.codegen.kernels.conv_window import Window
from intarsia.codegen.kernels.pool_math import PoolKind
from intarsia.codegen.kernels.pool_tile import entries
from intarsia.codegen.unit import AVX512, VectorUnit


@dataclass(frozen=True, slots=True)
class Pool:
    """Max, average or Lp pooling.

    Attributes:
        kind: What becomes of a window.
        batch: Images.
        channels: Of input and output; the last block may be part empty.
        extents: Of the input, without padding.
        window: Positions, taps, strides and dilations.
        pads: Entries before and after the input, in each dimension.
        x: Over (batch, blocks, *extents, block).
        y: Over (batch, blocks, *window.out, block).
        block: Channels of a block; 1 for plain memory.
        indices: Of the largest entries, int64, over the domain of y, or None. An index counts the
            entries of an image tensor (batch, channels, *extents).
        is_column_major: Whether indices count the first spatial dimension fastest.
        counts_padding: Whether averages count entries of the padding.
        p: The exponent of `PoolKind.LP`.
        epilogue: Over the domain of y.
        unit: What it is shaped for.
        schedule: How; None leaves it to `choose_schedule`.
    """

    kind: PoolKind
    batch: int
    channels: int
    extents: tuple[int, ...]
    window: Window
    pads: tuple[tuple[int, int], ...]
    x: Layout
    y: Layout
    block: int = 1
    indices: Layout | None = None
    is_column_major: bool = False
    counts_padding: bool = False
    p: int = 2
    epilogue: Fused = NOTHING
    unit: VectorUnit = AVX512
    schedule: Schedule | None = None

    @property
    def blocks(self) -> int:
        """Blocks of channels; the channels themselves for plain memory."""
        return -(-self.channels // self.block)

    def interior(self, dim: int) -> tuple[int, int]:
        """Return the first position whose window lies inside the image, and the end of those."""
        window, before = self.window, self.pads[dim][0]
        reach = (window.kernel[dim] - 1) * window.dilations[dim]
        stride, out = window.strides[dim], window.out[dim]
        first = min(out, -(-before // stride))
        end = (self.extents[dim] - 1 - reach + before) // stride + 1
        return first, max(first, min(out, end))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices of a pooling kernel.

    Attributes:
        positions: Vectors of results of a register tile, at most.
        unrolled: Taps of the outer dimensions that are unrolled, at most; more are loops.
        bands: Shares of the rows, for turns of their own.
    """

    positions: int
    unrolled: int
    bands: int


def choose_schedule(spec: Pool) -> Schedule:
    """Return the schedule of a pooling."""
    window, free = spec.window, spec.unit.registers - 3
    width = spec.interior(window.rank - 1)[1] - spec.interior(window.rank - 1)[0]
    positions = 1
    for count in range(2, min(_MANY_POSITIONS, max(1, width)) + 1):
        if len(entries(window, count)) <= free:
            positions = count
    turns = spec.batch * spec.blocks * math.prod(window.out[:-2])
    rows = window.out[-2] if window.rank > 1 else 1
    return Schedule(positions, _FEW_TAPS, max(1, min(rows, _TURNS // max(1, turns))))


_MANY_POSITIONS = 8
_FEW_TAPS = 8
_TURNS = 32
