# SPDX-License-Identifier: Apache-2.0
"""Which instructions oneDNN uses, in the library and in OpenVINO, and where they would be wrong.

Without VNNI it multiplies bytes by instructions that saturate.

A hypervisor may show AMX in CPUID leaf 7 and no palette of tiles in leaf 1DH. oneDNN 3.2, and the
one inside of OpenVINO 2026.4, then load a configuration of palette 0, after which the first tile
instruction is illegal (SIGILL). A kernel may refuse tiles as well.

Source:
    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and CPUID
    leaf 1DH. What each library does was read off a core of Emerald Rapids under KVM.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from intarsia.cost.machine import find_cpu
from intarsia.process.selftest import SelfTest, judge

logger = logging.getLogger(__name__)

VARIABLE, _OLD_VARIABLE = "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"
"""Tell every oneDNN which instructions it may use; read once, when it first generates code."""

_SATURATING = frozenset(("SSE41", "AVX", "AVX2", "AVX512_CORE"))
"""Values of it with which oneDNN has no VNNI."""
_X86 = ("x86_64", "AMD64")
_SHORT_VNNI, _LONG_VNNI = "AVX-VNNI", "AVX-512 VNNI"

WITHOUT_TILES = "AVX512_CORE_FP16"
"""The instructions that CPUs with AMX have besides AMX."""


def sums_bytes_exactly() -> bool:
    """Tell whether oneDNN's sums of products of bytes are exact on this CPU.

    Without VNNI (AVX2, AVX-512) it takes `pmaddubsw`, which sums pairs in 16 bits and saturates:
    a point-wise convolution of 256 channels is up to 17 quanta off, and a 3 x 3 one of large
    activations differs in 44 per cent of its codes (`benchmarks/byte_sums.py`).

    Source:
        Intel's "oneDNN Developer Guide", section "Nuances of int8 Computations".
    """
    cpu = find_cpu()
    limit = _limit().upper()
    # Those that are called `AVX2_VNNI` lack the instructions of AVX-512.
    usable = (_SHORT_VNNI,) if limit.startswith("AVX2") else (_SHORT_VNNI, _LONG_VNNI)
    has_vnni = any(cpu.extensions.get(name, False) for name in usable)
    return cpu.architecture not in _X86 or (has_vnni and limit not in _SATURATING)


def _limit() -> str:
    """Return what the user lets oneDNN use; empty if that is everything."""
    known = (os.environ.get(name) for name in (VARIABLE, _OLD_VARIABLE))  # noqa: TID251 - its own
    return next(filter(None, known), "")


@cache
def keep_off_broken_tiles(name: str, target: str, facts: tuple[str, ...], caches: Path) -> str:
    """Try a library's AMX products in a separate process; turn AMX off here if that one fails.

    To be called before the library is loaded. What the user has set stays.

    Args:
        name: The library's.
        target: Text of the target whose regions it runs.
        facts: On the library's files; without any there is nothing to try.
        caches: The folder of all caches, where verdicts are kept.

    Returns:
        Why AMX is left out; empty if it is not, or there is none.
    """
    has_tiles = find_cpu().extensions.get("AMX", False)
    if not facts or not has_tiles or _limit():
        return ""
    trial = "intarsia.testing.selftest:try_tiles"
    verdict = judge(SelfTest(f"{name} with AMX", trial, (target,), facts), caches)
    if not verdict.problem:
        return ""
    # For the whole process: oneDNN has one setting, and OpenVINO's own copy reads the same
    # variable.
    os.environ[VARIABLE] = WITHOUT_TILES  # noqa: TID251
    logger.info("%s is kept off AMX: %s", name, verdict.problem)
    return verdict.problem


def tile_notes(name: str, problem: str) -> Sequence[str]:
    """Return a line for `doctor` if AMX is left out."""
    return [f"AMX is not used: {name} does not pass its self-test with AMX: {problem}"] * bool(
        problem
    )
