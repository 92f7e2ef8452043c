# SPDX-License-Identifier: Apache-2.0
"""`intarsia tune MODEL -t TARGETS --budget 120s`: the fastest plan, by measuring.

`intarsia tune-kernels` finds the fastest schedules of native code's kernels.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.costs import DatabaseOption
from intarsia.cli.files import writable
from intarsia.cli.models import make_request, prepare_file, progress_bar, progress_lines
from intarsia.cli.options import (
    BUCKETS,
    MACHINE,
    NODES,
    BudgetOption,
    CarefulOption,
    Choices,
    HtmlOption,
    InputOption,
    JsonOption,
    ModelArgument,
    ObjectiveOption,
    SlowdownOption,
    ThreadsOption,
    read_files,
    read_objective,
    read_seconds,
    read_sizes,
    takes_choices,
)
from intarsia.cli.output import milliseconds, note, show, show_json, size_text, write
from intarsia.cli.pages import report_file, write_report
from intarsia.errors import SettingError

if TYPE_CHECKING:
    from intarsia.measure.timing import Spread
    from intarsia.place.request import Progress
    from intarsia.plan.by_sizes import PlansBySizes
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.tuning.kernels.tuner import KernelMoment
    from intarsia.tuning.options import TuningStatus

_MOMENT_SECONDS = 0.5
"""How long the result is timed."""


@takes_choices(*MACHINE, *NODES, *BUCKETS, "no_cache")
def tune_command(  # noqa: PLR0913 - an option each
    model: ModelArgument,
    *,
    choices: Choices,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Package to write. Default: MODEL.intarsia here."
        ),
    ] = None,
    budget: BudgetOption = "120s",
    objective: ObjectiveOption = "latency",
    slowdown: SlowdownOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on measuring even if a plan was accepted before.")
    ] = False,
    frozen: Annotated[
        bool,
        typer.Option("--frozen", help="Do not search: use an accepted plan, or fail."),
    ] = False,
    database: DatabaseOption = None,
    inputs: InputOption = None,
    requests: Annotated[
        Path | None,
        typer.Option(
            "--requests",
            metavar="FILE",
            help='Sizes of real requests, one a line: {"batch": 1, "seq": 37, "count": 12}. Plans '
            "are measured at a few that stand for all.",
        ),
    ] = None,
    streams: Annotated[
        int,
        typer.Option(
            "--streams", metavar="N", min=1, help="Concurrent runs when the result is timed."
        ),
    ] = 1,
    careful: CarefulOption = True,
    html: HtmlOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Find the fastest plan by measuring, and write a package.

    What is measured is kept: Ctrl-C writes the best plan so far, and the next run goes on.
    """
    from intarsia.bench.profile import time_streams
    from intarsia.cli.arrays import read_arrays
    from intarsia.compiler import carry_out
    from intarsia.runtime.free import FreeExecutable
    from intarsia.runtime.package import PACKAGE_SUFFIX
    from intarsia.tuning.options import Options
    from intarsia.tuning.requests import ask_sizes

    if frozen and resume:
        raise SettingError("--frozen and --resume contradict one another", hint="give one of them")
    aim, seconds = read_objective(objective, slowdown), read_seconds(budget)
    feeds = read_arrays(read_files("--input", inputs)) if inputs else None
    asked = ask_sizes(read_sizes(choices.sizes), requests)
    file = writable(output or Path(f"{model.stem}{PACKAGE_SUFFIX}"), source=model)
    page = None if html is None else report_file(html, source=model)
    request = make_request(
        model,
        choices,
        threads,
        default_threads=aim.default_threads,
        placement="collage",
        objective=aim.describe(),
        costs=database,
        is_resumed=resume,
        may_measure=not frozen,
        sizes=asked.sizes,
        careful=careful,
    )
    with _progress() as (tell, tell_moment):
        options = Options(seconds, aim, feeds, tell_moment, asked.text)
        compiled = carry_out(request, tell, options=options)
    compiled.save(file)
    program = compiled.program
    spread = time_streams(program.latest, feeds or {}, streams, _MOMENT_SECONDS)
    if page is not None:
        write_report(page, f"intarsia tune {model.name}", program.explain())
    if isinstance(program, FreeExecutable):
        tuned = tuple(zip(program.sizes, program.programs, strict=True))
        _show_result(file, program.latest, spread, tuned, program.plans, is_json=json)
    else:
        _show_result(file, program, spread, is_json=json)


