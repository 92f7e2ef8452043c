# SPDX-License-Identifier: Apache-2.0
"""A loaded region: a built program, its weights on the device, and bound calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from intarsia.backends.device import Buffer, Step
from intarsia.backends.native import make_faults, raise_fault
from intarsia.backends.opencl.device import Block, DeviceTensor, OpenClDevice
from intarsia.backends.opencl.driver import BACKEND_NAME, check_process, driver
from intarsia.backends.opencl.first_use import FirstUse
from intarsia.backends.opencl.payload import Payload
from intarsia.backends.values import Artifact, ArtifactConstant, TensorSpec
from intarsia.codegen.storage import StorageKind
from intarsia.errors import ExecutionError


class OpenClExecutable:
    """Kernels with their weights; bindings and threads share it.

    Args:
        artifact: What is loaded.
        payload: Its payload.
        program: Its kernels, built by pyopencl.
        device: Where it is loaded.
        first: Notes that it runs for the first time.

    Raises:
        ExecutionError: The weights do not fit on the device.
    """

    def __init__(
        self,
        artifact: Artifact,
        payload: Payload,
        program: Any,
        device: OpenClDevice,
        first: FirstUse,
    ) -> None:
        self._first: FirstUse | None = first
        self.scratch_bytes = payload.scratch_bytes
        self._target = artifact.target
        self._payload = payload
        self._program = program
        self._device = device
        self._constants = [_upload(device, constant) for constant in artifact.constants]

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that queues the region's kernels, on the queue of its buffers."""
        cl, payload = driver(), self._payload
        view = _view_of((*inputs, *outputs), self._device)
        reported = make_faults(payload)
        faults = view.allocate(reported.nbytes) if payload.checks else None
        bases = [
            self._base(storage, inputs, outputs, scratch, faults)
            for storage in range(len(payload.storages))
        ]
        launches = []
        with view.failing("cannot bind a kernel"):
            for call, global_size in zip(payload.calls, payload.global_sizes, strict=True):
                record = payload.kernels[call.kernel]
                # One kernel object for each call: arguments are a state of the object, and are set
                # once.
                kernel = cl.Kernel(self._program, record.name)
                for position, ((storage, offset), size) in enumerate(
                    zip(call.arguments, record.item_bytes, strict=True)
                ):
                    memory, start = bases[storage]
                    kernel.set_arg(2 * position, memory)
                    # Where it begins is an argument: OpenCL has no pointers into a buffer, and
                    # sub-buffers have to begin at multiples of CL_DEVICE_MEM_BASE_ADDR_ALIGN.
                    kernel.set_arg(2 * position + 1, np.int64((start + offset) // size))
                launches.append((kernel, tuple(global_size), tuple(record.local_size)))
        keep_alive = (self, tuple(inputs), tuple(outputs), scratch)
        step = self._noting(_make_step(view, launches, keep_alive), view)
        if faults is None:
            return step
        held = view.tensor(faults, 0, TensorSpec("faults", reported.dtype.name, reported.shape))

        def look() -> None:
            raise_fault(payload, reported, self._target)

        def checked() -> None:
            step()
            view.start_read(held, reported)
            view.after_work(look)

        return checked

    def _noting(self, step: Step, view: OpenClDevice) -> Step:
        """Return a call that notes the first run of these kernels, until it is over."""

        def end() -> None:
            if self._first is not None:
                self._first.end()
            self._first = None

        def noting() -> None:
            if self._first is None:
                step()
                return
            self._first.begin()
            try:
                step()
            except BaseException:
                end()
                raise
            view.after_work(end)

        return noting if self._first is not None else step

    def _base(
        self,
        storage: int,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        scratch: Block | None,
        faults: Block | None,
    ) -> tuple[Any, int]:
        """Return the memory of a storage, and where it begins there, in bytes."""
        kind, index, _ = self._payload.storages[storage]
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


def _upload(device: OpenClDevice, constant: ArtifactConstant) -> DeviceTensor:
    """Return a constant on a device."""
    data = constant.data
    spec = TensorSpec(constant.name, data.dtype.name, data.shape)
    tensor = device.tensor(device.allocate(spec.nbytes), 0, spec)
    device.write(data, tensor)
    return tensor


def _view_of(buffers: Sequence[Buffer], device: OpenClDevice) -> OpenClDevice:
    """Return the view of a device whose queue works on all these buffers.

    Raises:
        ExecutionError: One is of another device, or of another queue.
    """
    devices = [
        buffer.device
        for buffer in buffers
        if isinstance(buffer, DeviceTensor) and buffer.device.context is device.context
    ]
    if len(devices) != len(buffers) or len(set(map(id, devices))) != 1:
        raise ExecutionError(
            f"a region on opencl:{device.number} was given buffers that are not of one queue of it",
            backend=BACKEND_NAME,
        )
    return devices[0]


def _make_step(
    view: OpenClDevice,
    launches: Sequence[tuple[Any, tuple[int, ...], tuple[int, ...]]],
    owned: object,
) -> Step:
    """Return the call that queues kernels.

    Args:
        view: Whose queue it is.
        launches: Kernels with their global and local sizes.
        owned: Everything that must live as long as the call.
    """
    cl = driver()
    enqueue, queue = cl.enqueue_nd_range_kernel, view.queue

    def step(_owned: object = owned) -> None:
        check_process()
        with view.failing("failed to run a kernel"):
            for kernel, global_size, local_size in launches:
                enqueue(queue, kernel, global_size, local_size)
            queue.flush()

    return step
