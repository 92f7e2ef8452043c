# SPDX-License-Identifier: Apache-2.0
"""Opens what a command works on: loads a package, or compiles an ONNX model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.cli.attributes import read_attributes
from intarsia.cli.options import (
    Choices,
    read_buckets,
    read_layers,
    read_max_memory,
    read_pad_values,
    read_pins,
    read_shapes,
    read_sizes,
)
from intarsia.cli.output import note
from intarsia.errors import SettingError
from intarsia.files import ModelFile
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.compiler import Compiled
    from intarsia.place.request import Progress, Request
    from intarsia.place.setting import Setting
    from intarsia.plan.explanation import Explanation
    from intarsia.report.kernel_needs import PlanKernels
    from intarsia.runtime.free import Program


def open_executable(
    file: Path,
    choices: Choices,
    threads: int | None,
    *,
    is_frozen: bool = False,
    makes_inputs: bool = False,
    trust: bool = False,
    require_signature: bool = False,
    isolate: Sequence[str] = (),
) -> Program:
    """Load a package, or compile a model.

    Args:
        file: The package or model.
        choices: What was given for compiling.
        threads: Threads that one run may use.
        is_frozen: Whether nothing is compiled for sizes that no program is there for.
        makes_inputs: Whether inputs are made up, of the sizes that are given.
        trust: Whether a package's code runs whoever wrote it.
        require_signature: Whether a package is an error that nobody vouches for.
        isolate: Backends whose regions run in processes of their own.

    Raises:
        SettingError: Options of compiling are given for a package.
        IntarsiaError: As `intarsia.load` and `intarsia.compile`.
    """
    from intarsia.runtime.package import is_package

    if not is_package(file):
        more: dict[str, Any] = {"isolate": isolate, "cache": False} if isolate else {}
        return compile_file(file, choices, threads, is_fixed=is_frozen, **more).program
    refuse_choices(file, choices, asks_sizes=makes_inputs)
    from intarsia.opening import load

    return load(
        file,
        num_threads=threads,
        frozen=is_frozen,
        trust=trust,
        require_signature=require_signature,
        isolate=isolate,
    )


def explain_file(
    file: Path,
    choices: Choices,
    threads: int | None,
    profile_runs: int = 0,
    *,
    trust: bool = False,
) -> Explanation:
    """Explain a package, for which no backend is needed, or a model, which is compiled.

    Args:
        file: The package or model.
        choices: What was given for compiling.
        threads: Threads that one run may use.
        profile_runs: How many runs on made-up inputs are timed; 0 times nothing.
        trust: Whether a package's code runs for that whoever wrote it.

    Raises:
        SettingError: Options of compiling are given for a package.
        IntarsiaError: As `intarsia.compile`, or the package cannot be read.
    """
    from intarsia.runtime.package import is_package

    if profile_runs:
        executable = open_executable(file, choices, threads, makes_inputs=True, trust=trust)
        feeds = executable.sample_feeds(sizes=next(iter(read_sizes(choices.sizes)), None))
        profile = executable.profile(feeds, profile_runs)
        return executable.explain(profile)
    if not is_package(file):
        return compile_file(file, choices, threads).program.explain()
    refuse_choices(file, choices, asks_sizes=True)
    sizes = read_sizes(choices.sizes)
    from intarsia.runtime.package import read_package

    package = read_package(file)
    return package.explain() if not sizes else package.explain_at(sizes[0])


def kernels_of_file(file: Path, choices: Choices, threads: int | None) -> PlanKernels:
    """Return what the kernels of a package need, for which no device is needed, or of a model.

    Args:
        file: The package or model.
        choices: What was given for compiling.
        threads: Threads that one run may use.

    Raises:
        SettingError: Options of compiling are given for a package.
        IntarsiaError: As `intarsia.compile`; the package cannot be read, or there is no assembler.
    """
    from intarsia.backends.registry import load_backends
    from intarsia.report.kernel_needs import find_kernels
    from intarsia.runtime.package import is_package, read_package

    if is_package(file):
        refuse_choices(file, choices)
        package = read_package(file)
        placement, artifacts = package.plan.placement, package.artifacts
    else:
        program = compile_file(file, choices, threads).program
        placement, artifacts = program.placement, program.artifacts
    names = {artifact.backend for artifact in artifacts}
    return find_kernels(placement, artifacts, load_backends(Settings.from_environment(), names))


def explain_absent_file(file: Path, choices: Choices, threads: int | None) -> Explanation:
    """Explain a model on a machine that is not here, by estimates.

    Args:
        file: The model.
        choices: What was given for compiling.
        threads: Threads that one run may use.

    Raises:
        SettingError: It is a package, which is compiled for this machine.
        IntarsiaError: As `intarsia.compile`.
    """
    from intarsia.runtime.package import is_package
    from intarsia.tuning.absent.explaining import explain_absent

    if is_package(file):
        raise SettingError(
            f"{str(file)!r} is a package, and --absent explains models",
            hint="leave --absent out, or give the .onnx file",
        )
    setting = prepare_file(file, choices, threads, is_here=False)
    return explain_absent(setting, choices.placement)


def refuse_choices(file: Path, choices: Choices, *, asks_sizes: bool = False) -> None:
    """Refuse options of compiling for a package.

    Args:
        file: The package.
        choices: The options that commands share.
        asks_sizes: Whether one size for each free dimension says what the command is to look at.

    Raises:
        SettingError: There are some.
    """
    if asks_sizes and len(read_sizes(choices.sizes)) == 1:
        choices = replace(choices, sizes=None)
    if choices.given:
        raise SettingError(
            f"{choices.given[0]} is for compiling, and {str(file)!r} is compiled already",
            hint="leave it out, or give the .onnx file",
        )


def compile_file(file: Path, choices: Choices, threads: int | None, **more: Any) -> Compiled:
    """Compile a model, with a progress bar if standard error is a terminal.

    Args:
        file: As of `make_request`, and so is the rest.
        choices: The options that commands share.
        threads: Threads that one run may use.
        more: Other fields of a request; they win.

    Raises:
        IntarsiaError: As `intarsia.compile`.
    """
    request = make_request(file, choices, threads, **more)
    from intarsia.compiler import carry_out

    with progress_bar() as progress:
        return carry_out(request, progress)


def make_request(file: Path, choices: Choices, threads: int | None, **more: Any) -> Request:
    """Return what the options of a command ask for.

    Args:
        file: The model.
        choices: The options that commands share.
        threads: Threads that one run may use.
        more: Other fields of a request; they win.

    Raises:
        IntarsiaError: An option is of another form, or contradicts another.
    """
    from intarsia.place.request import Request
    from intarsia.plan.lock import read_lock

    parts: dict[str, Any] = {
        "target": choices.target,
        "host": choices.host,
        "attributes": read_attributes(choices.target_attr) or None,
        "shapes": read_shapes(choices.shape),
        "sizes": read_sizes(choices.sizes),
        "buckets": read_buckets(choices.bucket),
        "pad_values": read_pad_values(choices.pad_value),
        "pins": read_pins(choices.pin),
        "exclude": tuple(choices.exclude or ()),
        "layers": read_layers(choices.layer),
        "placement": choices.placement,
        "strict": choices.strict,
        "num_threads": threads,
        "lock": None if choices.frozen is None else read_lock(choices.frozen),
        "cache": False if choices.no_cache else None,
        "probe": False if choices.no_probe else None,
        "careful": choices.careful,
        "max_memory": read_max_memory(choices.max_memory),
    }
    return Request(model=model_of(file, choices), **(parts | more))


def model_of(file: Path, choices: Choices) -> Path | ModelFile:
    """Return a model's file, with the folder in which its external data may lie if one is given."""
    root = choices.external_data_root
    return file if root is None else ModelFile(file, root)


