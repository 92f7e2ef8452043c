# SPDX-License-Identifier: Apache-2.0
"""Writes the HTML reports of commands, and says where they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.cli.files import writable
from intarsia.cli.output import note, size_text

if TYPE_CHECKING:
    from intarsia.plan.explanation import Explanation


def report_file(file: Path, source: Path | None = None) -> Path:
    """Check that a report can be written, before any work is done, and return its file.

    Args:
        file: Its name.
        source: What it is of, which it must not take the place of.

    Raises:
        SettingError: It cannot.
    """
    return writable(file, source=source)


def write_report(file: Path, title: str, explanation: Explanation | None, **more: Any) -> None:
    """Write a report, and say where it is; if it has no picture, why.

    Args:
        file: What `report_file` returned.
        title: The command and what it was given.
        explanation: What runs where.
        more: Other fields of `PageContent`.

    Raises:
        SettingError: The file cannot be written.
    """
    from intarsia.report.page import PageContent, write_page

    has_picture = write_page(PageContent(title, explanation, **more), file)
    note(f"wrote {file} ({size_text(file.stat().st_size)})")
    if not has_picture:
        note("it has tables and no picture: `make report-bundle` in a checkout builds what draws")
