# SPDX-License-Identifier: Apache-2.0
"""What this machine is: its CPU, the instructions that matter, and the CPUs that we may use."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from pathlib import Path

TESTED_SYSTEMS = ("Linux",)
"""Where our tests run; see docs/platforms.md."""

EXTENSIONS = {
    "x86_64": {
        "avx2": "AVX2",
        "fma": "FMA",
        "avx_vnni": "AVX-VNNI",
        "avx512f": "AVX-512",
        "avx512_vnni": "AVX-512 VNNI",
        "avx512_bf16": "AVX-512 BF16",
        "avx512_fp16": "AVX-512 FP16",
        "amx_tile": "AMX",
        "amx_int8": "AMX INT8",
        "amx_bf16": "AMX BF16",
    },
    "aarch64": {
        "asimd": "NEON",
        "asimdhp": "FP16",
        "asimddp": "dot product",
        "i8mm": "I8MM",
        "bf16": "BF16",
        "sve": "SVE",
        "sve2": "SVE2",
        "sme": "SME",
    },
}
"""By architecture: flags of `/proc/cpuinfo` that runtimes choose their kernels by, and names."""


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """The CPU.

    Attributes:
        model: Its name, as the system says it.
        architecture: As Python says it: `x86_64`, `aarch64`.
        extensions: By name, whether the CPU has it; empty where the system does not tell.
    """

    model: str
    architecture: str
    extensions: dict[str, bool]


def find_cpu(
    cpuinfo: Path = Path("/proc/cpuinfo"), architecture: str | None = None
) -> ProcessorFacts:
    """Return what the system says about its first CPU.

    Args:
        cpuinfo: The file in which it does.
        architecture: What the system calls it; None means as it does here.
    """
    is_here, architecture = architecture is None, architecture or platform.machine()
    facts = _first_cpu(cpuinfo)
    flags = frozenset((facts.get("flags") or facts.get("Features") or "").split())
    names = EXTENSIONS.get(architecture, {}) if flags else {}
    model = facts.get("model name") or (platform.processor() if is_here else "")
    if not model:  # of Arm there are numbers alone
        numbers = [facts.get(f"CPU {name}", "") for name in ("implementer", "part", "variant")]
        model = " ".join(filter(None, (facts.get("Hardware", ""), *numbers))) or architecture
    return ProcessorFacts(
        model, architecture, {name: flag in flags for flag, name in names.items()}
    )


def _first_cpu(cpuinfo: Path) -> dict[str, str]:
    facts: dict[str, str] = {}
    for line in read_text(cpuinfo).splitlines():
        key, sign, value = line.partition(":")
        if not sign and facts:
            break
        facts[key.strip()] = value.strip()
    return facts


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
