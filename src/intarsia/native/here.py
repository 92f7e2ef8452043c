# SPDX-License-Identifier: Apache-2.0
"""Whether this machine runs code for a CPU: a wrong one would end the process.

That it does is remembered, so that a start need not load LLVM to ask what the CPU has.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from intarsia.cache import make_cache_folder, write_entry
from intarsia.cpu_text import cpu_text
from intarsia.errors import SettingError
from intarsia.hashing import digest
from intarsia.native.machine import NativeCpu, generator_version

_FOLDER = "installed"
"""Of the notes inside the cache folder; others on what is here too."""


def why_not_runnable(cpu: NativeCpu, caches: Path) -> str:
    """Say why this machine cannot run code for a CPU; empty if it can.

    Args:
        cpu: What the code was generated for.
        caches: The folder of all caches.
    """
    facts = (cpu_text(), generator_version(), cpu.triple, cpu.name, cpu.features)
    note = caches / _FOLDER / f"runs-{digest(facts)}"
    if note.exists():
        return ""
    from intarsia.native.native_target import why_not_here  # reads targets, and asks LLVM

    problem = why_not_here(cpu)
    if not problem:
        with suppress(OSError, SettingError):
            make_cache_folder(caches)
            write_entry(note, b"")
    return problem
