# SPDX-License-Identifier: Apache-2.0
"""Tensors in shared blocks of channels, for feeding regions that have these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from intarsia.arrays import Array
from intarsia.graph.state import BLOCKS

if TYPE_CHECKING:
    from intarsia.backends.values import Candidate


def blocks_of(candidate: Candidate) -> dict[str, int]:
    """Return how many channels are in a block of the border tensors that have some, by name."""
    region = candidate.region
    values = (*region.inputs, *region.outputs)
    states = (*candidate.inputs, *candidate.outputs)
    blocks = {
        region.graph.values[value].name: 0 if state.runtime else BLOCKS.get(state.layout, 0)
        for value, state in zip(values, states, strict=True)
    }
    return {name: block for name, block in blocks.items() if block}


def to_blocks(array: Array, block: int) -> Array:
    """Return `[N, C, H, W]` as the dense array `[N, C/block, H, W, block]`."""
    batch, channels, *image = array.shape
    split = array.reshape(batch, channels // block, block, *image)
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))
