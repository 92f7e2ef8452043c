# SPDX-License-Identifier: Apache-2.0
"""`intarsia bench MODEL -t TARGETS --against onnxruntime,openvino`: ours against peers."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.files import readable_model
from intarsia.cli.models import make_request, progress_bar
from intarsia.cli.options import (
    MACHINE,
    Choices,
    InputOption,
    JsonOption,
    ThreadsOption,
    read_files,
    takes_choices,
)
from intarsia.cli.output import (
    in_milliseconds,
    milliseconds,
    note,
    show,
    show_json,
    size_text,
    write,
)

if TYPE_CHECKING:
    from intarsia.bench.compare import Comparison, Series
    from intarsia.bench.models import BenchModel
    from intarsia.place.request import Request


@takes_choices(*MACHINE, "shape", "pin", "exclude", "placement")
def bench_command(  # noqa: PLR0913 - an option each
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="An ONNX model.", show_default=False, callback=readable_model
        ),
    ],
    *,
    against: Annotated[
        str, typer.Option("--against", metavar="NAMES", help="Peers, separated by commas.")
    ] = "onnxruntime",
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="How often each runtime is timed.")
    ] = 7,
    most_rounds: Annotated[
        int,
        typer.Option(
            "--most-rounds",
            metavar="N",
            help="Double the rounds up to this while a ratio, or --at-least, is not clear to 1 %.",
        ),
    ] = 0,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="First dimension of every input.")
    ] = None,
    least: Annotated[
        float | None,
        typer.Option("--at-least", metavar="RATIO", help="Exit with 1 if a ratio is below this."),
    ] = None,
    errors: Annotated[
        bool, typer.Option(help="Compare the outputs with a float64 reference (slow).")
    ] = True,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Show the time of each kernel instead, and how close it comes to the limits.",
        ),
    ] = False,
    streams: Annotated[
        int,
        typer.Option(
            "--streams", metavar="N", help="Runs in flight at once, to measure runs per second."
        ),
    ] = 1,
    inputs: InputOption = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Seed of inputs that are not given.")
    ] = 0,
    choices: Choices,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Time a model against other runtimes, each in a process of its own.

    A ratio is a peer's time through ours: above 1 means that ours is faster. With `--profile`, no
    peer runs: every kernel of ours is timed by itself.
    """
    from intarsia.bench.compare import compare
    from intarsia.bench.models import make_bench_model
    from intarsia.bench.subject import plain_options
    from intarsia.cli.arrays import read_arrays

    request = make_request(model, choices, threads)
    target, options = plain_options(request, knows_target=not choices.target_file)
    peers = [name.strip() for name in against.split(",") if name.strip()]
    with tempfile.TemporaryDirectory(prefix="intarsia-bench-") as folder, progress_bar() as tell:
        bench_model = make_bench_model(
            model,
            Path(folder),
            shapes=request.shapes,
            batch=batch,
            feeds=read_arrays(read_files("--input", inputs)),
            seed=seed,
        )
        if profile:
            _profile(bench_model, request, rounds, as_json=json)
            return
        comparison = compare(
            bench_model,
            target,
            peers,
            threads=request.threads,
            rounds=rounds,
            most_rounds=most_rounds,
            bar=least,
            options=options,
            check_errors=errors,
            streams=streams,
            progress=tell,
        )
    if json:
        show_json(comparison)
    else:
        _show(comparison)
    if least is None:
        return
    unclear = [name for name, peer in comparison.peers.items() if peer.low < least <= peer.high]
    if unclear:
        note(f"not clear whether below {least:g}: {', '.join(unclear)}")
    slow = [name for name, peer in comparison.peers.items() if peer.ratio < least]
    if slow:
        note(f"below {least:g}: {', '.join(slow)}")
        raise typer.Exit(1)


def _profile(model: BenchModel, request: Request, rounds: int, *, as_json: bool) -> None:
    """Compile a model here, and show what each of its kernels takes."""
    from intarsia.bench.profile import profile_kernels
    from intarsia.compiler import carry_out
    from intarsia.report.kernels import kernels_view

    executable = carry_out(replace(request, model=model.path, shapes=None)).program.latest
    kernels = profile_kernels(executable, model.feeds, threads=request.threads, rounds=rounds)
    if as_json:
        show_json(kernels)
    else:
        show(kernels_view(kernels))


def _show(comparison: Comparison) -> None:
    from intarsia.report.tables import make_table

    batch = f", batch {comparison.batch}" if comparison.batch is not None else ""
    streams = f", runs per second of {comparison.streams} streams" if comparison.streams > 1 else ""
    ours = (comparison.ours.facts["summary"], comparison.ours.facts["shortfall"])
    write("".join(f"{line}\n" for line in ours if line))
    rows = [("intarsia", *_cells(comparison.ours), "", "")]
    rows += [
        (name, *_cells(peer.series), f"{peer.ratio:.3f}", f"{peer.low:.3f} to {peer.high:.3f}")
        for name, peer in comparison.peers.items()
    ]
    header = (
        "runtime",
        "median>",
        "rounds>",
        "p50>",
        "p90>",
        "p99>",
        "runs/s>",
        "set-up>",
        "memory>",
        "error>",
        "ratio>",
        "interval>",
    )
    show(
        make_table(
            f"{comparison.model} for {comparison.target}, {comparison.threads} threads{batch}, "
            f"{comparison.rounds} rounds{streams}",
            header,
            rows,
        )
    )
    write(f"ratio: a peer's time through intarsia's; p50 to p99 in ms; {comparison.machine}\n")
    for line in comparison.notes:
        note(line)


def _cells(series: Series) -> tuple[str, ...]:
    error = "" if series.error is None else f"{series.error.max_abs_error:.1e}"
    return (
        milliseconds(series.median_seconds),
        f"{in_milliseconds(series.low_seconds)} to {in_milliseconds(series.high_seconds)}",
        *map(in_milliseconds, (series.p50_seconds, series.p90_seconds, series.p99_seconds)),
        f"{series.runs_per_second:.1f}",
        f"{series.set_up_seconds:.2f} s",
        size_text(series.peak_bytes),
        error,
    )
