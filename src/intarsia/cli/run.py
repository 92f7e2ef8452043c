# SPDX-License-Identifier: Apache-2.0
"""`intarsia run FILE`: run a package or a model once, and say what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli.files import writable, writable_folder
from intarsia.cli.models import make_request, open_executable, refuse_choices
from intarsia.cli.options import (
    BUCKETS,
    MACHINE,
    NODES,
    Choices,
    FileArgument,
    InputOption,
    IsolateOption,
    JsonOption,
    SignatureOption,
    ThreadsOption,
    TrustOption,
    read_files,
    read_sizes,
    takes_choices,
)
from intarsia.cli.output import milliseconds, note, show, show_json, write
from intarsia.errors import InputError, SettingError

if TYPE_CHECKING:
    from intarsia.runtime.free import Program
    from intarsia.verifying.watching import VerifiedProgram


@takes_choices(
    *(*MACHINE, *NODES, *BUCKETS, "placement", "strict", "no_cache", "no_probe", "max_memory"),
    "careful",
)
def run_command(  # noqa: PLR0913 - an option each
    file: FileArgument,
    *,
    inputs: InputOption = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="NAME=FILE.npy", help="Where to write an output."),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", metavar="DIR", help="Write every output there as NAME.npy."),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Seeds the inputs if none is given.")
    ] = 0,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", min=1, help="Run N times and print the time.")
    ] = 1,
    frozen: Annotated[
        bool,
        typer.Option(
            "--frozen", help="Compile nothing for free dimensions: their sizes must be there."
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Compare every region of every run with the ONNX reference (slow)."
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.json",
            help="Write when what ran, for Perfetto or chrome://tracing.",
        ),
    ] = None,
    trust: TrustOption = False,
    require_signature: SignatureOption = False,
    isolate: IsolateOption = None,
    choices: Choices,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Run a package, or compile an ONNX model and run it.

    Without --input, inputs are random numbers from --seed, of the first --sizes. With --verify, a
    fault that comes in one run and not in the next is located in the run in which it comes; exit
    code 1 if there is one. With --trace, it runs --repeat times more, and each region, copy and,
    where a backend tells them, kernel and thread is in the file.
    """
    input_files, output_files = read_files("--input", inputs), read_files("--output", outputs)
    sizes = [] if input_files else read_sizes(choices.sizes)[:1]
    for path in output_files.values():
        writable(path, is_made=True, source=file)
    if output_dir is not None:
        writable_folder(output_dir)
    if trace is not None:
        writable(trace, source=file)
    start = perf_counter()
    verified: VerifiedProgram | None = None
    executable: Program
    if verify:
        _check_verify(trace, is_more=bool(isolate or require_signature or frozen))
        verified = _open_verified(file, choices, threads, trust=trust)
        executable = verified.program
    else:
        executable = open_executable(
            file,
            choices,
            threads,
            is_frozen=frozen,
            makes_inputs=not input_files,
            trust=trust,
            require_signature=require_signature,
            isolate=isolate or (),
        )
    load_seconds = perf_counter() - start
    files = _output_files(executable, output_files, output_dir)
    feeds = _feeds(executable, input_files, seed, *sizes)
    run = executable.run if verified is None else verified.run
    from intarsia.runtime.device_array import to_host

    results = to_host(run(feeds))

    from intarsia.cli.arrays import write_arrays
    from intarsia.measure.timing import time_runs
    from intarsia.report.tensors import summarize

    timing = time_runs(lambda: run(feeds), repeat) if repeat > 1 else None
    write_arrays(results, files)
    if trace is not None:
        _write_trace(trace, executable, feeds, repeat, str(file))
    summaries = summarize(results)
    if json:
        show_json(
            {
                "file": str(file),
                "load_seconds": load_seconds,
                "inputs": executable.program_for(feeds).inputs,
                "outputs": summaries,
                "written": {name: str(path) for name, path in files.items()},
                "timing": timing,
                **({} if trace is None else {"trace": str(trace)}),
                **({} if verified is None else {"faults": verified.faults}),
            }
        )
        _answer(verified)
        return
    from intarsia.report.tables import tensors_table

    show(tensors_table(summaries))
    for name, path in files.items():
        write(f"wrote {name} to {path}\n")
    if trace is not None:
        write(f"wrote {trace}: open it at https://ui.perfetto.dev or in chrome://tracing\n")
    if timing is not None:
        write(
            f"{timing.runs} runs: median {milliseconds(timing.median_seconds)}, "
            f"fastest {milliseconds(timing.min_seconds)}\n"
        )
    if verified is not None:
        write(f"{verified.runs} runs compared with the reference, region by region\n")
    _answer(verified)


