# SPDX-License-Identifier: Apache-2.0
"""Figures of comparisons, as PNG or SVG by matplotlib, of the extra `plot`.

A point is a median, a line its interval. Figures are drawn without matplotlib's global state: a
program that imports us keeps its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.cost.compare import CHANGED, CostDifference
from intarsia.errors import SettingError
from intarsia.files import whole_file, writing_hint
from intarsia.report.costs import difference_label

if TYPE_CHECKING:
    from intarsia.bench.compare import Comparison, Series

SUFFIXES = (".png", ".svg")

# Okabe and Ito, "Color Universal Design" (2008): apart for every eye.
_OURS, _PEER, _FASTER, _SLOWER, _ALIKE = "#0072b2", "#767676", "#009e73", "#d55e00", "#767676"

MOST_KEYS = 40
"""Keys that a figure of two databases shows: those that are furthest apart."""

_WIDTH, _ROW, _FRAME = 8.0, 0.34, 1.3
"""Inches: of a figure, of one row of it, and of what is above and below the rows."""

_STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": "#b0b0b0",
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "grid.color": "#e4e4e4",
    "ytick.left": False,
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text: searched, and read aloud
    "svg.hashsalt": "intarsia",  # the same figures give the same file
}


def check_plot(file: Path) -> None:
    """Check that a figure can be drawn into a file, before any work is done for it.

    Raises:
        SettingError: Its suffix is another, or matplotlib is not here.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise SettingError(
            f"cannot draw {str(file)!r}: figures are {' or '.join(SUFFIXES)}",
            hint=f"give {file.with_suffix(SUFFIXES[1])}",
        )
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise SettingError(
            f"cannot draw {str(file)!r}: matplotlib is not here ({error})",
            hint="pip install 'intarsia[plot]'",
        ) from error
    del mpl


def plot_comparisons(comparisons: Sequence[Comparison], file: Path) -> None:
    """Draw how long each runtime took, a panel for each comparison.

    Args:
        comparisons: At least one.
        file: A name that ends with one of `SUFFIXES`.

    Raises:
        SettingError: As `check_plot`, or the file cannot be written.
    """
    check_plot(file)
    rows = [_series_of(comparison) for comparison in comparisons]

    def draw(panels: Sequence[Any]) -> None:
        for panel, comparison, some in zip(panels, comparisons, rows, strict=True):
            for place, (name, series, note) in enumerate(some):
                colour = _PEER if note else _OURS
                times = (series.low_seconds, series.median_seconds, series.high_seconds)
                low, middle, high = (1e3 * one for one in times)
                panel.plot([low, high], [place, place], color=colour, linewidth=2)
                panel.plot([middle], [place], "o", color=colour, label=name)
                text = f"  {middle:.4g} ms{note}"
                panel.text(high, place, text, color=colour, va="center")
            _label_rows(panel, [name for name, _, _ in some])
            panel.set_xlim(left=0)
            panel.margins(x=0.35)
            panel.set_title(_title(comparison), wrap=True)
        panels[-1].set_xlabel("ms of a run: median and slowest and fastest of the rounds")

    _draw(file, [len(some) for some in rows], draw)


def _series_of(comparison: Comparison) -> list[tuple[str, Series, str]]:
    """Return the rows of a comparison: name, times, and what is said of a peer."""
    peers = [
        (
            name,
            peer.series,
            f", {peer.ratio:.2f} times ours ({peer.low:.2f} to {peer.high:.2f})",
        )
        for name, peer in comparison.peers.items()
    ]
    return [("intarsia", comparison.ours, ""), *peers]


def _title(comparison: Comparison) -> str:
    from intarsia.graph.free_sizes import sizes_text

    sizes = f", {sizes_text(comparison.sizes)}" if comparison.sizes else ""
    batch = f", batch {comparison.batch}" if comparison.batch is not None else ""
    return (
        f"{comparison.model} for {comparison.target}, {comparison.threads} threads{batch}{sizes}, "
        f"{comparison.rounds} rounds"
    )


