# SPDX-License-Identifier: Apache-2.0
"""A region loaded on a WebGPU device: pipelines, and its kernels with their bindings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.backends.device import Step
from intarsia.backends.device_execution import DeviceExecutable, Place
from intarsia.backends.device_payload import KernelRecord, Payload
from intarsia.backends.first_use import FirstUse
from intarsia.backends.native import CallRecord
from intarsia.backends.values import Artifact
from intarsia.backends.webgpu.device import WebGpuDevice
from intarsia.backends.webgpu.driver import BACKEND_NAME, PROCESS, driver
from intarsia.codegen.emit.wgsl import uniform_row, workgroups
from intarsia.errors import BackendError, ExecutionError

_ALIGNMENT = 256
"""Bytes; a multiple of it is where a binding may begin, on every device."""
_MOST_ELEMENTS = 1 << 31
"""Kernels count elements with 32 bits."""


@dataclass(frozen=True, slots=True)
class ComputePipeline:
    """A kernel that is built.

    Attributes:
        handle: wgpu's pipeline.
        layout: What it binds.
    """

    handle: Any
    layout: Any


class WebGpuExecutable(DeviceExecutable[WebGpuDevice]):
    """Kernels with their weights; bindings and threads share it.

    Args:
        artifact: What is loaded.
        payload: Its payload.
        modules: The source of each kernel.
        device: Where it is loaded.
        first: Notes that it runs for the first time; None in the process of a trial.

    Raises:
        BackendError: The driver does not build a kernel.
        ExecutionError: The weights do not fit on the device.
    """

    def __init__(
        self,
        artifact: Artifact,
        payload: Payload,
        modules: Sequence[str],
        device: WebGpuDevice,
        first: FirstUse | None,
    ) -> None:
        super().__init__(artifact, payload, device)
        self._first = first
        self._pipelines = [
            make_pipeline(device, record, source)
            for record, source in zip(payload.kernels, modules, strict=True)
        ]

    def launch(self, view: WebGpuDevice, places: Sequence[Place], owned: object) -> Step:
        """Return the call that queues the kernels."""
        payload = self.payload
        calls = [
            (self._pipelines[call.kernel], payload.kernels[call.kernel], call, size)
            for call, size in zip(payload.calls, payload.global_sizes, strict=True)
        ]
        sized = [
            (memory, start, nbytes)
            for (memory, start), (_, _, nbytes) in zip(places, payload.storages, strict=True)
        ]
        step = launch_calls(view, calls, sized, owned)
        return step if self._first is None else self._first.noting(step, view)


def launch_calls(
    view: WebGpuDevice,
    calls: Sequence[tuple[ComputePipeline, KernelRecord, CallRecord, Sequence[int]]],
    places: Sequence[tuple[Any, int, int]],
    owned: object,
) -> Step:
    """Return what queues calls of kernels.

    Args:
        view: Where they run.
        calls: Each with its kernel, and its work-items.
        places: The memory of each storage, its first byte there, and how many it has.
        owned: Everything that must live as long as the calls.
    """
    rows = [_binding(view, record, call, places) for _, record, call, _ in calls]
    starts, table = _table([numbers for _, numbers in rows])
    launches = []
    with view.failing("cannot bind a kernel"):
        uniform = view.allocate(table.nbytes).memory
        view.queue.write_buffer(uniform, 0, table)
        for (pipeline, record, _, items), (bound, numbers), start in zip(
            calls, rows, starts, strict=True
        ):
            every = [*bound, {"buffer": uniform, "offset": start, "size": numbers.nbytes}]
            group = view.handle.create_bind_group(
                layout=pipeline.layout,
                entries=[{"binding": i, "resource": one} for i, one in enumerate(every)],
            )
            turns, sharing = (n // part for n, part in zip(items, record.local_size, strict=True))
            launches.append((pipeline.handle, group, workgroups(turns, sharing)))
    return _make_step(view, launches, owned)


def make_pipeline(device: WebGpuDevice, record: KernelRecord, source: str) -> ComputePipeline:
    """Build a kernel.

    Raises:
        BackendError: The driver does not build it.
    """
    gpu, handle = driver(), device.handle
    PROCESS.check()
    kinds = [*("storage" for _ in record.item_bytes), "uniform"]
    try:
        # Said, not derived from the source: there a buffer that a kernel does not touch has no
        # place.
        layout = handle.create_bind_group_layout(
            entries=[
                {"binding": i, "visibility": gpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
                for i, kind in enumerate(kinds)
            ]
        )
        made = handle.create_compute_pipeline(
            layout=handle.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={
                "module": handle.create_shader_module(code=source),
                "entry_point": record.name,
            },
        )
    except (gpu.GPUError, gpu.GPUPipelineError, RuntimeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise BackendError(
            f"webgpu:{device.number} does not build {record.name}: {' '.join(lines[:12])}",
            backend=BACKEND_NAME,
            hint=f"its driver is {', '.join(device.entry.key)}; INTARSIA_DUMP keeps the source",
        ) from error
    return ComputePipeline(made, layout)


def _binding(
    view: WebGpuDevice,
    record: KernelRecord,
    call: CallRecord,
    places: Sequence[tuple[Any, int, int]],
) -> tuple[list[dict[str, Any]], np.ndarray[Any, np.dtype[np.int32]]]:
    """Return what a call binds, and its numbers: where tensors begin there, and its sizes.

    Raises:
        ExecutionError: A tensor is larger than what the device binds.
    """
    bound, numbers = [], []
    most = view.entry.most["max-storage-buffer-binding-size"]
    for (storage, offset), item in zip(call.arguments, record.item_bytes, strict=True):
        memory, start, nbytes = places[storage]
        first, last = start + offset, start + nbytes
        if not nbytes:  # nothing of it is touched, but something has to be bound
            memory, first, last = view.allocate(0).memory, 0, 1
        begin = first // _ALIGNMENT * _ALIGNMENT
        end = min(memory.size, -(-last // _ALIGNMENT) * _ALIGNMENT)
        if end - begin > most or (end - begin) // item >= _MOST_ELEMENTS:
            raise ExecutionError(
                f"webgpu:{view.number} binds at most {most} bytes, and a tensor has {nbytes}",
                backend=BACKEND_NAME,
                hint="exclude its nodes from this target",
            )
        bound.append({"buffer": memory, "offset": begin, "size": end - begin})
        numbers.append((first - begin) // item)
    numbers += call.sizes
    return bound, np.array(uniform_row(numbers), np.int32)


def _table(
    rows: Sequence[np.ndarray[Any, np.dtype[np.int32]]],
) -> tuple[list[int], np.ndarray[Any, np.dtype[np.int32]]]:
    """Return where the numbers of each call begin in one buffer, in bytes, and its contents."""
    starts, total = [], 0
    for row in rows:
        starts.append(total)
        total += -(-row.nbytes // _ALIGNMENT) * _ALIGNMENT
    table = np.zeros(max(total, _ALIGNMENT) // 4, np.int32)
    for start, row in zip(starts, rows, strict=True):
        table[start // 4 : start // 4 + len(row)] = row
    return starts, table


def _make_step(
    view: WebGpuDevice,
    launches: Sequence[tuple[Any, Any, tuple[int, int, int]]],
    owned: object,
) -> Step:
    """Return the call that queues kernels.

    Args:
        view: Whose queue it is.
        launches: Pipelines with their bindings and groups.
        owned: Everything that must live as long as the call.
    """

    def step(_owned: object = owned) -> None:
        PROCESS.check()
        with view.failing("failed to run a kernel"):
            encoder = view.handle.create_command_encoder()
            compute = encoder.begin_compute_pass()
            for pipeline, group, groups in launches:
                compute.set_pipeline(pipeline)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*groups)
            compute.end()
            view.queue.submit([encoder.finish()])

    return step
