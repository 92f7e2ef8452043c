# SPDX-License-Identifier: Apache-2.0
"""Makes `saboteurs` importable by name, here and in fresh processes."""

import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def importable_saboteurs():
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)
