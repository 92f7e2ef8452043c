# SPDX-License-Identifier: Apache-2.0
"""Winograd's transforms for three taps, in one dimension.

`F(m, 3)` computes m outputs of a correlation with three taps from m + 2 inputs by m + 2 products:
`y = A^T ((G w) * (B^T x))`. In two dimensions each matrix is applied along both. See Lavin and
Gray, "Fast Algorithms for Convolutional Neural Networks", 2015. F(2, 3) interpolates at 0, 1, -1
and infinity. F(4, 3) does at 0, 2/3, -2/3, 3/2, -3/2 and infinity: pairs that are one another's
inverse keep all constants near 1, and the error is a fourth of that at the usual 0, 1, -1, 2, -2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Value

Array = np.ndarray[Any, np.dtype[Any]]
Grid = Sequence[Sequence[Value]]
"""Rows of values."""

TAPS = 3
OUTPUTS = (2, 4)
"""Which m there are."""

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


def transform_input(builder: Builder, outputs: int, grid: Grid) -> list[list[Value]]:
    """Append `B^T x B` for m + 2 rows and columns of inputs."""
    return _both(builder, _INPUT[outputs], grid)


def transform_output(builder: Builder, outputs: int, grid: Grid) -> list[list[Value]]:
    """Append `A^T s A` for m + 2 rows and columns of sums; it has m of each."""
    return _both(builder, _OUTPUT[outputs], grid)


_Line = Callable[[Builder, Sequence[Value]], list[Value]]


def _both(b: Builder, line: _Line, grid: Grid) -> list[list[Value]]:
    """Apply a transform along columns, then along rows."""
    columns = [line(b, column) for column in zip(*grid, strict=True)]
    return [line(b, row) for row in zip(*columns, strict=True)]


def _input_2(b: Builder, x: Sequence[Value]) -> list[Value]:
    return [b.sub(x[2], x[0]), b.add(x[1], x[2]), b.sub(x[2], x[1]), b.sub(x[3], x[1])]


def _output_2(b: Builder, s: Sequence[Value]) -> list[Value]:
    return [b.add(s[0], b.add(s[1], s[2])), b.add(b.sub(s[1], s[2]), s[3])]


def _input_4(b: Builder, x: Sequence[Value]) -> list[Value]:
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


def _output_4(b: Builder, s: Sequence[Value]) -> list[Value]:
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
