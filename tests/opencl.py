# SPDX-License-Identifier: Apache-2.0
"""The OpenCL that tests run on: a device that has passed its self-test, or one reason for all."""

import pytest

from intarsia.backends.opencl.driver import list_devices
from intarsia.errors import BackendError


def first_device():
    """Return the first device; without any the test is skipped, all for the same reason."""
    try:
        return list_devices()[0]
    except BackendError as error:
        pytest.skip(f"the runtime is not here: {error.message} ({error.hint})")  # as the kit says