def plot_differences(differences: Sequence[CostDifference], file: Path) -> str:
    """Draw how much longer the second of two databases says that what both have takes.

    Args:
        differences: Of two databases.
        file: A name that ends with one of `SUFFIXES`.

    Returns:
        What is in the figure: of at most `MOST_KEYS` keys, those that are furthest apart.

    Raises:
        SettingError: As `check_plot`, no key is in both, or the file cannot be written.
    """
    check_plot(file)
    known = [one for one in differences if one.ratio is not None]
    both = [one for one in known if _ratio_interval(one) is not None]
    if not both:
        raise SettingError(
            "no cost that has a ratio is in both databases: there is nothing to draw",
            hint="compare databases of one machine, in which regions were timed",
        )
    ordered = sorted(both, key=lambda one: -abs(_log(one.ratio)))[:MOST_KEYS]
    shown = sorted(ordered, key=lambda one: one.ratio or 0.0)
    changed = sum(one.change in CHANGED for one in both)

    def draw(panels: Sequence[Any]) -> None:
        (panel,) = panels
        panel.axvline(1, color="#b0b0b0", linewidth=1)
        for place, one in enumerate(shown):
            assert one.ratio is not None
            colour = {"faster": _FASTER, "slower": _SLOWER}.get(one.change, _ALIKE)
            span = _ratio_interval(one)
            assert span is not None
            panel.plot(span, [place, place], color=colour, linewidth=2)
            panel.plot([one.ratio], [place], "o", color=colour)
            text = f"  {one.ratio:.3g}{'' if one.change == 'alike' else f', {one.change}'}"
            panel.text(span[1], place, text, color=colour, va="center")
        _label_rows(panel, [difference_label(one) for one in shown])
        panel.set_xscale("log")
        panel.margins(x=0.3)
        of = f"{len(shown)} of {len(both)}" if len(shown) < len(both) else f"{len(both)}"
        panel.set_title(f"{of} costs in both databases; {changed} differ by their intervals")
        panel.set_xlabel("time in the second through that in the first (below 1: faster there)")

    _draw(file, [len(shown)], draw)
    left_out = len(known) - len(both)
    more = f"; {left_out} have none, as their intervals reach 0" if left_out else ""
    return f"{len(shown)} of {len(both)} ratios{more}"


def _ratio_interval(one: CostDifference) -> tuple[float, float] | None:
    """Return the ends of a ratio, by the ends of what it is of; None where these reach 0.

    What a border between regions costs may be nothing, or less.
    """
    left, right = one.left_interval, one.right_interval
    if left is None or right is None or min(*left, *right) <= 0:
        return None
    return right[0] / left[1], right[1] / left[0]


def _log(ratio: float | None) -> float:
    from math import inf, log

    return log(ratio) if ratio else inf


def _label_rows(panel: Any, names: Sequence[str]) -> None:
    """Name the rows of a panel, the first one on top."""
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.5)


def _draw(file: Path, heights: Sequence[int], draw: Any) -> None:
    """Draw panels below one another into a file, which appears whole or not at all.

    Args:
        file: Its name.
        heights: How many rows each panel has.
        draw: Draws into a list of panels.

    Raises:
        SettingError: The file cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        size = (_WIDTH, sum(_ROW * rows + _FRAME for rows in heights))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(
            len(heights), squeeze=False, gridspec_kw={"height_ratios": [n + 1 for n in heights]}
        )[:, 0]
        draw(list(panels))
        kind = file.suffix.lower().removeprefix(".")
        # an SVG has the date in it unless it is told not to
        metadata = {"Date": None} if kind == "svg" else {}
        try:
            with whole_file(file) as draft:
                figure.savefig(draft, format=kind, dpi=150, metadata=metadata)
        except OSError as error:
            raise SettingError(
                f"cannot write {str(file)!r}: {error.strerror or error}",
                hint=writing_hint(error),
            ) from error
