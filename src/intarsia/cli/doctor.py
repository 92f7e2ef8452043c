# SPDX-License-Identifier: Apache-2.0
"""`intarsia doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from intarsia.cli.options import JsonOption
from intarsia.cli.output import show, show_json, size_text, write
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.report.doctor import Diagnosis
    from intarsia.report.health import BackendHealth


def doctor_command(json: JsonOption = False) -> None:
    """Show what works on this machine, what does not, and what to do about it.

    Exit code 1 if no backend here can run a whole model.
    """
    from intarsia.backends.registry import load_backends
    from intarsia.report.doctor import diagnose

    found = diagnose(load_backends(Settings.from_environment()), Settings.from_environment())
    if json:
        show_json(found)
    else:
        _show(found)
    if not found.is_usable:
        raise typer.Exit(1)


def _show(found: Diagnosis) -> None:
    from intarsia.report.tables import make_table

    write(_facts(found))
    columns = ("backend", "version", "kinds", "whole models", "usable here", "devices")
    shown = (row for row in found.backends if not row.is_hidden)
    show(make_table("backends", columns, (_backend(row) for row in shown)))
    for row in found.backends:
        for note in () if row.is_hidden else row.notes:
            write(f"{row.name}: {note}\n")
    settings = ((row.name, row.value, row.source, row.variable) for row in found.settings)
    show(make_table("settings", ("setting", "value", "from", "variable"), settings))
    if found.problems:
        problems = ((row.problem, row.fix) for row in found.problems)
        show(make_table("problems", ("problem", "fix"), problems))
    else:
        write("no problems\n")


def _facts(found: Diagnosis) -> str:
    cpu, threads, cache = found.cpu, found.threads, found.cache
    has = ", ".join(name for name, there in cpu.extensions.items() if there)
    lacks = ", ".join(name for name, there in cpu.extensions.items() if not there)
    quota = "no limit" if threads.quota_cpus is None else f"a limit of {threads.quota_cpus:g}"
    state = "writable" if cache.is_writable else f"not writable ({cache.obstacle})"
    versions = (f"{name} {number or 'missing'}" for name, number in found.versions.items())
    lines = (
        f"versions  {', '.join(versions)}",
        f"platform  {found.platform}",
        f"cpu       {cpu.model}: {has or 'extensions unknown'}"
        + (f"; without {lacks}" if lacks else ""),
        f"threads   {threads.used} per run: {threads.usable_cpus} usable CPUs, {quota} by control "
        f"groups, INTARSIA_NUM_THREADS={threads.setting or 'unset'}, "
        f"OMP_NUM_THREADS={threads.omp_num_threads or 'unset'}",
        f"cache     {cache.folder}: {state}, {cache.entries} entries, {size_text(cache.nbytes)}",
        f"kinds     without a backend here: {', '.join(found.unserved) or 'none'}",
        "devices   of two GPUs under OpenCL, opencl:1 is the second (opencl:0 or opencl the first)",
    )
    return "".join(f"{line}\n" for line in lines)


def _backend(row: BackendHealth) -> tuple[object, ...]:
    complete = "yes" if row.is_complete else "no"
    usable = "yes" if row.is_usable else f"no: {row.missing or row.reason}"
    return row.name, row.version, row.kinds, complete, usable, row.devices
