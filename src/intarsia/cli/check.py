# SPDX-License-Identifier: Apache-2.0
"""`intarsia check FILE`: whether a package or a model works on this machine, and why not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from intarsia.cli.models import make_request, progress_bar, refuse_choices
from intarsia.cli.options import (
    MACHINE,
    Choices,
    FileArgument,
    JsonOption,
    ThreadsOption,
    takes_choices,
)
from intarsia.cli.output import show_json, write
from intarsia.errors import ModelError

if TYPE_CHECKING:
    from intarsia.plan.checking import CheckReport


@takes_choices(*MACHINE, "shape")
def check_command(
    file: FileArgument,
    *,
    choices: Choices,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Say whether a package or a model works on this machine, and what is in the way.

    A package is read, compared with what is installed here, and loaded, but not run; of a model,
    the targets that take its nodes are asked. Exit code 1 if it does not work.
    """
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


def _check(file: Path, choices: Choices, threads: int | None) -> CheckReport:
    from intarsia.plan.checking import CheckFinding, CheckReport, CheckVerdict
    from intarsia.runtime.package import is_package

    if is_package(file):
        refuse_choices(file, choices)
        from intarsia.backends.registry import load_backends
        from intarsia.runtime.check import check_package
        from intarsia.settings import Settings

        return check_package(file, load_backends(Settings.from_environment()), threads)
    from intarsia.compiler import read_setting
    from intarsia.place.setting import check_setting

    try:
        with progress_bar() as progress:
            setting = read_setting(make_request(file, choices, threads), progress)
        return check_setting(str(file), setting)
    except ModelError as error:
        if not file.is_file():
            raise
        problem = CheckFinding("model", CheckVerdict.INCOMPATIBLE, error.message, error.hint or "")
        return CheckReport.of(str(file), [problem])
