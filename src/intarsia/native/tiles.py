# SPDX-License-Identifier: Apache-2.0
"""Tiles of a CPU (Intel AMX): whether this process may use them, and whether they work.

Linux gives a process the large state of tiles only if it asks; one that does not is ended by its
first tile instruction. And a hypervisor may show tiles that there are not. So a process asks before
it loads a kernel with tiles, and products of tiles are tried in a process of their own first.

Source:
    Linux, Documentation/arch/x86/xstate.rst: dynamically enabled XSTATE features.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

from intarsia.codegen.unit import TILE_FEATURES
from intarsia.cpu_text import cpu_text
from intarsia.native.machine import generator_version
from intarsia.process.selftest import SelfTest, judge

_ARCH_PRCTL = 158
"""The number of the system call on x86-64."""
_ARCH_REQ_XCOMP_PERM = 0x1023
_XTILEDATA = 18
_NEEDED = "amx-tile"
_BESIDE = {"amx-bf16": ("avx512bf16",)}
"""What rounds numbers to those that tiles take."""
_TRIAL = "intarsia.native.tile_trial:try_tiles"
_TRIAL_VERSION = "2"
"""Of what is kept of a trial."""


def usable_tiles(features: Collection[str], caches: Path) -> tuple[str, ...]:
    """Return the features of `TILE_FEATURES` that kernels for this machine may use.

    Args:
        features: LLVM's names of what the target has.
        caches: The folder of all caches, where the verdict on tiles is kept.
    """
    named = tuple(name for name in TILE_FEATURES if {name, *_BESIDE.get(name, ())} <= set(features))
    if not named or _NEEDED not in features or why_no_tiles(caches):
        return ()
    return named


def why_no_tiles(caches: Path) -> str:
    """Ask for tiles for this process; return why it cannot use them, empty if it can."""
    problem = ask_for_tiles()
    if problem:
        return problem
    test = SelfTest(
        "native code with tiles (AMX)", _TRIAL, (), (generator_version(), _TRIAL_VERSION)
    )
    verdict = judge(test, caches)
    if verdict.problem:
        return f"they do not pass their self-test: {verdict.problem}"
    # What cannot be tried may end this process, so it does not count as good.
    return "" if verdict.values else "they cannot be tried in a process of their own"


@cache
def ask_for_tiles() -> str:
    """Ask the system to let this process use tiles; return why it does not, empty if it does."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "tiles are used on Linux on x86-64 only"
    if "amx_tile" not in cpu_text():
        return "this CPU has none"
    library = ctypes.CDLL(None, use_errno=True)
    numbers = (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    if library.syscall(*map(ctypes.c_long, numbers)):
        return f"the system does not give this process tiles: {os.strerror(ctypes.get_errno())}"
    return ""
