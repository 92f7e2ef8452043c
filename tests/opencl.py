# SPDX-License-Identifier: Apache-2.0
"""The OpenCL that tests run on: a device that has passed its self-test, or one reason for all.

On some CPUs no driver passes: PoCL 3.0 of the extra aborts on AMD's Zen 4.
"""

import pytest

from intarsia.backends.opencl.driver import list_devices
from intarsia.errors import BackendError
from intarsia.settings import Settings


def has_device():
    """Tell whether there is a device that has passed its self-test."""
    try:
        return bool(list_devices(Settings.from_environment()))
    except BackendError:
        return False


def first_device():
    """Return the first device; without any the test is skipped, all for the same reason."""
    try:
        return list_devices(Settings.from_environment())[0]
    except BackendError as error:
        pytest.skip(f"the runtime is not here: {error.message} ({error.hint})")  # as the kit says
