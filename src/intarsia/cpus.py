# SPDX-License-Identifier: Apache-2.0
"""The CPUs that this process may use: those that it is bound to, and what control groups grant."""

from __future__ import annotations

import math
import os
from pathlib import Path


def available_cpus() -> int:
    """Return the number of CPUs that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads() -> int:
    """Return how many threads a run has unless somebody says otherwise, at least 1.

    Of a quota of 2.5 CPUs three threads would use up what a period grants before it ends, and then
    stand still, all of them.
    """
    granted = quota_cpus()
    return available_cpus() if granted == math.inf else max(1, min(available_cpus(), int(granted)))


def quota_cpus(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return how many CPUs' worth of time the control groups grant; infinity without a limit.

    Source:
        Linux, Documentation/admin-guide/cgroup-v2.rst, `cpu.max`;
        Documentation/scheduler/sched-bwc.rst for the first version.
    """
    quotas = [math.inf]
    for line in read_text(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        base = root if not controllers else root / controllers
        read = _old_quota if controllers else _quota
        quotas += [read(folder) for folder in _chain(base, path)]
    return min(quotas)


def _chain(base: Path, path: str) -> list[Path]:
    """Return a group's folder and those above it; in a container only the base may be there."""
    folders = [base]
    for part in path.strip("/").split("/"):
        if part and part != "..":
            folders.append(folders[-1] / part)
    return folders


def _quota(folder: Path) -> float:
    granted, _, period = read_text(folder / "cpu.max").strip().partition(" ")
    return _ratio(granted, period)


def _old_quota(folder: Path) -> float:
    granted, period = (
        read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    )
    return _ratio(granted, period)


def _ratio(granted: str, period: str) -> float:
    if granted.isdecimal() and period.isdecimal() and int(period):
        return int(granted) / int(period)
    return math.inf


def read_text(file: Path) -> str:
    """Return what a file of the system says; nothing if it is not there."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
