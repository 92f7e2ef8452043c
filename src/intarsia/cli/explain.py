# SPDX-License-Identifier: Apache-2.0
"""`intarsia explain FILE`: what runs where, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.files import writable
from intarsia.cli.models import explain_absent_file, explain_file
from intarsia.cli.options import (
    BUCKETS,
    MACHINE,
    NODES,
    Choices,
    FileArgument,
    HtmlOption,
    JsonOption,
    ThreadsOption,
    TrustOption,
    takes_choices,
)
from intarsia.cli.output import note, show, show_json, write
from intarsia.cli.pages import report_file, write_report
from intarsia.errors import SettingError

if TYPE_CHECKING:
    from intarsia.plan.explanation import Explanation
    from intarsia.plan.placement import Placement
    from intarsia.report.nodes import NodeView


@takes_choices(*MACHINE, *NODES, *BUCKETS, "placement", "strict", "no_cache", "no_probe")
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
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels",
            help="What the kernels of GPUs need: registers, spills, shared memory, as NVIDIA's "
            "assembler counts.",
        ),
    ] = False,
    absent: Annotated[
        bool,
        typer.Option(
            "--absent",
            help="Explain by estimates for a machine that is not here; nothing is compiled.",
        ),
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
            help="Time each region and copy in RUNS runs on made-up inputs.",
        ),
    ] = 0,
    trust: TrustOption = False,
    overlay: Annotated[
        Path | None,
        typer.Option(
            "--overlay",
            metavar="FILE.json",
            help="Also write where nodes run, for Model Explorer to lay over the model's graph.",
        ),
    ] = None,
    choices: Choices,
    html: HtmlOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Show what runs where in a package or a model, and why."""
    if overlay is not None:
        writable(overlay, source=file)
    asked = sum((node is not None, not_on is not None, cuts, kernels))
    others = sum((absent, bool(profile), overlay is not None, html is not None))
    _check_one(asked, others if kernels else 0, both=absent and bool(profile))
    if kernels:
        _explain_kernels(file, choices, threads, as_json=json)
        return
    page = None if html is None else report_file(html, source=file)
    explanation = (
        explain_absent_file(file, choices, threads)
        if absent
        else explain_file(file, choices, threads, profile, trust=trust)
    )
    if overlay is not None:
        _write_overlay(overlay, explanation.placement, file)
    if page is not None:
        write_report(page, f"intarsia explain {file.name}", explanation)
    if not_on is not None:
        _explain_absence(explanation, not_on, as_json=json, complete=complete)
        return
    if cuts:
        _explain_cuts(explanation, as_json=json)
        return
    from intarsia.report.absence import find_units

    nodes = _find(explanation.placement, node) if node is not None else None
    tuning = explanation.tuning
    units = find_units(tuning, nodes) if nodes is not None else ()
    if json:
        show_json(explanation if nodes is None else {"nodes": nodes, "costs": units})
        return
    from intarsia.report.tables import explanation_view, nodes_view
    from intarsia.report.tuning import plans_view, tuning_view, units_view

    if nodes is not None:
        show(nodes_view(nodes), *([units_view(tuning, units)] if tuning and units else []))
        if not units:
            write(f"costs elsewhere are not known: {_why_no_costs(explanation)}\n")
        return
    parts = [] if tuning is None else [tuning_view(tuning)]
    if explanation.by_sizes is not None:
        parts.append(plans_view(explanation.by_sizes))
    show(explanation_view(explanation, complete=complete), *parts)


def _check_one(asked: int, beside_kernels: int, *, both: bool) -> None:
    """Refuse options that exclude one another.

    Raises:
        SettingError: They do.
    """
    if asked > 1:
        raise SettingError(
            "--node, --not-on, --cuts and --kernels exclude one another", hint="give one"
        )
    if beside_kernels:
        raise SettingError("--kernels prints a table and nothing else", hint="give it alone")
    if both:
        raise SettingError(
            "--absent and --profile exclude one another", hint="nothing runs on an absent machine"
        )


