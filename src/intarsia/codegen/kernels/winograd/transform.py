# SPDX-License-Identifier: Apache-2.0
"""Winograd's transforms for three taps, and how exact they are.

`F(m, 3)` computes m outputs of a correlation with three taps from m + 2 inputs by m + 2 products:
`y = A^T ((G w) * (B^T x))`. In two dimensions each matrix is applied along both. See Lavin and
Gray, "Fast Algorithms for Convolutional Neural Networks", 2015. F(2, 3) interpolates at 0, 1, -1
and infinity. F(4, 3) does at 0, 2/3, -2/3, 3/2, -3/2 and infinity: pairs that are one another's
inverse keep all constants near 1, and the error is a fourth of that at the usual 0, 1, -1, 2, -2.
How the choice of points decides the error is shown by Barabasz, Anderson, Soodhalter and Gregg,
"Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", ACM
TOMS, 2020.

To tell how much less exact they are for given weights than a direct convolution, some tiles of
made-up inputs are convolved three times in numpy: in float64; directly in float32, as runtimes do
it (sums over the taps of 16 channels stay in registers, and are added to the output); and by the
transforms in float32, with the kernel's own formulas and order of sums. Inputs are normal, or their
positive part where an activation comes before: what matters to the errors is how large inputs are
beside one another, not how large they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import IrValue

Grid = Sequence[Sequence[IrValue]]
"""Rows of values."""

TAPS = 3
OUTPUTS = (2, 4)
"""The sizes m of F(m, 3) that are supported."""
EXACT_FACTOR = 4
"""What makes weights of F(2, 3) integers of integers: G has halves, and is applied twice."""

_NEAR, _FAR = 2 / 3, 3 / 2
"""The positive points of F(4, 3); their product is 1, which `_input_4` relies on."""
_POINTS = {2: (0, 1, -1), 4: (0, _NEAR, -_NEAR, _FAR, -_FAR)}


def weight_matrix(outputs: int) -> Array:
    """Return G of F(outputs, 3): at each point, powers over the product of distances to others."""
    points = _POINTS[outputs]
    rows = [
        [
            point**power / math.prod(point - other for other in points if other != point)
            for power in range(TAPS)
        ]
        for point in points
    ]
    return np.array([*rows, [0, 0, 1]], np.float64)


def transform_weights(outputs: int, weights: Array) -> Array:
    """Return `G w G^T` of weights (..., 3, 3), computed in float64."""
    side = outputs + TAPS - 1
    taps = weights.reshape(-1, TAPS**2).astype(np.float64)
    points: Array = taps @ points_of_taps(outputs).T  # one product is much faster than many small
    return points.reshape(*weights.shape[:-2], side, side)


def points_of_taps(outputs: int) -> Array:
    """Return `G w G^T` as one matrix (points, taps), for weights that are one vector."""
    matrix = weight_matrix(outputs)
    result: Array = np.kron(matrix, matrix)
    return result


def transform_input(builder: Builder, outputs: int, grid: Grid) -> list[list[IrValue]]:
    """Append `B^T x B` for m + 2 rows and columns of inputs."""
    return _both(builder, _INPUT[outputs], grid)


def transform_output(builder: Builder, outputs: int, grid: Grid) -> list[list[IrValue]]:
    """Append `A^T s A` for m + 2 rows and columns of sums; it has m of each."""
    return _both(builder, _OUTPUT[outputs], grid)


_Line = Callable[[Builder, Sequence[IrValue]], list[IrValue]]


def _both(b: Builder, line: _Line, grid: Grid) -> list[list[IrValue]]:
    """Apply a transform along columns, then along rows."""
    columns = [line(b, column) for column in zip(*grid, strict=True)]
    return [line(b, row) for row in zip(*columns, strict=True)]


# B^T and A^T of `F(2, 3)` in Lavin and Gray, section 4.1, except for signs: the first and the last
# row of B^T are negated here. At 0 the denominator of Lagrange's formula is -1, which stays in G;
# at infinity A^T has 1 instead of -1.
def _input_2(b: Builder, x: Sequence[IrValue]) -> list[IrValue]:
    return [b.sub(x[2], x[0]), b.add(x[1], x[2]), b.sub(x[2], x[1]), b.sub(x[3], x[1])]


def _output_2(b: Builder, s: Sequence[IrValue]) -> list[IrValue]:
    return [b.add(s[0], b.add(s[1], s[2])), b.add(b.sub(s[1], s[2]), s[3])]


# The roots of (t^2 - near^2)(t^2 - far^2) = t^4 - (near^2 + far^2) t^2 + 1 are the points beside 0
# and infinity; the last coefficient is 1 as near * far is, which saves a product. Points of
# opposite signs share an even and an odd part.
def _input_4(b: Builder, x: Sequence[IrValue]) -> list[IrValue]:
    near, far = _NEAR**2, _FAR**2
    even, odd = b.fma(-far, x[2], x[4]), b.fma(-far, x[1], x[3])
    even_far, odd_far = b.fma(-near, x[2], x[4]), b.fma(-near, x[1], x[3])
    return [
        b.fma(-near - far, x[2], b.add(x[0], x[4])),
        b.fma(_NEAR, odd, even),
        b.fma(-_NEAR, odd, even),
        b.fma(_FAR, odd_far, even_far),
        b.fma(-_FAR, odd_far, even_far),
        b.fma(-near - far, x[3], b.add(x[1], x[5])),
    ]


# Rows of A^T are the powers 0 to 3 of the points; infinity has the last one alone.
def _output_4(b: Builder, s: Sequence[IrValue]) -> list[IrValue]:
    even, odd = b.add(s[1], s[2]), b.sub(s[1], s[2])
    even_far, odd_far = b.add(s[3], s[4]), b.sub(s[3], s[4])
    return [
        b.add(s[0], b.add(even, even_far)),
        b.fma(_FAR, odd_far, b.mul(odd, _NEAR)),
        b.fma(_FAR**2, even_far, b.mul(even, _NEAR**2)),
        b.fma(_FAR**3, odd_far, b.fma(_NEAR**3, odd, s[5])),
    ]


_INPUT: dict[int, _Line] = {2: _input_2, 4: _input_4}
_OUTPUT: dict[int, _Line] = {2: _output_2, 4: _output_4}


LIMIT = 4.0
"""How many times the error of a direct convolution may be (`-winograd=auto`)."""

_CHUNK = 16
_OUT_CHANNELS = 4
_POSITIONS = 32


def error_ratio(outputs: int, weights: Array, *, is_positive: bool) -> float:
    """Return the error of F(outputs, 3) over that of a direct convolution, both against float64.

    Errors are roots of mean squares over a sample of the output.

    Args:
        outputs: Size of a tile.
        weights: `float32[out_channels, in_channels, 3, 3]`.
        is_positive: Whether inputs come from an activation that leaves nothing below zero.

    Returns:
        The ratio; infinite if a result is not finite.
    """
    # Always the same sample: a layer is computed by the same algorithm in every compilation. Over
    # 12 other samples the ratio of F(4) varies by a tenth, 1.7 to 3.3 for 64 and 256 channels,
    # below `LIMIT` each time.
    rng = np.random.default_rng(0)
    # 128 outputs of 4 channels, evenly apart, take some 50 ms for 512 input and output channels.
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
    results = np.array(transform_output(arithmetic, outputs, cast("Any", square)), np.float32)
    by_tile: Array = results.transpose(2, 3, 0, 1)
    return by_tile


def _sum(parts: Array) -> Array:
    """Add along the first axis, one after another."""
    total: Array = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _fma(left: Array, right: Array, addend: Array) -> Array:
    """Return `left * right + addend` in float32, rounded once (but for ties of double rounding)."""
    # Products of two float32 are exact in float64.
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
