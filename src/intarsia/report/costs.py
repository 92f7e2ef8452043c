# SPDX-License-Identifier: Apache-2.0
"""What the cost database holds, as tables of rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.cost.compare import CHANGED, Change, CostDifference
from intarsia.cost.key import BoundaryKey, Key
from intarsia.cost.selection import CostEntry
from intarsia.report.tables import facts_table, make_table

SHORT = 12
"""Digits of a digest that tables show: enough to name one key among millions."""


def entries_table(entries: Iterable[CostEntry]) -> RenderableType:
    """Return a row per key."""
    columns = (
        *("key", "region", "target", "backend", "threads", "machine", "samples>"),
        *("ms>", "from>", "to>", "kB>", "source", "last"),
    )
    return make_table("", columns, map(_row, entries))


def _row(entry: CostEntry) -> Sequence[Any]:
    key = entry.key
    figures = ("-", "-", "-") if entry.seconds is None else map(_ms, entry.seconds)
    return (
        *(key.digest[:SHORT], _region(key), _target(key), key.backend, key.threads),
        *(key.machine[:SHORT], len(entry.samples), *figures, _kilobytes(entry.nbytes)),
        _source(entry),
        _day(entry.last_at),
    )


def _region(key: Key) -> str:
    if isinstance(key, BoundaryKey):
        return f"{key.region[:SHORT]} | {key.next_region[:SHORT]}"
    is_hash = key.region.isalnum()
    return key.region[:SHORT] if is_hash else key.region


def _target(key: Key) -> str:
    if isinstance(key, BoundaryKey) and key.next_target != key.target:
        return f"{key.target} | {key.next_target}"
    return key.target


def _source(entry: CostEntry) -> str:
    if entry.poison is not None:
        return entry.poison.code
    if isinstance(entry.key, BoundaryKey):
        return "junction"
    return "-" if entry.cost is None else str(entry.cost.source)


def entry_view(entry: CostEntry, machine: str, *, complete: bool, most: int) -> RenderableType:
    """Return all that is known under one key.

    Args:
        entry: What is known.
        machine: Text of its fingerprint; empty if it was not noted.
        complete: Whether to list every sample instead of the last few.
        most: How many of them otherwise.
    """
    key, figures = entry.key, entry.seconds
    facts: list[tuple[str, Any]] = [("key", key.digest), ("region", key.region)]
    facts.append(("target", key.target))
    if isinstance(key, BoundaryKey):
        facts += [("next region", key.next_region), ("next target", key.next_target)]
    facts += [
        ("backend", key.backend),
        ("threads", key.threads),
        ("machine", f"{key.machine} ({machine or 'unknown'})"),
        ("samples", len(entry.samples)),
    ]
    if figures is not None:
        facts.append(("cost", "{} ms, from {} to {}".format(*map(_ms, figures))))
    if entry.nbytes is not None:
        count = len(entry.weights)
        times = "once" if count == 1 else f"{count} times"
        facts.append(("grows a process by", f"{entry.nbytes:,} B, weighed {times}"))
    if entry.cost is not None:
        facts.append(("source", entry.cost.source))
    if entry.poison is not None:
        facts.append(("failed", f"{entry.poison.code}: {entry.poison.reason}"))
        facts.append(("failed at", _time(entry.poison.taken_at)))
    parts: list[RenderableType] = [facts_table(facts)]
    shown = entry.samples if complete else entry.samples[-most:]
    if shown:
        left = len(entry.samples) - len(shown)
        title = f"samples (last {len(shown)}; --all lists {left} more)" if left else "samples"
        rows = (
            (_time(s.taken_at), _ms(s.seconds), _ms(s.anchor_seconds), s.anchor[:SHORT], s.session)
            for s in shown
        )
        columns = ("taken", "ms>", "anchor ms>", "anchor", "session")
        parts.append(make_table(title, columns, rows))
    return Group(*parts)


def differences_view(differences: Sequence[CostDifference], *, complete: bool) -> RenderableType:
    """Return how many keys differ in what, and a row for each whose cost does.

    Args:
        differences: Every key of both databases.
        complete: Whether to list those that are alike or only in one, too.
    """
    counts = dict.fromkeys(get_args(Change), 0)
    for difference in differences:
        counts[difference.change] += 1
    summary = (
        f"{counts['left']} only in the first, {counts['right']} only in the second, "
        f"{counts['alike']} alike, {counts['faster']} faster and {counts['slower']} slower in "
        "the second"
    )
    if counts["lighter"] or counts["heavier"]:
        summary += f"; {counts['lighter']} lighter and {counts['heavier']} heavier in memory"
    shown = [difference for difference in differences if complete or difference.change in CHANGED]
    rows = (
        (
            *(
                difference.key.digest[:SHORT],
                _region(difference.key),
                _target(difference.key),
                difference.key.backend,
            ),
            *(difference.change, _ms(difference.left_seconds), _ms(difference.right_seconds)),
            "-" if difference.ratio is None else f"{difference.ratio:.3f}",
            *map(_kilobytes, (difference.left_nbytes, difference.right_nbytes)),
        )
        for difference in shown
    )
    columns = (
        *("key", "region", "target", "backend", "change", "first ms>", "second ms>", "ratio>"),
        *("first kB>", "second kB>"),
    )
    return Group(Text(summary), *([make_table("", columns, rows)] if shown else []))


def difference_label(difference: CostDifference) -> str:
    """Return what a difference is about, in few words: region, target and its key's digest."""
    key = difference.key
    return f"{_region(key)} on {_target(key)} ({key.digest[:SHORT]})"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.4g}"


def _kilobytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 1e3:.0f}"


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" if at else "-"


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}" if at else "-"
