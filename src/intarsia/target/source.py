# SPDX-License-Identifier: Apache-2.0
"""Files that users write about targets: reading one, and the line at which something stands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from intarsia.errors import TargetError
from intarsia.target.schema import check_depth, parse_json

if TYPE_CHECKING:
    from pathlib import Path

SUFFIXES = (".json", ".toml")


@dataclass(frozen=True, slots=True)
class TargetFile:
    """A `.toml` or `.json` file that has been read.

    Attributes:
        file: Its path.
        text: Its text.
        content: What the text says.
    """

    file: Path
    text: str
    content: Any

    def place(self, *names: str) -> str:
        """Return `FILE:LINE` of what the names lead to; only `FILE` where no line is known."""
        line = _find_line(self.text, names) if self.file.suffix == ".toml" else None
        return str(self.file) if line is None else f"{self.file}:{line}"


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """A tag or label as written, and where.

    Attributes:
        config: A form of one target.
        source: The file; None for a dictionary of the program's.
        names: What leads to it in the file.
    """

    config: Any
    source: TargetFile | None = None
    names: tuple[str, ...] = ()

    def place(self, *names: str) -> str:
        """Return `FILE:LINE` of it, or of a part of it; empty if it is in no file."""
        return "" if self.source is None else self.source.place(*self.names, *names)


def read_source(path: str | os.PathLike[str]) -> TargetFile:
    """Read a `.toml` or `.json` file.

    Raises:
        TargetError: The file is missing, malformed, or of another suffix.
    """
    import tomllib  # only a file pays for these
    from pathlib import Path

    file = Path(path)
    if file.suffix not in SUFFIXES:
        raise TargetError(f"'{file}' is not a .json or .toml file")
    try:
        text = file.read_text(encoding="utf-8")
        content = parse_json(text) if file.suffix == ".json" else tomllib.loads(text)
        check_depth(content)
        return TargetFile(file, text, content)
    except TargetError as error:
        raise TargetError(f"'{file}': {error.message}", hint=error.hint) from None
    except (OSError, ValueError, RecursionError) as error:  # also of names that no file can have
        raise TargetError(f"cannot read targets from '{file}': {error}") from None


def _find_line(text: str, names: tuple[str, ...]) -> int | None:
    """Return the line at which a table or value of a TOML text begins, counted from 1.

    The parser keeps no positions, but it can tell of the first lines whether they hold a thing, or
    break off inside a value. The statement wanted lies between the longest complete beginning
    without the thing and the shortest with it.
    """
    lines = text.split("\n")  # other characters that end lines may stand in strings

    def holds(count: int) -> bool | None:
        return _holds("\n".join(lines[:count]), names)

    without, having = 0, len(lines)
    if not holds(having):
        return None
    while True:
        middle = (without + having) // 2
        inside = (*range(middle, without, -1), *range(middle + 1, having))
        probe = next(
            ((count, held) for count in inside if (held := holds(count)) is not None), None
        )
        if probe is None:
            return without + 1
        if probe[1]:
            having = probe[0]
        else:
            without = probe[0]


def _holds(text: str, names: tuple[str, ...]) -> bool | None:
    """Tell whether a TOML text holds something; None if the text breaks off inside a value."""
    import tomllib

    try:
        content: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    for name in names:
        if not isinstance(content, Mapping) or name not in content:
            return False
        content = content[name]
    return True
