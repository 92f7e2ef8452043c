# SPDX-License-Identifier: Apache-2.0
"""`intarsia check FILE`: whether a package or a model works on this machine, and why not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from intarsia.cli.models import make_setting_of, refuse_choices
from intarsia.cli.options import (
    Choices,
    FileArgument,
    HostOption,
    JsonOption,
    ShapeOption,
    TargetAttrOption,
    TargetFileOption,
    TargetOption,
    ThreadsOption,
)
from intarsia.cli.output import show_json, write
from intarsia.errors import ModelError

if TYPE_CHECKING:
    from intarsia.plan.checking import Check


def check_command(
    file: FileArgument,
    *,
    target: TargetOption = None,
    target_file: TargetFileOption = None,
    target_attr: TargetAttrOption = None,
    host: HostOption = None,
    shape: ShapeOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Say whether a package or a model works on this machine, and what is in the way.

    A package is read, compared with what is installed here, and loaded, but not run; of a model,
    the targets that take its nodes are asked. Exit code 1 if it does not work.
    """
    choices = Choices(target, host, shape, target_attr=target_attr)
    found = _check(file, choices, threads)
    if json:
        show_json(found)
    else:
        for finding in found.findings:
            write(f"{finding}\n")
        write(f"{file}: {_WORDS[found.verdict]}\n")
    if found.verdict == "incompatible":
        raise typer.Exit(1)


_WORDS = {
    "ok": "ok",
    "changed": "works here, but not everything is as it was",
    "incompatible": "does not work here",
}


def _check(file: Path, choices: Choices, threads: int | None) -> Check:
    from intarsia.plan.checking import Check, Finding, Verdict
    from intarsia.runtime.package import is_package

    if is_package(file):
        refuse_choices(file, choices)
        from intarsia.backends.registry import load_backends
        from intarsia.runtime.check import check_package

        return check_package(file, load_backends(), threads)
    from intarsia.place.setting import check_setting

    try:
        return check_setting(str(file), make_setting_of(file, choices, threads))
    except ModelError as error:
        if not file.is_file():
            raise
        problem = Finding("model", Verdict.INCOMPATIBLE, error.message, error.hint or "")
        return Check.of(str(file), [problem])
