# SPDX-License-Identifier: Apache-2.0
"""What a tuner found, as tables of rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.graph.free_sizes import sizes_text
from intarsia.plan.by_sizes import interval_text, places_text
from intarsia.plan.tuning import time_text
from intarsia.report.tables import make_table

if TYPE_CHECKING:
    from intarsia.plan.by_sizes import PlansBySizes
    from intarsia.plan.tuning import CutReport, Finalist, Forecast, TuningReport, UnitReport

MOST_FAILURES = 8

_FINALIST_COLUMNS = (
    "plan",
    "regions>",
    "nodes",
    "predicted>",
    "measured>",
    "to best single>",
    "interval>",
    "rounds>",
    "fate",
)


def tuning_view(report: TuningReport) -> RenderableType:
    """Return the finalists, what was excluded, and what it took."""
    parts: list[RenderableType] = [Text(report.summary)]
    extra = (f"{report.figure_name}>",) if report.figure_name else ()
    if any(finalist.high_seconds is not None for finalist in report.finalists):
        parts.append(_outlooks_table(report))
        parts.append(Text(_search_line(report)))
        parts += [Text(line) for line in (*report.caps, *report.notes)]
        parts.append(Text(f"{report.machine}; backends: {', '.join(report.versions)}"))
        return Group(*parts)
    parts.append(
        make_table(
            f"whole plans, end to end ({report.threads} threads, {_aim(report)})",
            (*_FINALIST_COLUMNS, *extra),
            [
                (*_finalist_row(finalist), *([finalist.figure or "-"] if extra else []))
                for finalist in report.finalists
            ],
        )
    )
    if report.residual is not None:
        parts.append(
            Text(
                f"predicted {time_text(report.predicted_seconds)}, "
                f"measured {time_text(report.seconds)}: off by {report.residual:+.1%}"
            )
        )
    parts.append(Text(_search_line(report)))
    parts += _junctions(report)
    parts += _failures(report)
    parts += [Text(line) for line in (*report.caps, *report.notes)]
    if report.spent:
        spent = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in report.spent.items())
        parts.append(Text(f"time: {spent}; budget {report.budget_seconds:.0f} s"))
    parts.append(Text(f"machine: {report.machine}; {', '.join(report.versions)}"))
    if report.is_reused:
        parts.append(Text("accepted before; --resume goes on measuring"))
    return Group(*parts)


def plans_view(plans: PlansBySizes) -> RenderableType:
    """Return what was measured at each sizes, and which plan is for which sizes."""
    rows = []
    for point in plans.points:
        ratio = point.generic_ratio
        rows.append(
            (
                sizes_text(point.sizes),
                point.winner,
                places_text(plans.plans[point.plan]),
                time_text(point.seconds),
                point.single or "-",
                time_text(point.single_seconds),
                "-" if ratio is None else f"{ratio:.3f}",
                "" if point.is_proven else "not accepted: out of time",
            )
        )
    columns = ("sizes", "plan", "nodes", "measured>", "best single", "measured>")
    title = f"measured at some sizes ({plans.objective})"
    parts: list[RenderableType] = [
        make_table(title, (*columns, "program for all sizes, to plan>", "note"), rows)
    ]
    if plans.chosen:
        parts.append(Text(plans.chosen))
    if plans.dimension:
        parts.append(
            make_table(
                "which plan is for which sizes",
                (plans.dimension, "plan", "nodes", "why it begins there"),
                [
                    (
                        interval_text(interval),
                        plans.points[interval.points[0]].winner,
                        places_text(plans.plans[interval.plan]),
                        "" if interval.switch is None else str(interval.switch),
                    )
                    for interval in plans.intervals
                ],
            )
        )
    elif len(plans.points) > 1:
        parts.append(Text("other sizes have the plan of the nearest of these, by logarithms"))
    parts += [Text(note) for note in plans.notes]
    return Group(*parts)


def _outlooks_table(report: TuningReport) -> RenderableType:
    """Return plans that were not run, with what they may take."""
    rows = (
        (
            *(
                finalist.name,
                finalist.regions,
                _nodes_text(finalist),
                time_text(finalist.predicted_seconds),
            ),
            *(time_text(finalist.low_seconds), time_text(finalist.high_seconds), finalist.fate),
        )
        for finalist in report.finalists
    )
    columns = ("plan", "regions>", "nodes", "predicted>", "at best>", "at worst>", "fate")
    return make_table(f"whole plans, by estimates ({report.threads} threads)", columns, rows)


def _nodes_text(finalist: Finalist) -> str:
    return ", ".join(f"{target}: {count}" for target, count in finalist.nodes.items())


def _aim(report: TuningReport) -> str:
    """Return what was minimised, and within which limit."""
    if report.slowdown is None:
        return report.objective
    return f"{report.objective}, at most {report.slowdown:g} times the time of the fastest"


def _search_line(report: TuningReport) -> str:
    text = f"search: {report.nodes} nodes in {report.units} units"
    if report.proof:
        text += f"; its plan is {report.proof}"
    if report.bound_seconds is not None:
        text += f", bound {time_text(report.bound_seconds)}"
    measured = f"{report.measured} costs measured now, {report.known} known"
    unmeasured = f", {report.unmeasured} regions rest on estimates" if report.unmeasured else ""
    return f"{text}; {measured}{unmeasured}"


def _junctions(report: TuningReport) -> list[RenderableType]:
    """Return the boundaries that were measured in place."""
    if not report.junctions:
        return []
    rows = (
        (
            f"{boundary.last} | {boundary.first}",
            f"{boundary.before} | {boundary.after}"
            + (f" in {boundary.layout}" if boundary.layout else ""),
            *(time_text(boundary.assumed_seconds), time_text(boundary.seconds)),
            "known" if boundary.is_known else boundary.rounds,
        )
        for boundary in report.junctions
    )
    columns = ("nodes", "targets", "assumed>", "measured>", "rounds>")
    return [make_table("boundaries between regions, measured in place", columns, rows)]


def _finalist_row(finalist: Finalist) -> Sequence[object]:
    interval = "-"
    if finalist.low is not None:
        high = "" if finalist.high is None else f"{finalist.high:.3f}"
        interval = f"{finalist.low:.3f} to {high}"
    ratio = "-" if finalist.ratio is None else f"{finalist.ratio:.3f}"
    times = (time_text(finalist.predicted_seconds), time_text(finalist.seconds))
    return (
        finalist.name,
        finalist.regions,
        _nodes_text(finalist),
        *times,
        ratio,
        interval,
        finalist.rounds,
        finalist.fate,
    )


def _failures(report: TuningReport) -> list[RenderableType]:
    if not report.failures:
        return []
    shown = report.failures[:MOST_FAILURES]
    more = len(report.failures) - len(shown)
    return [
        make_table(
            "excluded" + (f" (first {len(shown)}, {more} more)" if more else ""),
            ("target", "nodes>", "first", "code", "reason"),
            ((f.target, f.count, ", ".join(f.nodes), f.code, f.reason) for f in shown),
        )
    ]


def units_view(tuning: TuningReport, units: Sequence[UnitReport]) -> RenderableType:
    """Return what nodes cost on every target, alone and in their neighbourhood.

    Args:
        tuning: How the plan was found.
        units: Of its report.
    """
    from intarsia.report.absence import compare_plans

    parts: list[RenderableType] = []
    for unit in units:
        best = min((c.plan_seconds for c in unit.costs if c.plan_seconds is not None), default=None)
        rows = []
        for cost in unit.costs:
            worse = "-"
            if cost.plan_seconds is not None and best:
                worse = f"{1e3 * (cost.plan_seconds - best):+.3f} ms"
            rows.append(
                (
                    cost.target + (" *" if cost.target == unit.target else ""),
                    time_text(cost.alone_seconds),
                    time_text(cost.inside_seconds),
                    cost.source or "-",
                    worse,
                    "runs here"
                    if cost.target == unit.target
                    else compare_plans(tuning, unit, cost)[1],
                )
            )
        operators = ", ".join(unit.operators)
        parts.append(
            make_table(
                f"{', '.join(unit.nodes)} ({operators}) in region {unit.region}",
                ("target", "alone>", "inside a region>", "source", "best plan with it>", "why"),
                rows,
            )
        )
    parts.append(
        Text(
            "*: where it runs. Alone: a call of its own, plain tensors in and out. Best plan with "
            "it: by how much the best plan that has it there is predicted to be slower than the "
            "best of all plans."
        )
    )
    return Group(*parts)


def cuts_view(cuts: Sequence[CutReport]) -> RenderableType:
    """Return which nodes would save most on another target."""
    if not cuts:
        return Text("no cut: no other target would save anything by taking more")
    return make_table(
        "cuts: what another target would save if it took these nodes as fast as their own does",
        ("nodes", "on", "would join", "saves>", "calls fewer>"),
        (
            (
                ", ".join(cut.nodes[:3]) + (", ..." if len(cut.nodes) > 3 else ""),  # noqa: PLR2004
                cut.target,
                cut.other,
                time_text(cut.saved_seconds),
                cut.calls,
            )
            for cut in cuts
        ),
    )


def forecast_view(forecast: Forecast) -> RenderableType:
    """Return what tuning would measure."""
    known_plans = forecast.known_plans
    plans = ", ".join(
        f"{name} ({time_text(known_plans[name])} known)" if name in known_plans else name
        for name in forecast.plans
    )
    accepted = [Text("a plan was accepted before: nothing would be measured without --resume")]
    return Group(
        *(accepted if forecast.is_accepted else []),
        Text(f"{forecast.nodes} nodes in {forecast.units} units; whole plans: {plans}"),
        make_table(
            "pieces that the search may ask for; it measures those that its best plans use",
            ("target", "pieces>", "known>", "excluded>"),
            ((row.target, row.regions, row.known, row.excluded) for row in forecast.rows),
        ),
        *([_borders_table(forecast)] if forecast.borders else []),
        *(Text(line) for line in forecast.caps),
        Text(f"budget: {forecast.budget_seconds:.0f} s"),
    )


def _borders_table(forecast: Forecast) -> RenderableType:
    return make_table(
        "boundaries between regions, measured in place where the best plan depends on them",
        ("from", "to", "known of any model>"),
        ((row.before, row.after, row.known) for row in forecast.borders),
    )
