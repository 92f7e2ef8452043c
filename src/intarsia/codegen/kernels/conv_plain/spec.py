# SPDX-License-Identifier: Apache-2.0
"""What a convolution of plain NCHW is, and the choices of how it is cut."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.codegen.kernels.convolution import Convolution
from intarsia.codegen.kernels.window import window_key


@dataclass(frozen=True, slots=True)
class PlainConvSchedule:
    """The choices of a plain convolution.

    Attributes:
        channels: Output channels of a register tile, at most.
        vectors: Vectors of positions of a register tile, at most.
    """

    channels: int
    vectors: int


@dataclass(frozen=True, slots=True)
class PlainConv(Convolution):
    """A convolution of any groups and channels, input and output by channels.

    Attributes:
        x: Over (batch, in_channels, *spatial with padding).
        y: Over (batch, out_channels, *window.out).
        schedule: How; None leaves it to the heuristic.
    """

    schedule: PlainConvSchedule | None = None


def key(spec: PlainConv) -> str:
    """Say in words what decides which schedules a convolution can have, and which are fast."""
    extents = (spec.batch, spec.in_channels, spec.out_channels)
    return window_key("plain conv", extents, spec.window, f"{spec.groups} groups", spec.y.dtype)