def _check_verify(trace: Path | None, *, is_more: bool) -> None:
    """Refuse what a verified run leaves aside.

    Raises:
        SettingError: Something was asked for that it does not do.
    """
    if is_more:
        raise SettingError(
            "--verify runs a program that it makes for that: --isolate, --require-signature and "
            "--frozen say nothing of it",
            hint="verify first, and run with these options then",
        )
    if trace is not None:
        raise SettingError(
            "--verify compares every region, and --trace times them", hint="give one of the two"
        )


def _write_trace(
    path: Path, executable: Program, feeds: Mapping[str, Any], runs: int, name: str
) -> None:
    """Run a program a few times more, and write when what ran.

    Raises:
        SettingError: The file cannot be written.
        ExecutionError: A backend failed.
    """
    from intarsia.report.trace_events import write_trace
    from intarsia.runtime.free import FreeExecutable
    from intarsia.runtime.tracing import trace_runs

    if isinstance(executable, FreeExecutable) and executable.buckets is not None:
        raise SettingError(
            "inputs are padded to the sizes of buckets, and a trace is of one run as it is",
            hint="give inputs of the size of a bucket, and leave --bucket out",
        )
    write_trace(trace_runs(executable.program_for(feeds), feeds, runs), name, path)


def _open_verified(
    file: Path, choices: Choices, threads: int | None, *, trust: bool
) -> VerifiedProgram:
    """Return a program that compares every region when it runs."""
    from intarsia.runtime.package import is_package
    from intarsia.verifying.watching import open_verified

    request = None
    if is_package(file):
        refuse_choices(file, choices, asks_sizes=True)
    else:
        request = make_request(file, choices, threads)
    return open_verified(
        file,
        request,
        None,
        threads=threads,
        trust=trust,
        sizes=next(iter(read_sizes(choices.sizes)), None),
    )[0]


def _answer(verified: VerifiedProgram | None) -> None:
    """Say what went wrong in verified runs; exit code 1 if anything did."""
    if verified is not None and verified.unchecked:
        note(verified.unchecked)
    if verified is not None and verified.faults:
        for fault in verified.faults:
            note(f"fault: {fault}")
        raise typer.Exit(1)


def _feeds(
    executable: Program, files: dict[str, Path], seed: int, sizes: Mapping[str, int] | None = None
) -> dict[str, Any]:
    if files or not executable.inputs:
        from intarsia.cli.arrays import read_arrays

        return read_arrays(files)
    feeds = executable.sample_feeds(seed, sizes)
    specs = ", ".join(map(str, executable.program_for(feeds).inputs))
    note(f"no --input given: made-up values from seed {seed} for {specs}")
    return dict(feeds)


def _output_files(
    executable: Program, chosen_files: dict[str, Path], folder: Path | None
) -> dict[str, Path]:
    names = [spec.name for spec in executable.outputs]
    for name in chosen_files:
        if name not in names:
            raise InputError(f"the model has no output {name!r}", hint=f"it has {', '.join(names)}")
    if folder is None:
        return chosen_files
    return {**{name: folder / _file_name(name, names) for name in names}, **chosen_files}


def _file_name(name: str, names: Sequence[str]) -> str:
    """Return the name of an output's file: one level, and no two outputs share one."""
    plain = [other.replace("/", "_").replace("\\", "_").lstrip(".") or "_" for other in names]
    index = names.index(name)
    suffix = f"-{index}" if plain.count(plain[index]) > 1 else ""
    return f"{plain[index]}{suffix}.npy"
