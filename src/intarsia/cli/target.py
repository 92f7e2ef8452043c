# SPDX-License-Identifier: Apache-2.0
"""`intarsia target show|list|diff|detect`: targets, and what serves them on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.attributes import read_attributes
from intarsia.cli.completion import complete_target
from intarsia.cli.models import installed_backends
from intarsia.cli.options import HostOption, JsonOption, TargetAttrOption, TargetFileOption
from intarsia.cli.output import note, show, show_json, write
from intarsia.errors import IntarsiaError, SettingError
from intarsia.target.cpu_there import RUNNER
from intarsia.target.user_files import PROJECT_FILE

if TYPE_CHECKING:
    from intarsia.target import CompilationConfig, PlacedTarget
    from intarsia.target.priority import Overrides

app = typer.Typer(no_args_is_help=True, help="Show targets and what serves them here.")


@app.command("show")
def show_command(
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="Any form of a target, or of several.",
            autocompletion=complete_target,
        ),
    ],
    toml: Annotated[bool, typer.Option("--toml", help="Print TOML, for a file.")] = False,
    target_file: TargetFileOption = None,
    target_attr: TargetAttrOption = None,
    host: HostOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a target, or a list of targets, means, and what compiling for it runs."""
    if toml and json:
        raise SettingError("--toml and --json exclude each other", hint="leave one out")
    from intarsia.report.catalogue import config_view, target_view
    from intarsia.report.targets import view_config, view_target
    from intarsia.target import PlacedTarget
    from intarsia.target.toml import write_toml

    backends = installed_backends()
    described = _read(text, host, read_attributes(target_attr))
    if toml:
        write(write_toml(described.to_json()))
        return
    if isinstance(described, PlacedTarget):
        target = view_target(described, backends)
        reached = _reached(described)
        if json:
            show_json({"target": target, **({"runner": reached} if reached else {})})
            return
        show(target_view(target))
        for key, value in reached.items():
            note(f"runner {key}: {value}")
        return
    config = view_config(described, backends)
    if json:
        show_json({"config": config})
    else:
        show(config_view(config))


@app.command("list")
def list_command(
    kinds: Annotated[bool, typer.Option("--kinds", help="List kinds only.")] = False,
    tags: Annotated[bool, typer.Option("--tags", help="List tags only.")] = False,
    labels: Annotated[bool, typer.Option("--labels", help="List labels only.")] = False,
    usable: Annotated[
        bool, typer.Option("--usable", help="List only what can be compiled for here.")
    ] = False,
    hidden: Annotated[
        bool, typer.Option("--all", help="List kinds for tests and debugging too.")
    ] = False,
    target_file: TargetFileOption = None,
    json: JsonOption = False,
) -> None:
    """List target kinds, what serves them here, tags, and the labels of your files."""
    from intarsia.report.catalogue import (
        kinds_table,
        labels_table,
        tags_table,
        view_kinds,
        view_labels,
        view_tags,
    )

    backends = installed_backends()
    wants_all = not (kinds or tags or labels)
    kind_rows = view_kinds(backends, hidden=hidden, usable=usable) if kinds or wants_all else None
    tag_rows = view_tags(backends, usable=usable) if tags or wants_all else None
    label_rows = view_labels(backends, usable=usable) if labels or wants_all else None
    if json:
        rows = {"kinds": kind_rows, "tags": tag_rows, "labels": label_rows}
        show_json({name: listed for name, listed in rows.items() if listed is not None})
        return
    if kind_rows is not None:
        show(kinds_table(kind_rows))
    if tag_rows is not None:
        show(tags_table(tag_rows))
    if label_rows or labels:
        show(labels_table(label_rows or ()))


@app.command("add")
def add_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is to be called.")],
    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="A target.", autocompletion=complete_target),
    ],
    runner: Annotated[
        str | None,
        typer.Option(
            metavar="RUNNER",
            help="The way to its machine: ssh://user@host:port/folder, or an emulator's command.",
        ),
    ] = None,
    file: Annotated[
        Path,
        typer.Option("--file", help="The file that it is added to, made if it is missing."),
    ] = Path(PROJECT_FILE),
    target_file: TargetFileOption = None,
    json: JsonOption = False,
) -> None:
    """Add a label for a target, perhaps on another machine, to a file of targets."""
    from intarsia.process.runner import parse_runner
    from intarsia.target import PlacedTarget
    from intarsia.target.user_files import add_label

    described = _read(text)
    if not isinstance(described, PlacedTarget):
        raise SettingError(
            f"{text!r} is several targets", hint="give each a label, and list the labels after -t"
        )
    target = described.target
    if runner is not None:
        target = target.with_attrs({RUNNER: parse_runner(runner).text})
    add_label(file, name, replace(described, target=target).to_json())
    if json:
        show_json({"name": name, "file": str(file), "target": str(target)})
    else:
        note(f"{name} is in {file}: {target}")


@app.command("diff")
def diff_command(
    left: Annotated[
        str, typer.Argument(metavar="A", help="A target.", autocompletion=complete_target)
    ],
    right: Annotated[
        str, typer.Argument(metavar="B", help="Another one.", autocompletion=complete_target)
    ],
    target_file: TargetFileOption = None,
    json: JsonOption = False,
) -> None:
    """Show in which attributes two targets differ.

    Exit code 1 if they do. Tags and labels do not count.
    """
    from intarsia.report.catalogue import differences_table
    from intarsia.report.differences import find_differences

    differences = find_differences(_read(left), _read(right))
    if json:
        show_json({"left": left, "right": right, "differences": differences})
    elif differences:
        show(differences_table(differences, left, right))
    if differences:
        raise typer.Exit(1)


@app.command("detect")
def detect_command(json: JsonOption = False) -> None:
    """Print the targets of this machine, ready to be pasted after -t.

    They are what compiling uses when no target is given.
    """
    import shlex

    from intarsia.compiler import resolve_targets
    from intarsia.report.targets import view_config, view_missing

    backends = installed_backends()
    config = resolve_targets(None, None, backends)
    missing = view_missing(backends)
    if json:
        view = view_config(config, backends)
        show_json({"text": view.text, "config": view, "missing": missing})
        return
    for detection in missing:
        note(f"not found: {detection.backend}: {detection.reason}")
    write(f"{shlex.quote(config.text)}\n")


def _reached(placed: PlacedTarget) -> dict[str, str]:
    """Return what the machine of a target's runner is, or why it cannot be reached."""
    runner = placed.target.attrs.get(RUNNER)
    if not runner:
        return {}
    from intarsia.cost.fingerprint import machine_of

    try:
        return {"answers": str(machine_of(runner))}
    except IntarsiaError as error:
        return {"does not answer": str(error)}


def _read(
    text: str, host: str | None = None, overrides: Overrides | None = None
) -> PlacedTarget | CompilationConfig:
    """Return one placed target; a machine if there are several, a composite or a host."""
    from intarsia.report.targets import COMPOSITE
    from intarsia.target import CompilationConfig
    from intarsia.target.forms import read_forms
    from intarsia.target.priority import check_overrides, overridden

    forms = read_forms(text, {})
    is_one = len(forms.targets) == 1 and forms.host is None and host is None
    alone = forms.targets[0] if is_one else None
    if alone is None or alone.target.kind.name == COMPOSITE:
        return CompilationConfig.resolve(text, host=host, overrides=overrides)
    changes = overrides or {}
    check_overrides(changes, [alone.target])
    return replace(alone, target=overridden(alone.target, changes))
