# SPDX-License-Identifier: Apache-2.0
"""Constant weights kept as float16 where reading them is what a product costs.

A product of few rows reads each weight once or a few times, from memory; half the bytes take half
the time. Kernels convert them back when they load them, and compute in float32 as before, so that
the only error is the rounding of the weights (IEEE 754 binary16).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MOST_ROWS = 8
"""Rows of a product that is still bound by memory."""

LEAST_BYTES = 1 << 20
"""Of float32 weights that no cache near a core keeps from one run to the next."""

LARGEST = float(np.finfo(np.float16).max)

MOST_ERROR = 2.0**-11
"""Largest error of a number that float16 holds with all its bits, relative to the number."""

_CHUNK_ROWS = 256


def half_error(weights: Array) -> float | None:
    """Return how much rounding to float16 changes weights, or None if they must stay float32.

    Args:
        weights: `float32[..., k, n]`.

    Returns:
        The root of the mean square of the changes over that of the weights, the largest of all
        columns. None if a weight is beyond the range of float16 or no number, or if a column's
        weights are so small that float16 holds fewer of their bits.
    """
    lost = np.zeros((*weights.shape[:-2], weights.shape[-1]))
    whole = np.zeros_like(lost)
    for start in range(0, weights.shape[-2], _CHUNK_ROWS):  # all at once would take much memory
        part = weights[..., start : start + _CHUNK_ROWS, :]
        if not bool(np.all(np.abs(part) <= LARGEST)):  # also false for NaN
            return None
        change = part.astype(np.float16).astype(np.float32) - part
        lost += np.einsum("...kn,...kn->...n", change, change)
        whole += np.einsum("...kn,...kn->...n", part, part)
    errors = np.sqrt(np.divide(lost, whole, out=np.zeros_like(lost), where=whole > 0))
    worst = float(np.max(errors, initial=0.0))
    return worst if worst <= MOST_ERROR else None
