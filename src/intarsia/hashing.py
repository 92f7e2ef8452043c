# SPDX-License-Identifier: Apache-2.0
"""The hash under which texts are filed: costs, verdicts, programs, identities."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_DIGEST_BYTES = 16


def digest(parts: Iterable[str]) -> str:
    """Return a hash of texts as 32 hexadecimal digits; no two lists of texts look alike."""
    hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        data = part.encode(errors="surrogatepass")  # names of files may be no text
        hasher.update(b"%d:" % len(data) + data)
    return hasher.hexdigest()
