# SPDX-License-Identifier: Apache-2.0
"""What devices with queues share: memory that the host cannot read, and copies that are queued.

Copies and kernels are done later, in the order in which they were queued. A view of a device with a
queue of its own (`open_queue`) shares memory, code and constants with it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.device import Buffer, Step, ThreadOptions
from intarsia.backends.values import TensorSpec
from intarsia.errors import ExecutionError

if TYPE_CHECKING:
    from intarsia.target import Target


@dataclass(frozen=True, slots=True)
class Block:
    """Memory of one device; an opaque handle.

    Attributes:
        device: The view of the device that made it, whose queue works on it.
        memory: The runtime's buffer.
    """

    device: QueueView
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
    def device(self) -> QueueView:
        """The view of the device whose queue works on it."""
        return self.block.device


@dataclass(slots=True)
class OneProcess:
    """Checks that a runtime with threads is not used behind a fork, where they are not.

    Attributes:
        title: Of the runtime.
        backend: The backend's name.
        number: Of the process that used it first; 0 before.
    """

    title: str
    backend: str
    number: int = 0

    def check(self) -> None:
        """Check that the process was not forked since the first check.

        Raises:
            ExecutionError: It was.
        """
        self.number = self.number or os.getpid()
        if os.getpid() != self.number:
            raise ExecutionError(
                f"{self.title} was in use before the process was forked, and its threads are not "
                "in the child",
                backend=self.backend,
                hint=f"start the child by spawn, or let only children use {self.title}",
            )


@dataclass(eq=False, slots=True)
class QueueView(ABC):
    """One device with a queue.

    Attributes:
        backend: Name of the backend, and of devices in messages.
        number: Of the device, for messages.
        name: Of the device, for people.
        options: What a run may use.
        domain: What views that share memory have in common.
        process: Where it is opened.
    """

    backend: str
    number: int
    name: str
    options: ThreadOptions
    domain: Any
    process: OneProcess
    _checks: list[Step] = field(default_factory=list)

    # What a runtime does

    @abstractmethod
    def open_queue(self) -> Self:
        """Return this device with a queue of its own."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Block:
        """Return a block of this device's memory, whose contents are not defined.

        Raises:
            ExecutionError: There is not so much memory.
        """

    @abstractmethod
    def queue_write(self, source: Array, memory: Any, offset: int) -> Step:
        """Queue a copy of bytes from host memory, and return what waits until it is done."""

    @abstractmethod
    def queue_read(self, memory: Any, offset: int, destination: Array) -> Step:
        """Queue a copy of bytes into host memory, and return what waits until it is done."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all that is queued is done."""

    @abstractmethod
    def failing(self, how: str) -> AbstractContextManager[None]:
        """Turn the runtime's exceptions into errors of ours.

        Raises:
            ExecutionError: It raised one.
        """

    # What follows from it

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
        block = self._own(destination.block)
        return block.device.queue_write(_bytes(flat), block.memory, destination.offset)

    def start_read(self, source: DeviceTensor, destination: Array) -> Step:
        """Queue a copy into host memory, and return what waits until it is done."""
        if not source.spec.nbytes:
            return _nothing
        block = self._own(source.block)
        if destination.flags.c_contiguous:
            return block.device.queue_read(block.memory, source.offset, _bytes(destination))
        dense = np.empty(destination.shape, destination.dtype)
        wait = block.device.queue_read(block.memory, source.offset, _bytes(dense))

        def finish() -> None:
            wait()
            np.copyto(destination, dense)

        return finish

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
            self.finish()
        checks, self._checks = self._checks, []
        for check in checks:
            check()

    def view_of(self, buffers: Sequence[Buffer]) -> Self:
        """Return the view of this device whose queue works on all these buffers.

        Raises:
            ExecutionError: One is of another device, or of another queue.
        """
        views = list(self._views(buffers))
        if len(views) != len(buffers) or len(set(map(id, views))) != 1:
            raise ExecutionError(
                f"a region on {self.backend}:{self.number} was given buffers that are not of one "
                "queue of it",
                backend=self.backend,
            )
        return views[0]

    def _views(self, buffers: Sequence[Buffer]) -> Iterator[Self]:
        for buffer in buffers:
            if isinstance(buffer, DeviceTensor) and buffer.device.domain is self.domain:
                assert isinstance(buffer.device, type(self))
                yield buffer.device

    def _own(self, block: Block) -> Block:
        self.process.check()
        if not isinstance(block, Block) or block.device.domain is not self.domain:
            raise ExecutionError(
                f"{self.backend}:{self.number} was given memory that is not its own",
                backend=self.backend,
            )
        return block


def said_in_vain(target: Target, unused: Sequence[str]) -> list[str]:
    """Return which of some attributes a target has although no kernel is shaped by them.

    Args:
        target: It may be of a partial kind on the same device, which lacks them.
        unused: Their names.
    """
    attrs, defaults = target.attrs, target.kind.defaults
    return [name for name in unused if attrs.get(name) != defaults.get(name)]


def _bytes(array: Array) -> Array:
    """Return a view as `u8[n]`: some dtypes have no buffer protocol."""
    flat: Array = array.reshape(-1).view(np.uint8)
    return flat


def _nothing() -> None:
    """Wait for a copy of no bytes."""
