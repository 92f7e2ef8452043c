# SPDX-License-Identifier: Apache-2.0
"""A region loaded on a GPU: a module of the driver's, and its kernels with their arguments.

Kernels of a region that runs by itself more than once are one graph of the driver's, so that a run
is one call of it (NVIDIA, "CUDA Driver API", "Graph Management"); those of a program are captured
together (`CudaView.capture`).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.backends.cuda.device import CudaView, release_in
from intarsia.backends.cuda.driver import BACKEND_NAME, PROCESS, CudaError, call, driver
from intarsia.backends.device import Step
from intarsia.backends.device_execution import DeviceExecutable, Place
from intarsia.backends.device_payload import Payload
from intarsia.backends.values import Artifact
from intarsia.errors import BackendError


class CudaExecutable(DeviceExecutable[CudaView]):
    """Kernels with their weights; bindings and threads share it.

    Args:
        artifact: What is loaded.
        payload: Its payload.
        ptx: Its kernels.
        device: Where it is loaded.

    Raises:
        BackendError: The driver does not take the kernels.
        ExecutionError: The weights do not fit on the device.
    """

    def __init__(self, artifact: Artifact, payload: Payload, ptx: str, device: CudaView) -> None:
        super().__init__(artifact, payload, device)
        try:
            device.context.enter()
            module = call("cuModuleLoadData", ptx.encode() + b"\0")
            weakref.finalize(self, release_in, device.context, "cuModuleUnload", module)
            self._functions = [
                call("cuModuleGetFunction", module, record.name.encode())
                for record in payload.kernels
            ]
        except CudaError as error:
            raise BackendError(
                f"cuda:{device.number} does not take the kernels: {error}",
                backend=BACKEND_NAME,
                target=artifact.target,
                hint=f"it is {device.name}, and the code is for {payload.device}",
            ) from error

    def launch(self, view: CudaView, places: Sequence[Place], owned: object) -> Step:
        """Return the call that queues the kernels."""
        payload = self.payload
        launches = []
        for one, global_size in zip(payload.calls, payload.global_sizes, strict=True):
            record = payload.kernels[one.kernel]
            addresses = []
            for storage, offset in one.arguments:
                memory, start = places[storage]
                # What is kept between kernels may be empty: nothing reads it then.
                addresses.append(0 if memory is None else memory.address + start + offset)
            grid = [
                whole // part for whole, part in zip(global_size, record.local_size, strict=True)
            ]
            threads = record.local_size[0] * record.local_size[1]
            arguments = Arguments([*addresses, *one.sizes])
            function = self._functions[one.kernel]
            launches.append(Launch(function, (*grid, 1, threads, 1, 1), arguments))
        return _make_step(view, launches, owned)


class Arguments:
    """What a kernel is given, as the driver wants it: addresses of its arguments.

    Args:
        numbers: Addresses and sizes, 8 bytes each.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = (ctypes.c_int64 * len(numbers))(*numbers)
        first, size = ctypes.addressof(self._numbers), ctypes.sizeof(ctypes.c_int64)
        places = [first + size * number for number in range(len(numbers))]
        self._table = (ctypes.c_void_p * len(numbers))(*places)
        self.address = ctypes.addressof(self._table)


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a kernel.

    Attributes:
        function: The driver's.
        numbers: Of blocks and of threads, in three dimensions each.
        arguments: What it is given.
    """

    function: Any
    numbers: tuple[int, ...]
    arguments: Arguments


class KernelGraph:
    """Kernels that run one after another, as one thing that the driver starts.

    Args:
        view: On whose device.
        launches: Them in their order.

    Raises:
        CudaError: The driver does not make it.
    """

    def __init__(self, view: CudaView, launches: Sequence[Launch]) -> None:
        view.context.enter()
        graph = call("cuGraphCreate", 0)
        try:
            before: list[Any] = []
            for launch in launches:
                node = driver().CUDA_KERNEL_NODE_PARAMS()
                node.func = launch.function
                node.gridDimX, node.gridDimY, node.gridDimZ = launch.numbers[:3]
                node.blockDimX, node.blockDimY, node.blockDimZ = launch.numbers[3:]
                node.sharedMemBytes = 0
                node.kernelParams = launch.arguments.address  # which is copied here
                before = [call("cuGraphAddKernelNode", graph, before, len(before), node)]
            self._executable = call("cuGraphInstantiate", graph, 0)
            weakref.finalize(self, release_in, view.context, "cuGraphExecDestroy", self._executable)
        finally:
            call("cuGraphDestroy", graph)

    def queue(self, stream: Any) -> None:
        """Queue them in a stream."""
        call("cuGraphLaunch", self._executable, stream)


def _make_step(view: CudaView, launches: Sequence[Launch], owned: object) -> Step:
    """Return the call that queues kernels.

    What runs once needs no graph of its own, and what is captured is in a larger one.

    Args:
        view: Whose stream they run in.
        launches: The kernels.
        owned: Everything that must live as long as the call.
    """
    graph: KernelGraph | None = None
    has_run = False

    def step(_owned: object = owned) -> None:
        nonlocal graph, has_run
        PROCESS.check()
        with view.failing("failed to run a kernel"):
            view.context.enter()
            if view.recording is None:
                if graph is None and has_run and len(launches) > 1:
                    graph = KernelGraph(view, launches)
                has_run = True
                if graph is not None:
                    graph.queue(view.stream)
                    return
            for launch in launches:
                numbers, arguments = launch.numbers, launch.arguments
                call(
                    "cuLaunchKernel",
                    launch.function,
                    *numbers,
                    0,
                    view.stream,
                    arguments.address,
                    0,
                )

    return step
