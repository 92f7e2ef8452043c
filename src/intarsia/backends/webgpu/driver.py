# SPDX-License-Identifier: Apache-2.0
"""WebGPU as wgpu gives it: which devices there are, in which order, and what they can do.

GPUs come before software devices, else the order is wgpu's. A GPU that has drivers for two
interfaces (Vulkan and Direct3D 12) is listed once for each. What wgpu reaches by OpenGL is left
out: it has too few buffers. Each device is tried in a process of its own before this one opens it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version as version_of
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from intarsia.backends.device_list import pick_device, say_devices, those_that_passed
from intarsia.backends.queues import OneProcess
from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.sources import source_digest
from intarsia.errors import BackendError
from intarsia.process import selftest
from intarsia.settings import Settings, driver_variables

if TYPE_CHECKING:
    from intarsia.target import VirtualDevice

BACKEND_NAME = "webgpu"
PROCESS = OneProcess("wgpu", BACKEND_NAME)
"""The process that uses wgpu."""
INSTALL = "pip install 'intarsia[webgpu]'"
DRIVER = "install your GPU's driver, or mesa-vulkan-drivers for a device in software"

BACKENDS = {"Vulkan": "vulkan", "Metal": "metal", "D3D12": "dx12"}
"""How targets name the interfaces that wgpu has; others are not used."""

KINDS = (BACKEND_NAME, "vulkan", "metal")
"""The kinds that are served; the last two by that interface alone."""

_ORDER = ("DiscreteGPU", "IntegratedGPU", "VirtualGPU", "Unknown", "CPU")
_GROUP = 64
"""Work-items of a group: a multiple of what every vendor runs in lockstep."""
_BUSY_ITEMS = {"DiscreteGPU": 1 << 16, "CPU": 1 << 8}
_OTHERS_BUSY = 1 << 14
_REGISTERS = {"CPU": 8}
"""Vectors that a work-item may hold. Mesa's device in software runs as many work-items as a vector
register has lanes, so that a lane of ours is a whole register there, of 16; and it compiles each
kernel as a coroutine, for which LLVM 15 takes time by the square of its loads and stores."""
_OTHERS_REGISTERS = 32
"""Work-items that keep a device busy: WebGPU does not tell how many units it has."""

_FEATURES = ("shader-f16", "shader-f64", "shader-int64")
_LIMITS = (
    "max-buffer-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-storage-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
)
"""What is asked for as much as there is."""

_GENERATORS = ("intarsia.codegen.emit", "intarsia.backends.webgpu")
_TRIAL = Path(__file__).parents[2] / "testing" / "selftest.py"


@dataclass(frozen=True, slots=True)
class Adapter:
    """One device, as one interface reaches it.

    Attributes:
        number: Of the device, among those that pass their self-test.
        handle: wgpu's adapter.
        name: For people: the device, its driver, and the interface.
        key: What code depends on: the same, with versions.
        backend: The interface, as targets name it.
        limits: What code for it is shaped by.
        features: Those that kernels may need and it has.
        most: Its limits, by wgpu's names.
    """

    number: int
    handle: Any
    name: str
    key: tuple[str, ...]
    backend: str
    limits: DeviceLimits
    features: tuple[str, ...]
    most: Mapping[str, int]


@cache
def driver() -> ModuleType:
    """Return wgpu.

    Raises:
        BackendError: It is not installed, or cannot be loaded.
    """
    try:
        import wgpu
    except (ImportError, OSError, RuntimeError) as error:  # of its library, too
        raise BackendError(
            f"wgpu cannot be imported: {error}", backend=BACKEND_NAME, hint=INSTALL
        ) from error
    module: ModuleType = wgpu
    return module


def version() -> str:
    """Return the version of wgpu.

    Raises:
        BackendError: It is missing.
    """
    return f"wgpu {driver().__version__}"


def list_adapters(settings: Settings) -> tuple[Adapter, ...]:
    """Return the devices: `webgpu:0` is the first.

    Raises:
        BackendError: wgpu is missing, or there is no device that passes its self-test.
    """
    driver()
    caches = settings.cache_folder()
    found = those_that_passed(
        _adapters, lambda: tried_devices(caches), BACKEND_NAME, "WebGPU device", DRIVER
    )
    PROCESS.check()
    return tuple(replace(one, number=number) for number, one in enumerate(found))


def list_devices(kind: str, settings: Settings) -> tuple[Adapter, ...]:
    """Return the devices of a kind: those of `vulkan` and `metal` are reached by that interface.

    Raises:
        BackendError: wgpu is missing, or there is none that passes its self-test.
    """
    adapters = list_adapters(settings)
    if kind == BACKEND_NAME:
        return adapters
    found = tuple(one for one in adapters if one.backend == kind)
    if not found:
        raise BackendError(
            f"wgpu reaches no device by the interface {kind}",
            backend=BACKEND_NAME,
            hint="; ".join(say_devices(BACKEND_NAME, adapters)),
        )
    return found


def find_adapter(placed: VirtualDevice, settings: Settings) -> Adapter:
    """Return the device of a placed target; one without a target is of the kind `webgpu`.

    Args:
        placed: Whose number is counted among the devices of its kind.
        settings: Say where verdicts are kept.

    Raises:
        BackendError: wgpu is missing, or there is no such device.
    """
    number, target = placed.device_id or 0, str(placed)
    kind = BACKEND_NAME if placed.target is None else placed.target.kind.name
    backend = None if placed.target is None else placed.target.attrs.get("backend")
    adapters = list_devices(kind if kind in KINDS else BACKEND_NAME, settings)
    found = pick_device(adapters, number, kind, f"{kind} device", target, BACKEND_NAME)
    if backend not in (None, found.backend):
        raise BackendError(
            f"{kind}:{number} is reached through {found.backend}, not {backend}",
            backend=BACKEND_NAME,
            target=target,
            hint="take another number, or leave -backend out: "
            + "; ".join(say_devices(kind, adapters)),
        )
    return found


def say_limits(entry: Adapter) -> str:
    """Return what a device can do, in words."""
    limits = entry.limits
    mebibytes = entry.most["max-storage-buffer-binding-size"] >> 20
    return (
        f"-backend={entry.backend}; {entry.most['max-storage-buffers-per-shader-stage']} buffers a "
        f"kernel, at most {mebibytes} MiB each; groups of {limits.max_work_group} with "
        f"{limits.local_bytes >> 10} KiB; {', '.join(entry.features) or 'float32 and int32 alone'}"
    )


@cache
def tried_devices(caches: Path) -> selftest.TriedDevices:
    """Return what the devices' self-tests have found; what is new is tried now."""
    identity = (
        # A verdict holds as long as all of these: wgpu's files, the drivers' lists of files, the
        # trial, the code that we emit, and variables that drivers read.
        *selftest.package_facts("wgpu", "resources/*wgpu_native*"),
        *selftest.file_facts(*_driver_files(), _TRIAL),
        *(version_of("wgpu"), source_digest(_GENERATORS), *driver_variables()),
    )
    test = selftest.SelfTest("WebGPU", identity=identity)
    return selftest.try_devices(test, "intarsia.backends.webgpu.backend:BACKEND", caches)


