# SPDX-License-Identifier: Apache-2.0
"""Placements, explanations and tensors as tables of rich."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from intarsia.plan.device_view import DeviceView
from intarsia.plan.explanation import BodyExplanation, Explanation
from intarsia.plan.placement import Placement
from intarsia.report.nodes import NodeView, group_refusals, view_nodes
from intarsia.report.tensors import TensorSummary

MOST_ROWS = 20
"""Rows of copies and refusals unless all are asked for."""

_GAP = 3
"""Columns of a terminal that a column of a table takes beside its cells."""

_SHORT = 12
"""Words up to this length stay whole in a table."""


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> RenderableType:
    """Return a table; a column whose name ends in `>` is aligned to the right.

    Cells are taken literally, so that brackets in names are not markup. Figures are never broken:
    words beside them are, and where that does not help, each row is a paragraph.
    """
    cells = tuple(tuple(map(_cell, row)) for row in rows)
    return TableRows(title, tuple(columns), cells)


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table that knows how narrow it can be.

    Attributes:
        title: Above it; may be empty.
        columns: Their names, as `make_table` is given them.
        rows: Of cells.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - _GAP * len(self.columns)
        cells = [
            (name.rstrip(">"), *column)
            for name, column in zip(self.columns, self._columns(), strict=True)
        ]
        widest = [max(map(cell_len, column)) for column in cells]
        if sum(widest) <= room:
            yield self._table(widest)
            return
        least = [
            full if name.endswith(">") else max(map(_least, column))
            for name, column, full in zip(self.columns, cells, widest, strict=True)
        ]
        yield self._table(_share(room, least, widest)) if sum(least) <= room else self._text()

    def _columns(self) -> Iterable[tuple[str, ...]]:
        return zip(*self.rows, strict=True) if self.rows else ((),) * len(self.columns)

    def _table(self, widths: Sequence[int]) -> Table:
        table = Table(
            title=Text(self.title) if self.title else None,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for column, width in zip(self.columns, widths, strict=True):
            justify: Any = "right" if column.endswith(">") else "left"
            name = Text(column.rstrip(">"))
            table.add_column(name, justify=justify, overflow="fold", width=width)
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def _text(self) -> RenderableType:
        """Return a paragraph for each row: a line for each of its cells."""
        parts: list[RenderableType] = [Text(self.title, "bold")] if self.title else []
        for row in self.rows:
            lines = Table(box=None, show_header=False, pad_edge=False)
            lines.add_column(no_wrap=True)
            lines.add_column(overflow="fold")
            for name, cell in zip(self.columns, row, strict=True):
                lines.add_row(Text(name.rstrip(">")), Text(cell))
            parts += [lines, Text("")]
        return Group(*parts)


def _least(cell: str) -> int:
    """Return how narrow a cell can be: figures stay whole, long words may be broken."""
    words = cell.split() or ["-"]
    return max(
        cell_len(word) if word[0].isdigit() else min(cell_len(word), _SHORT) for word in words
    )


def _share(room: int, least: Sequence[int], widest: Sequence[int]) -> list[int]:
    """Return column widths that fill a line; spare width goes to the columns that lack least."""
    widths = list(least)
    left = room - sum(least)
    wanting = sorted(range(len(widths)), key=lambda i: widest[i] - least[i])
    for place, i in enumerate(wanting):
        more = min(widest[i] - least[i], left // (len(wanting) - place))
        widths[i] += more
        left -= more
    return widths


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple | list):
        return ", ".join(map(_cell, value))
    return str(value)


def placement_table(placement: Placement, seconds: Sequence[float] | None = None) -> RenderableType:
    """Return a row per region.

    Args:
        placement: What runs where.
        seconds: How long each region took, if that was measured.
    """
    times = [[_ms(time)] for time in seconds] if seconds else [[] for _ in placement.regions]
    return make_table(
        f"placement ({placement.policy})",
        (
            "region>",
            "nodes>",
            "target",
            "device",
            *(["ms>"] if seconds else []),
            "why",
            "operators",
        ),
        (
            (
                *(i, len(region.nodes), region.runs_on, region.device),
                *(*times[i], region.reason, region.operators),
            )
            for i, region in enumerate(placement.regions)
        ),
    )


def explanation_view(explanation: Explanation, *, complete: bool) -> RenderableType:
    """Return the explanation.

    Args:
        explanation: What to show.
        complete: Whether to list every node, copy, refusal and step instead of the first few.
    """
    placement = explanation.placement
    parts: list[RenderableType] = [
        Text(explanation.summary),
        *([Text(explanation.free)] if explanation.free else []),
        *map(Text, explanation.late),
        *([Text(explanation.shortfall)] if explanation.shortfall else []),
        *map(Text, placement.passed_over),
        placement_table(placement, explanation.region_seconds),
        *(part for body in explanation.bodies for part in _body_view(body)),
        *(Text(f"region {i}: {about}") for i, about in enumerate(explanation.regions) if about),
        *([nodes_table(view_nodes(placement))] if complete else []),
        devices_table(explanation.devices),
        copies_table(explanation, complete=complete),
        *refusals_tables(placement, complete=complete),
        *map(Text, explanation.captures),
        *map(Text, explanation.layout_lines),
        Text(f"rewrites: {', '.join(explanation.rewrites) or 'none'}"),
        Text(f"backends: {_pairs(explanation.versions)}"),
    ]
    if complete:
        parts += [Text("passes:"), *(Text(f"  {run}") for run in explanation.passes)]
        parts += [Text("steps:"), *(Text(f"  {step}") for step in explanation.steps)]
    return Group(*parts)


def _body_view(body: BodyExplanation) -> Iterator[RenderableType]:
    """Yield the placement of a body, and of those in it."""
    inner = body.explanation
    yield Text(f"{body.title}: {inner.summary}")
    yield placement_table(inner.placement, inner.region_seconds)
    for deeper in inner.bodies:
        yield from _body_view(deeper)


def _pairs(items: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in items.items()) or "none"


def devices_table(devices: Iterable[DeviceView]) -> RenderableType:
    """Return a row per device: what it runs and holds, and what is copied to and from it."""
    columns = ("device", "targets", "regions>", "nodes>", "ms>", "bytes>", "tensors>", "constants>")
    return make_table(
        "devices",
        (*columns, "scratch>", "copies in>", "bytes in>", "copies out>", "bytes out>"),
        (
            (
                *(view.device, view.targets, len(view.regions), view.nodes, _ms(view.seconds)),
                *(view.peak_bytes, view.tensor_bytes, view.constant_bytes, view.scratch_bytes),
                *(view.incoming.copies, view.incoming.nbytes),
                *(view.outgoing.copies, view.outgoing.nbytes),
            )
            for view in devices
        ),
    )


def _ms(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1e3 * seconds:.3f}"


def copies_table(explanation: Explanation, *, complete: bool) -> RenderableType:
    """Return a row per copy.

    Args:
        explanation: What has them.
        complete: Whether to list all of them.
    """
    copies = explanation.copies
    if not copies:
        return Text("copies: none")
    shown = copies if complete else copies[:MOST_ROWS]
    title = _title("copies", len(shown), len(copies))
    columns = ("tensor", "from", "to", "bytes>", "ms>")
    rows = [
        (row.tensor, row.source, row.destination, row.nbytes, _ms(row.seconds)) for row in shown
    ]
    if not any(row.route for row in copies):
        return make_table(title, columns, rows)
    routed = ((*cells, row.route) for cells, row in zip(rows, shown, strict=True))
    return make_table(title, (*columns, "route"), routed)


def refusals_tables(placement: Placement, *, complete: bool) -> list[RenderableType]:
    """Return a row per refusal, or per operator and reason; nothing if nothing was refused.

    Args:
        placement: What has them.
        complete: Whether to list every node.
    """
    if not placement.refusals:
        return []
    if complete:
        return [
            make_table(
                "refusals, node by node",
                ("node", "operator", "target", "code", "reason"),
                ((r.node, r.op_type, r.target, r.code, r.reason) for r in placement.refusals),
            )
        ]
    groups = group_refusals(placement)
    shown = groups[:MOST_ROWS]
    return [
        make_table(
            _title("refusals", len(shown), len(groups)),
            ("target", "operator", "nodes>", "code", "reason", "first node"),
            ((g.target, g.op_type, g.count, g.code, g.reason, g.first) for g in shown),
        )
    ]


def _title(what: str, shown: int, total: int) -> str:
    return what if shown == total else f"{what} (first {shown} of {total}; --all lists them)"


def nodes_table(nodes: Iterable[NodeView]) -> RenderableType:
    """Return a row per node."""
    return make_table(
        "nodes",
        ("region>", "node", "operator", "target", "why", "stands for"),
        ((n.region, n.name, n.op_type, n.target, n.why, n.origins) for n in nodes),
    )


def nodes_view(nodes: Iterable[NodeView]) -> RenderableType:
    """Return each node with its refusals."""
    parts: list[RenderableType] = []
    for node in nodes:
        rows: list[tuple[str, Any]] = [
            ("node", node.name),
            ("operator", node.op_type),
            ("target", node.target),
            ("device", node.device),
            ("backend", node.backend),
            ("region", node.region),
            ("why", node.why),
            ("stands for", node.origins or node.name),
        ]
        for refusal in node.refusals:
            hint = f" ({refusal.hint})" if refusal.hint else ""
            rows.append((f"not {refusal.target}", f"{refusal.code}: {refusal.reason}{hint}"))
        parts.append(facts_table(rows))
    return Group(*parts)


def facts_table(rows: Iterable[tuple[str, Any]]) -> Table:
    """Return a line per fact: its name and its value."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(_cell(value)))
    return table


def tensors_table(summaries: Iterable[TensorSummary]) -> RenderableType:
    """Return a row per tensor."""
    return make_table(
        "outputs",
        ("name", "dtype", "shape", "min>", "max>", "mean>", "first values"),
        (
            (
                s.name,
                s.dtype,
                "-" if s.shape is None else "x".join(map(str, s.shape)) or "scalar",
                s.min,
                s.max,
                s.mean,
                s.first,
            )
            for s in summaries
        ),
    )
