# SPDX-License-Identifier: Apache-2.0
"""`-from_device=N`: attributes read from a device of this machine, once, when a target is made.

What was read is part of the target from then on; that it was read is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from intarsia.errors import TargetError
from intarsia.target import cpu
from intarsia.target.device import DeviceType
from intarsia.target.kind import TargetKind

_CUDA_DRIVERS = ("libcuda.so.1", "nvcuda.dll")
_CUDA_ATTRIBUTES = {  # of CUdevice_attribute
    "max_threads_per_block": 1,
    "max_shared_memory_per_block": 8,
    "thread_warp_size": 10,
    "registers_per_block": 12,
    "major": 75,
    "minor": 76,
}
_FIRST_WITH_OWN_FEATURES = 9  # from Hopper on, `sm_90a` names what only that GPU has


def query_device(kind: TargetKind, ordinal: int) -> dict[str, Any]:
    """Return what a device says about itself, as far as the kind has attributes for it.

    Raises:
        TargetError: There is no such device, or devices of its type cannot be asked.
    """
    ask = _QUERIES.get(kind.device_type)
    if ask is None:
        raise TargetError(
            f"from_device: devices of type {kind.device_type.name} cannot be asked",
            hint="write the attributes",
        )
    found = ask(kind, ordinal)
    return {name: value for name, value in found.items() if name in kind.attrs}


def _query_cpu(kind: TargetKind, ordinal: int) -> Mapping[str, Any]:
    del kind
    if ordinal:
        raise _no_device("CPU", ordinal, "there is one, 0")
    here = cpu.host_cpu()
    return {"mcpu": here.name, **({"mattr": here.mattr} if here.mattr else {})}


def _query_cuda(kind: TargetKind, ordinal: int) -> Mapping[str, Any]:
    import ctypes  # only a query pays for it

    driver = _load_cuda()
    device, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), ordinal):
        raise _no_device("CUDA", ordinal, "nvidia-smi lists them")
    found: dict[str, Any] = {}
    for name, number in _CUDA_ATTRIBUTES.items():
        if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device):
            raise _no_device("CUDA", ordinal, f"the driver does not tell its {name}")
        found[name] = value.value
    major, minor = found.pop("major"), found.pop("minor")
    suffix = "a" if major >= _FIRST_WITH_OWN_FEATURES else ""
    found["arch" if "arch" in kind.attrs else "mcpu"] = f"sm_{major}{minor}{suffix}"
    return {"max_num_threads": found["max_threads_per_block"], **found}


def _load_cuda() -> Any:
    import ctypes

    for name in _CUDA_DRIVERS:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise _no_device("CUDA", 0, "the CUDA driver is not installed")


def _no_device(kind: str, ordinal: int, hint: str) -> TargetError:
    return TargetError(f"from_device: there is no {kind} device {ordinal}", hint=hint)


_QUERIES: Mapping[DeviceType, Callable[[TargetKind, int], Mapping[str, Any]]] = {
    DeviceType.CPU: _query_cpu,
    DeviceType.CUDA: _query_cuda,
}
