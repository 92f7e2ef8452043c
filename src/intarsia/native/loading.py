# SPDX-License-Identifier: Apache-2.0
"""Loads machine code: links objects into this process, and routines from the cache.

Light: where all is in the cache, LLVM is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from intarsia.codegen.sources import source_digest
from intarsia.cpu_text import cpu_text
from intarsia.native.elf import link_objects
from intarsia.native.machine import compile_object, generator_version, host_machine, link_object
from intarsia.native.objects import ObjectCache

_WRITER = "intarsia.native.routine"
"""What routines are written with."""


class LoadedCode:
    """Objects linked into this process; it keeps them loaded as long as it lives.

    Attributes:
        addresses: Of their functions, by name.
    """

    def __init__(
        self, objects: Mapping[str, bytes], symbols: Mapping[str, int] | None = None
    ) -> None:
        """Link objects, each of which defines a function of its key's name.

        Args:
            objects: Object files for this machine.
            symbols: Addresses of what they refer to beside this process's own libraries.

        Raises:
            BackendError: An object does not fit this process, or lacks its function.
        """
        symbols = symbols or {}
        image = link_objects(objects, symbols)
        if image is not None:
            self._alive: Any = image
            self.addresses = image.addresses
        else:
            trackers = {name: link_object(name, code, symbols) for name, code in objects.items()}
            self._alive = trackers
            self.addresses = {name: tracker[name] for name, tracker in trackers.items()}


def load_routine(
    name: str,
    write: Callable[[], str],
    sources: tuple[str, ...],
    *variant: object,
    symbols: Mapping[str, int] | None = None,
    caches: Path | None,
) -> LoadedCode:
    """Compile what a module of LLVM IR exports, or take it from the cache, and load it.

    Writing the module takes up to 7 ms, so it is found in the cache by the sources that write it.

    Args:
        name: What it exports.
        write: Returns its text.
        sources: The modules of Python that write it.
        variant: What else its text depends on.
        symbols: Addresses of what it refers to beside this process's own libraries.
        caches: The folder of all caches; None keeps it nowhere.

    Raises:
        BackendError: llvmlite is not installed.
    """
    written_by = source_digest((_WRITER, *sources))
    made_of = (name, *map(str, variant), written_by, generator_version(), cpu_text())
    code = ObjectCache(caches).find_or_make(
        made_of, lambda: compile_object(write(), host_machine(), level=2)
    )
    return LoadedCode({name: code}, symbols)
