# SPDX-License-Identifier: Apache-2.0
"""`intarsia check FILE`: whether a package or a model works on this machine, and why not.

`intarsia doctor`: what works here at all, what does not, and what to do about it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from intarsia.cli.models import installed_backends, prepare_file, refuse_choices
from intarsia.cli.options import (
    MACHINE,
    Choices,
    FileArgument,
    JsonOption,
    ThreadsOption,
    TrustOption,
    takes_choices,
)
from intarsia.cli.output import show, show_json, size_text, write
from intarsia.errors import ModelError
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.plan.checking import CheckReport
    from intarsia.report.health import BackendHealth, Diagnosis


@takes_choices(*MACHINE, "shape", "sizes", "external_data_root")
def check_command(
    file: FileArgument,
    *,
    choices: Choices,
    trust: TrustOption = False,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Say whether a package or a model works on this machine, and what is in the way.

    A package is read, compared with what is installed here, and loaded, but not run; of a model,
    the targets that take its nodes are asked. Exit code 1 if it does not work.
    """
    report = _check(file, choices, threads, trust=trust)
    if json:
        show_json(report)
    else:
        for finding in report.findings:
            write(f"{finding}\n")
        write(f"{file}: {_WORDS[report.verdict]}\n")
    if report.verdict == "incompatible":
        raise typer.Exit(1)


_WORDS = {
    "ok": "ok",
    "changed": "works here, but something has changed since it was compiled",
    "incompatible": "does not work here",
}


def _check(file: Path, choices: Choices, threads: int | None, *, trust: bool) -> CheckReport:
    from intarsia.plan.checking import CheckFinding, CheckReport, CheckVerdict
    from intarsia.runtime.package import is_package

    if is_package(file):
        refuse_choices(file, choices)
        from intarsia.runtime.check import check_package

        return check_package(file, installed_backends(), threads, trust=trust)
    from intarsia.place.setting import check_setting

    try:
        return check_setting(str(file), prepare_file(file, choices, threads))
    except ModelError as error:
        if not file.is_file():
            raise
        problem = CheckFinding("model", CheckVerdict.INCOMPATIBLE, error.message, error.hint or "")
        return CheckReport.of(str(file), [problem])


def doctor_command(json: JsonOption = False) -> None:
    """Show what works on this machine, what does not, and what to do about it.

    Exit code 1 if no backend here can run a whole model.
    """
    from intarsia.report.health import diagnose

    diagnosis = diagnose(installed_backends(), Settings.from_environment())
    if json:
        show_json(diagnosis)
    else:
        _show_diagnosis(diagnosis)
    if not diagnosis.is_usable:
        raise typer.Exit(1)


def _show_diagnosis(diagnosis: Diagnosis) -> None:
    from intarsia.report.tables import make_table

    write(_machine_facts(diagnosis))
    columns = ("backend", "version", "kinds", "whole models", "usable here", "devices")
    shown = (row for row in diagnosis.backends if not row.is_hidden)
    show(make_table("backends", columns, (_backend_row(row) for row in shown)))
    for row in diagnosis.backends:
        for note in () if row.is_hidden else row.notes:
            write(f"{row.name}: {note}\n")
    settings = ((row.name, row.value, row.source, row.variable) for row in diagnosis.settings)
    show(make_table("settings", ("setting", "value", "from", "variable"), settings))
    if diagnosis.problems:
        problems = ((row.problem, row.fix) for row in diagnosis.problems)
        show(make_table("problems", ("problem", "fix"), problems))
    else:
        write("no problems\n")


def _machine_facts(diagnosis: Diagnosis) -> str:
    cpu, threads, cache = diagnosis.cpu, diagnosis.threads, diagnosis.cache
    has = ", ".join(name for name, there in cpu.extensions.items() if there)
    lacks = ", ".join(name for name, there in cpu.extensions.items() if not there)
    quota = "no limit" if threads.quota_cpus is None else f"a limit of {threads.quota_cpus:g}"
    state = "writable" if cache.is_writable else f"not writable ({cache.obstacle})"
    versions = (f"{name} {number or 'missing'}" for name, number in diagnosis.versions.items())
    lines = (
        f"versions  {', '.join(versions)}",
        f"platform  {diagnosis.platform}",
        f"cpu       {cpu.model}: {has or 'extensions unknown'}"
        + (f"; without {lacks}" if lacks else ""),
        f"threads   {threads.used} per run: {threads.usable_cpus} usable CPUs, {quota} by control "
        f"groups, INTARSIA_NUM_THREADS={threads.setting or 'unset'}, "
        f"OMP_NUM_THREADS={threads.omp_num_threads or 'unset'}",
        f"cache     {cache.folder}: {state}, {cache.entries} entries, {size_text(cache.nbytes)}",
        f"kinds     without a backend here: {', '.join(diagnosis.unserved) or 'none'}",
        "devices   of two GPUs under OpenCL, opencl:1 is the second (opencl:0 or opencl the first)",
    )
    return "".join(f"{line}\n" for line in lines)


def _backend_row(row: BackendHealth) -> tuple[object, ...]:
    complete = "yes" if row.is_complete else "no"
    usable = "yes" if row.is_usable else f"no: {row.missing or row.reason}"
    return row.name, row.version, row.kinds, complete, usable, row.devices
