# SPDX-License-Identifier: Apache-2.0
"""Bodies of HTTP that are compressed by gzip or deflate, unpacked as they come."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from intarsia.errors import ServingError

CODINGS = ("gzip", "deflate")

_EITHER = 32 + zlib.MAX_WBITS
"""Of zlib: read the header of gzip, or that of zlib, which is what HTTP calls deflate."""
_STEP = 1 << 20
"""Most bytes that are unpacked at once: a few packed ones may stand for a thousand times more."""


class Unpacker:
    """Unpacks one body.

    Args:
        coding: One of `CODINGS`.
    """

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._stream = zlib.decompressobj(_EITHER)

    def parts(self, packed: bytes) -> Iterator[bytes]:
        """Yield what the next bytes stand for, in parts of limited size.

        Raises:
            ServingError: They are damaged, or more follows behind the end.
        """
        while packed:
            try:
                part = self._stream.decompress(packed, _STEP)
            except zlib.error as error:
                raise ServingError(f"the body is not {self._coding}: {error}") from None
            if part:
                yield part
            if self._stream.unused_data:
                raise ServingError(f"bytes follow the end of the {self._coding} body")
            packed = self._stream.unconsumed_tail

    def end(self) -> Iterator[bytes]:
        """Yield what zlib still has when all has come.

        Raises:
            ServingError: The body has no end.
        """
        yield from iter(lambda: self._stream.decompress(b"", _STEP), b"")
        if not self._stream.eof:
            raise ServingError(f"the {self._coding} body ends too early")
