# SPDX-License-Identifier: Apache-2.0
"""Which CPU this machine has, as a text: where it is the same, the same machine code runs."""

from __future__ import annotations

import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

# Of Linux on x86 and on Arm; frequencies and the like differ from one look to the next.
_NAMES = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")


@cache
def cpu_text() -> str:
    """Return what the system says of its first CPU."""
    text = platform.machine()
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as file:
        for line in file:
            if not line.strip():  # the other CPUs are like the first
                break
            text += line if line.startswith(_NAMES) else ""
    return text
