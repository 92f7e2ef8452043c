# SPDX-License-Identifier: Apache-2.0
"""Which CPU this machine has, as a text: where it is the same, the same machine code runs."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path

# Of Linux on x86 and on Arm; frequencies and the like differ from one look to the next.
_NAMES = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")


@cache
def cpu_text() -> str:
    """Return what the system says of its first CPU."""
    lines: list[str] = []
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as file:
        lines += iter(lambda: file.readline().strip("\n"), "")
    return cpu_lines(platform.machine(), lines)


def cpu_lines(machine: str, lines: Iterable[str]) -> str:
    """Return what tells the first CPU of a system from others.

    Args:
        machine: What the system calls its architecture.
        lines: Of its `/proc/cpuinfo`.
    """
    first = takewhile(str.strip, lines)  # the other CPUs are like the first
    return machine + "".join(f"{line}\n" for line in first if line.startswith(_NAMES))
