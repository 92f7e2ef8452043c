# SPDX-License-Identifier: Apache-2.0
"""Graphs of cuDNN's that are loaded on a GPU, each with the engine that was measured best."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from intarsia.backends.artifact import damaged
from intarsia.backends.cuda.cudnn.descriptors import device_properties, engines, pack
from intarsia.backends.cuda.cudnn.graphs import DnnGraph, span
from intarsia.backends.cuda.cudnn.library import (
    BACKEND_NAME,
    Cudnn,
    CudnnError,
    DnnDescriptor,
    library,
)
from intarsia.backends.cuda.device import DeviceMemory
from intarsia.backends.cuda.libraries import LibraryHandle, fastest, handle_of
from intarsia.backends.cuda.library_execution import ALIGNMENT, LibraryExecutable, check_numbers
from intarsia.errors import BackendError

if TYPE_CHECKING:
    from intarsia.backends.cuda.cudnn.graphs import DnnProgram
    from intarsia.backends.cuda.device import CudaView
    from intarsia.backends.device import Step
    from intarsia.backends.values import Artifact

_MOST_ENGINES = 8
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class DnnEngine:
    """An engine for a graph, of which each stream makes a plan.

    Plans are "not guaranteed to be thread safe across all engines" (NVIDIA, "cuDNN Backend API"):
    a context of a program has its own.

    Attributes:
        configuration: cuDNN's.
        workspace_bytes: That it needs.
    """

    configuration: DnnDescriptor
    workspace_bytes: int


class CudnnExecutable(LibraryExecutable):
    """Graphs with their weights; bindings and threads share it.

    Args:
        artifact: What is loaded.
        program: Its payload.
        device: Where it is loaded.

    Raises:
        BackendError: The library has no engine for a graph.
        ExecutionError: The weights do not fit on the device.
        PackageError: The artifact is damaged.
    """

    def __init__(self, artifact: Artifact, program: DnnProgram, device: CudaView) -> None:
        for graph in program.graphs:
            held = [one.tensor for one in graph.tensors if one.tensor >= 0]
            check_numbers(artifact, program.tensors, graph.node, held)
            known = set(range(len(graph.tensors)))
            for operation in graph.operations:
                if not set(operation.tensors.values()) <= known:
                    raise damaged(
                        artifact, f"{graph.node!r} has a tensor that is none of its graph"
                    )
        self._program, self._dnn = program, library()
        self._engines: list[DnnEngine] = []
        super().__init__(artifact, program.tensors, program.scratch_bytes, device, "cuDNN")

    def choose(self) -> int:
        """Choose the engine of each graph, and return the most workspace that one needs.

        Raises:
            BackendError: The library has none for one.
            CudnnError: It failed.
        """
        properties = device_properties(self._dnn, self.device.entry.number)
        self._engines = [self._fastest(graph, properties) for graph in self._program.graphs]
        return max(one.workspace_bytes for one in self._engines)

    def calls(self, view: CudaView, addresses: Sequence[int], workspace: int) -> list[Step]:
        """Return what queues the graphs, by plans that only these calls have.

        Raises:
            CudnnError: The library does not take them.
        """
        handle, calls = self._handle(view), []
        for graph, engine in zip(self._program.graphs, self._engines, strict=True):
            plan = plan_of(self._dnn, handle, engine.configuration)
            calls.append(queued(self._dnn, handle, graph, plan, addresses, workspace))
        return calls

    def _handle(self, view: CudaView) -> Any:
        """Return the handle of a stream."""

        def make() -> LibraryHandle:
            made = ctypes.c_void_p()
            self._dnn.call("cudnnCreate", ctypes.byref(made))
            handle = LibraryHandle(view.context, made, self._dnn.functions.cudnnDestroy)
            self._dnn.call("cudnnSetStream", made, ctypes.c_void_p(int(view.stream)))
            return handle

        return handle_of(view, BACKEND_NAME, make)

    def _fastest(self, graph: DnnGraph, properties: DnnDescriptor) -> DnnEngine:
        """Return the engine of a graph that takes the least time, on memory of its own.

        Raises:
            BackendError: The library has none.
        """
        rules, view = self._program.rules, self.device
        proposed = engines(self._dnn, graph, rules, properties)
        found: list[DnnEngine] = next(filter(None, map(self._usable, proposed)), [])
        if not found:
            raise BackendError(
                f"cuDNN has no engine for {graph.node!r} that the target allows",
                backend=BACKEND_NAME,
                node=graph.node,
                target=self.target,
                hint="exclude it from this target, or leave attributes of it out",
            )
        sizes: dict[int, int] = {}
        for tensor in graph.tensors:
            if tensor.tensor >= 0:
                nbytes = span(tensor) * _ITEM_BYTES[tensor.dtype]
                sizes[tensor.tensor] = max(nbytes, sizes.get(tensor.tensor, ALIGNMENT))
        memory = {number: DeviceMemory(view.context, size) for number, size in sizes.items()}
        addresses = {number: one.address for number, one in memory.items()}
        most = max(engine.workspace_bytes for engine in found)
        workspace = DeviceMemory(view.context, max(most, ALIGNMENT))
        handle = self._handle(view)

        def queue_of(engine: DnnEngine) -> Step:
            plan = plan_of(self._dnn, handle, engine.configuration)
            return queued(self._dnn, handle, graph, plan, addresses, workspace.address)

        return fastest(view, found, queue_of)

    def _usable(self, configurations: Sequence[DnnDescriptor]) -> list[DnnEngine]:
        """Return engines that have a plan, so many at most, less those that need much memory."""
        found: list[DnnEngine] = []
        most = self._program.rules.workspace_bytes
        for configuration in configurations:
            if len(found) == _MOST_ENGINES:
                break
            try:
                plan = plan_of(self._dnn, self._handle(self.device), configuration)
            except CudnnError:  # what heuristics propose is no promise
                continue
            (nbytes,) = plan.get("EXECUTION_PLAN_WORKSPACE_SIZE", 1)
            if most < 0 or nbytes <= most:
                found.append(DnnEngine(configuration, nbytes))
        return found


def plan_of(dnn: Cudnn, handle: Any, configuration: DnnDescriptor) -> DnnDescriptor:
    """Return an engine ready to run in the stream of a handle.

    Args:
        dnn: The library.
        handle: Whose stream.
        configuration: Of the engine.

    Raises:
        CudnnError: The engine does not compute its graph here.
    """
    return DnnDescriptor(
        dnn,
        "EXECUTION_PLAN",
        EXECUTION_PLAN_HANDLE=handle,
        EXECUTION_PLAN_ENGINE_CONFIG=configuration,
    )


def queued(
    dnn: Cudnn,
    handle: Any,
    graph: DnnGraph,
    plan: DnnDescriptor,
    addresses: Sequence[int] | dict[int, int],
    workspace: int,
) -> Step:
    """Return what queues a graph in the stream of a handle.

    Args:
        dnn: The library.
        handle: Whose stream.
        graph: What is computed.
        plan: How.
        addresses: Of the program's tensors, by their numbers.
        workspace: Of the plan's own memory.

    Raises:
        CudnnError: The library does not take them.
    """
    numbers, places, held = [], [], []
    for number, tensor in enumerate(graph.tensors):
        if tensor.number is not None:
            held.append(ctypes.c_float(tensor.number))
            places.append(ctypes.addressof(held[-1]))
        elif tensor.tensor >= 0:
            places.append(addresses[tensor.tensor])
        else:
            continue
        numbers.append(number)
    packed = pack(dnn, numbers, places, workspace)

    def step(_held: object = held) -> None:
        dnn.call("cudnnBackendExecute", handle, plan.value, packed.value)

    return step