def _show_result(
    file: Path,
    executable: PlanExecutable,
    spread: Spread,
    tuned: Sequence[tuple[Mapping[str, int], PlanExecutable]] = (),
    plans: PlansBySizes | None = None,
    *,
    is_json: bool,
) -> None:
    """Show what was found.

    Args:
        file: What was written.
        executable: The program that was timed.
        spread: Its times.
        tuned: Of a model with free dimensions, the program for each sizes.
        plans: Likewise, which plan is for which sizes.
        is_json: Whether as JSON.
    """
    plan, nbytes = executable.plan, file.stat().st_size
    if is_json:
        result = {"file": str(file), "nbytes": nbytes, "tuning": plan.tuning, "timing": spread}
        if plans is not None:
            reports = [{"sizes": sizes, "tuning": one.plan.tuning} for sizes, one in tuned]
            result |= {"plans": plans, "by_sizes": reports}
        show_json(result)
        return
    from intarsia.graph.free_sizes import sizes_text
    from intarsia.report.tables import placement_table
    from intarsia.report.tuning import plans_view, tuning_view

    programs = tuned or [({}, executable)]
    for sizes, one in programs:
        if sizes:
            write(f"{sizes_text(sizes)}\n")
        views = [] if one.plan.tuning is None else [tuning_view(one.plan.tuning)]
        show(*views, placement_table(one.plan.placement))
    if plans is not None:
        show(plans_view(plans))
        write(f"timed at {sizes_text(programs[-1][0])}:\n")
    shares = (spread.p50_seconds, spread.p90_seconds, spread.p99_seconds)
    p50, p90, p99 = map(milliseconds, shares)
    streams = f"{spread.streams} streams" if spread.streams > 1 else "one stream"
    write(
        f"p50 {p50}, p90 {p90}, p99 {p99}; "
        f"{spread.runs_per_second:.1f} runs per second of {streams}\n"
    )
    write(f"wrote {file} ({size_text(nbytes)})\n")


@takes_choices(*MACHINE, *NODES, *BUCKETS)
def tune_kernels_command(
    model: ModelArgument,
    *,
    choices: Choices,
    budget: BudgetOption = "120s",
    resume: Annotated[
        bool, typer.Option("--resume", help="Also measure kernels that have results already.")
    ] = False,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Measure schedules of a model's kernels on native code; later compiles use the fastest."""
    from intarsia.report.kernels import schedules_view
    from intarsia.tuning.kernels.tuning import tune_model_kernels

    seconds = read_seconds(budget)
    setting = prepare_file(model, choices, threads)
    with progress_bar("kernels") as tell:

        def tell_moment(moment: KernelMoment) -> None:
            tell(moment.key, moment.done, moment.total)

        results = tune_model_kernels(setting, budget=seconds, again=resume, tell=tell_moment)
    if json:
        show_json(results)
    else:
        show(schedules_view(results))


@contextmanager
def _progress() -> Iterator[tuple[Progress, Callable[[TuningStatus], None] | None]]:
    """Show on standard error what is going on, if that is a terminal.

    Yields:
        What is told about the stages of the pipeline, and what about measuring.
    """
    if not sys.stderr.isatty():
        yield progress_lines(), _sizes_lines()
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    with console.status("tuning") as status:
        last = [0.0]

        def tell(stage: str, done: int, total: int) -> None:
            status.update(f"{stage}: {done} of {total}")

        def tell_moment(moment: TuningStatus) -> None:
            if time.monotonic() - last[0] < 0.1:  # noqa: PLR2004 - often enough for eyes
                return
            last[0] = time.monotonic()
            best = ""
            if moment.best_seconds is not None:
                best = f"; best so far {moment.best}, {milliseconds(moment.best_seconds)}"
            at = f"{moment.sizes}: " if moment.sizes else ""
            left = f"{moment.left_seconds:.0f} s left"
            status.update(f"{at}{moment.stage}: {moment.what}{best}; {left}")

        yield tell, tell_moment


def _sizes_lines() -> Callable[[TuningStatus], None]:
    """Return what writes a line for each sizes that are measured."""
    seen: set[str] = set()

    def tell(moment: TuningStatus) -> None:
        if moment.sizes and moment.sizes not in seen:
            seen.add(moment.sizes)
            note(f"{moment.sizes}: {moment.left_seconds:.0f} s")

    return tell
