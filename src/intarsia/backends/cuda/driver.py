# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver as cuda-bindings gives it: which devices there are, and calls that are checked.

Nothing of CUDA's toolkit is needed. Each device is tried in a process of its own before this one
uses it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as version_of
from pathlib import Path
from types import ModuleType
from typing import Any

from intarsia.backends.device_list import pick_device, those_that_passed
from intarsia.backends.queues import OneProcess
from intarsia.codegen.sources import source_digest
from intarsia.errors import BackendError, ExecutionError
from intarsia.process import selftest
from intarsia.settings import Settings, driver_variables

BACKEND_NAME = "cuda"
PROCESS = OneProcess("CUDA", BACKEND_NAME)
"""The process that uses the driver."""
INSTALL = "pip install 'intarsia[cuda]'"
DRIVER = "install NVIDIA's driver for the GPU; CUDA's toolkit is not needed"

_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_ATTRIBUTES = {
    "threads": "CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK",
    "shared": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK",
    "units": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
    "major": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
    "minor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
}
_GENERATORS = ("intarsia.codegen.emit", "intarsia.native.ptx", "intarsia.backends.cuda")
_TRIAL = Path(__file__).parents[2] / "testing" / "selftest.py"
_MOST_LETTERS = 128
_DRIVER_FACTS = ("/proc/driver/nvidia/version", "/etc/ld.so.cache")


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One GPU.

    Attributes:
        number: As the driver counts.
        name: For people, with its compute capability, the driver and its place on the bus.
        key: What code depends on: the same without the place.
        capability: As in 80.
        memory_bytes: Of its memory.
        most: Of its attributes `threads` and `shared` (bytes) of a block, and `units`.
    """

    number: int
    name: str
    key: str
    capability: int
    memory_bytes: int
    most: Mapping[str, int]


class CudaError(Exception):
    """What the driver answered instead of success.

    Attributes:
        is_memory: Whether there was not enough memory.
    """

    def __init__(self, text: str, *, is_memory: bool) -> None:
        super().__init__(text)
        self.is_memory = is_memory


@cache
def driver() -> ModuleType:
    """Return cuda-bindings' module of the driver, which is there.

    Raises:
        BackendError: It is not installed, or NVIDIA's driver is not.
    """
    try:
        from cuda.bindings import driver as module
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(
            f"cuda-bindings cannot be imported: {error}", backend=BACKEND_NAME, hint=INSTALL
        ) from error
    if not any(map(_is_library, _LIBRARIES)):
        raise BackendError(
            "cuda: the CUDA driver is not installed", backend=BACKEND_NAME, hint=DRIVER
        )
    found: ModuleType = module
    return found


def _is_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the driver.

    Returns:
        What it yields: nothing, one value, or several.

    Raises:
        CudaError: It failed.
    """
    cuda = driver()
    error, *values = getattr(cuda, name)(*arguments)
    if error != cuda.CUresult.CUDA_SUCCESS:
        is_memory = error == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        raise CudaError(f"{name}: {error_text(error)}", is_memory=is_memory)
    return values[0] if len(values) == 1 else tuple(values)


def error_text(error: Any) -> str:
    """Return the name and the meaning of a result."""
    cuda = driver()
    status, text = cuda.cuGetErrorString(error)
    if status != cuda.CUresult.CUDA_SUCCESS or not text:
        return str(error.name)
    return f"{error.name}: {text.decode()}"


def version() -> str:
    """Return the versions of cuda-bindings and of NVIDIA's driver.

    Raises:
        BackendError: One is missing.
    """
    driver()
    return f"cuda-bindings {version_of('cuda-bindings')}, driver {_driver_version()}"


@cache
def _driver_version() -> str:
    try:
        number = int(call("cuDriverGetVersion"))
    except CudaError as error:
        raise BackendError(str(error), backend=BACKEND_NAME, hint=DRIVER) from error
    return f"{number // 1000}.{number % 1000 // 10}"


def list_devices(settings: Settings) -> tuple[CudaDevice, ...]:
    """Return the GPUs that pass their self-test: `cuda:0` is the first.

    Raises:
        BackendError: Something is missing, or there is no such GPU.
    """
    driver()
    caches = settings.cache_folder()
    found = those_that_passed(_devices, lambda: tried_devices(caches), BACKEND_NAME, "GPU", DRIVER)
    PROCESS.check()
    return found


def find_device(number: int, target: str, settings: Settings) -> CudaDevice:
    """Return a GPU by its number.

    Raises:
        BackendError: Something is missing, or there is no such GPU.
    """
    devices = list_devices(settings)
    return pick_device(devices, number, BACKEND_NAME, "CUDA device", target, BACKEND_NAME)


@cache
def tried_devices(caches: Path) -> selftest.TriedDevices:
    """Return what the GPUs' self-tests have found; what is new is tried now."""
    identity = (
        # A verdict holds as long as all of these: the driver, the trial, the code that we emit, and
        # variables that the driver reads.
        *selftest.file_facts(*_DRIVER_FACTS, _TRIAL),
        *(version(), source_digest(_GENERATORS), *driver_variables()),
    )
    test = selftest.SelfTest("CUDA", identity=identity)
    return selftest.try_devices(test, "intarsia.backends.cuda.backend:BACKEND", caches)


@cache
def _devices() -> tuple[CudaDevice, ...]:
    PROCESS.check()
    try:
        call("cuInit", 0)
        return tuple(map(_device, range(call("cuDeviceGetCount"))))
    except CudaError as error:
        raise BackendError(
            f"the CUDA driver does not start: {error}", backend=BACKEND_NAME, hint=DRIVER
        ) from error


def _device(number: int) -> CudaDevice:
    handle = call("cuDeviceGet", number)
    kinds = driver().CUdevice_attribute
    most = {
        name: int(call("cuDeviceGetAttribute", getattr(kinds, attribute), handle))
        for name, attribute in _ATTRIBUTES.items()
    }
    capability = 10 * most.pop("major") + most.pop("minor")
    title = _text(call("cuDeviceGetName", _MOST_LETTERS, handle))
    key = f"{title} (sm_{capability}, driver {_driver_version()})"
    name = f"{key[:-1]}, {_text(call('cuDeviceGetPCIBusId', _MOST_LETTERS, handle))})"
    return CudaDevice(number, name, key, capability, int(call("cuDeviceTotalMem", handle)), most)


def _text(letters: bytes) -> str:
    return letters.split(b"\0")[0].decode()


def failed(number: int, how: str, error: CudaError, hint: str) -> ExecutionError:
    """Return the error of ours for what the driver answered."""
    return ExecutionError(f"cuda:{number} {how}: {error}", backend=BACKEND_NAME, hint=hint)
