# SPDX-License-Identifier: Apache-2.0
"""What a convolution by Winograd's transforms is, and how its weights lie."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from intarsia.codegen.body import NOTHING, Fused, Layout
from intarsia.codegen.kernels.conv_window import Split, Window
from intarsia.codegen.kernels.winograd_schedule import Schedule, choose_schedule
from intarsia.codegen.kernels.winograd_transform import OUTPUTS, TAPS, Array, points_of_taps
from intarsia.codegen.unit import AVX512, VectorUnit
from intarsia.graph.arena import aligned_bytes


@dataclass(frozen=True, slots=True)
class Winograd:
    """A convolution of float32 with 3x3 taps, without strides, dilations and groups; not empty.

    Of normal inputs, 64 to 512 channels of them, the largest error relative to the largest output
    is 2e-7 for m = 2 and 8e-7 for m = 4; that of `conv.Conv`, whose sums are longer, is 4e-7 to
    2e-6. What is infinite or NaN spreads to all outputs of its tiles.

    Attributes:
        outputs: Extent m of a tile: 2 or 4.
        batch: Images.
        in_channels: Those that pad the last block are never used.
        out_channels: Whole blocks of L are written.
        window: The two spatial dimensions.
        x: Over (batch, in_channels / L, *spatial with padding, L); no more than `window.reach` is
            read of it.
        y: Over (batch, out_channels / L, *window.out, L).
        bias: Whether there is one.
        epilogue: Over the domain of y.
        unit: What it is shaped for.
        threads: Of a run; they decide how many turns there are, and no result.
        is_padded: Whether the last row and the last column of `window.reach` are zero.
        schedule: How; None leaves it to `choose_schedule`.
    """

    outputs: int
    batch: int
    in_channels: int
    out_channels: int
    window: Window
    x: Layout
    y: Layout
    bias: bool = False
    epilogue: Fused = NOTHING
    unit: VectorUnit = AVX512
    threads: int = 1
    is_padded: bool = False
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        window = self.window
        assert self.outputs in OUTPUTS, f"F({self.outputs})"
        assert window.kernel == (TAPS, TAPS), f"{window.kernel} taps"
        assert {*window.strides, *window.dilations} == {1}, f"{window}"
        extents = (self.batch, self.in_channels, self.out_channels, *window.out)
        assert 0 not in extents, "nothing to compute"

    @property
    def points(self) -> int:
        """Points of a tile."""
        return (self.outputs + TAPS - 1) ** 2

    @property
    def out_blocks(self) -> int:
        """Blocks of output channels."""
        return -(-self.out_channels // self.unit.lanes())

    @property
    def plan(self) -> Schedule:
        """The schedule that `build` and `pack_weights` follow."""
        if self.schedule:
            return self.schedule
        return choose_schedule(
            *(self.window, self.outputs, self.batch, self.in_channels, self.out_blocks),
            *(self.unit, self.threads),
        )


_CACHED_COLUMNS = 1 << 14
"""Weights are transformed by so many at a time: a megabyte with their taps."""


def flops(spec: Winograd) -> int:
    """Return the additions and multiplications that the convolution takes when done directly."""
    pixels = spec.batch * math.prod(spec.window.out)
    return 2 * pixels * spec.out_channels * spec.in_channels * TAPS**2


def pack_weights(spec: Winograd, weights: Array) -> Array:
    """Return weights (out_channels, in_channels, 3, 3), transformed, as `build` reads them.

    In order: panels of output channels, points, input channels, output channels of the panel;
    channels that pad the last block of outputs are zero.
    """
    lanes, inputs = spec.unit.lanes(), spec.in_channels
    packed = aligned_bytes(4 * spec.points * inputs * spec.out_blocks * lanes).view(np.float32)
    panels: list[tuple[Array, slice]] = []  # where the channels of each are
    begin = 0
    for run in Split.of(spec.out_blocks, spec.plan.vectors).runs:
        for first in run.begins:
            size = spec.points * inputs * run.size * lanes
            panel = packed[begin : begin + size].reshape(spec.points, inputs, run.size * lanes)
            channels = slice(first * lanes, min((first + run.size) * lanes, spec.out_channels))
            panels.append((panel[..., : channels.stop - channels.start], channels))
            begin += size
    rows = points_of_taps(spec.outputs)
    few = max(_CACHED_COLUMNS // spec.out_channels, 1)
    for low in range(0, inputs, few):
        some = slice(low, min(low + few, inputs))
        taps = weights[:, some].reshape(spec.out_channels, -1, TAPS**2).transpose(2, 1, 0)
        columns = np.ascontiguousarray(taps, np.float64).reshape(TAPS**2, -1)
        for point, row in enumerate(rows):
            made = (row @ columns).reshape(-1, spec.out_channels)
            for panel, channels in panels:
                panel[point, some] = made[:, channels]
    return packed