def prepare_file(file: Path, choices: Choices, threads: int | None, **more: Any) -> Setting:
    """Return the prepared model that a command asks for, still to be placed.

    Args:
        file: As of `make_request`, and so is the rest.
        choices: The options that commands share.
        threads: Threads that one run may use.
        more: Other fields of a request; they win.

    Raises:
        IntarsiaError: As `intarsia.compile`.
    """
    request = make_request(file, choices, threads, **more)
    from intarsia.compiler import read_setting

    with progress_bar() as progress:
        return read_setting(request, progress)


def installed_backends() -> Backends:
    """Return the backends of this machine, as the settings of the environment have them."""
    from intarsia.backends.registry import load_backends

    return load_backends(Settings.from_environment())


QUIET_SECONDS = 20.0
"""Between two lines of progress in a log; what takes no longer has none."""


def progress_lines() -> Progress:
    """Return what writes a line if work goes on for long."""
    last = time.monotonic()

    def tell(stage: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= QUIET_SECONDS:
            last = time.monotonic()
            note(f"{stage}: {done} of {total}")

    return tell


@contextmanager
def progress_bar(first: str = "load") -> Iterator[Progress]:
    """Show a progress bar on standard error; where that is not a terminal, a line now and then.

    Args:
        first: What it shows before anything is told.
    """
    if not sys.stderr.isatty():
        yield progress_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=1)

        def tell(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        yield tell
