# SPDX-License-Identifier: Apache-2.0
"""Layouts at a region's border: row-major, or the shared ones in blocks of channels.

A tensor `[N, C, H, W]` in the state `nchw16c` is the dense array `[N, C/16, H, W, 16]`; the number
of channels has to be a multiple of the block, so that nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from intarsia.backends.api import TensorSpec
from intarsia.errors import BackendError
from intarsia.graph.region import Region
from intarsia.graph.state import PLAIN, TensorState

BLOCKS = {PLAIN: 0, "nchw8c": 8, "nchw16c": 16}
"""Channels of a block, by the layout's shared name."""
_NAMES = {block: name for name, block in BLOCKS.items()}
_IMAGE_RANK = 4


def read_blocks(
    region: Region, values: Sequence[int], states: Sequence[TensorState]
) -> tuple[int, ...]:
    """Return the channels of a block of each border tensor, 0 for a row-major one.

    Raises:
        BackendError: A state is not one that oneDNN can be given.
    """
    blocks = []
    for value_id, state in zip(values, states, strict=True):
        value = region.graph.values[value_id]
        block = -1 if state.runtime else BLOCKS.get(state.layout, -1)
        if block < 0 or (block and not can_block(value.dtype, value.shape or (), block)):
            raise BackendError(
                f"oneDNN cannot be given {value.name!r} as {state.layout}",
                backend="dnnl",
                hint="take one of the layouts that it lists",
            )
        blocks.append(block)
    return tuple(blocks)


def can_block(dtype: str, shape: Sequence[int], block: int) -> bool:
    """Tell whether a tensor can lie in blocks of channels."""
    return dtype == "float32" and len(shape) == _IMAGE_RANK and shape[1] % block == 0


def blocked_spec(spec: TensorSpec, block: int) -> TensorSpec:
    """Return a border tensor's spec with the shape of the array that it is."""
    if not block:
        return spec
    assert spec.shape is not None
    batch, channels, *image = spec.shape
    return replace(spec, shape=(batch, channels // block, *image, block))


def blocked_state(state: TensorState, block: int) -> TensorState:
    """Return a state in blocks of channels."""
    return replace(state, layout=_NAMES[block])
