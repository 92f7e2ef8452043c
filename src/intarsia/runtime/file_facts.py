# SPDX-License-Identifier: Apache-2.0
"""What was learnt by reading a whole file, remembered under its status: once for each content.

Weights are read to tell models apart and to find damage, which takes longer than to load many a
program. A file that was not written to since has the bytes that it had.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from intarsia.cache import make_cache_folder, write_entry
from intarsia.errors import SettingError
from intarsia.hashing import digest
from intarsia.native.entries import prune
from intarsia.settings import Settings

logger = logging.getLogger(__name__)

FOLDER_NAME = "files"
"""Name of the folder of these notes inside the cache folder."""

_LIMIT_BYTES = 1 << 18
"""Of all notes, which have tens of bytes each."""

_SETTLED_SECONDS = 2.0
"""A file that was written to no later than this before it was read would show another change."""

_known: dict[str, str] = {}
"""Of this process, by the name of the note."""


def fact_of(
    status: os.stat_result, fact: str, derive: Callable[[], str], settings: Settings
) -> str:
    """Return what reading a file gives; it is read again only if it may have changed.

    Args:
        status: Of the file, from before it is read.
        fact: What is asked.
        derive: Reads the file; returns ASCII.
        settings: Say where notes are kept.
    """
    written = (status.st_mtime_ns, status.st_ctime_ns)
    file = (status.st_dev, status.st_ino, status.st_size, *written)
    name = digest((fact, *map(str, file)))
    if name not in _known:
        text = _recall(name, settings)
        if text is None:
            is_settled = time.time() - max(written) / 1e9 > _SETTLED_SECONDS
            text = derive()
            if not is_settled:
                return text
            _remember(name, text, settings)
        _known[name] = text
    return _known[name]


def _recall(name: str, settings: Settings) -> str | None:
    try:
        return (settings.cache_folder() / FOLDER_NAME / name).read_text("ascii")
    except (OSError, UnicodeDecodeError, SettingError):
        return None


def _remember(name: str, text: str, settings: Settings) -> None:
    try:
        note = make_cache_folder(settings.cache_folder()) / FOLDER_NAME / name
        write_entry(note, text.encode())
        prune(note.parent, _LIMIT_BYTES)
    except (OSError, SettingError) as error:
        logger.info("what was read of a file cannot be cached: %s", error)
