# SPDX-License-Identifier: Apache-2.0
"""Values by the text that they were read from, where reading it again gives the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from intarsia.target.warn import warnings_given

if TYPE_CHECKING:
    from intarsia.target.target import Target

T = TypeVar("T")
# Reading a text of two attributes takes 140 µs, finding it here 1 µs. A program that makes up texts
# without end must not fill memory: the cache is emptied then.
_MOST = 4096


class TextCache(Generic[T]):
    """A bounded cache.

    What a tag has a part in is left out, because tags may change; so is what warns.
    """

    def __init__(self) -> None:
        self._values: dict[str, T] = {}
        self.get = self._values.get

    def keep(self, text: str, read: Callable[[], T], target_of: Callable[[T], Target | None]) -> T:
        """Read the value of a text, and keep it if that is safe."""
        before = warnings_given()
        value = read()
        target = target_of(value)
        if before == warnings_given() and target is not None and not target.has_tags:
            if len(self._values) >= _MOST:
                self._values.clear()
            self._values[text] = value
        return value
