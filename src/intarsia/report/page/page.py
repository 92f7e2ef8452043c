# SPDX-License-Identifier: Apache-2.0
"""Writes the page: its tables, the values that they are of as JSON, and the program that draws.

The page asks for nothing from anywhere: its policy (`Content-Security-Policy`) forbids it, and lets
one script run, by the hash of its text. Names of nodes are data in it, whatever is in them.
"""

from __future__ import annotations

import gzip
import hashlib
from base64 import b64encode
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.errors import SettingError
from intarsia.files import whole_file, writing_hint
from intarsia.report.page.json_text import json_text
from intarsia.report.page.sections import (
    difference_sections,
    explanation_sections,
    profile_sections,
)

if TYPE_CHECKING:
    from intarsia.bench.profile import KernelProfile
    from intarsia.plan.compare import PlanDifference
    from intarsia.plan.explanation import Explanation

BUNDLE = "report.js.gz"
"""The program that draws, as `make report-bundle` builds it; not in the repository."""

_PLAIN = (
    "This page has no picture of the graph: the program that draws it was not built "
    "(make report-bundle, in a checkout with npm)."
)


@dataclass(frozen=True, slots=True)
class PageContent:
    """What a page shows.

    Attributes:
        title: What it is of: a command and a file.
        explanation: What runs where and why; None where only lock files are compared.
        profile: The times of the calls of a run.
        before: Where two plans are compared, the first of them.
        difference: Likewise, what is different.
    """

    title: str
    explanation: Explanation | None
    profile: KernelProfile | None = None
    before: Explanation | None = None
    difference: PlanDifference | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The values that it shows, which commands print with `--json`."""
        return {
            "title": self.title,
            "explanation": self.explanation,
            "profile": self.profile,
            "before": self.before,
            "difference": self.difference,
        }


def write_page(content: PageContent, file: Path) -> bool:
    """Write a page; it appears whole or not at all.

    Args:
        content: What it shows.
        file: To be written.

    Returns:
        Whether it has the picture: the program that draws is here.

    Raises:
        SettingError: The file cannot be written.
    """
    program = load_bundle()
    try:
        with whole_file(file) as made:
            text = page_text(content, program)
            # The name of a file may be no text.
            made.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise SettingError(
            f"cannot write {str(file)!r}: {error.strerror or error}",
            hint=writing_hint(error),
        ) from error
    return program is not None


def load_bundle() -> str | None:
    """Return the program that draws; None if it was not built."""
    bundle = files("intarsia.report.page").joinpath(BUNDLE)
    return gzip.decompress(bundle.read_bytes()).decode() if bundle.is_file() else None


def page_text(content: PageContent, program: str | None) -> str:
    """Return the page.

    Args:
        content: What it shows.
        program: What draws; None for a page of tables alone.
    """
    style = files("intarsia.report.page").joinpath("page.css").read_text(encoding="utf-8")
    title = escape(content.title)
    notice = "" if program is not None else f"<p>{escape(_PLAIN)}</p>"
    if content.explanation is None:
        program = None  # there is no graph to draw
    parts = (
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(program)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{title}</title>",
        f"<style>\n{style}</style>",
        "</head>",
        "<body>",
        f"<header><h1>{title}</h1></header>",
        "<main>",
        notice if program is None else '<div id="app"></div>',
        *_sections(content),
        "</main>",
    )
    scripts: tuple[str, ...] = ()
    if program is not None:
        scripts = (
            f'<script type="application/json" id="data">{embed_json(content.data)}</script>',
            f"<script>{program}</script>",
        )
    return "\n".join((*filter(None, parts), *scripts, "</body>", "</html>", ""))


def _sections(content: PageContent) -> list[str]:
    sections: list[str] = []
    if content.difference is not None:
        sections += difference_sections(content.difference)
    if content.profile is not None:
        sections += profile_sections(content.profile)
    if content.explanation is not None:
        label = "second" if content.difference is not None else ""
        sections += explanation_sections(content.explanation, label)
    if content.before is not None:
        sections += explanation_sections(content.before, "first")
    return sections


def embed_json(value: Any) -> str:
    """Return a value as JSON in which nothing ends a script, whatever names hold.

    `<`, `>` and `&` are written as escapes; they occur inside of strings only.
    """
    text = json_text(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _policy(program: str | None) -> str:
    """Return what the page may load: its own style, and the one script."""
    script = "'none'"
    if program is not None:
        digest = b64encode(hashlib.sha256(program.encode()).digest()).decode()
        script = f"'sha256-{digest}'"
    return (
        f"default-src 'none'; script-src {script}; style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'"
    )
