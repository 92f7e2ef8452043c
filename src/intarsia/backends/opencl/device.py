# SPDX-License-Identifier: Apache-2.0
"""An opened OpenCL device: buffers that the host cannot read, and queues that run in order.

Every opened device has an OpenCL context of its own; what is in it, no other can use. Copies and
kernels are queued and done later, in the order in which they were queued. A view of the device with
a queue of its own (`open_queue`) shares memory, code and constants with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.device import Step, ThreadOptions
from intarsia.backends.opencl.driver import BACKEND_NAME, DriverDevice, check_process, driver
from intarsia.backends.values import TensorSpec
from intarsia.errors import ExecutionError

_LEAST_BYTES = 64
"""Smallest size of a buffer: OpenCL has no empty ones."""


@dataclass(frozen=True, slots=True)
class Block:
    """Memory of one device; an opaque handle.

    Attributes:
        device: The view of the device that made it, whose queue works on it.
        memory: pyopencl's buffer.
    """

    device: OpenClDevice
    memory: Any


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """A dense tensor in a block; an opaque handle.

    Attributes:
        block: Where it lies.
        offset: Bytes from the start of the block.
        spec: Its dtype and shape.
    """

    block: Block
    offset: int
    spec: TensorSpec

    @property
    def device(self) -> OpenClDevice:
        """The view of the device whose queue works on it."""
        return self.block.device


class OpenClDevice:
    """One device with a context and a queue.

    Args:
        number: Its number, for messages.
        entry: What it is.
        options: What a run may use; OpenCL's own threads do not obey it.
        context: pyopencl's context; None makes one.
    """

    def __init__(
        self, number: int, entry: DriverDevice, options: ThreadOptions, context: Any = None
    ) -> None:
        cl = driver()
        self.options = options
        self.number = number
        self.entry = entry
        self.name = entry.name
        self._checks: list[Step] = []
        self.context = context
        self._is_kept = False
        with self.failing("cannot be opened"):
            self.context = cl.Context([entry.device]) if context is None else context
            self.queue = cl.CommandQueue(self.context, entry.device)

    def open_queue(self) -> OpenClDevice:
        """Return this device with a queue of its own."""
        return OpenClDevice(self.number, self.entry, self.options, self.context)

    def allocate(self, nbytes: int) -> Block:
        """Return a block of this device's memory, whose contents are not defined.

        Raises:
            ExecutionError: There is not so much memory.
        """
        cl = driver()
        size = max(nbytes, _LEAST_BYTES)
        try:
            memory = cl.Buffer(self.context, cl.mem_flags.READ_WRITE, size)
        except (cl.MemoryError, cl.LogicError, cl.RuntimeError) as error:
            raise ExecutionError(
                f"opencl:{self.number} has no room for a buffer of {size} bytes: {error}",
                backend=BACKEND_NAME,
                hint=f"{self.name} has {self.entry.memory_bytes} bytes, and at most "
                f"{self.entry.max_buffer_bytes} in one buffer; place fewer nodes on it",
            ) from error
        return Block(self, memory)

    def tensor(self, block: Block, offset: int, spec: TensorSpec) -> DeviceTensor:
        """Return a handle to a part of a block, on which this view's queue works.

        Raises:
            ExecutionError: The block is not of this device.
        """
        return DeviceTensor(Block(self, self._own(block).memory), offset, spec)

    def write(self, source: Array, destination: DeviceTensor) -> None:
        """Copy from host memory, after all that is queued."""
        self.start_write(source, destination)()

    def read(self, source: DeviceTensor, destination: Array) -> None:
        """Copy into host memory, after all that is queued."""
        self.start_read(source, destination)()

    def start_write(self, source: Array, destination: DeviceTensor) -> Step:
        """Queue a copy from host memory, and return what waits until it is done."""
        flat = np.ascontiguousarray(source)
        if not destination.spec.nbytes:
            return _nothing
        return self._copy(
            destination.block, destination.block.memory, _bytes(flat), dst_offset=destination.offset
        )

    def start_read(self, source: DeviceTensor, destination: Array) -> Step:
        """Queue a copy into host memory, and return what waits until it is done."""
        if not source.spec.nbytes:
            return _nothing
        memory = source.block.memory
        if destination.flags.c_contiguous:
            return self._copy(source.block, _bytes(destination), memory, src_offset=source.offset)
        dense = np.empty(destination.shape, destination.dtype)
        wait = self._copy(source.block, _bytes(dense), memory, src_offset=source.offset)

        def finish() -> None:
            wait()
            np.copyto(destination, dense)

        return finish

    def _copy(self, block: Block, destination: Any, source: Any, **offset: int) -> Step:
        """Queue a copy on the queue of the block's view; the event keeps the host's memory."""
        device = self._own(block).device
        with self.failing("failed to copy"):
            event = driver().enqueue_copy(
                device.queue, destination, source, is_blocking=False, **offset
            )
            # Without it a driver may hold commands back until somebody waits, and copies would not
            # overlap.
            device.queue.flush()

        def wait() -> None:
            with self.failing("failed to copy"):
                event.wait()

        return wait

    def after_work(self, check: Step) -> None:
        """Ask for a call when all that is queued is done; it may raise an error of ours."""
        self._checks.append(check)

    def synchronize(self) -> None:
        """Wait until all that is queued is done.

        Raises:
            ExecutionError: Some of it failed.
            InputError: What was computed shows that an input was wrong.
        """
        with self.failing("failed"):
            self.queue.finish()
        checks, self._checks = self._checks, []
        for check in checks:
            check()

    @contextmanager
    def failing(self, how: str) -> Iterator[None]:
        """Turn OpenCL's exceptions into errors of ours.

        Raises:
            ExecutionError: OpenCL raised one.
        """
        cl = driver()
        try:
            yield
        except cl.MemoryError as error:
            self.keep_context()
            raise ExecutionError(
                f"opencl:{self.number} is out of memory: {error}",
                backend=BACKEND_NAME,
                hint=f"{self.name} has {self.entry.memory_bytes} bytes; place fewer nodes on it",
            ) from error
        except cl.Error as error:
            self.keep_context()
            raise ExecutionError(
                f"opencl:{self.number} {how}: {error}", backend=BACKEND_NAME, hint=self.name
            ) from error

    def keep_context(self) -> None:
        """Keep the context until the process is gone: to be called when OpenCL has failed.

        PoCL counts what it has built of a program. If building a kernel fails, the count is off,
        and releasing the context, be it when the process is left, aborts ("still have references to
        IRs - can't release LLVM context").
        """
        if not self._is_kept and self.context is not None:
            self._is_kept = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.context))

    def _own(self, block: Block) -> Block:
        check_process()
        if not isinstance(block, Block) or block.device.context is not self.context:
            raise ExecutionError(
                f"opencl:{self.number} was given memory that is not its own", backend=BACKEND_NAME
            )
        return block


def _bytes(array: Array) -> Array:
    """Return a view as `u8[n]`: some dtypes have no buffer protocol."""
    flat: Array = array.reshape(-1).view(np.uint8)
    return flat


def _nothing() -> None:
    """Wait for a copy of no bytes."""
