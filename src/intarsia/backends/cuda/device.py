# SPDX-License-Identifier: Apache-2.0
"""An opened GPU: memory that the host cannot read, and streams.

The context is the device's primary one, as PyTorch's is. Copies go through pinned memory, so that
they overlap with kernels and the host; the driver's events tell when it may be used again.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.cuda.driver import (
    BACKEND_NAME,
    PROCESS,
    CudaDevice,
    CudaError,
    call,
    driver,
    error_text,
    failed,
)
from intarsia.backends.device import CapturedSteps, Device, Step, ThreadOptions
from intarsia.backends.queues import Block, DeviceTensor, QueueView
from intarsia.errors import ExecutionError

logger = logging.getLogger(__name__)

_LEAST_BYTES = 256
"""Smallest size of memory: the driver allocates none of no bytes."""


class PrimaryContext:
    """The primary context of a device, held as long as anything of it lives.

    Args:
        number: As the driver counts.
    """

    def __init__(self, number: int) -> None:
        self.device = call("cuDeviceGet", number)
        self.handle = call("cuDevicePrimaryCtxRetain", self.device)
        weakref.finalize(self, _release, "cuDevicePrimaryCtxRelease", self.device)

    def enter(self) -> None:
        """Make it the calling thread's."""
        call("cuCtxSetCurrent", self.handle)


class DeviceMemory:
    """Memory of a device.

    Args:
        context: Where.
        nbytes: How much.
    """

    def __init__(self, context: PrimaryContext, nbytes: int) -> None:
        context.enter()
        self.context = context
        self.nbytes = nbytes
        self.address = int(call("cuMemAlloc", nbytes))
        weakref.finalize(self, release_in, context, "cuMemFree", self.address)


class Pinned:
    """Memory of the host that the device reads and writes by itself, and when it has done so.

    Args:
        context: Whose.
        nbytes: How much.
    """

    def __init__(self, context: PrimaryContext, nbytes: int) -> None:
        context.enter()
        self.address = int(call("cuMemAllocHost", nbytes))
        held = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.array: Array = np.ctypeslib.as_array(held)
        flags = driver().CUevent_flags.CU_EVENT_DISABLE_TIMING
        self.event = call("cuEventCreate", flags)
        self.is_captured = False  # a graph has it, and no other copy
        weakref.finalize(self, release_in, context, "cuMemFreeHost", self.address)
        weakref.finalize(self, release_in, context, "cuEventDestroy", self.event)


def _release(name: str, *arguments: Any) -> None:
    try:
        call(name, *arguments)
    except CudaError:  # what failed before has been told; a lost device gives nothing back
        return


def enter_to_release(context: PrimaryContext) -> None:
    """Make a context the calling thread's, as far as that can be done, to give something back."""
    _release("cuCtxSetCurrent", context.handle)


def release_in(context: PrimaryContext, name: str, *arguments: Any) -> None:
    """Call what gives something of a context back, as far as that can be done."""
    enter_to_release(context)
    _release(name, *arguments)


@dataclass(slots=True)
class PinnedPool:
    """Pinned memory that copies take and give back, by size.

    Attributes:
        context: Whose.
        free: What is not in use.
        peers: By number as the driver counts, whether the device reads the memory of another.
        lock: Taken by whoever takes or gives: views of a device may be of several threads.
    """

    context: PrimaryContext
    free: dict[int, list[Pinned]] = field(default_factory=dict)
    peers: dict[int, bool] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, nbytes: int) -> Pinned:
        """Return memory of at least so many bytes, that nothing uses."""
        size = 1 << max(nbytes - 1, _LEAST_BYTES).bit_length()
        with self.lock:
            found = self.free.get(size)
            if found:
                return found.pop()
        return Pinned(self.context, size)

    def give(self, pinned: Pinned) -> None:
        """Take memory back, whose copy is done."""
        with self.lock:
            self.free.setdefault(pinned.array.size, []).append(pinned)


class Moment:
    """A place in a stream, for which other streams wait.

    Args:
        context: Of the stream; the current one.
    """

    def __init__(self, context: PrimaryContext) -> None:
        flags = driver().CUevent_flags.CU_EVENT_DISABLE_TIMING
        self.event = call("cuEventCreate", flags)
        weakref.finalize(self, release_in, context, "cuEventDestroy", self.event)


def _enable_peer(other: PrimaryContext) -> str:
    """Let the current context's device read the memory of another one's, or return why not."""
    cuda = driver()
    (error,) = cuda.cuCtxEnablePeerAccess(other.handle, 0)
    if error in (
        cuda.CUresult.CUDA_SUCCESS,
        cuda.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,  # by another user of the context
    ):
        return ""
    return f"cuCtxEnablePeerAccess: {error_text(error)}"


@dataclass(slots=True)
class Recording:
    """What is of the host in a capture.

    Attributes:
        writes: Pinned memory of copies to the device, and what is put there before each launch.
        reads: Of copies to the host, and where their bytes go behind each.
        checks: What is called when all is done.
    """

    writes: list[tuple[Pinned, Array]] = field(default_factory=list)
    reads: list[tuple[Pinned, Array]] = field(default_factory=list)
    checks: list[Step] = field(default_factory=list)


