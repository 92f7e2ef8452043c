# SPDX-License-Identifier: Apache-2.0
"""What backends share that take tensors in blocks of channels at a region's border."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.backends.artifact import tensor_spec
from intarsia.errors import BackendError
from intarsia.graph.state import BLOCKS, TensorState, blocked_shape, blocked_state, can_block

if TYPE_CHECKING:
    from intarsia.backends.values import Artifact, Border, Candidate, TensorSpec
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
    border_blocks = []
    for value_id, state in zip(values, states, strict=True):
        value = region.graph.values[value_id]
        # A state of one runtime alone is nobody else's to read.
        block = -1 if state.runtime else BLOCKS.get(state.layout, -1)
        is_taken = block in blocks and can_block(value.dtype, value.shape or (), block)
        if block and not is_taken:
            raise BackendError(
                f"{backend} cannot take {value.name!r} in the layout {state.layout}",
                backend=backend,
                hint="use 'plain', or a layout that the backend lists",
            )
        border_blocks.append(block)
    return tuple(border_blocks)


def blocked_spec(spec: TensorSpec, block: int) -> TensorSpec:
    """Return a border tensor's spec with the shape of the array that it is."""
    if not block:
        return spec
    assert spec.shape is not None
    return replace(spec, shape=blocked_shape(spec.shape, block))


def border_specs(candidate: Candidate) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the specs of a candidate's inputs and outputs, as its states have them."""
    region = candidate.region
    input_specs, output_specs = (
        tuple(
            blocked_spec(tensor_spec(region.graph.values[value]), BLOCKS[state.layout])
            for value, state in zip(values, states, strict=True)
        )
        for values, states in (
            (region.inputs, candidate.inputs),
            (region.outputs, candidate.outputs),
        )
    )
    return input_specs, output_specs


def check_border(artifact: Artifact, candidate: Candidate) -> None:
    """Require that an artifact has the border that it was asked for.

    An array in blocks has as many bytes as a row-major one: a backend that lists a layout and then
    compiles another would read the one as the other.

    Raises:
        BackendError: It has another one.
    """
    for specs, wanted in zip(
        (artifact.inputs, artifact.outputs), border_specs(candidate), strict=True
    ):
        if tuple(specs) != wanted:
            raise BackendError(
                f"{artifact.backend} lists a border of {'; '.join(map(str, wanted))}, "
                f"and compiles one of {'; '.join(map(str, specs))}",
                backend=f"{artifact.backend} {artifact.version}",
                target=artifact.target,
                hint="report it to the backend's author: `compile` must accept what `states` lists",
            )


def blocked_border(candidate: Candidate, inputs: Sequence[int], outputs: Sequence[int]) -> Border:
    """Return a candidate's border with each tensor in blocks of so many channels, 0 for plain."""
    input_states, output_states = (
        tuple(blocked_state(state, block) for state, block in zip(states, blocks, strict=True))
        for states, blocks in ((candidate.inputs, inputs), (candidate.outputs, outputs))
    )
    return input_states, output_states
