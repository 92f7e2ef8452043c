# SPDX-License-Identifier: Apache-2.0
"""Choice of an implementation by a target's keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from intarsia.errors import TargetError
from intarsia.target.target import Target

T = TypeVar("T")


class KeyTable(Generic[T]):
    """Implementations by key: a target gets that of its first key that has one.

    Args:
        default: For targets none of whose keys has an implementation.
    """

    def __init__(self, default: T) -> None:
        self._default = default
        self._by_key: dict[str, T] = {}

    def register(
        self, keys: str | Iterable[str], implementation: T, *, override: bool = False
    ) -> None:
        """Give a key, or several, an implementation.

        Raises:
            TargetError: A key has one already, and `override` is false.
        """
        names = (keys,) if isinstance(keys, str) else tuple(keys)
        for key in names:
            if key in self._by_key and not override:
                raise TargetError(
                    f"key {key!r} has an implementation already", hint="pass override=True"
                )
        self._by_key.update(dict.fromkeys(names, implementation))

    def find(self, target: Target) -> T:
        """Return the implementation for a target."""
        return next(
            (self._by_key[key] for key in target.keys if key in self._by_key), self._default
        )
