# SPDX-License-Identifier: Apache-2.0
"""What an artifact of this backend holds: kernels in OpenCL C, memory, and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from intarsia.backends.api import Artifact
from intarsia.backends.native import (
    CallRecord,
    argument_counts,
    call_records,
    damaged,
    pack_text,
    read_payload,
    storage_records,
    unpack_text,
)
from intarsia.codegen.emit.opencl import DeviceLimits, OpenClKernel, refuse_types
from intarsia.codegen.lower.program import StorageKind

if TYPE_CHECKING:
    from intarsia.codegen.ir import Function
    from intarsia.codegen.lower.program import Program


class KernelRecord(msgspec.Struct, frozen=True, array_like=True):
    """One kernel.

    Attributes:
        name: Of the `__kernel`.
        source: Its text, compressed.
        local_size: Work-items of a group, per dimension.
        item_bytes: Of an element of each buffer.
        extensions: Of OpenCL, which it needs.
    """

    name: str
    source: bytes
    local_size: list[int]
    item_bytes: list[int]
    extensions: list[str]


class Payload(msgspec.Struct, frozen=True):
    """What an artifact holds beside the constants."""

    device: str
    """Name of the device that the kernels are shaped for."""
    kernels: list[KernelRecord]
    storages: list[tuple[str, int, int]]
    calls: list[CallRecord]
    scratch_bytes: int
    counts: list[int]


def make_payload(program: Program, kernels: Sequence[OpenClKernel], device: str) -> Payload:
    """Return the payload of a program whose kernels were emitted for a device."""
    records = [
        KernelRecord(
            kernel.name,
            pack_text(kernel.source),
            list(kernel.local_size),
            [buffer.item_bytes for buffer in function.buffers],
            needed_extensions(function),
        )
        for function, kernel in zip(program.kernels, kernels, strict=True)
    ]
    return Payload(
        device,
        records,
        storage_records(program),
        call_records(program),
        program.scratch_bytes,
        argument_counts(program),
    )


def needed_extensions(function: Function) -> list[str]:
    """Return which extensions of OpenCL a kernel needs."""
    everything = DeviceLimits(has_fp64=True, has_fp16=True)
    found = (
        refuse_types(function, replace(everything, **{name: False}))
        for name in ("has_fp64", "has_fp16")
    )
    return [name for name in found if name is not None]


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
        if not is_sound or not kernel.local_size or min(kernel.local_size) < 1:
            raise damaged(artifact, f"kernel {kernel.name}")
    for call in payload.calls:
        sizes = payload.kernels[call.kernel].item_bytes
        for (storage, offset), size in zip(call.arguments, sizes, strict=True):
            if (start_of(payload, storage) + offset) % size:
                raise damaged(artifact, "an offset")
    return payload


def start_of(payload: Payload, storage: int) -> int:
    """Return where a storage begins in its block, in bytes."""
    kind, index, _ = payload.storages[storage]
    return index if kind == StorageKind.SCRATCH else 0


def kernels_of(artifact: Artifact, payload: Payload) -> tuple[OpenClKernel, ...]:
    """Return the kernels of an artifact.

    Raises:
        PackageError: A text is damaged.
    """
    return tuple(
        OpenClKernel(
            record.name,
            unpack_text(artifact, record.source),
            buffers=("",) * len(record.item_bytes),
            sizes=0,
            local_size=tuple(record.local_size),
        )
        for record in payload.kernels
    )
