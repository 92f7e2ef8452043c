# SPDX-License-Identifier: Apache-2.0
"""How long idle OpenMP threads spin before they sleep."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

SPINS = 3000
"""Some tens of microseconds: longer than the gap between two primitives.

GNU OpenMP's own default is a hundred times that. On two cores that others use too, ResNet-50 took
four times as long with it, because spinning threads kept the working ones off the cores.
"""

_OWN = "GOMP_SPINCOUNT"
_GIVEN = ("OMP_WAIT_POLICY", _OWN)


@contextmanager
def short_spins() -> Iterator[None]:
    """Have a GNU OpenMP that is loaded inside spin briefly, unless the environment says how long.

    It reads its environment once, when it is loaded; what the process was given stays as it is.
    """
    if any(name in os.environ for name in _GIVEN):  # noqa: TID251 - another library's variables
        yield
        return
    os.putenv(_OWN, str(SPINS))
    try:
        yield
    finally:
        os.unsetenv(_OWN)
