# SPDX-License-Identifier: Apache-2.0
"""A region that is loaded, and one that is bound to buffers of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intarsia.arrays import from_blocks, np_dtype
from intarsia.backends.device import Buffer, Device, Executable, Step, ValueSlot
from intarsia.backends.values import Artifact, TensorSpec
from intarsia.graph.region import Region
from intarsia.testing.blocks import to_blocks


@dataclass(frozen=True, slots=True)
class Loaded:
    """A region, compiled and loaded.

    Attributes:
        region: What it was made of.
        artifact: What `compile` returned.
        device: Where its tensors are.
        executable: What `load` returned.
        blocks: Of the border tensors in blocks of channels how many are in one, by name.
    """

    region: Region
    artifact: Artifact
    device: Device
    executable: Executable
    blocks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bound:
    """A loaded region with buffers of its own."""

    loaded: Loaded
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    step: Step

    def write(self, values: Mapping[str, Any]) -> None:
        """Put values into the inputs, by name."""
        for spec, buffer in zip(self.loaded.artifact.inputs, self.inputs, strict=True):
            value, block = values[spec.name], self.loaded.blocks.get(spec.name, 0)
            _write(self.loaded.device, spec, buffer, to_blocks(value, block) if block else value)

    def spoil(self) -> None:
        """Fill the outputs with what no answer is, so that one left alone shows."""
        for spec, buffer in zip(self.loaded.artifact.outputs, self.outputs, strict=True):
            if isinstance(buffer, ValueSlot):
                buffer.value = None
            else:
                dtype = np_dtype(spec.dtype)
                filler = np.full(spec.shape or (), np.nan if dtype.kind == "f" else 77)
                _write(self.loaded.device, spec, buffer, filler.astype(dtype))

    def read(self) -> dict[str, Any]:
        """Return fresh arrays with the outputs, by name."""
        return {
            spec.name: self._read(spec, buffer)
            for spec, buffer in zip(self.loaded.artifact.outputs, self.outputs, strict=True)
        }

    def read_inputs(self) -> dict[str, Any]:
        """Return fresh arrays with the inputs, by name."""
        return {
            spec.name: self._read(spec, buffer)
            for spec, buffer in zip(self.loaded.artifact.inputs, self.inputs, strict=True)
        }

    def _read(self, spec: TensorSpec, buffer: Buffer) -> Any:
        value = _read(self.loaded.device, spec, buffer)
        return from_blocks(value) if spec.name in self.loaded.blocks else value


def make_buffer(device: Device, spec: TensorSpec) -> Buffer:
    """Return a buffer for one tensor as a plan would: a slot if it is not dense."""
    if spec.shape is None or spec.dtype == "string":
        return ValueSlot()
    return device.tensor(device.allocate(spec.nbytes), 0, spec)


def make_scratch(device: Device, nbytes: int) -> Any:
    """Return a block of scratch memory, full of what no backend may rely on: NaN, or -1."""
    block = device.allocate(nbytes)
    spec = TensorSpec("scratch", "uint8", (nbytes,))
    device.write(np.full(nbytes, 0xFF, np.uint8), device.tensor(block, 0, spec))
    return block


def _write(device: Device, spec: TensorSpec, buffer: Buffer, value: Any) -> None:
    if isinstance(buffer, ValueSlot):
        buffer.value = value
    else:
        device.write(np.asarray(value, np_dtype(spec.dtype)), buffer)


def _read(device: Device, spec: TensorSpec, buffer: Buffer) -> Any:
    if isinstance(buffer, ValueSlot):
        return buffer.value
    array = np.empty(spec.shape or (), np_dtype(spec.dtype))
    device.read(buffer, array)
    return array
