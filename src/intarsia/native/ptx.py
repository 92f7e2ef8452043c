# SPDX-License-Identifier: Apache-2.0
"""Code for NVIDIA's GPUs: how a target shapes its kernels, and PTX of a program of them.

PTX is made for an architecture and runs on every later one: the driver makes machine code of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.errors import BackendError, TargetError
from intarsia.native.machine import NativeCpu, compile_assembly
from intarsia.target.canonical import NVPTX_TRIPLE

if TYPE_CHECKING:
    from intarsia.codegen.emit.device_family import DeviceKernel
    from intarsia.target import Target

_CAPABILITIES = (60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
"""Compute capabilities that LLVM 22 knows and that have arithmetic on float16."""

GROUP = 64
"""Threads of a block: two warps."""
_WARP = 32
_REGISTERS_OF_A_THREAD = 256
_MOST_THREADS = 256
"""Threads of a block that can have as many registers as a thread may have, of 65536."""
_MMA_CAPABILITY = 80
"""The least compute capability whose warps multiply matrices as `ir.Mma` says."""
_REGISTERS = 16
"""Vectors of four floats that a thread holds of a tile: half of its registers."""
_STATIC_BYTES = 48 << 10
"""Shared memory that a kernel has without asking for more."""
_BUSY_ITEMS = 1 << 16
"""Threads that keep a GPU busy: PTX does not depend on how many units it has."""

_HEADER = re.compile(r"\A.*?^\.address_size \d+\n", re.DOTALL | re.MULTILINE)


def capability_of(target: Target) -> int | None:
    """Return the compute capability that a target says, as in 80; None if it says none."""
    found = target.features.get("compute_capability")
    return None if found is None else int(found)


def ptx_arch(capability: int) -> str:
    """Return the architecture that PTX for GPUs of a compute capability is made for.

    Raises:
        TargetError: They are too old.
    """
    known = [one for one in _CAPABILITIES if one <= capability]
    if not known:
        raise TargetError(
            f"sm_{capability} lacks arithmetic on float16",
            hint=f"code can be made for sm_{_CAPABILITIES[0]} and later",
        )
    return f"sm_{known[-1]}"


def gpu_limits(target: Target, arch: str = "") -> DeviceLimits:
    """Return what kernels for a target of kind `cuda` or `nvptx` are shaped by.

    Args:
        target: The target.
        arch: What code is made for, as in `sm_80`; nothing leaves it to the target.

    Raises:
        TargetError: It asks for TF32, and the architecture has none.
    """
    attrs = target.attrs
    capability = int(arch.removeprefix("sm_")) if arch else capability_of(target)
    given = ("max_num_threads", "max_threads_per_block")
    threads = min(attrs.get(name, _MOST_THREADS) for name in given)
    registers = attrs.get("registers_per_block")
    if registers is not None:  # a kernel may need all that a thread can have
        threads = min(threads, max(_WARP, registers // _REGISTERS_OF_A_THREAD // _WARP * _WARP))
    has_mma = (capability or 0) >= _MMA_CAPABILITY
    is_tf32 = attrs.get("precision") == "tf32"
    if is_tf32 and not has_mma:
        raise TargetError(
            "products by TF32 need to know an architecture that has them",
            target=str(target),
            hint=f"say -{'mcpu' if target.kind.name == 'nvptx' else 'arch'}=sm_{_MMA_CAPABILITY} "
            "or later, or leave -precision=tf32 out",
        )
    return DeviceLimits(
        registers=_REGISTERS,
        max_work_group=threads,
        work_group=GROUP,
        busy_items=_BUSY_ITEMS,
        local_bytes=min(attrs.get("max_shared_memory_per_block", _STATIC_BYTES), _STATIC_BYTES),
        has_fp16=True,
        is_correctly_rounded=True,
        has_mma=has_mma,
        has_tf32=is_tf32,
        has_shuffles=True,
    )


def compile_ptx(kernels: Sequence[DeviceKernel], arch: str) -> str:
    """Return kernels as one PTX module.

    Args:
        kernels: LLVM IR (`emit_nvptx`), whose names differ.
        arch: As in `sm_80`.

    Raises:
        BackendError: LLVM refused a kernel; that is a bug of the emitter.
    """
    modules = [compile_assembly(kernel.source, NativeCpu(NVPTX_TRIPLE, arch)) for kernel in kernels]
    heads = {match[0] for match in map(_HEADER.match, modules) if match}
    if len(heads) > 1:
        raise BackendError("LLVM's PTX begins in more than one way", backend="cuda")
    bodies = [_HEADER.sub("", module, count=1).strip("\n") for module in modules]
    return "\n\n".join((*(head.strip("\n") for head in heads), *bodies)) + "\n"
