# SPDX-License-Identifier: Apache-2.0
"""What a depthwise convolution is, and the choices of how it is cut."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.codegen.kernels.convolution import Convolution
from intarsia.codegen.kernels.window import window_key


@dataclass(frozen=True, slots=True)
class DepthwiseSchedule:
    """The choices of a depthwise convolution.

    Attributes:
        pixels: Positions of a register tile, at most.
        unrolled: Of how many of the last two dimensions the taps are unrolled, their weights held
            in registers and each input entry read once for all of them; the others are loops.
        bands: Shares of a block's tiles, for turns of their own.
    """

    pixels: int
    unrolled: int = 0
    bands: int = 1


@dataclass(frozen=True, slots=True)
class Depthwise(Convolution):
    """A convolution with one filter for each channel, on blocks of L channels.

    There are as many groups as channels; the last block may be part empty.

    Attributes:
        x: Over (batch, channels / L, *spatial with padding, L).
        y: Over (batch, channels / L, *window.out, L).
        schedule: How; None leaves it to the heuristic.
    """

    schedule: DepthwiseSchedule | None = None

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        assert self.groups == self.in_channels == self.out_channels, "filters of several channels"


def key(spec: Depthwise) -> str:
    """Say in words what decides which schedules a convolution can have, and which are fast."""
    extents = (spec.batch, spec.in_channels, spec.out_channels)
    return window_key("depthwise conv", extents, spec.window, "", spec.y.dtype)
