# SPDX-License-Identifier: Apache-2.0
"""A region that is loaded on a device with queues: its weights there, and bound calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from intarsia.backends.device import Buffer, Step
from intarsia.backends.device_payload import Payload
from intarsia.backends.native import make_faults, raise_fault
from intarsia.backends.queues import Block, DeviceTensor, QueueView
from intarsia.backends.values import Artifact, ArtifactConstant, TensorSpec
from intarsia.codegen.storage import StorageKind

Place = tuple[Any, int]
"""The memory of a storage, and where it begins there, in bytes."""

View = TypeVar("View", bound=QueueView)


class DeviceExecutable(ABC, Generic[View]):
    """Kernels with their weights; bindings and threads share it.

    Args:
        artifact: What is loaded.
        payload: Its payload.
        device: Where it is loaded.

    Raises:
        ExecutionError: The weights do not fit on the device.
    """

    def __init__(self, artifact: Artifact, payload: Payload, device: View) -> None:
        self.scratch_bytes = payload.scratch_bytes
        self.payload = payload
        self._target = artifact.target
        self._device = device
        self._constants = [_upload(device, constant) for constant in artifact.constants]

    @abstractmethod
    def launch(self, view: View, places: Sequence[Place], owned: object) -> Step:
        """Return the call that queues the kernels.

        Args:
            view: Whose queue they are queued on.
            places: Of each storage.
            owned: Everything that must live as long as the call.
        """

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that queues the region's kernels, on the queue of its buffers."""
        payload = self.payload
        view = self._device.view_of((*inputs, *outputs))
        reported = make_faults(payload)
        faults = view.allocate(reported.nbytes) if payload.checks else None
        places = [
            self._place(storage, inputs, outputs, scratch, faults)
            for storage in range(len(payload.storages))
        ]
        step = self.launch(view, places, (self, tuple(inputs), tuple(outputs), scratch))
        if faults is None:
            return step
        held = view.tensor(faults, 0, TensorSpec("faults", reported.dtype.name, reported.shape))

        def look() -> None:
            raise_fault(payload, reported, self._target)

        def look_later() -> None:
            step()
            wait = view.start_read(held, reported)

            def check() -> None:
                wait()
                look()

            view.after_work(check)

        return look_later

    def _place(
        self,
        storage: int,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        scratch: Block | None,
        faults: Block | None,
    ) -> Place:
        kind, index, _ = self.payload.storages[storage]
        if kind == StorageKind.SCRATCH:
            if scratch is None:  # what is kept between kernels is empty, and nothing reads it
                return None, 0
            return scratch.memory, index
        if kind == StorageKind.FAULT:
            assert faults is not None
            return faults.memory, index
        if kind == StorageKind.CONSTANT:
            return self._constants[index].block.memory, 0
        tensor = (inputs if kind == StorageKind.INPUT else outputs)[index]
        return tensor.block.memory, tensor.offset


def _upload(device: QueueView, constant: ArtifactConstant) -> DeviceTensor:
    """Return a constant on a device."""
    data = constant.data
    spec = TensorSpec(constant.name, data.dtype.name, data.shape)
    tensor = device.tensor(device.allocate(spec.nbytes), 0, spec)
    device.write(data, tensor)
    return tensor
