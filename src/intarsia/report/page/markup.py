# SPDX-License-Identifier: Apache-2.0
"""What the tables of the terminal look like as HTML; every text is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.errors import InternalError
from intarsia.report.tables import TableRows

MOST_OPEN_ROWS = 40
"""Longer tables are folded until somebody opens them, which browsers then need not lay out."""


def section(key: str, title: str, *parts: RenderableType) -> str:
    """Return a section of a page.

    Args:
        key: Its `id`.
        title: Its heading.
        parts: Tables and lines of rich, as `intarsia.report` makes them.
    """
    inner = "\n".join(_markup(part, title) for part in parts)
    return (
        f'<section id="{escape(key)}" aria-labelledby="{escape(key)}-title">\n'
        f'<h2 id="{escape(key)}-title">{escape(title)}</h2>\n{inner}\n</section>'
    )


def _markup(part: RenderableType, where: str) -> str:
    """Return a table, a line, or a group of these, as HTML.

    Args:
        part: What the terminal would show.
        where: Title of the section, so that no two tables of a page have one name.
    """
    if isinstance(part, Group):
        return "\n".join(_markup(inner, where) for inner in part.renderables)
    if isinstance(part, Text):
        return "".join(f"<p>{escape(line)}</p>" for line in part.plain.splitlines() if line)
    if isinstance(part, TableRows):
        return _table(part, where)
    raise InternalError(f"a {type(part).__name__} has no form in HTML")


def _table(table: TableRows, where: str) -> str:
    """Return a table: in a frame that scrolls by itself, and folded if it is long."""
    figures = [name.endswith(">") for name in table.columns]
    head = "".join(
        f'<th scope="col"{_aligned(is_figure)}>{escape(name.rstrip(">"))}</th>'
        for name, is_figure in zip(table.columns, figures, strict=True)
    )
    body = "\n".join(f"<tr>{_cells(row, figures)}</tr>" for row in table.rows)
    title = table.title or "table"
    framed = (
        f'<div class="frame" role="region" tabindex="0" aria-label="{escape(f"{where}: {title}")}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )
    heading = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    if len(table.rows) <= MOST_OPEN_ROWS:
        return f"{heading}\n{framed}"
    return f"<details><summary>{escape(title)}: {len(table.rows)} rows</summary>{framed}</details>"


def _cells(row: Sequence[str], figures: Sequence[bool]) -> str:
    return "".join(
        f"<td{_aligned(is_figure)}>{escape(cell)}</td>"
        for cell, is_figure in zip(row, figures, strict=True)
    )


def _aligned(is_figure: bool) -> str:
    return ' class="figure"' if is_figure else ""
