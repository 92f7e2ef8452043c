# SPDX-License-Identifier: Apache-2.0
"""What a convolution by Winograd's transforms is, and the choices of how it is cut."""

from __future__ import annotations

from dataclasses import dataclass, field

from intarsia.codegen.kernels.convolution import Convolution, of_codes
from intarsia.codegen.kernels.window import window_key
from intarsia.codegen.kernels.winograd.transform import OUTPUTS, TAPS


@dataclass(frozen=True, slots=True)
class WinogradSchedule:
    """The choices of a convolution by Winograd's transforms.

    Attributes:
        images: Of a block of tiles, at most.
        rows: Rows of tiles of a block, at most.
        columns: Columns of tiles of a block, at most.
        tiles: Of a register tile, at most.
        vectors: Blocks of output channels of a register tile, at most.
        unroll: Input channels of an iteration of the innermost loop, at most.
        prefetch: How many input channels ahead weights are asked for; 0 for not at all.
        shares: Of the output channels, for turns of their own; each transforms its inputs itself.
        chunk: Blocks of input channels that are summed before they are added to others, at most.
        is_streamed: Whether the weights of the next point are asked for meanwhile, evenly by all
            register tiles: they come from beyond the second cache.
    """

    images: int
    rows: int
    columns: int
    tiles: int
    vectors: int
    unroll: int = 4
    prefetch: int = 0
    shares: int = 1
    chunk: int = 1
    is_streamed: bool = False


@dataclass(frozen=True, slots=True)
class Winograd(Convolution):
    """A convolution with 3x3 taps, without strides, dilations and groups; not empty.

    Of normal inputs, 64 to 512 channels of them, the largest error relative to the largest output
    is 2e-7 for m = 2 and 8e-7 for m = 4; that of `conv.Conv`, whose sums are longer, is 4e-7 to
    2e-6. What is infinite or NaN spreads to all outputs of its tiles. Input channels that pad the
    last block are never used; whole blocks of output channels are written.

    Of int16, F(2) is exact: weights are four times what they are otherwise, which makes them
    integers, and so are sums, of which a quarter is taken in the end. Inputs of whole blocks are
    multiplied then, by zeros what pads the last one.

    Attributes:
        x: Over (batch, in_channels / L, *spatial with padding, L); no more than `window.reach` is
            read of it.
        y: Over (batch, out_channels / L, *window.out, L).
        outputs: Size m of a tile: 2 or 4.
        threads: Of a run; they decide how many turns there are, and no result.
        is_padded: Whether the last row and the last column of `window.reach` are zero.
        schedule: How; None leaves it to the heuristic.
    """

    outputs: int = field(kw_only=True)
    threads: int = 1
    is_padded: bool = False
    schedule: WinogradSchedule | None = None

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        window = self.window
        assert self.outputs in OUTPUTS, f"F({self.outputs})"
        assert window.kernel == (TAPS, TAPS), f"{window.kernel} taps"
        assert {*window.strides, *window.dilations} == {1}, f"{window}"
        extents = (self.batch, self.in_channels, self.out_channels, *window.out)
        assert 0 not in extents, "nothing to compute"
        assert self.groups == 1, f"{self.groups} groups"
        assert self.group == 1 or (self.outputs, self.x.dtype) == (2, "int16"), "it is not exact"

    @property
    def packed_inputs(self) -> int:
        """Input channels that are multiplied."""
        lanes = self.unit.lanes() if self.group > 1 else 1
        return -(-self.in_channels // lanes) * lanes

    @property
    def points(self) -> int:
        """Points of a tile."""
        return (self.outputs + TAPS - 1) ** 2

    @property
    def algorithm(self) -> str:
        """Which of the ways to the same result it is."""
        return f"F({self.outputs})"


def key(spec: Winograd) -> str:
    """Return the key of schedules: the same text as for the direct kernel."""
    extents = (spec.batch, spec.in_channels, spec.out_channels)
    more = f"1 groups, x{spec.unit.lanes()}{of_codes(spec)}"
    return window_key("conv", extents, spec.window, more, spec.y.dtype)
