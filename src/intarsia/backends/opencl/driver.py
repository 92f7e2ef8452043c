# SPDX-License-Identifier: Apache-2.0
"""OpenCL as pyopencl gives it: which devices there are, in which order, and what they can do.

Devices that pass their self-test (`vendors`) are counted over all platforms in the order in which
OpenCL lists them. The setting `INTARSIA_OPENCL_DEVICES` picks others: `1,0` swaps two, `0,0` is one
device twice, each with a context and memory of its own, and `0/2` cuts one into two of equally many
compute units.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from intarsia.backends.device_list import pick_device
from intarsia.backends.opencl.pocl import use_own_cache
from intarsia.backends.opencl.vendors import offered_libraries, vendors, visible
from intarsia.backends.queues import OneProcess
from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.errors import BackendError, SettingError
from intarsia.process import selftest
from intarsia.settings import Settings

BACKEND_NAME = "opencl"
PROCESS = OneProcess("OpenCL", BACKEND_NAME)
"""The process that uses OpenCL."""

_FIRST = "Intel's driver shows none once OpenVINO is loaded: list opencl before openvino"
INSTALL = "pip install 'intarsia[opencl]'"
OTHER_DRIVER = "pip install intel-opencl-rt intel-cmplr-lib-rt, or apt-get install pocl-opencl-icd"
"""Commands that bring drivers beside the one of the extra, for CPUs that it does not work on."""

_VECTOR_BITS = 128
"""Vector width of kernels for devices with scalar lanes: four lanes of 32 bits."""

_GPU_GROUP = 64
"""Work-items of a group on a GPU: a multiple of what every vendor runs in lockstep."""

_BUFFER_BYTES = 16
"""Bytes of arguments for a buffer: itself, and where a tensor begins in it."""

_CPU_ITEMS, _GPU_ITEMS = 2, 512
"""Work-items that keep a compute unit busy."""


_VERSION_WORDS = 4
"""Of a platform's version, what is not about how it was built: `OpenCL 3.0 PoCL 3.0-rc2`."""


@dataclass(frozen=True, slots=True)
class DriverDevice:
    """One device.

    Attributes:
        device: pyopencl's handle; of a part of a device, a sub-device.
        name: For people: the device and the platform that runs it.
        key: All that a compiled program depends on: device, driver, platform.
        limits: What code for it is shaped by.
        keeps_builds: Whether its driver has a cache of what it builds from source.
        max_buffer_bytes: The largest buffer.
        memory_bytes: Of the device's memory.
    """

    device: Any
    name: str
    key: tuple[str, ...]
    limits: DeviceLimits
    keeps_builds: bool
    max_buffer_bytes: int
    memory_bytes: int


@cache
def driver() -> ModuleType:
    """Return pyopencl.

    Raises:
        BackendError: It is not installed, or cannot be loaded.
    """
    try:
        import pyopencl
    except ImportError as error:
        raise BackendError(
            f"pyopencl cannot be imported: {error}", backend=BACKEND_NAME, hint=INSTALL
        ) from error
    module: ModuleType = pyopencl
    return module


def version(settings: Settings) -> str:
    """Return the versions of pyopencl and of the platforms.

    Raises:
        BackendError: pyopencl is missing, or there is no device that passes its self-test.
    """
    caches = settings.cache_folder()
    _require_device(caches)
    platforms = dict.fromkeys(
        " ".join(platform.version.split()[:_VERSION_WORDS]) for platform in _platforms(caches)
    )
    return f"{driver().VERSION_TEXT} ({'; '.join(platforms)})"


def list_devices(settings: Settings) -> tuple[DriverDevice, ...]:
    """Return the devices: `opencl:0` is the first.

    Raises:
        BackendError: pyopencl is missing, or there is no device that passes its self-test.
        SettingError: The setting names a device that is not there.
    """
    caches = settings.cache_folder()
    _require_device(caches)
    PROCESS.check()
    return _devices(settings.opencl_devices, caches)


def _require_device(caches: Path) -> None:
    """Raise unless there is a device.

    Raises:
        BackendError: pyopencl is missing, or there is no device that passes its self-test.
    """
    driver()
    if _all_devices(caches):
        return
    failures = () if selftest.is_inside() else list_failures(caches)
    if failures:
        raise BackendError(
            f"no OpenCL device passes its self-test: {'; '.join(failures)}",
            backend=BACKEND_NAME,
            hint=f"{OTHER_DRIVER}; {selftest.FORGET}",
        )
    passed = () if selftest.is_inside() else [n for one in vendors(caches) for n in one.passed]
    if passed:  # alone: what this process has loaded besides is in the way
        raise BackendError(
            f"OpenCL shows no device to this process, although {', '.join(passed)} passes its "
            "self-test in one of its own",
            backend=BACKEND_NAME,
            hint=_FIRST if "openvino" in sys.modules else OTHER_DRIVER,
        )
    raise BackendError(
        "OpenCL finds no device", backend=BACKEND_NAME, hint=f"install a driver, or {INSTALL}"
    )


