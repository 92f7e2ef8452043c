# SPDX-License-Identifier: Apache-2.0
"""PoCL's own cache of kernels: kept in our folder, bounded, and without damaged files.

A process that dies while it builds, or a full disk, leaves files of which the processes after it
die too: PoCL aborts at an empty library, and a library that is cut short ends in SIGBUS.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from intarsia.cache import make_cache_folder
from intarsia.errors import SettingError

KIND = "pocl"
"""Name of the folder inside the cache folder."""

LIMIT_BYTES = 512 << 20
"""Limit of the whole cache."""

VARIABLE = "POCL_CACHE_DIR"
"""The variable that tells PoCL where its cache is."""

_WRITING_SECONDS = 5.0
"""How long after its last change another process may still be writing a file."""

_ELF = struct.Struct("<40xQ10xHH2x")
"""Fields of an ELF header: offset of the section headers, their size, their number."""


def use_own_cache(caches: Path) -> None:
    """Make PoCL use our folder, unless another was chosen, and tidy it: before PoCL is loaded."""
    if os.environ.get(VARIABLE):  # noqa: TID251 - PoCL's own
        return
    try:
        folder = make_cache_folder(caches) / KIND
        folder.mkdir(exist_ok=True)
        tidy(folder)
    except (OSError, SettingError):  # PoCL has a folder of its own
        return
    os.environ[VARIABLE] = str(folder)  # noqa: TID251


def empty(caches: Path) -> bool:
    """Remove what was built here, by PoCL and for other drivers, and tell whether there was any."""
    folders = [caches / kind for kind in (KIND, "opencl")]
    had_any = any(path.is_file() for folder in folders for path in folder.rglob("*"))
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return had_any


def tidy(folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Remove broken files and, beyond a limit, those that were used longest ago.

    Args:
        folder: A cache of PoCL's.
        limit_bytes: Beyond it, programs are removed until a quarter is free.
    """
    programs: list[tuple[float, int, Path]] = []
    now = time.time()
    for program in (*folder.glob("??/*"), *folder.glob("tempfile*")):
        files = [program, *program.rglob("*")] if program.is_dir() else [program]
        entries = [(file, status) for file in files for status in _stat(file)]
        newest = max((status.st_mtime for _, status in entries), default=0.0)
        is_whole = all(_is_whole(file, status.st_size) for file, status in entries)
        if not is_whole and newest < now - _WRITING_SECONDS:
            _remove(program)
            continue
        programs.append((newest, sum(status.st_size for _, status in entries), program))
    total = sum(size for _, size, _ in programs)
    for _, size, program in sorted(programs) if total > limit_bytes else ():
        if total <= limit_bytes * 3 // 4:
            break
        _remove(program)
        total -= size


def _is_whole(file: Path, size: int) -> bool:
    """Tell whether a file is whole: a program not empty, a library (64-bit ELF) not truncated."""
    if file.suffix == ".bc":
        return size > 0
    if file.suffix != ".so":
        return True
    try:
        with file.open("rb") as opened:
            start, nbytes, count = _ELF.unpack(opened.read(_ELF.size))
    except (OSError, struct.error):  # gone, or not even a header
        return False
    return bool(start + nbytes * count <= size)


def _stat(file: Path) -> Iterator[os.stat_result]:
    try:
        yield file.lstat()
    except OSError:  # another process removed it
        return


def _remove(program: Path) -> None:
    if program.is_dir():
        shutil.rmtree(program, ignore_errors=True)
    else:
        program.unlink(missing_ok=True)
