# SPDX-License-Identifier: Apache-2.0
"""`intarsia tune MODEL -t TARGETS --budget 120s`: the fastest plan, by measuring.

With `--kernels` it is the fastest schedules of native code's kernels.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli.costs import DatabaseOption
from intarsia.cli.files import readable_model, writable
from intarsia.cli.models import machine_of, make_setting_of
from intarsia.cli.options import (
    Choices,
    ExcludeOption,
    HostOption,
    InputOption,
    JsonOption,
    LayerOption,
    NoCacheOption,
    PinOption,
    ShapeOption,
    SlowdownOption,
    TargetAttrOption,
    TargetFileOption,
    TargetOption,
    ThreadsOption,
    read_files,
    read_layers,
    read_pins,
    read_shapes,
)
from intarsia.cli.output import milliseconds, show, show_json, size_text, write
from intarsia.errors import BackendError, PackageError, SettingError

if TYPE_CHECKING:
    from intarsia.accepted.programs import Found, Kept, Slot, Wanted
    from intarsia.cost.records import PlanVerdict, VerdictKey
    from intarsia.measure.timing import Spread
    from intarsia.place.setting import Setting
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.tuning.kernels.tuner import KernelMoment
    from intarsia.tuning.options import Options, TuningStatus

logger = logging.getLogger("intarsia")

_MOMENT_SECONDS = 0.5
"""How long the result is timed."""
_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def tune_command(  # noqa: PLR0913 - an option each
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="The ONNX model.", show_default=False, callback=readable_model
        ),
    ],
    *,
    target: TargetOption = None,
    target_file: TargetFileOption = None,
    target_attr: TargetAttrOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Package to write. Default: MODEL.intarsia here."
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="How long to measure: 90s, 5min.")
    ] = "120s",
    objective: Annotated[
        str, typer.Option("--objective", metavar="WHAT", help="latency, throughput or memory.")
    ] = "latency",
    slowdown: SlowdownOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on measuring although a plan was accepted before.")
    ] = False,
    frozen: Annotated[
        bool,
        typer.Option("--frozen", help="Search for nothing: an accepted plan, or an error."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be measured, and stop.")
    ] = False,
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels",
            help="Measure schedules of the kernels of native code instead of plans; later "
            "compiles use them.",
        ),
    ] = False,
    devices_absent: Annotated[
        bool,
        typer.Option(
            "--devices-absent", help="Plan for a machine that is not here; nothing is compiled."
        ),
    ] = False,
    declared: Annotated[
        Path | None,
        typer.Option(
            "--declared",
            metavar="FILE",
            help="TOML: operators and rates of kinds without a backend, for --devices-absent.",
        ),
    ] = None,
    database: DatabaseOption = None,
    inputs: InputOption = None,
    streams: Annotated[
        int,
        typer.Option(
            "--streams", metavar="N", min=1, help="Runs at once when the result is timed."
        ),
    ] = 1,
    host: HostOption = None,
    shape: ShapeOption = None,
    pin: PinOption = None,
    exclude: ExcludeOption = None,
    layer: LayerOption = None,
    threads: ThreadsOption = None,
    no_cache: NoCacheOption = False,
    json: JsonOption = False,
) -> None:
    """Find the fastest plan by measuring, and write a package.

    What is measured is kept: Ctrl-C writes the best plan so far, and the next run goes on.
    """
    from intarsia.cli.arrays import read_arrays
    from intarsia.report.tuning import forecast_view, tuning_view
    from intarsia.runtime.package import PACKAGE_SUFFIX
    from intarsia.tuning.objectives.objective import SLOWDOWN, parse_objective
    from intarsia.tuning.options import Options, threads_for

    if frozen + dry_run + devices_absent + resume > 1:
        raise SettingError(
            "--frozen, --dry-run, --devices-absent and --resume contradict one another",
            hint="give one of them",
        )
    if output and (dry_run or devices_absent):
        raise SettingError(
            f"{'--dry-run' if dry_run else '--devices-absent'} writes no package",
            hint="leave out --output; --json prints what can be kept",
        )
    if declared is not None and not devices_absent:
        raise SettingError(
            "--declared says what is planned for, and nothing of it is compiled",
            hint="add --devices-absent",
        )
    seconds = read_seconds(budget)
    aim = parse_objective(objective, SLOWDOWN if slowdown is None else slowdown)
    feeds = read_arrays(read_files("--input", inputs)) if inputs else None
    options = Options(seconds, aim, feeds)
    if kernels and (frozen or dry_run or devices_absent or output or database):
        raise SettingError(
            "--kernels writes no package and no costs, and measures here and now",
            hint="leave out --frozen, --dry-run, --devices-absent, --output and --database",
        )
    if kernels and not aim.is_of_speed:
        raise SettingError(
            "--kernels finds fast schedules, whatever memory they need",
            hint="leave out --objective, or tune plans without --kernels",
        )
    choices = Choices(target, host, shape, pin, exclude, "collage", False, layer, target_attr)
    file = writable(output or Path(f"{model.stem}{PACKAGE_SUFFIX}"), source=model)
    found = None
    if not (kernels or dry_run or devices_absent or no_cache):
        wanted = _wanted(model, choices, threads_for(aim, threads), aim.describe())
        found = _find(wanted, choices, (database, resume))
        kept = None if found is None else found.kept
        executable = None if kept is None else _take(kept, file, wanted.num_threads)
        if executable is not None:  # all else would come to the same
            _show_result(file, executable, _time(executable, feeds or {}, streams), is_json=json)
            return
    from intarsia.place.program import build_plan
    from intarsia.tuning.tuned import foresee, frozen_plan, plan_absent

    setting = make_setting_of(
        *(model, choices, threads_for(aim, threads)),
        machine=None if found is None or found.config is None else found.machine,
        is_here=not devices_absent,
        declared=declared,
    )
    if kernels:
        _tune_kernels(setting, seconds, again=resume, is_json=json)
        return
    if dry_run:
        forecast = foresee(setting, options, costs=database)
        show_json(forecast) if json else show(forecast_view(forecast))
        return
    if devices_absent:
        _, report = plan_absent(setting, options, costs=database)
        show_json(report) if json else show(tuning_view(report))
        return
    if frozen:
        executable = build_plan(setting, *frozen_plan(setting, aim, costs=database))
        executable.save(file)
    else:
        slot = None if found is None else found.slot
        executable = _tune(setting, options, file, slot, (database, resume))
    _show_result(file, executable, _time(executable, feeds or {}, streams), is_json=json)


def _time(executable: PlanExecutable, feeds: Mapping[str, Any], streams: int) -> Spread:
    """Run the result for a moment, several contexts of it at once."""
    from intarsia.measure.timing import measure_streams
    from intarsia.runtime.feeds import check_feeds

    specs = [spec for spec in executable.inputs if spec.name not in feeds]
    made = executable.sample_feeds() if specs else {}
    arrays = check_feeds(executable.inputs, {**made, **feeds})
    contexts = [executable.context() for _ in range(streams)]
    for context in contexts:
        context.write_inputs(arrays)
    return measure_streams([context.run for context in contexts], _MOMENT_SECONDS)


def _tune(
    setting: Setting,
    options: Options,
    file: Path,
    slot: Slot | None,
    where: tuple[str | None, bool],
) -> PlanExecutable:
    """Tune, write the package, and keep it if its plan was accepted.

    Args:
        setting: The model and the machine.
        options: How to tune.
        file: The package.
        slot: Where it is kept.
        where: The cost database, and whether to go on although a plan was accepted.
    """
    from intarsia.accepted.programs import copy_package
    from intarsia.tuning.tuned import build_tuned

    accepted: list[tuple[PlanExecutable, VerdictKey, PlanVerdict]] = []
    with _progress() as tell:
        executable = build_tuned(
            *(setting, replace(options, tell=tell)),
            costs=where[0],
            again=where[1],
            keep=lambda *found: accepted.append(found),
        )
    # kept first: somebody else may write to the user's file, but not another program to the slot
    is_kept = slot is not None and bool(accepted) and slot.keep(*accepted[0])
    if slot is None or not is_kept or not copy_package(slot.file, file):
        executable.save(file)
    return executable


def _wanted(model: Path, choices: Choices, threads: int, objective: str) -> Wanted:
    from intarsia.accepted.programs import Wanted

    said = (
        *(read_shapes(choices.shape), read_pins(choices.pin)),
        *(choices.exclude or (), read_layers(choices.layer)),
    )
    return Wanted(model, said, threads, objective)


def _find(wanted: Wanted, choices: Choices, where: tuple[str | None, bool]) -> Found | None:
    """Look for the program of this request; nothing where no programs are kept.

    Args:
        wanted: The request.
        choices: The machine.
        where: The cost database, and whether to go on although a plan was accepted.
    """
    from intarsia.accepted.programs import look_up
    from intarsia.settings import Settings

    if not Settings.from_environment().programs:
        return None

    def find(slot: Slot) -> Kept | None:
        return None if where[1] else slot.find(where[0], is_accepted=True)

    return look_up(wanted, *machine_of(choices), None, find=find)


def _take(kept: Kept, file: Path, num_threads: int) -> PlanExecutable | None:
    """Write the package of a kept program, and load it; nothing if it cannot be had any more."""
    try:
        executable = kept.load(None, num_threads)
    except (BackendError, PackageError) as error:  # a driver may be gone since
        logger.info("a kept program is made anew: %s", error.message)
        kept.remove()
        return None
    return executable if kept.copy(file) else None


def _show_result(file: Path, executable: PlanExecutable, spread: Spread, *, is_json: bool) -> None:
    plan, nbytes = executable.plan, file.stat().st_size
    if is_json:
        show_json({"file": str(file), "nbytes": nbytes, "tuning": plan.tuning, "timing": spread})
        return
    from intarsia.report.tables import placement_table
    from intarsia.report.tuning import tuning_view

    views = [] if plan.tuning is None else [tuning_view(plan.tuning)]
    show(*views, placement_table(plan.placement))
    shares = (spread.p50_seconds, spread.p90_seconds, spread.p99_seconds)
    p50, p90, p99 = map(milliseconds, shares)
    streams = f"{spread.streams} streams" if spread.streams > 1 else "one stream"
    write(
        f"p50 {p50}, p90 {p90}, p99 {p99}; "
        f"{spread.runs_per_second:.1f} runs per second of {streams}\n"
    )
    write(f"wrote {file} ({size_text(nbytes)})\n")


def _tune_kernels(setting: Setting, seconds: float, *, again: bool, is_json: bool) -> None:
    """Measure schedules of kernels, and show what is known of them."""
    from intarsia.report.schedules import schedules_view
    from intarsia.tuning.kernels.tuning import tune_model_kernels

    with _kernel_progress() as tell:
        results = tune_model_kernels(setting, budget=seconds, again=again, tell=tell)
    if is_json:
        show_json(results)
    else:
        show(schedules_view(results))


@contextmanager
def _kernel_progress() -> Iterator[Callable[[KernelMoment], None]]:
    """Show a progress bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda moment: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("kernels", total=None)
        yield lambda moment: bar.update(
            task, completed=moment.done, total=moment.total, description=moment.key
        )


def read_seconds(text: str) -> float:
    """Return the seconds of `90`, `90s`, `1.5min` or `1h`.

    Raises:
        SettingError: It is of another form, or not above 0.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise SettingError(f"--budget {text!r} is no time", hint="write for example 90s or 2min")
    return float(match[1]) * _UNITS[match[2]]


@contextmanager
def _progress() -> Iterator[Callable[[TuningStatus], None] | None]:
    """Show on standard error what is going on, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    with console.status("tuning") as status:
        last = [0.0]

        def tell(moment: TuningStatus) -> None:
            if time.monotonic() - last[0] < 0.1:  # noqa: PLR2004 - often enough for eyes
                return
            last[0] = time.monotonic()
            best = ""
            if moment.best_seconds is not None:
                best = f"; best so far {moment.best}, {milliseconds(moment.best_seconds)}"
            status.update(f"{moment.stage}: {moment.what}{best}; {moment.left_seconds:.0f} s left")

        yield tell
