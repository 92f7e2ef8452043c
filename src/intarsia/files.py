# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all: others read the old one or the new one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from pathlib import Path
from threading import get_ident


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model's file, and where its external data may lie beside the file's own folder.

    Attributes:
        path: The file.
        data_root: A folder, in or below which data may lie; the user vouches for it.
    """

    path: Path
    data_root: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


def is_special(path: Path) -> bool:
    """Tell whether something has a name that is neither a file nor a folder: a device, a pipe."""
    return path.exists() and not path.is_file() and not path.is_dir()


def writing_hint(error: OSError, otherwise: str = "choose a writable folder") -> str:
    """Return what helps against an error of writing: another folder, or space where that lacks."""
    is_full = error.errno in (ENOSPC, EDQUOT)
    return "make space on that disk, or choose a folder on another" if is_full else otherwise


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield the name of a draft beside a file, whose place it takes if the block ends well.

    A link stays: what it leads to is replaced, and keeps its mode.

    Raises:
        OSError: It cannot be written, or is not a regular file, which nothing may replace.
    """
    if is_special(Path(path)):
        raise OSError(f"{str(path)!r} is not a regular file")
    file = Path(os.path.realpath(path))
    draft = file.with_name(f"{file.name}.{os.getpid()}.{get_ident()}.partial")
    try:
        yield draft
        with suppress(FileNotFoundError):  # it is new
            shutil.copymode(file, draft)
        draft.replace(file)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
