# SPDX-License-Identifier: Apache-2.0
"""Values as written in the text form, until a schema says how to read them."""

from __future__ import annotations

from typing import NamedTuple

from intarsia.errors import Place, TargetError


class Raw(NamedTuple):
    """A value as written in the text form.

    Attributes:
        text: The word; None stands for an option without a value.
        source: The text that it is part of; empty if that is not known.
        start: Where the option starts in that.
        end: Where it ends; the value is the last part of it.
    """

    text: str | None
    source: str = ""
    start: int = 0
    end: int = 0

    @property
    def value_start(self) -> int:
        """Where the value starts, or the option if it has none."""
        return self.start if self.text is None else self.end - len(self.text)

    def place(self) -> Place | None:
        """Return where the option's name is, if that is known."""
        if not self.source:
            return None
        option = self.source[self.start : self.end]
        name = option if self.text is None else option[: -len(self.text)].rstrip().removesuffix("=")
        return Place(self.source, self.start, len(name or option))

    def whole(self) -> Place | None:
        """Return where the whole option is, if that is known."""
        return Place(self.source, self.start, self.end - self.start) if self.source else None

    def locate(self, error: TargetError) -> None:
        """Say in an error about the value where in the whole text it is."""
        if self.source:
            start = self.value_start
            value = self.source[start : self.end]
            inner = error.place.inside(value) if error.place else Place(value, 0, len(value))
            error.place = Place(self.source, start + inner.start, inner.length)
