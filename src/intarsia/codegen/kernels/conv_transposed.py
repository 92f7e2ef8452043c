# SPDX-License-Identifier: Apache-2.0
"""Transposed convolution as convolutions: one for each phase of the output's strides.

Output o meets tap t where `o + pad = i * stride + t * dilation` has an input i. Outputs that are
congruent modulo the stride meet the same taps, so they are a convolution of stride 1 with these
taps in reverse, whose results lie a stride apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.codegen.kernels.window import Window

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Phase:
    """One of the convolutions.

    Attributes:
        window: Of stride 1; without taps in some dimension the results are 0 (plus the bias).
        taps: For each dimension, which taps of the whole kernel it has, in order.
        x_offset: The entry of the padded input where the kernel's input begins.
        y_offset: The entry of the output where its output begins; the next one in a dimension is
            the transposed convolution's stride further.
    """

    window: Window
    taps: tuple[tuple[int, ...], ...]
    x_offset: tuple[int, ...]
    y_offset: tuple[int, ...]

    def weights(self, weights: Array, groups: int) -> Array:
        """Return its weights (out_channels, in_channels / groups, *window.kernel).

        Args:
            weights: Of the whole: (in_channels, out_channels / groups, *kernel), as ONNX has them.
            groups: Of channels.
        """
        inputs, outputs = weights.shape[0] // groups, weights.shape[1]
        kernel = weights.shape[2:]
        swapped = weights.reshape(groups, inputs, outputs, *kernel).swapaxes(1, 2)
        whole = swapped.reshape(groups * outputs, inputs, *kernel)
        return whole[np.ix_(*map(range, whole.shape[:2]), *self.taps)]


@dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed convolution as convolutions of one padded input.

    Attributes:
        before: Zeros that the input needs before its first entry, in each dimension.
        after: Zeros that it needs after its last entry.
        phases: Together they write every output once.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    phases: tuple[Phase, ...]


def transposed_parts(
    extents: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
) -> Transposed:
    """Return the convolutions that compute a transposed one.

    Args:
        extents: Of the input, in each spatial dimension.
        out: Of the output; output padding is in it.
        kernel: Taps.
        strides: Of the transposed convolution.
        dilations: Between its taps.
        pads: Entries that are cut off before the first output, in each dimension.
    """
    dims = [
        _phases(*dim) for dim in zip(out, kernel, strides, dilations, pads, strict=True)
    ]  # fmt: skip
    before = tuple(max(0, *(-line.x_begin for line in lines), 0) for lines in dims)
    after = tuple(
        max(0, *(line.x_end - extent for line in lines), 0)
        for lines, extent in zip(dims, extents, strict=True)
    )
    phases = []
    for lines in itertools.product(*dims):
        window = Window(
            tuple(line.count for line in lines),
            tuple(len(line.taps) for line in lines),
            (1,) * len(lines),
            tuple(line.dilation for line in lines),
        )
        begins = zip(lines, before, strict=True)
        x_offset = tuple(line.x_begin + zeros if line.taps else 0 for line, zeros in begins)
        y_offset = tuple(line.y_begin for line in lines)
        phases.append(Phase(window, tuple(line.taps for line in lines), x_offset, y_offset))
    return Transposed(before, after, tuple(phases))


@dataclass(frozen=True, slots=True)
class _Line:
    """A phase in one dimension: which inputs its outputs meet, counted from the first real one."""

    taps: tuple[int, ...]
    dilation: int
    count: int
    x_begin: int
    x_end: int
    y_begin: int


def _phases(out: int, kernel: int, stride: int, dilation: int, pad: int) -> list[_Line]:
    lines = []
    for begin in range(min(stride, out)):
        first, phase = divmod(begin + pad, stride)
        taps = [tap for tap in range(kernel) if (tap * dilation - phase) % stride == 0]
        count = -(-(out - begin) // stride)
        x_begin = x_end = 0
        if taps:
            x_begin = first - (taps[-1] * dilation - phase) // stride
            x_end = first - (taps[0] * dilation - phase) // stride + count
        step = dilation // math.gcd(dilation, stride)
        lines.append(_Line(tuple(reversed(taps)), step, count, x_begin, x_end, begin))
    return lines
