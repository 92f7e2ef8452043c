# SPDX-License-Identifier: Apache-2.0
"""Compiled code on disk: a folder of entries, bounded, safe against writers that are killed.

An entry is a file named by a digest of all that it is made of. It is written under another name
and then renamed, so that concurrent writers do no harm; it carries a digest of its content, so that
a damaged one is made anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from intarsia.cache import make_cache_folder, write_entry
from intarsia.errors import SettingError

logger = logging.getLogger(__name__)

_DIGEST_BYTES = 32
_CHECK_EVERY = 64


@dataclass(slots=True)
class Entries:
    """The entries of one kind.

    Attributes:
        folder: The folder of all caches; None keeps nothing.
        kind: The folder of these entries inside it.
        suffix: How their names end.
        limit_bytes: Of all of them together; beyond it the oldest are removed until a quarter is
            free.
        hits: How often one was found.
        misses: How often none was found.
        kept: How often one was written.
        is_read_only: Whether writing has failed.
    """

    folder: Path | None
    kind: str
    suffix: str
    limit_bytes: int
    hits: int = 0
    misses: int = 0
    kept: int = 0
    is_read_only: bool = False

    def find_or_make(self, parts: Sequence[str], make: Callable[[], bytes]) -> bytes:
        """Return the entry that is made of these parts."""
        content = self.find(parts)
        if content is None:
            content = make()
            self.keep(parts, content)
        return content

    def find(self, parts: Sequence[str]) -> bytes | None:
        """Return the entry that is made of these parts, if it is there and sound."""
        path = self._path(parts)
        content = (_read(path) or _unkept.get(path)) if path is not None else None
        if content is None:
            self.misses += 1
        else:
            self.hits += 1
        return content

    def keep(self, parts: Sequence[str], content: bytes) -> None:
        """Write an entry; a folder that cannot be written is not used, and said once."""
        path = self._path(parts)
        if path is None or self.folder is None:
            return
        if self.is_read_only:
            _remember(path, content)
            return
        try:
            make_cache_folder(self.folder)
            write_entry(path, hashlib.sha256(content).digest() + content)
            self.kept += 1
            # Looking through thousands of files takes longer than writing one. It is the first one
            # written that looks, too: most processes write fewer than 64.
            if self.kept % _CHECK_EVERY == 1:
                prune(path.parent, self.limit_bytes)
        except (OSError, SettingError) as error:
            _warn(str(error))
            self.is_read_only = True
            _remember(path, content)

    def _path(self, parts: Sequence[str]) -> Path | None:
        if self.folder is None:
            return None
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return self.folder / self.kind / f"{digest}{self.suffix}"


_unkept: dict[Path, bytes] = {}
"""Entries that this process could not write, kept so that they are not made twice."""

# A bound for a process that compiles model after model; one network has tens of kernels.
_MOST_UNKEPT = 1024


def _remember(path: Path, content: bytes) -> None:
    if len(_unkept) < _MOST_UNKEPT:
        _unkept[path] = content


@cache
def _warn(problem: str) -> None:
    """Log once per process why entries are not stored."""
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
        # A quarter free, so that the next entries need no look at all.
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
