# SPDX-License-Identifier: Apache-2.0
"""What shells offer at a tab where a target is asked for."""

from __future__ import annotations


def complete_target(incomplete: str) -> list[tuple[str, str]]:
    """Return how a target's text may go on, with help; nothing if targets cannot be read."""
    from intarsia.errors import IntarsiaError
    from intarsia.report.completion import complete_text

    try:
        return list(complete_text(incomplete))
    except IntarsiaError:  # a damaged file of the user's: the command itself will say so
        return []