def list_failures(caches: Path) -> tuple[str, ...]:
    """Return a line for each device that does not pass its self-test, with the reason."""
    return tuple(
        f"{name}: {problem}" for vendor in vendors(caches) for name, problem in vendor.failed
    )


def find_device(number: int, target: str, settings: Settings) -> DriverDevice:
    """Return a device by its number.

    Args:
        number: Its number.
        target: Text of the target that is on it, for messages.
        settings: Say which devices there are.

    Raises:
        BackendError: pyopencl is missing, or there is no such device.
    """

    def others() -> list[str]:
        failures = list_failures(settings.cache_folder())
        return [
            *(f"not offered: {failure}" for failure in failures),
            "INTARSIA_OPENCL_DEVICES picks others",
        ]

    devices = list_devices(settings)
    return pick_device(devices, number, BACKEND_NAME, "OpenCL device", target, BACKEND_NAME, others)


@cache
def _platforms(caches: Path) -> list[Any]:
    """Return the platforms; of the drivers, the loader is shown those that pass their self-test."""
    cl = driver()
    libraries = offered_libraries(caches)
    if not libraries:
        return []
    use_own_cache(caches)
    with visible(libraries):
        try:
            platforms: list[Any] = cl.get_platforms()
        except cl.Error:  # there is a loader, and no driver
            return []
    return platforms


@cache
def _all_devices(caches: Path) -> tuple[Any, ...]:
    cl = driver()
    devices = []
    for platform in _platforms(caches):
        try:
            devices += platform.get_devices()
        except cl.Error:  # a platform without a device
            continue
    able = [device for device in devices if device.available and device.compiler_available]
    if selftest.is_inside():
        return tuple(able)
    passed = {name for vendor in vendors(caches) for name in vendor.passed}
    # Two drivers may have devices of one name; if it fails by one of them, neither is offered.
    passed -= {name for vendor in vendors(caches) for name, _ in vendor.failed}
    return tuple(device for device in able if _name(device) in passed)


@cache
def _devices(setting: str, caches: Path) -> tuple[DriverDevice, ...]:
    every = _all_devices(caches)
    if not setting:
        return tuple(map(_entry, every))
    picked: list[Any] = []
    for entry in setting.split(","):
        number, slash, parts = entry.strip().partition("/")
        if not number.isdecimal() or (slash and not parts.isdecimal()):
            raise SettingError(
                f"INTARSIA_OPENCL_DEVICES={setting!r}: {entry.strip()!r} is not a device",
                hint="write numbers such as 1,0 or 0,0, or 0/2 for two halves of a device",
            )
        if int(number) >= len(every):
            raise SettingError(
                f"INTARSIA_OPENCL_DEVICES={setting!r}: there is no device {number}",
                hint=f"OpenCL lists {len(every)} here: {', '.join(d.name for d in every)}",
            )
        device = every[int(number)]
        picked += _cut(device, int(parts), setting) if slash else [device]
    return tuple(map(_entry, picked))


def _cut(device: Any, parts: int, setting: str) -> list[Any]:
    """Return sub-devices of equally many compute units."""
    cl = driver()
    units = device.max_compute_units // parts if parts else 0
    try:
        if units:
            equally = [cl.device_partition_property.EQUALLY, units]
            sub_devices: list[Any] = device.create_sub_devices(equally)
            return sub_devices[:parts]
        problem = f"it has {device.max_compute_units} compute units"
    except cl.Error as error:
        problem = str(error)
    raise SettingError(
        f"INTARSIA_OPENCL_DEVICES={setting!r}: {device.name} is not cut into {parts}: {problem}",
        hint="leave out the /",
    )


def _entry(device: Any) -> DriverDevice:
    from pyopencl.characterize import has_src_build_cache

    cl, platform = driver(), device.platform
    extensions = device.extensions.split()
    is_cpu = bool(device.type & cl.device_type.CPU)
    lanes = int(device.native_vector_width_float)
    config = int(device.single_fp_config)
    limits = DeviceLimits(
        vector_bits=32 * lanes if lanes > 1 else _VECTOR_BITS,
        # Groups have their items in one of the first two dimensions.
        max_work_group=int(min(device.max_work_group_size, *device.max_work_item_sizes[:2])),
        work_group=1 if is_cpu else _GPU_GROUP,
        busy_items=int(device.max_compute_units) * (_CPU_ITEMS if is_cpu else _GPU_ITEMS),
        local_bytes=int(device.local_mem_size),
        has_fp64="cl_khr_fp64" in extensions,
        has_fp16="cl_khr_fp16" in extensions,
        has_fma=bool(config & cl.device_fp_config.FMA),
        is_correctly_rounded=bool(config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT),
        most_buffers=int(device.max_parameter_size) // _BUFFER_BYTES,
    )
    return DriverDevice(
        device,
        _name(device),
        (device.name, device.version, device.driver_version, platform.name, platform.version),
        limits,
        bool(has_src_build_cache(device)),
        int(device.max_mem_alloc_size),
        int(device.global_mem_size),
    )


def _name(device: Any) -> str:
    platform = device.platform.name.strip()
    return f"{device.name.strip()} ({platform}, {device.max_compute_units} units)"
