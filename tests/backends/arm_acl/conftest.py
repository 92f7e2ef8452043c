# SPDX-License-Identifier: Apache-2.0
"""Without the library, a compiler and an emulator nothing here can be tried, and pytest says so."""

import platform
import shutil
from pathlib import Path

import pytest

from intarsia.backends.arm_acl.toolchain import find_compiler, find_library
from intarsia.errors import BackendError

ROOT = Path(__file__).parents[3] / ".foreign" / "arm64"
RUNNER = "here" if platform.machine() == "aarch64" else "qemu-aarch64-static"
TARGET = f'arm_acl -acl_root="{ROOT}" -runner={RUNNER}'


@pytest.fixture(scope="session")
def acl_target():
    """Text of the target `arm_acl`, or a skip that says what is missing."""
    try:
        find_library(str(ROOT))
        find_compiler("")
    except BackendError as error:
        pytest.skip(f"{error.message}: scripts/bring_foreign.sh brings it")
    if RUNNER != "here" and shutil.which(RUNNER) is None:
        pytest.skip(f"{RUNNER} is not here")
    return TARGET
