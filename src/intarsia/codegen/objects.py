# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels on disk: what was compiled once for a CPU is not compiled again.

An entry is a file named by a digest of the kernel's text, the CPU, its features, LLVM's version
and the passes. It is written under another name and then renamed, so that concurrent writers and
killed ones do no harm; it carries a digest of its content, so that a damaged one is made anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from intarsia.cache import make_cache_folder
from intarsia.codegen.machine import Cpu, compile_object, llvm_version
from intarsia.errors import SettingError

logger = logging.getLogger(__name__)

KIND = "kernels"
"""The folder of the entries inside the cache folder."""

LIMIT_BYTES = 512 << 20
"""Entries together; beyond it the oldest are removed until a quarter is free."""

_DIGEST_BYTES = 32
_CHECK_EVERY = 64


@dataclass(slots=True)
class ObjectCache:
    """Object files by what they are made of.

    Attributes:
        folder: The folder of all caches; None keeps nothing.
        limit_bytes: Of all entries together.
        hits: How often an entry was found.
        misses: How often a kernel was compiled.
    """

    folder: Path | None
    limit_bytes: int = LIMIT_BYTES
    hits: int = 0
    misses: int = 0

    def object_of(self, text: str, cpu: Cpu, level: int = 0) -> bytes:
        """Return the object file of a module of LLVM IR, from the folder if it is there.

        Raises:
            BackendError: LLVM refused the module.
        """
        path = self._path(text, cpu, level)
        found = _read(path) if path is not None else None
        if found is not None:
            self.hits += 1
            return found
        self.misses += 1
        code = compile_object(text, cpu, level)
        if path is not None:
            self._write(path, code)
        return code

    def _path(self, text: str, cpu: Cpu, level: int) -> Path | None:
        if self.folder is None:
            return None
        parts = (text, cpu.triple, cpu.name, cpu.features, llvm_version(), str(level))
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return self.folder / KIND / f"{digest}.o"

    def _write(self, path: Path, code: bytes) -> None:
        """Write an entry; a folder that cannot be written is not used, and said once."""
        assert self.folder is not None
        try:
            make_cache_folder(self.folder)
            path.parent.mkdir(exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            Path(name).replace(path)
            if self.misses % _CHECK_EVERY == 1:
                prune(path.parent, self.limit_bytes)
        except (OSError, SettingError) as error:
            _warn(str(error))
            self.folder = None


@cache
def _warn(problem: str) -> None:
    """Say once in a process why nothing is kept."""
    logger.warning("compiled kernels are not kept: %s", problem)


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(code).digest() != digest:
        logger.info("%s is damaged and is made anew", path)
        return None
    _silently(path.touch)  # what was used last is removed last
    return code


def prune(folder: Path, limit_bytes: int) -> None:
    """Remove the entries that were not used for longest, if all are more than the limit."""
    entries = []
    for entry in os.scandir(folder):
        try:
            status = entry.stat()
        except OSError:  # another process removed it
            continue
        entries.append((status.st_mtime, status.st_size, Path(entry.path)))
    total = sum(size for _, size, _ in entries)
    if total <= limit_bytes:
        return
    for _, size, path in sorted(entries):
        if total <= limit_bytes * 3 // 4:
            break
        _silently(path.unlink)
        total -= size


def _silently(action: Callable[[], None]) -> None:
    """Do something to a file that another process may remove at any time."""
    try:
        action()
    except OSError:
        logger.debug("a cache entry is gone")
