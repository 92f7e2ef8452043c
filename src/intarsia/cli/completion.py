# SPDX-License-Identifier: Apache-2.0
"""What shells offer at a tab where a target is asked for."""

from __future__ import annotations

from collections.abc import Iterator


def complete_target(incomplete: str) -> list[tuple[str, str]]:
    """Return how a target's text may go on, with help."""
    from intarsia.report.completion import complete_text

    return _collect(complete_text(incomplete))


def complete_target_attr(incomplete: str) -> list[tuple[str, str]]:
    """Return how `KIND:ATTR=VALUE` may go on, with help."""
    from intarsia.report.completion import complete_attribute

    return _collect(complete_attribute(incomplete))


def _collect(ways: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    from intarsia.errors import IntarsiaError

    collected = []
    try:
        for way in ways:
            collected.append(way)  # noqa: PERF402 - what was found before an error counts
    except IntarsiaError:  # a damaged file of the user's: the command itself will say so
        pass
    return collected
