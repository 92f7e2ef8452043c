# SPDX-License-Identifier: Apache-2.0
"""On a terminal, NO_COLOR means no colour, and tables and help are as wide as COLUMNS says."""

import os
import pty
import re
import subprocess
import sys

import pytest

WIDTH = 72
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10\d)(?:;\d+)*m")
ESCAPE = re.compile(r"\x1b\[[\d;?]*[a-zA-Z]")
WAYS = {
    "help": ["compile", "--help"],
    "kinds": ["target", "list", "--kinds"],
    "a mistake": ["compile", "--bogus"],
}


def typed(arguments, **variables):
    """Return what a command writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "intarsia", *arguments],
        env={**environment, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), **variables},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    process.wait()
    return b"".join(parts).decode()


@pytest.mark.parametrize("way", WAYS)
def test_no_colour_and_the_width_are_obeyed(way):
    written = typed(WAYS[way], NO_COLOR="1")
    assert written.strip()
    assert not ESCAPE.search(written)  # bold is a code too
    lines = [line.rstrip() for line in written.splitlines()]
    assert max(map(len, lines)) <= WIDTH
    assert any(len(line) > WIDTH // 2 for line in lines)


def test_help_breaks_lines_where_the_terminal_ends():
    written = typed(["run", "--help"], NO_COLOR="1", COLUMNS="400")
    text = next(line for line in written.splitlines() if "Without --input" in line)
    assert "is located in the run in which it comes" in text


def test_without_it_help_has_colour():
    assert COLOUR.search(typed(WAYS["help"]))
