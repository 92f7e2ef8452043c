# SPDX-License-Identifier: Apache-2.0
"""The sections of a page: the tables of the terminal, complete, and those of nodes and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from intarsia.plan.tuning import time_text
from intarsia.report.absence import compare_plans
from intarsia.report.differences import plan_difference_view
from intarsia.report.kernels import kernels_view
from intarsia.report.nodes import view_nodes
from intarsia.report.page.markup import section
from intarsia.report.tables import (
    copies_table,
    devices_table,
    make_table,
    nodes_table,
    placement_table,
    refusals_tables,
)
from intarsia.report.tuning import cuts_view, plans_view, tuning_view

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.bench.profile import KernelProfile
    from intarsia.plan.compare import PlanDifference
    from intarsia.plan.explanation import BodyExplanation, Explanation
    from intarsia.plan.tuning import TuningReport
    from intarsia.plan.wiring import WiredValue, Wiring


def difference_sections(difference: PlanDifference) -> Iterator[str]:
    """Yield what is different between two plans."""
    yield section(
        "difference", "What is different", plan_difference_view(difference, complete=True)
    )


def profile_sections(profile: KernelProfile) -> Iterator[str]:
    """Yield when the calls of one run began, then how long each takes and how near to limits."""
    rows = {row.path: row for row in profile.rows}
    calls = (
        (
            f"{1e3 * call.start:.3f}",
            f"{1e3 * call.seconds:.3f}",
            rows[call.path].kernel,
            rows[call.path].target,
            " + ".join(rows[call.path].nodes) or rows[call.path].note,
        )
        for call in profile.run
        if call.path in rows
    )
    yield section(
        "run",
        "One run",
        Text(
            "The calls of a run that took the median time, each waited for before the next: "
            "devices that work side by side in a plain run take turns here."
        ),
        make_table("calls", ("began at ms>", "took ms>", "call", "target", "nodes"), calls),
    )
    yield section("kernels", "Time by call", kernels_view(profile))


def explanation_sections(explanation: Explanation, label: str = "") -> Iterator[str]:
    """Yield what runs where and why, how it was found, and what it costs elsewhere.

    Args:
        explanation: What to show.
        label: Put before the titles, where a page is of two plans.
    """
    placement, tuning = explanation.placement, explanation.tuning
    mark = f"{label}-" if label else ""
    of = f" of the {label} plan" if label else ""
    lines = (
        explanation.summary,
        *(text for text in (explanation.free, explanation.shortfall) if text),
        *explanation.late,
        *placement.passed_over,
    )
    about = (f"region {i}: {text}" for i, text in enumerate(explanation.regions) if text)
    yield section(
        f"{mark}regions",
        f"What runs where{of}",
        *map(Text, lines),
        placement_table(placement, explanation.region_seconds),
        *map(Text, about),
    )
    for number, body in enumerate(_bodies(explanation)):
        inner = body.explanation
        yield section(
            f"{mark}body-{number}",
            f"Body {body.title}{of}",
            Text(inner.summary),
            placement_table(inner.placement, inner.region_seconds),
        )
    if tuning is not None:
        yield section(f"{mark}plans", f"Plans tried{of}", tuning_view(tuning))
    if explanation.by_sizes is not None:
        view = plans_view(explanation.by_sizes)
        yield section(f"{mark}sizes", f"Plans by sizes{of}", view)
    yield section(f"{mark}cuts", f"What would merge partitions{of}", _cuts(tuning))
    yield section(
        f"{mark}devices",
        f"Devices and copies{of}",
        devices_table(explanation.devices),
        copies_table(explanation, complete=True),
        *map(Text, explanation.captures),
        *map(Text, explanation.layout_lines),
    )
    refused = refusals_tables(placement, complete=False) + refusals_tables(placement, complete=True)
    refused = refused or [Text("Nothing was refused.")]
    yield section(f"{mark}refusals", f"Refusals{of}", *refused)
    parts: list[RenderableType] = [nodes_table(view_nodes(placement))]
    if tuning is not None and tuning.unit_reports:
        parts.append(_costs_table(tuning))
    if explanation.wiring is not None:
        parts.append(_values_table(explanation.wiring))
    yield section(f"{mark}nodes", f"Nodes{of}", *parts)
    versions = ", ".join(f"{name} {version}" for name, version in explanation.versions.items())
    yield section(
        f"{mark}made",
        f"How it was made{of}",
        Text(f"rewrites: {', '.join(explanation.rewrites) or 'none'}"),
        Text(f"backends: {versions or 'none'}"),
        make_table("passes", ("pass",), ((str(one),) for one in explanation.passes)),
        make_table("steps", ("step",), ((step,) for step in explanation.steps)),
    )


def _bodies(explanation: Explanation) -> Iterator[BodyExplanation]:
    for body in explanation.bodies:
        yield body
        yield from _bodies(body.explanation)


def _cuts(tuning: TuningReport | None) -> RenderableType:
    """Return what would be saved if another target took some nodes, where costs tell."""
    if tuning is None or not tuning.unit_reports:
        return Text(
            "Not known: this plan was not found by cost. `intarsia tune` measures what nodes cost "
            "elsewhere."
        )
    return cuts_view(tuning.cuts)


def _costs_table(tuning: TuningReport) -> RenderableType:
    """Return a row for each unit of nodes and each target."""
    rows = []
    for unit in tuning.unit_reports:
        for cost in unit.costs:
            runs_here = cost.target == unit.target
            rows.append(
                (
                    *(", ".join(unit.nodes), ", ".join(unit.operators), unit.region, cost.target),
                    *(time_text(cost.alone_seconds), time_text(cost.inside_seconds)),
                    *(cost.source or "-", time_text(cost.plan_seconds)),
                    "runs here" if runs_here else compare_plans(tuning, unit, cost)[1],
                )
            )
    columns = ("nodes", "operators", "region>", "target", "alone>", "inside a region>", "source")
    return make_table(
        "what nodes cost on every target", (*columns, "best plan with it>", "why"), rows
    )


def _values_table(wiring: Wiring) -> RenderableType:
    """Return what each node reads and writes."""
    values = wiring.values
    return make_table(
        "what nodes read and write",
        ("node", "reads", "writes"),
        (
            (
                node.name,
                ", ".join(value_text(values[i]) for i in node.inputs),
                ", ".join(value_text(values[i]) for i in node.outputs),
            )
            for node in wiring.nodes
        ),
    )


def value_text(value: WiredValue) -> str:
    """Return a value with its type: `x float32[1,3,224,224]`."""
    dims = "?" if value.shape is None else ",".join(map(str, value.shape))
    return f"{value.name} {value.dtype or '?'}[{dims}]"
