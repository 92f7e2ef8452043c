# SPDX-License-Identifier: Apache-2.0
"""An opened WebGPU device: buffers that the host cannot read, and work in order.

WebGPU has one queue for each device, and takes copies whole words at a time: a tensor begins at a
word, and what follows it up to the next word belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.device import Step, ThreadOptions
from intarsia.backends.queues import Block, QueueView
from intarsia.backends.webgpu.driver import BACKEND_NAME, PROCESS, Adapter, driver
from intarsia.errors import ExecutionError

WORD = 4
"""Bytes that copies come in."""

_LEAST_BYTES = 64
"""Smallest size of a buffer: WebGPU binds no empty ones."""


class WebGpuDevice(QueueView):
    """One device.

    Args:
        number: Its number, for messages.
        entry: What it is.
        options: What a run may use; a GPU's threads do not obey it.
        handle: wgpu's device; None opens it.
    """

    def __init__(
        self, number: int, entry: Adapter, options: ThreadOptions, handle: Any = None
    ) -> None:
        super().__init__(BACKEND_NAME, number, entry.name, options, handle, PROCESS)
        self.entry = entry
        self._reading: dict[Any, Array] = {}
        with self.failing("cannot be opened"):
            self.domain = self.handle = handle or entry.handle.request_device_sync(
                required_features=list(entry.features), required_limits=dict(entry.most)
            )
        self.queue = self.handle.queue

    def open_queue(self) -> WebGpuDevice:
        """Return this device as another view of it; its queue is the same."""
        return WebGpuDevice(self.number, self.entry, self.options, self.handle)

    def allocate(self, nbytes: int) -> Block:
        """Return a block of this device's memory, whose contents are not defined.

        Raises:
            ExecutionError: There is not so much memory.
        """
        usage = driver().BufferUsage
        size = _whole(max(nbytes, _LEAST_BYTES))
        most = self.entry.most["max-buffer-size"]
        if size > most:
            raise ExecutionError(
                f"webgpu:{self.number} has no room for a buffer of {size} bytes",
                backend=BACKEND_NAME,
                hint=self._room(),
            )
        flags = usage.STORAGE | usage.UNIFORM | usage.COPY_SRC | usage.COPY_DST
        with self.failing(f"has no room for a buffer of {size} bytes"):
            return Block(self, self.handle.create_buffer(size=size, usage=flags))

    def _room(self) -> str:
        """Return what to do about too little memory; WebGPU does not tell how much there is."""
        most = self.entry.most["max-buffer-size"]
        return f"{self.name} has at most {most} bytes in one buffer; place fewer nodes on it"

    def queue_write(self, source: Array, memory: Any, offset: int) -> Step:
        """Copy bytes from host memory at once; their way to the device is queued."""
        with self.failing("failed to copy"):
            self.queue.write_buffer(memory, offset, _padded(source))
        return _done

    def queue_read(self, memory: Any, offset: int, destination: Array) -> Step:
        """Queue a copy of bytes into host memory, and return what waits until it is done."""
        size = _whole(destination.size)
        with self.failing("failed to copy"):
            staging = self._staging(size)
            encoder = self.handle.create_command_encoder()
            encoder.copy_buffer_to_buffer(memory, offset, staging, 0, size)
            self.queue.submit([encoder.finish()])
        self._reading[staging] = destination

        def wait() -> None:
            with self.failing("failed to copy"):
                self._fetch(staging)

        return wait

    def _fetch(self, staging: Any) -> None:
        """Wait for a copy, and let the host have it, unless it has been waited for before."""
        destination = self._reading.pop(staging, None)
        if destination is None:
            return
        staging.map_sync(driver().MapMode.READ)
        mapped = np.frombuffer(staging.read_mapped(copy=False), np.uint8)
        np.copyto(destination, mapped[: destination.size])
        staging.unmap()
        staging.destroy()

    def finish(self) -> None:
        """Wait until all that is queued is done."""
        # wgpu 0.32 has no callback for it that works, but memory is mapped in its turn.
        marker = self._staging(WORD)
        encoder = self.handle.create_command_encoder()
        encoder.clear_buffer(marker)
        self.queue.submit([encoder.finish()])
        self._reading[marker] = np.empty(WORD, np.uint8)
        for staging in tuple(self._reading):
            self._fetch(staging)

    def _staging(self, nbytes: int) -> Any:
        """Return a buffer that the host can read."""
        usage = driver().BufferUsage
        return self.handle.create_buffer(size=nbytes, usage=usage.COPY_DST | usage.MAP_READ)

    @contextmanager
    def failing(self, how: str) -> Iterator[None]:
        """Turn wgpu's exceptions into errors of ours.

        Raises:
            ExecutionError: wgpu raised one.
        """
        gpu = driver()
        try:
            yield
        except gpu.GPUOutOfMemoryError as error:
            raise ExecutionError(
                f"webgpu:{self.number} {how}: it is out of memory: {error}",
                backend=BACKEND_NAME,
                hint=self._room(),
            ) from error
        except (gpu.GPUError, gpu.GPUPipelineError, RuntimeError) as error:
            raise ExecutionError(
                f"webgpu:{self.number} {how}: {error}", backend=BACKEND_NAME, hint=self.name
            ) from error


def _whole(nbytes: int) -> int:
    """Return bytes in whole words."""
    return -(-nbytes // WORD) * WORD


def _padded(source: Array) -> Array:
    missing = _whole(source.size) - source.size
    return np.pad(source, (0, missing)) if missing else source


def _done() -> None:
    """Wait for a copy whose source may change at once."""
