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
from intarsia.cli.output import show, show_json
from intarsia.errors import SettingError

if TYPE_CHECKING:
    from intarsia.plan.placement import Placement
    from intarsia.report.nodes import NodeView


def explain_command(  # noqa: PLR0913 - an option each
    file: FileArgument,
    *,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="Explain one node.")
    ] = None,
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
    explanation = explain_file(file, choices, threads, profile)
    nodes = _find(explanation.placement, node) if node is not None else None
    if json:
        show_json(explanation if nodes is None else {"nodes": nodes})
        return
    from intarsia.report.tables import explanation_view, nodes_view

    show(explanation_view(explanation, complete=complete) if nodes is None else nodes_view(nodes))


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
