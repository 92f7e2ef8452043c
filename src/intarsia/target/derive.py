# SPDX-License-Identifier: Apache-2.0
"""What follows from a target's attributes: canonical attributes, keys and features.

With `-from_device=N` attributes are read from a device of this machine, once, when a target is
made. What was read is part of the target from then on; that it was read is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from intarsia.errors import TargetError
from intarsia.target import cpu
from intarsia.target.caches import untold_caches
from intarsia.target.device import DeviceType
from intarsia.target.frozen import FrozenMap
from intarsia.target.kind import Canonical, Canonicalizer, TargetKind
from intarsia.target.schema import BuildTarget, fail, join_path, read

FROM_DEVICE = "from_device"
LIFTED = ("kind", "tag", "keys", "host", FROM_DEVICE)


class Features(FrozenMap):
    """Facts that a canonicaliser derived; one that is absent reads as None."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.get(name)


def ask_device(kind: TargetKind, ordinal: int, path: str) -> dict[str, Any]:
    """Return the attributes that a device of this machine has, for those that were not given.

    Raises:
        TargetError: There is no such device, or devices of its type cannot be asked.
    """
    try:
        return query_device(kind, ordinal)
    except TargetError as error:
        fail("", join_path(path, error.message), error.hint)


def canonicalize(
    kind: TargetKind, values: Mapping[str, Any], path: str, build: BuildTarget
) -> Canonical:
    """Run the kind's canonicaliser, and check that it is idempotent and sets only attributes.

    Raises:
        TargetError: It is not, or it refuses a value.
    """
    if kind.canonicalizer is None:
        return Canonical(values)
    canonical = _apply(kind, kind.canonicalizer, values, path, build)
    # Applied twice it has to give the same: the original once printed `super_super_woof` (row 45,
    # #18883).
    if canonical.attrs != values:
        again = _apply(kind, kind.canonicalizer, canonical.attrs, path, build)
        if again.attrs != canonical.attrs or again.keys != canonical.keys:
            fail(path, f"the canonicaliser of kind {kind.name!r} is not idempotent")
    return canonical


def _apply(
    kind: TargetKind,
    canonicalizer: Canonicalizer,
    values: Mapping[str, Any],
    path: str,
    build: BuildTarget,
) -> Canonical:
    before = FrozenMap(values)
    try:
        canonical = canonicalizer(before)
    except TargetError as error:
        fail("", join_path(path, error.message), error.hint)
    if canonical.attrs is before:
        return replace(canonical, attrs=before, keys=tuple(canonical.keys))
    for name in canonical.attrs:
        if name not in kind.attrs or name in LIFTED:
            fail(path, f"the canonicaliser of kind {kind.name!r} sets {name!r}, not an attribute")
    attrs = {
        name: value
        if value is values.get(name)
        else read(kind.attrs[name], value, join_path(path, name), build)
        for name, value in canonical.attrs.items()
    }
    return replace(canonical, attrs=FrozenMap(attrs), keys=tuple(canonical.keys))


def deduce_keys(
    kind: TargetKind, attrs: Mapping[str, Any], given: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the given keys, the device's and, if none are given, the kind's own."""
    if not given and "device" not in attrs:
        return kind.default_keys
    device = (attrs["device"],) if attrs.get("device") else ()
    return tuple(dict.fromkeys((*given, *device, *(() if given else kind.default_keys))))


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
    answers = ask(kind, ordinal)
    return {name: value for name, value in answers.items() if name in kind.attrs}


def _query_cpu(kind: TargetKind, ordinal: int) -> Mapping[str, Any]:
    if ordinal:
        raise _no_device("CPU", ordinal, "there is one, 0")
    here = cpu.host_cpu()
    mattr = {"mattr": here.mattr} if here.mattr else {}
    return {"mcpu": here.name, **mattr, **untold_caches(here.name)}


def _query_cuda(kind: TargetKind, ordinal: int) -> Mapping[str, Any]:
    import ctypes  # only a query pays for it

    driver = _load_cuda()
    device, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), ordinal):
        raise _no_device("CUDA", ordinal, "nvidia-smi lists them")
    answers: dict[str, Any] = {}
    for name, number in _CUDA_ATTRIBUTES.items():
        if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device):
            raise _no_device("CUDA", ordinal, f"the driver does not report its {name}")
        answers[name] = value.value
    major, minor = answers.pop("major"), answers.pop("minor")
    suffix = "a" if major >= _FIRST_WITH_OWN_FEATURES else ""
    answers["arch" if "arch" in kind.attrs else "mcpu"] = f"sm_{major}{minor}{suffix}"
    return {"max_num_threads": answers["max_threads_per_block"], **answers}


def _load_cuda() -> Any:
    import ctypes

    for name in _CUDA_DRIVERS:
        try:
            return ctypes.CDLL(name)
        except OSError:  # there is none of this name
            continue
    raise _no_device("CUDA", 0, "the CUDA driver is not installed")


def _no_device(kind: str, ordinal: int, hint: str) -> TargetError:
    return TargetError(f"from_device: there is no {kind} device {ordinal}", hint=hint)


_QUERIES: Mapping[DeviceType, Callable[[TargetKind, int], Mapping[str, Any]]] = {
    DeviceType.CPU: _query_cpu,
    DeviceType.CUDA: _query_cuda,
}
