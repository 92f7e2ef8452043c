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
from typing import Any

from intarsia.arrays import Array
from intarsia.backends.device import Step, ThreadOptions
from intarsia.backends.opencl.driver import BACKEND_NAME, PROCESS, DriverDevice, driver
from intarsia.backends.queues import Block, QueueView
from intarsia.errors import ExecutionError

_LEAST_BYTES = 64
"""Smallest size of a buffer: OpenCL has no empty ones."""


class OpenClDevice(QueueView):
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
        super().__init__(BACKEND_NAME, number, entry.name, options, context, PROCESS)
        self.entry = entry
        self.context = context
        self._is_kept = False
        with self.failing("cannot be opened"):
            self.domain = self.context = cl.Context([entry.device]) if context is None else context
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

    def queue_write(self, source: Array, memory: Any, offset: int) -> Step:
        """Queue a copy of bytes from host memory, and return what waits until it is done."""
        return self._copy(memory, source, dst_offset=offset)

    def queue_read(self, memory: Any, offset: int, destination: Array) -> Step:
        """Queue a copy of bytes into host memory, and return what waits until it is done."""
        return self._copy(destination, memory, src_offset=offset)

    def _copy(self, destination: Any, source: Any, **offset: int) -> Step:
        """Queue a copy; the event keeps the host's memory."""
        with self.failing("failed to copy"):
            event = driver().enqueue_copy(
                self.queue, destination, source, is_blocking=False, **offset
            )
            # Without it a driver may hold commands back until somebody waits, and copies would not
            # overlap.
            self.queue.flush()

        def wait() -> None:
            with self.failing("failed to copy"):
                event.wait()

        return wait

    def finish(self) -> None:
        """Wait until all that is queued is done."""
        self.queue.finish()

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
