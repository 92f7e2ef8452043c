# SPDX-License-Identifier: Apache-2.0
"""What differs between two targets or machines, attribute by attribute, and between two plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.plan.compare import PlanDifference
from intarsia.report.tables import MOST_ROWS, make_table
from intarsia.target import CompilationConfig, PlacedTarget


@dataclass(frozen=True, slots=True)
class Difference:
    """An attribute that is not the same on both sides.

    Attributes:
        name: Its path: `mcpu`, `host.num-cores`, `targets[1].kind`, `features.has_mve`.
        left: Its value on the first side; None if it has none there.
        right: Its value on the second side, likewise.
    """

    name: str
    left: Any
    right: Any


def find_differences(
    left: PlacedTarget | CompilationConfig, right: PlacedTarget | CompilationConfig
) -> tuple[Difference, ...]:
    """Return what differs; names of tags and labels, which do not count for equality, are left out.

    A placed target is compared with a machine as the machine that it makes alone.
    """
    if isinstance(left, CompilationConfig) or isinstance(right, CompilationConfig):
        left, right = CompilationConfig.resolve(left), CompilationConfig.resolve(right)
    first, second = dict(_leaves(left)), dict(_leaves(right))
    names = (*first, *(name for name in second if name not in first))
    return tuple(
        Difference(name, first.get(name), second.get(name))
        for name in names
        if first.get(name) != second.get(name)
    )


def _leaves(side: PlacedTarget | CompilationConfig) -> Iterator[tuple[str, Any]]:
    if isinstance(side, CompilationConfig):
        items = side.to_json()
        yield from _flatten("", {"host": items["host"], "targets": items["targets"]})
        return
    yield from _flatten("", {"device_id": 0, **side.to_json()})
    yield from _flatten("features", side.target.features)


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in nested mappings, and in lists of mappings; other lists are values."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name != "tag" or "kind" not in value:
                yield from _flatten(f"{path}.{name}" if path else name, item)
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _flatten(f"{path}[{index}]", item)
    else:
        yield path, value


def plan_difference_view(difference: PlanDifference, *, complete: bool) -> RenderableType:
    """Return a line on everything, then a row per move and per cut.

    Args:
        difference: What is different.
        complete: Whether to list all rows instead of the first few.
    """
    before, now = difference.regions
    moved = sum(len(move.nodes) for move in difference.moves)
    parts: list[RenderableType] = []
    if difference.is_empty:
        parts.append(Text(f"the same plan: {_count(before, 'region')}"))
    else:
        cuts = _count(len(difference.cuts), "cut")
        differs = f"{_count(moved, 'node')} elsewhere, {cuts} only in one"
        order = "; another order" if difference.is_reordered else ""
        parts.append(Text(f"{_count(before, 'region')} -> {now}: {differs}{order}"))
    parts += [Text(f"changed: {change}") for change in difference.changes]
    if difference.moves:
        shown = difference.moves if complete else difference.moves[:MOST_ROWS]
        rows = (
            (_names(move.nodes, complete=complete), len(move.nodes), move.before, move.now)
            for move in shown
        )
        title = _title("nodes elsewhere", len(shown), len(difference.moves))
        parts.append(make_table(title, ("nodes", "count>", "first", "second"), rows))
    if difference.cuts:
        some = difference.cuts if complete else difference.cuts[:MOST_ROWS]
        cells = ((cut.before, cut.after, "second" if cut.is_new else "first") for cut in some)
        title = _title("cuts", len(some), len(difference.cuts))
        parts.append(make_table(title, ("after", "before", "only in the"), cells))
    for side, only in zip(("first", "second"), difference.by_sizes, strict=True):
        parts += [Text(f"only in the {side}: {line}") for line in only]
    if difference.layouts:
        values = difference.layouts if complete else difference.layouts[:MOST_ROWS]
        lines = ((one.value, one.before or "-", one.now or "-") for one in values)
        title = _title("tensors between regions", len(values), len(difference.layouts))
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
