# SPDX-License-Identifier: Apache-2.0
"""How good a quantised model is, as a table of the regions that lost most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.quantizing.quantize import QuantizationReport, RegionReport
from intarsia.report.tables import MOST_ROWS, make_table


def quantizing_view(report: QuantizationReport) -> RenderableType:
    """Return the errors of the outputs and of the worst regions."""
    shown = [one for i, one in enumerate(report.regions) if i < MOST_ROWS or one.is_left]
    columns = ("region", "operators", "error alone>", "dB>", "error here>", "now")
    table = make_table("regions, the worst first", columns, map(_row, shown))
    more = len(report.regions) - len(shown)
    rest = [Text(f"and {more} regions with smaller errors, all quantised")] if more else []
    return Group(Text("\n".join(_facts(report))), table, *rest)


def _facts(report: QuantizationReport) -> Iterator[str]:
    yield f"{report.scheme}, by {report.quantizer}"
    of = f"{'made-up ' if report.is_made_up else ''}sample{'s' if report.trial > 1 else ''}"
    ranges = f", ranges from {report.samples} others" if report.samples else ""
    if report.samples and not report.is_held_out:
        ranges = ", which gave the ranges, too"
    yield f"trial on {report.trial} {of}{ranges}"
    for output in report.outputs:
        yield f"{output.name}: error {_error(output.error)} ({_decibels(output.error)} dB)"
    left = f"; {len(report.left)} left in f32" if report.left else ""
    nodes = "node" if report.quantized == 1 else "nodes"
    yield (
        f"{report.quantized} {nodes} quantised{left}: error {_error(report.error)}, at most "
        f"{report.max_error:g} allowed, {_error(report.error_at_first)} with everything quantised"
    )


def _row(region: RegionReport) -> tuple[str, ...]:
    first, last = region.nodes[0], region.nodes[-1]
    name = first if len(region.nodes) == 1 else f"{first} ... {last}"
    counts = Counter(region.operators)
    operators = ", ".join(f"{count} {op}" if count > 1 else op for op, count in counts.items())
    here = "" if region.error_here is None else _error(region.error_here)
    now = "f32" if region.is_left else "quantised"
    return name, operators, _error(region.error), _decibels(region.error), here, now


def _error(error: float) -> str:
    return f"{error:.3g}"


def _decibels(error: float) -> str:
    return f"{-20 * math.log10(error):.1f}" if 0 < error < math.inf else ""
