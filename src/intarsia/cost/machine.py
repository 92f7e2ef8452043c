# SPDX-License-Identifier: Apache-2.0
"""What this machine is: its CPU, and the instructions that matter."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from intarsia.cpus import read_text

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
