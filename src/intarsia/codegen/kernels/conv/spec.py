# SPDX-License-Identifier: Apache-2.0
"""What a direct convolution is, and the choices of how it is cut."""

from __future__ import annotations

from dataclasses import dataclass, field

from intarsia.codegen.ir import DOT_GROUPS
from intarsia.codegen.kernels.convolution import Convolution, of_codes
from intarsia.codegen.kernels.window import window_key
from intarsia.codegen.unit import CpuModel


@dataclass(frozen=True, slots=True)
class ConvSchedule:
    """The choices of a direct convolution.

    Attributes:
        pixels: Positions of a register tile, at most.
        vectors: Blocks of output channels of a register tile, at most.
        unroll: Input channels of an iteration of the innermost loop, at most.
        prefetch: How many input channels ahead weights are asked for; 0 for not at all.
        chunk: Blocks of input channels that are summed before the next tile; 0 for all.
        bands: Shares of an image's tiles, for turns of their own.
        is_channels_first: Whether turns go through images for each tile of output channels, so
            that weights stay cached, rather than the other way round, so that inputs do.
    """

    pixels: int
    vectors: int
    unroll: int = 4
    prefetch: int = 0
    chunk: int = 0
    bands: int = 1
    is_channels_first: bool = True


@dataclass(frozen=True, slots=True)
class Conv(Convolution):
    """A convolution with blocks of L output channels, L being the unit's lanes.

    More groups than one need whole blocks of channels in each. Input channels that pad the last
    block are never read; whole blocks of output channels are written.

    Attributes:
        x: Over (batch, in_channels / x_block, *spatial with padding, x_block).
        y: Over (batch, out_channels / L, *window.out, L).
        x_block: Channels in a block of the input: L, or 1 for plain NCHW; of narrow numbers groups
            that hold a few channels, too. Of bytes that hold two groups, products are made of
            blocks of two positions by two channels, if the unit has these.
        schedule: How; None leaves it to the heuristic.
    """

    x_block: int = field(kw_only=True)
    schedule: ConvSchedule | None = None

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        lanes = self.unit.lanes()
        few = {1} if self.group == 1 else range(self.group, lanes, self.group)
        few = {self.group} if self.is_blocked else few
        assert self.x_block in {*few, lanes}, f"input blocks of {self.x_block} channels"
        if self.groups > 1:
            assert self.group_inputs % self.x_block == 0, "a group begins inside an input block"
            assert self.out_channels // self.groups % lanes == 0, "a group begins inside a block"

    @property
    def group(self) -> int:
        """Input channels of one product: more than 1 for narrow numbers times narrow ones."""
        return self.neighbours * (1 + self.is_blocked)

    @property
    def is_blocked(self) -> bool:
        """Whether it is made of blocks of two positions by two output channels."""
        return self.x_block == blocked_channels(self.x.dtype, self.weight_dtype, self.unit)

    @property
    def packed_inputs(self) -> int:
        """Input channels of a group that are multiplied: of narrow numbers whole blocks."""
        block = self.x_block if self.group > 1 else 1
        return -(-self.group_inputs // block) * block

    @property
    def group_blocks(self) -> int:
        """Blocks of output channels of a group."""
        return -(-self.out_channels // self.groups // self.unit.lanes())


def blocked_channels(x: str, weights: str, unit: CpuModel) -> int:
    """Return how many channels a block of the input has whose products are made of blocks.

    Args:
        x: The input's dtype.
        weights: The weights'.
        unit: What products are shaped for.

    Returns:
        0 where these are no bytes, or the unit has no such products.
    """
    is_there = x in _BYTES and weights == "int8" and unit.has_blocked_dots(x)
    return 2 * DOT_GROUPS[x] if is_there else 0


_BYTES = ("uint8", "int8")


def key(spec: Conv) -> str:
    """Say in words what decides which schedules a convolution can have, and which are fast."""
    extents = (spec.batch, spec.in_channels, spec.out_channels)
    more = f"{spec.groups} groups, x{spec.x_block}"
    more += of_codes(spec)
    return window_key("conv", extents, spec.window, more, spec.y.dtype)
