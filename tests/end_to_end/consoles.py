# SPDX-License-Identifier: Apache-2.0
"""The console blocks of the documentation: commands after `$`, then what they print.

A comment in the line above a block says if it cannot be run as it is: `<!-- needs KIND -->` (of a
target that has no backend here), `<!-- takes hours -->`, or `<!-- until stopped -->`.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS_PYTHON = (
    *("docs/quick_start.md", "docs/transformer.md", "docs/from_openvino.md", "docs/from_tvm.md"),
)
"""Pages whose blocks of Python are programs that run between the commands, in one namespace."""
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))

_BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True)
class Block:
    """A block between fences.

    Attributes:
        line: Where its first line is in the page, counted from 1.
        mark: The comment above it; empty without any.
        language: As it was given.
        text: What is in it.
    """

    line: int
    mark: str
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command of a console block.

    Attributes:
        line: Where it stands in the page.
        mark: That of its block.
        text: The command, with its comment.
        shown: The lines that it prints, by the page; none says nothing about them.
    """

    line: int
    mark: str
    text: str
    shown: tuple[str, ...]

    @property
    def codes(self):
        """The exit codes that it may have: what it prints or its comment says more than 0."""
        if any(line.startswith("error: ") for line in self.shown):
            return {2, 3}
        return {0, 1} if "exit 1" in self.text else {0}


def blocks_of(page):
    """Return the blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(text[: found.start(3)].count("\n") + 1, found[1] or "", found[2], found[3])
        for found in _BLOCK.finditer(text)
    ]


def commands_of(page):
    """Return the commands of a page, in order."""
    found = []
    program = ""
    for block in blocks_of(page):
        if block.language == "python" and page in RUNS_PYTHON:
            program += block.text
            found.append(Command(block.line, "", f"python -c {shlex.quote(program)}", ()))
        if block.language != "console":
            continue
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            line = block.line + block.text[: block.text.index(f"$ {part}")].count("\n")
            text, *shown = part.splitlines()
            found.append(Command(line, block.mark, text, tuple(shown)))
    return found


def is_shown(shown, printed):
    """Tell whether lines were printed as they are shown: figures may differ, `...` ends a line."""
    return len(shown) == len(printed) and all(map(_is_like, shown, printed))


def _is_like(shown, printed):
    start = shown.removesuffix("...")
    parts = map(re.escape, _FIGURE.split(start))
    end = "" if start == shown else ".*"
    return re.fullmatch(_FIGURE.pattern.join(parts) + end, printed) is not None
