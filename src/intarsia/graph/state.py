# SPDX-License-Identifier: Apache-2.0
"""How a tensor lies at a region's border.

Layouts that every backend may know have a name: row-major, or blocks of channels. A tensor
`[N, C, H, W]` in `nchw16c` is the dense array `[N, C/16, H, W, 16]`; the number of channels has to
be a multiple of the block, so that nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

PLAIN = "plain"

BLOCKS = {PLAIN: 0, "nchw8c": 8, "nchw16c": 16}
"""Channels of a block, by the shared name of a layout."""
_NAMES = {block: name for name, block in BLOCKS.items()}
_IMAGE_RANK = 4


@dataclass(frozen=True, slots=True)
class TensorState:
    """How a tensor lies at a region's border.

    Attributes:
        domain: The memory domain, as `(device type, device id, memory scope)`.
        layout: `plain` (row-major, dense), another shared name (`nchw8c`), or one that is private
            to `runtime`.
        dtype: Element type, by its numpy or ml_dtypes name.
        runtime: The runtime that owns a private layout; empty for shared layouts.
    """

    domain: tuple[int, int, str]
    layout: str
    dtype: str
    runtime: str = ""


def can_block(dtype: str, shape: Sequence[int], block: int) -> bool:
    """Tell whether a tensor can lie in shared blocks of so many channels; an empty one cannot."""
    if block not in _NAMES or not block or not all(shape):
        return False
    return dtype == "float32" and len(shape) == _IMAGE_RANK and shape[1] % block == 0


def blocked_shape(shape: Sequence[int], block: int) -> tuple[int, ...]:
    """Return the shape of the array that a tensor is in blocks of channels; 0 for row-major."""
    if not block:
        return tuple(shape)
    batch, channels, *image = shape
    return (batch, channels // block, *image, block)


def blocked_state(state: TensorState, block: int) -> TensorState:
    """Return a state in blocks of channels; 0 for row-major."""
    return replace(state, layout=_NAMES[block])
