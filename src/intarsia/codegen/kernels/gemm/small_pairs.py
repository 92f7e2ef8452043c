# SPDX-License-Identifier: Apache-2.0
"""Weights whose products with unsigned bytes add up to int16 by twos, so that `pmaddubsw` is exact.

That instruction adds two products in 16 bits, and saturates. Two weights are safe if they have one
sign and their sum is within 128, or if they differ in sign: 255 times that is an int16. Where
others are few, a group that has some is in a panel twice, with halves of these weights each, which
are safe. Which groups these are is kept beside them, as the loop over them reads the left operand
there. So sums are exact at the speed of the instruction, and what it costs is known when weights
are packed: as many steps more as there are groups with large neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.kernels.gemm.schedules import schedule
from intarsia.codegen.kernels.gemm.spec import Gemm, Panels
from intarsia.codegen.kernels.window import Split

DIGIT = 128
"""Places are two digits of this base, each an int8."""
_SAFE = 128
"""The largest sum of two weights of which 255 times as much is an int16."""
_GROUP = 4


def place_bytes(panels: Panels) -> int:
    """Return how many bytes a vector of columns has for places of groups that are split."""
    return -(-2 * (panels.split or 0) // _LINE) * _LINE


_LINE = 64
"""So that a vector's places are a multiple of its lanes, whatever these are."""


def pays(weights: Array, lanes: int) -> bool:
    """Tell whether a product with weights takes less time where large neighbours are split.

    Args:
        weights: Over (*its batch, k, n).
        lanes: Sums of a vector.
    """
    k = weights.shape[-2]
    steps = k // _GROUP
    if k % _GROUP or not 0 < steps <= DIGIT**2 or not weights.size:
        return False
    width = _VECTORS * lanes
    panels = [(first, first + width) for first in range(0, weights.shape[-1], width)]
    return bool(_count(weights, panels) < _MOST * steps)


_VECTORS = 2
"""Of a panel with AVX2; wider ones have more to split, by a little where `pays` says yes."""
_MOST = 0.2
"""On Zen 3 a group takes three fourths of the time of two pairs of int16."""


def count_split(spec: Gemm, weights: Array) -> int:
    """Return how many groups of the panel that has most of them are to be split.

    Args:
        spec: The product, as if none were.
        weights: Over (*its batch, k, n).
    """
    lanes = spec.unit.lanes(spec.sum_dtype)
    runs = Split.of(-(-spec.n // lanes), schedule(spec).vectors).runs
    panels = [(first, first + run.size) for run in runs for first in run.begins]
    return _count(weights, [(begin * lanes, end * lanes) for begin, end in panels])


def _count(weights: Array, panels: Sequence[tuple[int, int]]) -> int:
    *_, k, n = weights.shape
    groups = weights.reshape(-1, k // _GROUP, _GROUP, n)
    counts = [is_large(groups[..., begin:end]).any((-2, -1)).sum(-1).max() for begin, end in panels]
    return int(max(counts))


def split_groups(columns: Array, count: int) -> tuple[Array, Array]:
    """Return the columns of a panel with second parts of groups behind them, and their places.

    Args:
        columns: Over (groups, columns, 4).
        count: How many second parts there are, some of which may be zeros.
    """
    wide = columns.astype(np.int16)
    to_split = is_large(wide.swapaxes(1, 2)).repeat(2, 1).swapaxes(1, 2)
    halves = np.where(to_split, wide - wide // 2, 0)
    found = np.flatnonzero(to_split.any((1, 2)))
    second = np.zeros((count, *columns.shape[1:]), np.int16)
    second[: found.size] = halves[found]
    places = np.zeros(count, np.int64)
    places[: found.size] = found
    digits = np.stack(np.divmod(places, DIGIT)[::-1], 1).astype(np.int8)
    return np.concatenate((wide - halves, second)).astype(np.int8), digits.reshape(-1)


def is_large(groups: Array) -> Array:
    """Tell of each pair, over (..., 4, columns), whether its products may exceed an int16."""
    wide = groups.astype(np.int16)
    first, second = wide[..., 0::2, :], wide[..., 1::2, :]
    return ((first ^ second) >= 0) & (abs(first + second) > _SAFE)
