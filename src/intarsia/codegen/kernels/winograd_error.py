# SPDX-License-Identifier: Apache-2.0
"""How much less exact Winograd's transforms are than a direct convolution, for given weights.

Some tiles of made-up inputs are convolved three times in numpy: in float64; directly in float32, as
runtimes do it (sums over the taps of 16 channels stay in registers, and are added to the output);
and by the transforms in float32, with the kernel's own formulas and order of sums. Inputs are
normal, or their positive part where an activation comes before: what matters to the errors is how
large inputs are beside one another, not how large they are.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from intarsia.codegen.builder import Builder
from intarsia.codegen.kernels.winograd_transform import (
    TAPS,
    Array,
    transform_input,
    transform_output,
    transform_weights,
)

LIMIT = 4.0
"""How many times the error of a direct convolution may be (`-winograd=auto`)."""

_CHUNK = 16
_OUT_CHANNELS = 4
_POSITIONS = 32


def error_ratio(outputs: int, weights: Array, *, is_positive: bool) -> float:
    """Return the error of F(outputs, 3) over that of a direct convolution, both against float64.

    Errors are roots of mean squares over a sample of the output.

    Args:
        outputs: Extent of a tile.
        weights: `float32[out_channels, in_channels, 3, 3]`.
        is_positive: Whether inputs come from an activation that leaves nothing below zero.

    Returns:
        The ratio; infinite if a result is not finite.
    """
    rng = np.random.default_rng(0)
    picked = np.linspace(0, len(weights) - 1, min(_OUT_CHANNELS, len(weights))).astype(int)
    w = np.ascontiguousarray(weights[picked], np.float32)
    side, tiles = outputs + TAPS - 1, max(1, _POSITIONS // outputs**2)
    x = rng.standard_normal((tiles, _round_up(w.shape[1]), side, side)).astype(np.float32)
    if is_positive:
        x = np.maximum(x, 0)
    w = np.concatenate([w, np.zeros((len(w), x.shape[1] - w.shape[1], TAPS, TAPS), "f")], 1)
    windows = np.lib.stride_tricks.sliding_window_view(x, (TAPS, TAPS), (2, 3))
    exact = np.einsum("tcyxij,ocij->toyx", windows, w, dtype=np.float64)
    scale = np.abs(exact).max()
    if not scale or not np.isfinite(scale):
        return 1.0 if scale == 0 else float("inf")
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is an answer
        direct = _direct(windows, w) - exact
        winograd = _winograd(outputs, x, w) - exact
    least = scale * np.finfo(np.float32).eps / 8  # a direct one may happen to be exact
    ratio = _rms(winograd) / max(_rms(direct), least)
    return ratio if np.isfinite(ratio) else float("inf")


def _rms(errors: Array) -> float:
    return math.sqrt(float(np.mean(np.square(errors))))


def _round_up(channels: int) -> int:
    return -(-channels // _CHUNK) * _CHUNK


def _direct(windows: Array, weights: Array) -> Array:
    """Return `float32[tiles, out_channels, m, m]` of windows (tiles, channels, m, m, 3, 3)."""
    tiles, channels, m = windows.shape[:3]
    chunks = channels // _CHUNK
    steps = windows.reshape(tiles, chunks, _CHUNK, m, m, TAPS * TAPS)
    taps = weights.reshape(len(weights), chunks, _CHUNK, TAPS * TAPS)
    total = np.zeros((chunks, tiles, len(weights), m, m), np.float32)
    for tap in range(TAPS * TAPS):
        for channel in range(_CHUNK):
            x = steps[:, :, channel, :, :, tap].transpose(1, 0, 2, 3)[:, :, None]
            total = _fma(x, taps[:, :, channel, tap].T[:, None, :, None, None], total)
    return _sum(total)


def _winograd(outputs: int, x: Array, weights: Array) -> Array:
    """Return `float32[tiles, out_channels, m, m]` of inputs (tiles, channels, m + 2, m + 2)."""
    side = outputs + TAPS - 1
    arithmetic = cast("Builder", _Arithmetic())
    grid = [[x[:, :, i, j] for j in range(side)] for i in range(side)]
    points = np.array(transform_input(arithmetic, outputs, cast("Any", grid)), np.float32)
    taps = transform_weights(outputs, weights).astype(np.float32)
    chunks = x.shape[1] // _CHUNK
    points = points.reshape(side, side, len(x), chunks, _CHUNK)
    taps = taps.reshape(len(weights), chunks, _CHUNK, side, side)
    total = np.zeros((chunks, side, side, len(x), len(weights)), np.float32)
    for channel in range(_CHUNK):
        left = points[..., channel].transpose(3, 0, 1, 2)[..., None]
        right = taps[:, :, channel].transpose(1, 2, 3, 0)[:, :, :, None]
        total = _fma(left, right, total)
    sums = _sum(total)
    square = [[sums[i, j] for j in range(side)] for i in range(side)]
    found = np.array(transform_output(arithmetic, outputs, cast("Any", square)), np.float32)
    by_tile: Array = found.transpose(2, 3, 0, 1)
    return by_tile


def _sum(parts: Array) -> Array:
    """Add along the first axis, one after another."""
    total: Array = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _fma(left: Array, right: Array, addend: Array) -> Array:
    """Return `left * right + addend` in float32, rounded once (but for ties of double rounding)."""
    product = left.astype(np.float64) * right
    product += addend
    rounded: Array = product.astype(np.float32)
    return rounded


class _Arithmetic:
    """The builder's operations on arrays, so that the kernel's own formulas run in numpy."""

    add = staticmethod(np.add)
    sub = staticmethod(np.subtract)

    @staticmethod
    def mul(left: Array, right: Any) -> Array:
        product: Array = left * np.asarray(right, np.float32)
        return product

    @staticmethod
    def fma(left: Any, right: Array, addend: Array) -> Array:
        factor = np.asarray(left, np.float32)
        return _fma(factor, right, addend)
