# SPDX-License-Identifier: Apache-2.0
"""Which entry points lead to code that is not ours; light, since every start asks it."""

from __future__ import annotations

from typing import Protocol


class InstalledEntry(Protocol):
    """An entry point: one of `importlib.metadata`, or what is remembered of one."""

    @property
    def name(self) -> str:
        """Of the plug-in."""

    @property
    def value(self) -> str:
        """The module and, behind a colon, what to take of it."""

    @property
    def group(self) -> str:
        """What it is an entry point for."""


def is_foreign(entry: InstalledEntry) -> bool:
    """Tell whether an entry point leads to foreign code."""
    return package_of(entry) != __name__.partition(".")[0]


def package_of(entry: InstalledEntry) -> str:
    """Return the name of the package that an entry point leads to."""
    return entry.value.partition(":")[0].partition(".")[0]
