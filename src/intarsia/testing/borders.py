# SPDX-License-Identifier: Apache-2.0
"""Check: regions compute the same in every border that a backend lists, and in mixes of them."""

from __future__ import annotations

import numpy as np

from intarsia.backends.api import Array


def to_blocks(array: Array, block: int) -> Array:
    """Return `[N, C, H, W]` as the dense array `[N, C/block, H, W, block]`."""
    batch, channels, *image = array.shape
    split = array.reshape(batch, channels // block, block, *image)
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


def from_blocks(array: Array) -> Array:
    """Return `[N, C/block, H, W, block]` as `[N, C, H, W]`."""
    batch, outer, *image, block = array.shape
    return np.ascontiguousarray(np.moveaxis(array, -1, 2)).reshape(batch, outer * block, *image)
