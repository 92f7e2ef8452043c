# SPDX-License-Identifier: Apache-2.0
"""`intarsia target show|list|detect`: targets, and what serves them on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from intarsia.cli.options import JsonOption
from intarsia.cli.output import show, show_json

app = typer.Typer(no_args_is_help=True, help="Show targets and what serves them here.")


@app.command("show")
def show_command(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Any form of a target, or of several.")
    ],
    json: JsonOption = False,
) -> None:
    """Show what a target, or a list of targets, means."""
    from intarsia.backends.registry import load_backends
    from intarsia.report.tables import config_view, target_view
    from intarsia.report.targets import COMPOSITE, view_config, view_target
    from intarsia.target import CompilationConfig
    from intarsia.target.forms import read_forms

    backends = load_backends()
    given = read_forms(text, {})
    alone = given.targets[0].target if len(given.targets) == 1 and not given.host else None
    if alone is not None and alone.kind.name != COMPOSITE:
        view = view_target(given.targets[0], backends)
        if json:
            show_json({"target": view})
        else:
            show(target_view(view))
        return
    config = view_config(CompilationConfig.resolve(text), backends)
    if json:
        show_json({"config": config})
    else:
        show(config_view(config))


@app.command("list")
def list_command(
    hidden: Annotated[
        bool, typer.Option("--all", help="List kinds for tests and debugging too.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List target kinds, what serves them here, and tags."""
    from intarsia.backends.registry import load_backends
    from intarsia.report.tables import catalogue_view
    from intarsia.report.targets import view_catalogue

    catalogue = view_catalogue(load_backends(), hidden=hidden)
    if json:
        show_json(catalogue)
    else:
        show(catalogue_view(catalogue))


@app.command("detect")
def detect_command(json: JsonOption = False) -> None:
    """Show what compiling uses when no target is given."""
    from intarsia.backends.registry import load_backends
    from intarsia.compiler import resolve_targets
    from intarsia.report.tables import config_view, missing_view
    from intarsia.report.targets import view_config, view_missing

    backends = load_backends()
    config = view_config(resolve_targets(None, None, backends), backends)
    missing = view_missing(backends)
    if json:
        show_json({"config": config, "missing": missing})
        return
    show(config_view(config), *([missing_view(missing)] if missing else []))
