# SPDX-License-Identifier: Apache-2.0
"""Makes the package `rows` importable by name, with assertions that explain themselves."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("rows")
