# SPDX-License-Identifier: Apache-2.0
"""Digests of our own sources: measurements of generated code are void once they change.

All text counts, comments too: leaving these out would take a parser for each run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

_DIGEST_DIGITS = 8


@cache
def source_digest(modules: tuple[str, ...]) -> str:
    """Return a digest of Python sources as 8 hexadecimal digits.

    Args:
        modules: Names of modules, and of packages with all that is in them.
    """
    hasher = hashlib.blake2b(digest_size=_DIGEST_DIGITS // 2)
    for module in modules:
        for name, source in _sources(module):
            hasher.update(f"{name} {len(source)} ".encode() + source)
    return hasher.hexdigest()


def _sources(module: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the text of a module's file, or of each file of a package, in order."""
    parent, _, name = module.rpartition(".")
    folder = Path(import_module(parent).__path__[0])
    path = folder / name
    yield from _walk(module, path if path.is_dir() else folder / f"{name}.py")


def _walk(name: str, place: Path) -> Iterator[tuple[str, bytes]]:
    if place.is_dir():
        for entry in sorted(place.iterdir()):
            yield from _walk(f"{name}/{entry.name}", entry)
    elif place.name.endswith(".py"):
        yield name, place.read_bytes()
