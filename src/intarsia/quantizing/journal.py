# SPDX-License-Identifier: Apache-2.0
"""What was measured, kept in the cache folder: a run that was killed goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from intarsia.cache import make_cache_folder, write_entry
from intarsia.decoding import decode_msgpack
from intarsia.quantizing.accuracy import OutputError

_FOLDER = "quantizing"


class Journal:
    """The errors of one model, scheme and samples, by what was left in f32."""

    def __init__(self, caches: Path, key: str) -> None:
        self._caches, self._file = caches, caches / _FOLDER / f"{key}.msgpack"
        self._known: dict[str, tuple[OutputError, ...]] = {}
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            self._known = decode_msgpack(
                self._file.read_bytes(), dict[str, tuple[OutputError, ...]]
            )

    def recall(
        self, key: str, measure: Callable[[], tuple[OutputError, ...]]
    ) -> tuple[OutputError, ...]:
        """Return what is known under a key, or measure it and write it down."""
        if key not in self._known:
            self._known[key] = measure()
            make_cache_folder(self._caches)
            with suppress(OSError):  # a cache that cannot be written costs time only
                write_entry(self._file, msgspec.msgpack.encode(self._known))
        return self._known[key]
