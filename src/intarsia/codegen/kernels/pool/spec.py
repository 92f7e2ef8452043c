# SPDX-License-Identifier: Apache-2.0
"""What a pooling is, and the choices of how it is cut."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from intarsia.codegen.body import Layout
from intarsia.codegen.kernels.images import ImageKernel
from intarsia.codegen.kernels.pool.combination import PoolKind
from intarsia.codegen.kernels.window import Window, window_key


@dataclass(frozen=True, slots=True)
class PoolSchedule:
    """The choices of a pooling kernel.

    Attributes:
        positions: Vectors of results of a register tile, at most.
        unrolled: Taps of the outer dimensions that are unrolled, at most; more are loops.
        bands: Shares of the rows, for turns of their own.
    """

    positions: int
    unrolled: int
    bands: int


@dataclass(frozen=True, slots=True)
class Pool(ImageKernel):
    """Max, average or Lp pooling.

    Attributes:
        y: Over (batch, blocks, *window.out, block).
        kind: What becomes of a window.
        window: Positions, taps, strides and dilations.
        pads: Entries before and after the input, in each dimension.
        indices: Of the largest entries, int64, over the domain of y, or None. An index counts the
            entries of an image tensor (batch, channels, *extents).
        is_column_major: Whether indices count the first spatial dimension fastest.
        counts_padding: Whether averages count entries of the padding.
        p: The exponent of `PoolKind.LP`.
        schedule: How; None leaves it to the heuristic.
        zero: The zero point of codes whose averages are float32; None where x is what it is.
    """

    kind: PoolKind
    window: Window
    pads: tuple[tuple[int, int], ...]
    indices: Layout | None = None
    is_column_major: bool = False
    counts_padding: bool = False
    p: int = 2
    schedule: PoolSchedule | None = None
    zero: int | None = None

    algorithm: ClassVar[str] = "direct"

    @property
    def is_measurable(self) -> bool:
        """Whether it does anything, on the numbers that a tuner makes up."""
        return self.x.dtype == "float32" and 0 not in (self.batch, *self.window.out)

    def interior(self, dim: int) -> tuple[int, int]:
        """Return the first position whose window lies inside the image, and the end of those."""
        window, before = self.window, self.pads[dim][0]
        reach = (window.kernel[dim] - 1) * window.dilations[dim]
        stride, out = window.strides[dim], window.out[dim]
        first = min(out, -(-before // stride))
        end = (self.extents[dim] - 1 - reach + before) // stride + 1
        return first, max(first, min(out, end))


def flops(spec: Pool) -> int:
    """Return how many entries a pooling combines."""
    return spec.batch * spec.channels * math.prod(spec.window.out) * spec.window.taps


def key(spec: Pool) -> str:
    """Say in words what decides which schedules a pooling can have, and which are fast."""
    extents = (spec.batch, spec.channels, spec.block)
    more = f"{spec.kind} {spec.extents} {spec.pads} {spec.indices is not None}"
    return window_key("pool", extents, spec.window, more, spec.y.dtype)
