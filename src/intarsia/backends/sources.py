# SPDX-License-Identifier: Apache-2.0
"""Which code runs: the version of a backend's library, and ours where our sources decide it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from intarsia.backends.api import Generating

if TYPE_CHECKING:
    from intarsia.backends.api import Backend

_DIGEST_DIGITS = 8


def code_version(backend: Backend) -> str:
    """Return a backend's name and all that decides which code it runs.

    What a library does follows from its version: `openvino 2026.4.1`. What we generate changes with
    our sources too: `llvm 22.1.0, intarsia 0.1.0 (sources 5f0c2a11)`.

    Raises:
        BackendError: The runtime is not installed.
    """
    text = f"{backend.name} {backend.version()}"
    if not isinstance(backend, Generating):
        return text
    digest = source_digest(tuple(backend.generators))
    return f"{text}, intarsia {version('intarsia')} (sources {digest})"


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
    folder = files(parent)
    found = folder / name
    yield from _walk(module, found if found.is_dir() else folder / f"{name}.py")


def _walk(name: str, found: Traversable) -> Iterator[tuple[str, bytes]]:
    if found.is_dir():
        for entry in sorted(found.iterdir(), key=lambda entry: entry.name):
            yield from _walk(f"{name}/{entry.name}", entry)
    elif found.name.endswith(".py"):
        yield name, found.read_bytes()
