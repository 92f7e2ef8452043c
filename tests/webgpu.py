# SPDX-License-Identifier: Apache-2.0
"""The WebGPU that tests run on: a device that has passed its self-test, or one reason for all.

On Debian the package mesa-vulkan-drivers has one in software.
"""

import functools

import pytest

from intarsia.backends.device import ThreadOptions
from intarsia.backends.webgpu.device import WebGpuDevice
from intarsia.backends.webgpu.driver import list_adapters
from intarsia.errors import BackendError
from intarsia.settings import Settings


def has_device():
    """Tell whether there is a device that has passed its self-test."""
    try:
        return bool(list_adapters(Settings.from_environment()))
    except BackendError:
        return False


def every_device():
    """Return the devices that have passed their self-test."""
    return list_adapters(Settings.from_environment()) if has_device() else ()


def first_device():
    """Return the first device; without any the test is skipped, all for the same reason."""
    try:
        return list_adapters(Settings.from_environment())[0]
    except BackendError as error:
        pytest.skip(f"the runtime is not here: {error.message} ({error.hint})")  # as the kit says


@functools.cache
def opened_device():
    """The first device, opened once for the process."""
    return WebGpuDevice(0, first_device(), ThreadOptions())
