# SPDX-License-Identifier: Apache-2.0
"""What backends share that take tensors in blocks of channels at a region's border."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.errors import BackendError
from intarsia.graph.state import BLOCKS, TensorState, blocked_shape, blocked_state, can_block

if TYPE_CHECKING:
    from intarsia.backends.api import Border, TensorSpec
    from intarsia.backends.candidate import Candidate
    from intarsia.graph.region import Region


def read_blocks(
    region: Region,
    values: Sequence[int],
    states: Sequence[TensorState],
    backend: str,
    blocks: Collection[int] = tuple(BLOCKS.values()),
) -> tuple[int, ...]:
    """Return the channels of a block of each border tensor, 0 for a row-major one.

    Args:
        region: Whose border it is.
        values: Its inputs or its outputs.
        states: One for each.
        backend: Name of the backend, for the error.
        blocks: Those that the backend can be given; 0 always.

    Raises:
        BackendError: A state is not one that the backend can be given.
    """
    found = []
    for value_id, state in zip(values, states, strict=True):
        value = region.graph.values[value_id]
        block = -1 if state.runtime else BLOCKS.get(state.layout, -1)
        is_taken = block in blocks and can_block(value.dtype, value.shape or (), block)
        if block and not is_taken:
            raise BackendError(
                f"{backend} cannot be given {value.name!r} as {state.layout}",
                backend=backend,
                hint="take 'plain', or a layout that the backend lists",
            )
        found.append(block)
    return tuple(found)


def blocked_spec(spec: TensorSpec, block: int) -> TensorSpec:
    """Return a border tensor's spec with the shape of the array that it is."""
    if not block:
        return spec
    assert spec.shape is not None
    return replace(spec, shape=blocked_shape(spec.shape, block))


def blocked_border(candidate: Candidate, inputs: Sequence[int], outputs: Sequence[int]) -> Border:
    """Return a candidate's border with each tensor in blocks of so many channels, 0 for plain."""
    given, made = (
        tuple(blocked_state(state, block) for state, block in zip(states, blocks, strict=True))
        for states, blocks in ((candidate.inputs, inputs), (candidate.outputs, outputs))
    )
    return given, made
