# SPDX-License-Identifier: Apache-2.0
"""Where text goes: data to standard output, everything else to standard error."""

from __future__ import annotations

import os
import sys
from errno import EDQUOT, EIO, ENOSPC
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import typer

from intarsia.errors import SettingError
from intarsia.files import writing_hint
from intarsia.settings import is_plain

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPE_WIDTH = 10_000
"""Columns when standard output is not a terminal: wide enough that nothing is folded or cut."""

BROKEN_PIPE = 141
"""Exit code when the reader of standard output went away: 128 + SIGPIPE."""


def show(*renderables: RenderableType) -> None:
    """Print to standard output; as wide as need be where that is not a terminal."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    console = Console(
        width=None if is_terminal else PIPE_WIDTH,
        highlight=False,
        markup=False,
        color_system=None if is_plain() else "auto",
    )
    with console.capture() as capture:
        for renderable in renderables:
            console.print(renderable)
    text = capture.get()
    if not is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    write(text)


def show_json(value: Any) -> None:
    """Print a value made of dataclasses, dictionaries, sequences and scalars as JSON."""
    write(f"{_json_text(value, 2)}\n")


def write_json_line(value: Any) -> None:
    """Print a value as one line of JSON: of a command that tells one thing after another."""
    write(f"{_json_text(value)}\n")


def _json_text(value: Any, indent: int | None = None) -> str:
    from intarsia.report.page.json_text import json_text  # most commands print none

    return json_text(value, indent)


def write(text: str) -> None:
    """Write to standard output; a reader that went away ends the program quietly.

    What its encoding lacks, as for the name of a file that is not text, is written as escapes.

    Raises:
        SettingError: It takes nothing more, as a full disk does.
    """
    try:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        raise typer.Exit(BROKEN_PIPE) from None
    except OSError as error:
        raise _lost_output(error) from error


def error_of_output(error: Exception) -> Exception:
    """Return `write`'s error where typer or rich could not print; else the error itself."""
    if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT, EIO):
        *_, (frame, _) = walk_tb(error.__traceback__)
        if frame.f_globals["__name__"].partition(".")[0] in ("click", "rich", "typer"):
            return _lost_output(error)
    return error


def _lost_output(error: OSError) -> SettingError:
    """Return the error for people, and lead standard output to nowhere."""
    _drop_output()
    return SettingError(
        f"cannot write to standard output: {error.strerror or error}",
        hint=writing_hint(error, "write to a file, or to another one"),
    )


def _drop_output() -> None:
    """Lead standard output to nowhere: what is still in its buffer would fail again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def size_text(nbytes: float) -> str:
    """Return a size for people: `97.8 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:  # noqa: PLR2004 - the step between units
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def milliseconds(seconds: float) -> str:
    """Return a time for people: `38.12 ms`, `0.00213 ms`."""
    return f"{in_milliseconds(seconds)} ms"


def in_milliseconds(seconds: float) -> str:
    """Return the figure alone: `38.12`; below a millisecond three digits that count."""
    return f"{1e3 * seconds:.2f}" if seconds >= 1e-3 else f"{1e3 * seconds:.3g}"  # noqa: PLR2004
