# SPDX-License-Identifier: Apache-2.0
"""`intarsia plan forecast|absent|lock|diff`: plans without measuring, as files, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from intarsia.cli.costs import DatabaseOption
from intarsia.cli.files import writable
from intarsia.cli.models import prepare_file
from intarsia.cli.options import (
    BUCKETS,
    MACHINE,
    NODES,
    BudgetOption,
    Choices,
    HtmlOption,
    JsonOption,
    ModelArgument,
    ObjectiveOption,
    SlowdownOption,
    ThreadsOption,
    read_objective,
    read_seconds,
    takes_choices,
)
from intarsia.cli.output import show, show_json, write
from intarsia.cli.pages import report_file, write_report
from intarsia.errors import LockError

if TYPE_CHECKING:
    from intarsia.cost.records import Assigned
    from intarsia.plan.by_sizes import PlansBySizes
    from intarsia.plan.explanation import Explanation
    from intarsia.plan.identity import Identity

app = typer.Typer(
    no_args_is_help=True, help="Plan without measuring; lock plans, and compare them."
)

PlanArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A package or a lock file.", show_default=False)
]


@app.command("forecast")
@takes_choices(*MACHINE, *NODES, *BUCKETS)
def forecast_command(
    model: ModelArgument,
    *,
    choices: Choices,
    budget: BudgetOption = "120s",
    objective: ObjectiveOption = "latency",
    slowdown: SlowdownOption = None,
    database: DatabaseOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Say what `intarsia tune` would measure, without measuring or writing anything."""
    from intarsia.report.tuning import forecast_view
    from intarsia.tuning.forecast import forecast
    from intarsia.tuning.options import Options

    aim, seconds = read_objective(objective, slowdown), read_seconds(budget)
    setting = prepare_file(model, choices, threads, default_threads=aim.default_threads)
    foreseen = forecast(setting, Options(seconds, aim), costs=database)
    show_json(foreseen) if json else show(forecast_view(foreseen))


@app.command("absent")
@takes_choices(*MACHINE, *NODES, *BUCKETS)
def absent_command(
    model: ModelArgument,
    *,
    choices: Choices,
    declared: Annotated[
        Path | None,
        typer.Option(
            "--declared",
            metavar="FILE",
            help="TOML: operators and rates of kinds without a backend.",
        ),
    ] = None,
    objective: ObjectiveOption = "latency",
    database: DatabaseOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Plan by estimates for a machine that is not here; nothing is compiled or written."""
    from intarsia.report.tuning import tuning_view
    from intarsia.tuning.absent.absent import plan_absent
    from intarsia.tuning.options import Options

    aim = read_objective(objective, None)
    setting = prepare_file(
        model,
        choices,
        threads,
        default_threads=aim.default_threads,
        is_here=False,
        declared=declared,
    )
    _, report = plan_absent(setting, Options(objective=aim), costs=database)
    show_json(report) if json else show(tuning_view(report))


@app.command("lock")
def lock_command(
    package: Annotated[
        Path, typer.Argument(metavar="PACKAGE", help="What was compiled.", show_default=False)
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Lock file to write.")
    ] = Path("plan.lock.json"),
    json: JsonOption = False,
) -> None:
    """Write what runs where in a package as a lock file, for `compile --frozen`."""
    from intarsia.plan.lock import lock_plan, write_lock
    from intarsia.runtime.package import is_package, read_package

    if package.is_file() and not is_package(package):
        _refuse(package)
    writable(output)
    lock = lock_plan(read_package(package).plan)
    write_lock(lock, output)
    if json:
        show_json({"file": str(output), "lock": lock})
        return
    nodes = sum(len(region.nodes) for region in lock.regions)
    write(f"wrote {output} ({len(lock.regions)} regions, {nodes} nodes, {lock.policy} placement)\n")


def _refuse(file: Path) -> None:
    """Say what a file is that is not a package, where that is known."""
    from intarsia.plan.lock import read_lock

    try:
        read_lock(file)
    except LockError:
        return  # reading it as a package says what is wrong
    raise LockError(f"{str(file)!r} is a lock file already", hint="give the package it came from")


@app.command("diff")
def diff_command(
    first: PlanArgument,
    second: PlanArgument,
    *,
    complete: Annotated[bool, typer.Option("--all", help="List everything.")] = False,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two plans; exit code 1 if anything is different."""
    from intarsia.plan.compare import compare_plans

    page = None
    if html is not None:
        page = report_file(report_file(html, source=first), source=second)
    one, other = _read(first), _read(second)
    difference = compare_plans(
        one[0], other[0], (one[1], other[1]), (one[2], other[2]), (one[3], other[3])
    )
    if page is not None:
        write_report(
            page,
            f"intarsia plan diff {first.name} {second.name}",
            _explain(second),
            before=_explain(first),
            difference=difference,
        )
    if json:
        show_json(difference)
    else:
        from intarsia.report.differences import plan_difference_view

        show(plan_difference_view(difference, complete=complete))
    if not difference.is_empty or difference.changes:
        raise typer.Exit(1)


def _explain(file: Path) -> Explanation | None:
    """Explain a package; a lock file holds too little for that."""
    from intarsia.runtime.package import is_package, read_package

    return read_package(file).explain() if is_package(file) else None


def _read(
    file: Path,
) -> tuple[tuple[Assigned, ...], Identity | None, dict[str, str] | None, PlansBySizes | None]:
    """Return the regions of a package or lock file, what it depends on, its layouts and sizes."""
    from intarsia.plan.lock import placed_regions, read_lock
    from intarsia.runtime.package import is_package, read_package

    if not is_package(file):
        lock = read_lock(file)
        return lock.regions, lock.identity, lock.layouts, None
    package = read_package(file)
    plan, free = package.plan, package.free
    plans = None if free is None else free.plans
    return placed_regions(plan), plan.identity, plan.layouts, plans
