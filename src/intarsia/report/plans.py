# SPDX-License-Identifier: Apache-2.0
"""What is different between two plans, as tables of rich."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.plan.compare import PlanDifference
from intarsia.report.tables import MOST_ROWS, make_table


def plan_difference_view(found: PlanDifference, *, complete: bool) -> RenderableType:
    """Return a line on everything, then a row per move and per cut.

    Args:
        found: What is different.
        complete: Whether to list all rows instead of the first few.
    """
    before, now = found.regions
    moved = sum(len(move.nodes) for move in found.moves)
    parts: list[RenderableType] = []
    if found.is_empty:
        parts.append(Text(f"the same plan: {_count(before, 'region')}"))
    else:
        cuts = _count(len(found.cuts), "cut")
        differs = f"{_count(moved, 'node')} elsewhere, {cuts} only in one"
        order = "; another order" if found.is_reordered else ""
        parts.append(Text(f"{_count(before, 'region')} -> {now}: {differs}{order}"))
    parts += [Text(f"changed: {change}") for change in found.changes]
    if found.moves:
        shown = found.moves if complete else found.moves[:MOST_ROWS]
        rows = (
            (_names(move.nodes, complete=complete), len(move.nodes), move.before, move.now)
            for move in shown
        )
        title = _title("nodes elsewhere", len(shown), len(found.moves))
        parts.append(make_table(title, ("nodes", "count>", "first", "second"), rows))
    if found.cuts:
        some = found.cuts if complete else found.cuts[:MOST_ROWS]
        cells = ((cut.before, cut.after, "second" if cut.is_new else "first") for cut in some)
        title = _title("cuts", len(some), len(found.cuts))
        parts.append(make_table(title, ("after", "before", "only in the"), cells))
    if found.layouts:
        values = found.layouts if complete else found.layouts[:MOST_ROWS]
        lines = ((one.value, one.before or "-", one.now or "-") for one in values)
        title = _title("tensors between regions", len(values), len(found.layouts))
        parts.append(make_table(title, ("tensor", "first", "second"), lines))
    return Group(*parts)


def _names(names: tuple[str, ...], *, complete: bool) -> str:
    if complete or len(names) <= len(("first", "last")):
        return ", ".join(names)
    return f"{names[0]} ... {names[-1]}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _title(what: str, shown: int, total: int) -> str:
    return what if shown == total else f"{what} (first {shown} of {total}; --all lists them)"
