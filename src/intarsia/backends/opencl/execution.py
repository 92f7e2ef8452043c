# SPDX-License-Identifier: Apache-2.0
"""A region loaded on an OpenCL device: a built program, and its kernels with their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from intarsia.backends.device import Step
from intarsia.backends.device_execution import DeviceExecutable, Place
from intarsia.backends.device_payload import Payload
from intarsia.backends.first_use import FirstUse
from intarsia.backends.opencl.device import OpenClDevice
from intarsia.backends.opencl.driver import PROCESS, driver
from intarsia.backends.values import Artifact


class OpenClExecutable(DeviceExecutable[OpenClDevice]):
    """Kernels with their weights; bindings and threads share it.

    Args:
        artifact: What is loaded.
        payload: Its payload.
        program: Its kernels, built by pyopencl.
        device: Where it is loaded.
        first: Notes that it runs for the first time; None in the process of a trial.

    Raises:
        ExecutionError: The weights do not fit on the device.
    """

    def __init__(
        self,
        artifact: Artifact,
        payload: Payload,
        program: Any,
        device: OpenClDevice,
        first: FirstUse | None,
    ) -> None:
        super().__init__(artifact, payload, device)
        self._first = first
        self._program = program

    def launch(self, view: OpenClDevice, places: Sequence[Place], owned: object) -> Step:
        """Return the call that queues the kernels."""
        cl, payload = driver(), self.payload
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
                    memory, start = places[storage]
                    kernel.set_arg(2 * position, memory)
                    # Where it begins is an argument: OpenCL has no pointers into a buffer, and
                    # sub-buffers have to begin at multiples of CL_DEVICE_MEM_BASE_ADDR_ALIGN.
                    kernel.set_arg(2 * position + 1, np.int64((start + offset) // size))
                launches.append((kernel, tuple(global_size), tuple(record.local_size)))
        step = _make_step(view, launches, owned)
        return step if self._first is None else self._first.noting(step, view)


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
        PROCESS.check()
        with view.failing("failed to run a kernel"):
            for kernel, global_size, local_size in launches:
                enqueue(queue, kernel, global_size, local_size)
            queue.flush()

    return step
