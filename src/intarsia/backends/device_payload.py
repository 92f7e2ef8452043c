# SPDX-License-Identifier: Apache-2.0
"""The content of an artifact for a device with queues: kernels as source, memory, and calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import TYPE_CHECKING

import msgspec

from intarsia.backends.artifact import damaged
from intarsia.backends.native import (
    CallRecord,
    CheckRecord,
    FoundRecord,
    argument_counts,
    call_records,
    check_records,
    pack_text,
    read_payload,
    storage_records,
    unpack_text,
)
from intarsia.backends.queues import QueueView
from intarsia.backends.values import Artifact
from intarsia.codegen.storage import StorageKind
from intarsia.errors import BackendError

if TYPE_CHECKING:
    from intarsia.codegen.emit.device_family import DeviceKernel, DeviceLimits
    from intarsia.codegen.ir import Function
    from intarsia.codegen.lower.program import Program


class KernelRecord(msgspec.Struct, frozen=True, array_like=True):
    """One kernel.

    Attributes:
        name: Of its function.
        local_size: Work-items of a group, per dimension.
        item_bytes: Of an element of each buffer.
        extensions: Of the language, which it needs.
        shared_bytes: Of memory that the work-items of a group share.
    """

    name: str
    local_size: list[int]
    item_bytes: list[int]
    extensions: list[str]
    shared_bytes: int = 0


class Payload(msgspec.Struct, frozen=True):
    """The content of an artifact, except its constants."""

    device: str
    """Name of the device that the kernels are shaped for."""
    source: bytes
    """The source of all kernels, compressed."""
    kernels: list[KernelRecord]
    storages: list[tuple[str, int, int]]
    calls: list[CallRecord]
    global_sizes: list[list[int]]
    """The work-items of each call, per dimension."""
    scratch_bytes: int
    counts: list[int]
    checks: list[CheckRecord] = []
    found: list[FoundRecord] = []
    """Empty, as sizes are not found here."""
    free: None = None
    """It takes known sizes only."""


def make_payload(
    program: Program,
    kernels: Sequence[DeviceKernel],
    needed: Callable[[Function], Sequence[str]],
    source: str,
    device: str,
) -> Payload:
    """Return the payload of a program.

    Args:
        program: The region.
        kernels: Its kernels, emitted.
        needed: Tells which extensions a kernel needs.
        source: Of all kernels.
        device: The name of the device that they were emitted for.
    """
    records = [
        KernelRecord(
            kernel.name,
            list(kernel.local_size),
            [buffer.item_bytes for buffer in function.buffers],
            list(needed(function)),
            kernel.shared_bytes,
        )
        for function, kernel in zip(program.kernels, kernels, strict=True)
    ]
    return Payload(
        device,
        pack_text(source),
        records,
        storage_records(program),
        call_records(program),
        [list(kernels[call.kernel].global_size(call.extent)) for call in program.calls],
        program.scratch_bytes,
        argument_counts(program),
        check_records(program),
    )


def decode(artifact: Artifact) -> Payload:
    """Read a payload.

    Raises:
        PackageError: It is damaged.
    """
    payload = read_payload(artifact, Payload)
    if len(payload.counts) != len(payload.kernels):
        raise damaged(artifact, "its kernels")
    for kernel, count in zip(payload.kernels, payload.counts, strict=True):
        is_sound = len(kernel.item_bytes) == count and min(kernel.item_bytes, default=1) > 0
        if not is_sound or min(kernel.local_size, default=0) < 1:
            raise damaged(artifact, f"kernel {kernel.name}")
    if len(payload.global_sizes) != len(payload.calls):
        raise damaged(artifact, "its sizes")
    for call, global_size in zip(payload.calls, payload.global_sizes, strict=True):
        record = payload.kernels[call.kernel]
        pairs = zip(call.arguments, record.item_bytes, strict=True)
        # Kernels get their places in elements.
        if any((start_of(payload, where) + offset) % size for (where, offset), size in pairs):
            raise damaged(artifact, "an offset")
        if not _is_divided(global_size, record.local_size):
            raise damaged(artifact, "a size")
    return payload


def start_of(payload: Payload, storage: int) -> int:
    """Return where a storage begins in its block, in bytes."""
    kind, index, _ = payload.storages[storage]
    return index if kind in (StorageKind.SCRATCH, StorageKind.FAULT) else 0


def source_of(artifact: Artifact, payload: Payload) -> str:
    """Return the source of an artifact's program.

    Raises:
        PackageError: It is damaged.
    """
    return unpack_text(artifact, payload.source)


def check_fits(
    artifact: Artifact,
    payload: Payload,
    have: Collection[str],
    limits: DeviceLimits,
    device: QueueView,
) -> None:
    """Check that a device has what kernels need.

    Args:
        artifact: Of the payload.
        payload: Its kernels.
        have: Extensions that the device has.
        limits: Of the device.
        device: The device.

    Raises:
        BackendError: It has not.
    """
    for kernel in payload.kernels:
        missing = [name for name in kernel.extensions if name not in have]
        items = prod(kernel.local_size)
        if items > limits.max_work_group:
            missing.append(f"groups of {items} work-items")
        if kernel.shared_bytes > limits.local_bytes:
            missing.append(f"{kernel.shared_bytes} bytes of memory that a group shares")
        buffers = len(kernel.item_bytes)
        if limits.most_buffers is not None and buffers > limits.most_buffers:
            missing.append(f"{buffers} arrays for a kernel")
        if missing:
            raise BackendError(
                f"the code, made for {payload.device}, needs {missing[0]}, which "
                f"{device.backend}:{device.number} ({device.name}) lacks",
                backend=device.backend,
                target=artifact.target,
                hint="compile the model again on the machine where it runs",
            )


def _is_divided(global_size: Sequence[int], local_size: Sequence[int]) -> bool:
    """Tell whether work-items are whole groups, as devices want them."""
    return len(global_size) == len(local_size) and all(
        whole > 0 and whole % part == 0 for whole, part in zip(global_size, local_size, strict=True)
    )
