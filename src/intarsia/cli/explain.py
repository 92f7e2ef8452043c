# SPDX-License-Identifier: Apache-2.0
"""`intarsia explain FILE`: what runs where, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.models import explain_file
from intarsia.cli.options import (
    Choices,
    ExcludeOption,
    FileArgument,
    HostOption,
    JsonOption,
    LayerOption,
    PinOption,
    PlacementOption,
    ShapeOption,
    StrictOption,
    TargetAttrOption,
    TargetFileOption,
    TargetOption,
    ThreadsOption,
)
from intarsia.cli.output import show, show_json, write
from intarsia.errors import SettingError
from intarsia.report.absence import find_units

if TYPE_CHECKING:
    from intarsia.plan.explanation import Explanation
    from intarsia.plan.placement import Placement
    from intarsia.report.nodes import NodeView


def explain_command(  # noqa: PLR0913 - an option each
    file: FileArgument,
    *,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="Explain one node.")
    ] = None,
    not_on: Annotated[
        str | None,
        typer.Option(
            "--not-on",
            metavar="TARGET",
            help="Why nodes do not run on a target, and what it would cost.",
        ),
    ] = None,
    cuts: Annotated[
        bool,
        typer.Option("--cuts", help="Which nodes would save most if another target took them."),
    ] = False,
    complete: Annotated[
        bool, typer.Option("--all", help="List every node, copy, refusal and step.")
    ] = False,
    profile: Annotated[
        int,
        typer.Option(
            "--profile",
            metavar="RUNS",
            min=0,
            help="Time each region and copy in so many runs on made-up inputs.",
        ),
    ] = 0,
    target: TargetOption = None,
    target_file: TargetFileOption = None,
    target_attr: TargetAttrOption = None,
    host: HostOption = None,
    shape: ShapeOption = None,
    pin: PinOption = None,
    exclude: ExcludeOption = None,
    layer: LayerOption = None,
    placement: PlacementOption = "auto",
    strict: StrictOption = False,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Show what runs where in a package or a model, and why."""
    choices = Choices(target, host, shape, pin, exclude, placement, strict, layer, target_attr)
    if sum((node is not None, not_on is not None, cuts)) > 1:
        raise SettingError("--node, --not-on and --cuts ask different things", hint="give one")
    explanation = explain_file(file, choices, threads, profile)
    if not_on is not None or cuts:
        _explain_costs(explanation, not_on, as_json=json, complete=complete)
        return
    nodes = _find(explanation.placement, node) if node is not None else None
    units = find_units(explanation.tuning, nodes) if nodes is not None else ()
    if json:
        show_json(explanation if nodes is None else {"nodes": nodes, "costs": units})
        return
    from intarsia.report.tables import explanation_view, nodes_view
    from intarsia.report.tuning import tuning_view, units_view

    if nodes is not None:
        show(nodes_view(nodes), *([units_view(units)] if units else []))
        if not units:
            write(f"costs elsewhere are not known: {_why_no_costs(explanation)}\n")
        return
    tuning = [] if explanation.tuning is None else [tuning_view(explanation.tuning)]
    show(explanation_view(explanation, complete=complete), *tuning)


def _explain_costs(
    explanation: Explanation, not_on: str | None, *, as_json: bool, complete: bool
) -> None:
    """Show why nodes are not on a target, or what cuts cost.

    Raises:
        SettingError: The plan was not found by cost, or has no such target.
    """
    tuning = explanation.tuning
    if tuning is None:
        raise SettingError(
            f"this plan has no costs: {_why_no_costs(explanation)}",
            hint="run `intarsia tune`, and explain what it wrote",
        )
    if not tuning.unit_reports:
        raise SettingError(
            "nothing was searched for this plan: its machine has one target, or it was interrupted",
            hint="run `intarsia tune --resume` with several targets",
        )
    from intarsia.report.absence import absences, absences_view
    from intarsia.report.tuning import cuts_view

    if not_on is None:
        if as_json:
            show_json({"cuts": tuning.cuts})
        else:
            show(cuts_view(tuning.cuts))
        return
    found = absences(tuning, not_on)
    if as_json:
        show_json({"target": found.target, "units": found.units})
    else:
        show(absences_view(found, complete=complete))


def _why_no_costs(explanation: Explanation) -> str:
    """Return why nothing is known of what nodes cost elsewhere."""
    from intarsia.place.assign import Policy  # imports numpy, which help does not need

    policy = explanation.placement.policy
    if policy == Policy.COLLAGE:
        return "a locked plan was carried out, or its tuner did not search"
    return f"it was found by {policy} placement; `intarsia tune` measures them"


def _find(placement: Placement, name: str) -> tuple[NodeView, ...]:
    from intarsia.place.constraints import nearest_names
    from intarsia.report.nodes import find_nodes, view_nodes

    found = find_nodes(placement, name)
    if not found:
        names = (known for v in view_nodes(placement) for known in (v.name, *v.origins))
        raise SettingError(
            f"no node {name!r} is placed",
            hint=f"{nearest_names(name, names)}; a node that was folded away is not placed",
        )
    return found
