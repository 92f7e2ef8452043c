# SPDX-License-Identifier: Apache-2.0
"""A clock of looks: how far a search goes is decided by the problem, not the machine."""

from itertools import count
from types import SimpleNamespace

import pytest

from intarsia.search import solve, wide

_SECONDS_A_LOOK = 1e-5
"""A search that would not end does after some million looks, and fails its test."""


@pytest.fixture(autouse=True)
def no_time_goes_by(monkeypatch):
    looks = count()
    clock = SimpleNamespace(monotonic=lambda: next(looks) * _SECONDS_A_LOOK)
    for module in (solve, wide):
        monkeypatch.setattr(module, "time", clock)
