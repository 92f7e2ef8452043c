# SPDX-License-Identifier: Apache-2.0
"""Opens what a command works on: loads a package, or compiles an ONNX model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.cli.attributes import read_attributes
from intarsia.cli.options import Choices, read_layers, read_pins, read_shapes
from intarsia.cli.output import note
from intarsia.errors import SettingError

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.place.setting import Progress, Setting
    from intarsia.plan.explanation import Explanation
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.target import CompilationConfig


def open_executable(file: Path, choices: Choices, threads: int | None) -> PlanExecutable:
    """Load a package, or compile a model.

    Raises:
        SettingError: Options of compiling are given for a package.
        IntarsiaError: As `intarsia.load` and `intarsia.compile`.
    """
    from intarsia.runtime.package import is_package

    if not is_package(file):
        return compile_file(file, choices, threads)
    refuse_choices(file, choices)
    from intarsia.runtime.loading import load

    return load(file, num_threads=threads)


def explain_file(
    file: Path, choices: Choices, threads: int | None, profile_runs: int = 0
) -> Explanation:
    """Explain a package, for which no backend is needed, or a model, which is compiled.

    Args:
        file: The package or model.
        choices: What was given for compiling.
        threads: Threads that one run may use.
        profile_runs: How many runs on made-up inputs are timed; 0 times nothing.

    Raises:
        SettingError: Options of compiling are given for a package.
        IntarsiaError: As `intarsia.compile`, or the package cannot be read.
    """
    from intarsia.runtime.package import is_package

    if profile_runs:
        executable = open_executable(file, choices, threads)
        profile = executable.profile(executable.sample_feeds(), profile_runs)
        return executable.explain(profile)
    if not is_package(file):
        return compile_file(file, choices, threads).explain()
    refuse_choices(file, choices)
    from intarsia.plan.explanation import explain_plan
    from intarsia.runtime.package import read_package

    package = read_package(file)
    return explain_plan(package.plan, package.artifacts)


def refuse_choices(file: Path, choices: Choices) -> None:
    """Refuse options of compiling for a package.

    Raises:
        SettingError: There are some.
    """
    if choices.given:
        raise SettingError(
            f"{choices.given[0]} is for compiling, and {str(file)!r} is compiled already",
            hint="leave it out, or give the .onnx file",
        )


def compile_file(file: Path, choices: Choices, threads: int | None) -> PlanExecutable:
    """Compile a model, with a progress bar if standard error is a terminal.

    Raises:
        IntarsiaError: As `intarsia.compile`.
    """
    shapes, pins = read_shapes(choices.shape), read_pins(choices.pin)
    layers = read_layers(choices.layer)
    from intarsia.compiler import compile as compile_model
    from intarsia.plan.lock import read_lock

    lock = None if choices.frozen is None else read_lock(choices.frozen)
    target, host = machine_of(choices, None if lock is None else lock.identity.targets)
    with progress_bar() as progress:
        return compile_model(
            file,
            target,
            host=host,
            shapes=shapes,
            placement=choices.placement,
            pins=pins,
            exclude=tuple(choices.exclude or ()),
            layers=layers,
            strict=choices.strict,
            num_threads=threads,
            progress=progress,
            frozen=lock,
            cache=False if choices.no_cache else None,
            probe=False if choices.no_probe else None,
        )


def machine_of(choices: Choices, default: str | None = None) -> tuple[Any, str | None]:
    """Return the target and the host that were given, attributes for all targets applied.

    Args:
        choices: What was given.
        default: The machine if none was given; None means what is found here.

    Raises:
        TargetError: The attributes, or the machine that they are for, are wrong.
    """
    target = default if choices.target is None else choices.target
    overrides = read_attributes(choices.target_attr)
    if not overrides:
        return target, choices.host
    from intarsia.backends.registry import load_backends
    from intarsia.compiler import resolve_targets

    return resolve_targets(target, choices.host, load_backends(), overrides), None


def make_setting_of(
    file: Path,
    choices: Choices,
    threads: int | None,
    *,
    machine: tuple[CompilationConfig, Backends] | None = None,
    is_here: bool = True,
    declared: Path | None = None,
) -> Setting:
    """Read a model and resolve its machine, as `compile_file` does before it places.

    Args:
        file: The model.
        choices: What was asked for.
        threads: Threads that one run may use; None means the setting.
        machine: What was resolved of the choices already, and what serves it.
        is_here: Whether the machine is this one.
        declared: What kinds without a backend can do, for a machine that is not here.

    Raises:
        IntarsiaError: As `intarsia.compile`.
    """
    shapes, pins = read_shapes(choices.shape), read_pins(choices.pin)
    layers = read_layers(choices.layer)
    from intarsia.backends.registry import load_backends
    from intarsia.compiler import resolve_targets
    from intarsia.place.setting import Wishes, make_setting
    from intarsia.settings import thread_count

    if machine is None:
        backends, overrides = load_backends(), read_attributes(choices.target_attr)
        machine = resolve_targets(choices.target, choices.host, backends, overrides), backends
    if not is_here:
        from intarsia.backends.declared import with_declared

        machine = machine[0], with_declared(machine[1], machine[0], declared)
    wishes = Wishes(shapes, pins, tuple(choices.exclude or ()), layers)
    with progress_bar() as progress:
        return make_setting(
            file,
            *machine,
            wishes,
            num_threads=thread_count(threads),
            tell=progress,
            is_here=is_here,
        )


QUIET_SECONDS = 20.0
"""Between two lines of progress in a log; what takes no longer has none."""


def _progress_lines() -> Progress:
    """Return what writes a line if work goes on for long."""
    last = time.monotonic()

    def tell(stage: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= QUIET_SECONDS:
            last = time.monotonic()
            note(f"{stage}: {done} of {total}")

    return tell


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show a progress bar on standard error; where that is no terminal, a line now and then."""
    if not sys.stderr.isatty():
        yield _progress_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("load", total=1)

        def tell(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        yield tell