def _driver_files() -> list[str]:
    """Return the lists of Vulkan's drivers, and a file that changes with the libraries here."""
    folders = (Path("/usr/share/vulkan/icd.d"), Path("/etc/vulkan/icd.d"))
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]
    return [*map(str, files), "/etc/ld.so.cache"]


@cache
def _adapters() -> tuple[Adapter, ...]:
    PROCESS.check()
    with _wayland_folder():
        every = driver().gpu.enumerate_adapters_sync()
    handles = [handle for handle in every if handle.info["backend_type"] in BACKENDS]
    handles.sort(key=lambda handle: _ORDER.index(_kind(handle)))  # stable: else wgpu's order
    return tuple(_entry(number, handle) for number, handle in enumerate(handles))


@contextmanager
def _wayland_folder() -> Iterator[None]:
    """Name a folder for sockets where there is none, as in a container or by SSH.

    Mesa's drivers look for a display there, and Wayland's library prints errors without one.
    """
    environment = os.environ  # noqa: TID251 - Wayland's own
    is_absent = _SOCKETS not in environment
    if is_absent:
        environment[_SOCKETS] = tempfile.gettempdir()
    try:
        yield
    finally:
        if is_absent:
            del environment[_SOCKETS]


_SOCKETS = "XDG_RUNTIME_DIR"


def _kind(handle: Any) -> str:
    kind = str(handle.info["adapter_type"])
    return kind if kind in _ORDER else "Unknown"


def _entry(number: int, handle: Any) -> Adapter:
    info, most = handle.info, {name: int(handle.limits[name]) for name in _LIMITS}
    features = tuple(name for name in _FEATURES if name in handle.features)
    interface = str(info["backend_type"])
    kind = _kind(handle)
    limits = DeviceLimits(
        registers=_REGISTERS.get(kind, _OTHERS_REGISTERS),
        max_work_group=min(
            most["max-compute-invocations-per-workgroup"], most["max-compute-workgroup-size-x"]
        ),
        work_group=_GROUP,
        busy_items=_BUSY_ITEMS.get(kind, _OTHERS_BUSY),
        local_bytes=most["max-compute-workgroup-storage-size"],
        has_fp64="shader-f64" in features,
        has_fp16="shader-f16" in features,
        has_int64="shader-int64" in features,
        most_buffers=most["max-storage-buffers-per-shader-stage"],
    )
    device, description = str(info["device"]).strip(), str(info["description"]).strip()
    name = f"{device} ({', '.join(filter(None, (description, interface)))})"
    key = (device, description, interface, str(info["vendor_id"]), str(info["device_id"]))
    return Adapter(number, handle, name, key, BACKENDS[interface], limits, features, most)