def _write_overlay(path: Path, placement: Placement, file: Path) -> None:
    """Write where nodes run as a layer of Model Explorer's.

    Raises:
        SettingError: The file cannot be written.
        ModelError: The model cannot be read.
    """
    from json import dumps

    import onnx

    from intarsia.files import whole_file, writing_hint
    from intarsia.report.overlay import explorer_ids, placement_overlay
    from intarsia.runtime.package import is_package

    ids = None
    if not is_package(file):
        ids = explorer_ids(file, onnx.load(file, load_external_data=False).graph.node)
    value = placement_overlay(placement, ids, f"intarsia: {file.name}")
    try:
        with whole_file(path) as draft:
            draft.write_text(dumps(value, indent=1), encoding="utf-8")
    except OSError as error:
        raise SettingError(
            f"cannot write {str(path)!r}: {error.strerror or error}",
            hint=writing_hint(error),
        ) from error
    note(f"wrote {path}: in Model Explorer, open the model and drop the file onto it")


def _explain_absence(
    explanation: Explanation, not_on: str, *, as_json: bool, complete: bool
) -> None:
    """Show why nodes are not on a target: by refusals, and by costs where they are known.

    Raises:
        SettingError: The plan has no such target.
    """
    from intarsia.report.absence import absences, absences_view

    absent = absences(explanation.placement, explanation.tuning, not_on)
    if as_json:
        show_json({"target": absent.target, "units": absent.units})
        return
    show(absences_view(absent, complete=complete))
    if explanation.tuning is None:
        write(f"what it would cost is not known: {_why_no_costs(explanation)}\n")


def _explain_kernels(file: Path, choices: Choices, threads: int | None, *, as_json: bool) -> None:
    """Show what the kernels of a package or a model need.

    Raises:
        BackendError: There is no assembler here, or a model cannot be compiled.
        PackageError: A package cannot be read.
    """
    from intarsia.cli.models import kernels_of_file
    from intarsia.report.kernel_needs import needs_view

    found = kernels_of_file(file, choices, threads)
    if as_json:
        show_json(found)
        return
    show(needs_view(found))


def _explain_cuts(explanation: Explanation, *, as_json: bool) -> None:
    """Show what cuts cost.

    Raises:
        SettingError: The plan was not found by cost.
    """
    tuning = explanation.tuning
    if tuning is None:
        raise SettingError(
            f"this plan has no costs: {_why_no_costs(explanation)}",
            hint="run `intarsia tune`, and explain what it wrote",
        )
    if not tuning.unit_reports:
        raise SettingError(
            "there was no search for this plan: its machine has one target, or it was interrupted",
            hint="run `intarsia tune --resume` with several targets",
        )
    from intarsia.report.tuning import cuts_view

    if as_json:
        show_json({"cuts": tuning.cuts})
    else:
        show(cuts_view(tuning.cuts))


def _why_no_costs(explanation: Explanation) -> str:
    """Return why nothing is known of what nodes cost elsewhere."""
    from intarsia.place.assign import Policy  # imports numpy, which help does not need

    policy = explanation.placement.policy
    if policy == Policy.COLLAGE:
        return "a locked plan was carried out, or its tuner did not search"
    return f"it was found by {policy} placement; `intarsia tune` measures them"


def _find(placement: Placement, name: str) -> tuple[NodeView, ...]:
    from intarsia.graph.annotate import nearest_names
    from intarsia.report.nodes import find_nodes, view_nodes

    nodes = find_nodes(placement, name)
    if not nodes:
        names = (alias for v in view_nodes(placement) for alias in (v.name, *v.origins))
        raise SettingError(
            f"no node {name!r} is placed",
            hint=f"{nearest_names(name, names)}; a node that was folded away is not placed",
        )
    return nodes