class StreamGraph:
    """A captured graph that can be launched.

    Args:
        context: Whose.
        handle: The driver's.
    """

    def __init__(self, context: PrimaryContext, handle: Any) -> None:
        self.handle = handle
        weakref.finalize(self, release_in, context, "cuGraphExecDestroy", handle)


def graph_of(context: PrimaryContext, graph: Any, spare: StreamGraph | None) -> StreamGraph:
    """Return a graph as one that can be launched, and destroy it.

    Args:
        context: The current one.
        graph: Of the driver's.
        spare: What can be launched of an older graph; it is changed if only addresses differ.

    Raises:
        CudaError: The driver does not make it.
    """
    try:
        if spare is not None:
            error, _ = driver().cuGraphExecUpdate(spare.handle, graph)
            if error == driver().CUresult.CUDA_SUCCESS:
                return spare
        return StreamGraph(context, call("cuGraphInstantiate", graph, 0))
    finally:
        call("cuGraphDestroy", graph)


class CudaView(QueueView):
    """One GPU with a stream.

    Args:
        number: Of the device, as targets count.
        entry: What it is.
        options: What a run may use; a GPU's threads do not obey it.
        pool: Of the device's pinned memory; None opens the device.

    Attributes:
        handles: Of libraries that work in the stream, by their names.
    """

    def __init__(
        self,
        number: int,
        entry: CudaDevice,
        options: ThreadOptions,
        pool: PinnedPool | None = None,
    ) -> None:
        super().__init__(BACKEND_NAME, number, entry.name, options, pool, PROCESS)
        PROCESS.check()
        self.entry = entry
        self.handles: dict[str, Any] = {}
        self._writing: list[Pinned] = []
        self._reading: dict[Pinned, Array] = {}
        self.recording: Recording | None = None
        self.reached: Moment | None = None
        with self.failing("cannot be opened"):
            self.pool = pool or PinnedPool(PrimaryContext(entry.number))
            self.domain = self.pool
            self.context = self.pool.context
            self.context.enter()
            self.stream = call("cuStreamCreate", driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
            weakref.finalize(self, release_in, self.context, "cuStreamDestroy", self.stream)

    def open_queue(self) -> CudaView:
        """Return this device with a stream of its own."""
        return CudaView(self.number, self.entry, self.options, self.pool)

    def allocate(self, nbytes: int) -> Block:
        """Return a block of this device's memory, whose contents are not defined.

        Raises:
            ExecutionError: There is not so much memory.
        """
        size = max(nbytes, _LEAST_BYTES)
        try:
            return Block(self, DeviceMemory(self.context, size))
        except CudaError as error:
            raise failed(
                self.number, f"has no room for {size} bytes", error, self._room()
            ) from error

    def _room(self) -> str:
        """Return what to do about too little memory, with how much there is."""
        try:
            free, total = call("cuMemGetInfo")
        except CudaError:
            free, total = "an unknown number of", self.entry.memory_bytes
        return f"{self.name} has {total} bytes, {free} of them free; place fewer nodes on it"

    def queue_write(self, source: Array, memory: DeviceMemory, offset: int) -> Step:
        """Queue a copy of bytes from host memory, and return what waits until it is done."""
        with self.failing("failed to copy"):
            self.context.enter()
            pinned = self.pool.take(source.size)
            if self.recording is not None:
                self.recording.writes.append((pinned, source))
                pinned.is_captured = True
            else:
                pinned.array[: source.size] = source
            call(
                "cuMemcpyHtoDAsync",
                memory.address + offset,
                pinned.address,
                source.size,
                self.stream,
            )
            if self.recording is None:
                call("cuEventRecord", pinned.event, self.stream)
                self._writing.append(pinned)

        def wait() -> None:
            # Streams do not wait for each other: what is written here may be read in another one.
            if pinned in self._writing:
                with self.failing("failed to copy"):
                    call("cuEventSynchronize", pinned.event)
                    self._reclaim()

        return wait

    def queue_read(self, memory: DeviceMemory, offset: int, destination: Array) -> Step:
        """Queue a copy of bytes into host memory, and return what waits until it is done."""
        with self.failing("failed to copy"):
            self.context.enter()
            pinned = self.pool.take(destination.size)
            call(
                "cuMemcpyDtoHAsync",
                pinned.address,
                memory.address + offset,
                destination.size,
                self.stream,
            )
            if self.recording is not None:
                # Whoever waits for this copy waits for no more of the graph than is before it.
                external = driver().CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
                call("cuEventRecordWithFlags", pinned.event, self.stream, int(external))
                self.recording.reads.append((pinned, destination))
                pinned.is_captured = True
            else:
                call("cuEventRecord", pinned.event, self.stream)
                self._reading[pinned] = destination

        def wait() -> None:
            if pinned in self._reading:
                with self.failing("failed to copy"):
                    call("cuEventSynchronize", pinned.event)
                self._fetch(pinned)

        return wait

    def reaches(self, other: Device) -> bool:
        """Tell whether this GPU reads the memory of another one, which it is told to do then.

        Where the driver does not let it, as where too many GPUs do so already, it does not.

        Raises:
            ExecutionError: The driver does not say.
        """
        if not isinstance(other, CudaView) or other.domain is self.domain:
            return False
        number = other.entry.number
        found = self.pool.peers.get(number)
        if found is None:
            with self.failing("cannot be asked for its peers"):
                can = call("cuDeviceCanAccessPeer", self.context.device, other.context.device)
                found = bool(can)
                if found:
                    self.context.enter()
                    problem = _enable_peer(other.context)
                    if problem:
                        logger.warning(
                            "cuda:%d: copies from cuda:%d go through the host: %s",
                            self.number,
                            other.number,
                            problem,
                        )
                    found = not problem
            self.pool.peers[number] = found
        return found

    def queue_copy(self, source: DeviceTensor, destination: DeviceTensor) -> None:
        """Queue a copy from a GPU that this one reaches, behind all that is queued on both."""
        there, nbytes = source.block.device, destination.spec.nbytes
        assert isinstance(there, CudaView)
        if not nbytes:
            return
        PROCESS.check()
        with self.failing("failed to copy from another GPU"):
            there.context.enter()
            if there.reached is None:
                there.reached = Moment(there.context)
            call("cuEventRecord", there.reached.event, there.stream)
            self.context.enter()
            if self.reached is None:
                self.reached = Moment(self.context)
            call("cuStreamWaitEvent", self.stream, there.reached.event, 0)
            call(
                "cuMemcpyPeerAsync",
                destination.block.memory.address + destination.offset,
                self.context.handle,
                source.block.memory.address + source.offset,
                there.context.handle,
                nbytes,
                self.stream,
            )
            # The other stream is not to overwrite what is still read.
            call("cuEventRecord", self.reached.event, self.stream)
            there.context.enter()
            call("cuStreamWaitEvent", there.stream, self.reached.event, 0)

    def _fetch(self, pinned: Pinned) -> None:
        """Let the host have what has been copied."""
        destination = self._reading.pop(pinned)
        destination[:] = pinned.array[: destination.size]
        if not pinned.is_captured:
            self.pool.give(pinned)

    def after_work(self, check: Step) -> None:
        """Ask for a call when all that is queued is done; it may raise an error of ours."""
        if self.recording is not None:
            self.recording.checks.append(check)
        else:
            super().after_work(check)

    def capture(self, steps: Step, spare: object = None) -> CapturedSteps:
        """Return steps of this device's stream as one graph of the driver's, which runs nothing.

        Args:
            steps: Called once.
            spare: The graph of the same steps on other memory, which is changed to be of these.

        Raises:
            ExecutionError: One of them cannot be captured.
        """
        PROCESS.check()
        recording = Recording()
        with self.failing("cannot capture what is queued"):
            self.context.enter()
            # Relaxed: pinned memory may be allocated meanwhile, and garbage be given back.
            mode = driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            call("cuStreamBeginCapture", self.stream, mode)
            self.recording = recording
            try:
                steps()
            except BaseException:
                # The first failure is the one to tell; the driver has no graph if it is its own.
                error, graph = driver().cuStreamEndCapture(self.stream)
                if error == driver().CUresult.CUDA_SUCCESS:
                    _release("cuGraphDestroy", graph)
                raise
            finally:
                self.recording = None
            graph = call("cuStreamEndCapture", self.stream)
            taken = spare if isinstance(spare, StreamGraph) else None
            made = graph_of(self.context, graph, taken)

        def launch() -> None:
            PROCESS.check()
            with self.failing("failed to run a graph"):
                self.context.enter()
                for pinned, source in recording.writes:
                    pinned.array[: source.size] = source
                call("cuGraphLaunch", made.handle, self.stream)
            self._reading.update(recording.reads)
            for check in recording.checks:
                super(CudaView, self).after_work(check)

        return CapturedSteps(launch, made)

    def _reclaim(self) -> None:
        """Give pinned memory back whose copy is done: copies of a stream are done in order."""
        while self._writing:
            error, *_ = driver().cuEventQuery(self._writing[0].event)
            if error != driver().CUresult.CUDA_SUCCESS:
                return
            self.pool.give(self._writing.pop(0))

    def finish(self) -> None:
        """Wait until all that is queued is done."""
        self.context.enter()
        call("cuStreamSynchronize", self.stream)
        for pinned in tuple(self._reading):
            self._fetch(pinned)
        self._reclaim()

    @contextmanager
    def failing(self, how: str) -> Iterator[None]:
        """Turn the driver's errors into errors of ours.

        Raises:
            ExecutionError: It answered with one.
        """
        try:
            yield
        except CudaError as error:
            if error.is_memory:
                raise ExecutionError(
                    f"cuda:{self.number} is out of memory: {error}",
                    backend=BACKEND_NAME,
                    hint=self._room(),
                ) from error
            raise failed(self.number, how, error, self.name) from error
