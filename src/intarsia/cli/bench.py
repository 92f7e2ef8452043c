# SPDX-License-Identifier: Apache-2.0
"""`intarsia bench MODEL -t TARGETS --against onnxruntime,openvino`: ours against peers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.files import readable_model, writable_plot
from intarsia.cli.models import installed_backends, make_request, progress_bar
from intarsia.cli.options import (
    BUCKETS,
    MACHINE,
    Choices,
    HtmlOption,
    InputOption,
    JsonOption,
    PlotOption,
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
from intarsia.cli.pages import report_file, write_report
from intarsia.errors import SettingError

if TYPE_CHECKING:
    from intarsia.bench.compare import Comparison, Series
    from intarsia.bench.models import BenchModel
    from intarsia.bench.profile import KernelProfile
    from intarsia.place.request import Request
    from intarsia.plan.explanation import Explanation


@takes_choices(
    *(*MACHINE, "shape", "sizes", *BUCKETS, "pin", "exclude", "placement", "max_memory"),
)
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
    plot: PlotOption = None,
    inputs: InputOption = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Seed of inputs that are not given.")
    ] = 0,
    choices: Choices,
    html: HtmlOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Time a model against other runtimes, each in a process of its own.

    A ratio is a peer's time through ours: above 1 means that ours is faster. With `--profile`, no
    peer runs: every kernel of ours is timed by itself, and `--html` draws a run. With `--sizes`,
    free dimensions stay free in every runtime, and inputs have each of these sizes in turn; with
    `--bucket` ours are padded.
    """
    from intarsia.bench.compare import Comparison, compare
    from intarsia.bench.models import make_bench_model
    from intarsia.bench.subject import plain_options
    from intarsia.cli.arrays import read_arrays

    if plot is not None:
        _check_plot(plot, is_profile=profile)
    if choices.sizes and (choices.shape or batch is not None):
        raise SettingError(
            "--sizes leaves dimensions free, and --shape and --batch fix them",
            hint="give every size by --sizes, as in --sizes batch=1 --sizes seq=64,128",
        )
    request = make_request(model, choices, threads)
    page = None if html is None else _report_page(html, model, request, is_profile=profile)
    if request.buckets and (profile or not request.sizes):
        raise SettingError(
            "--bucket pads inputs of sizes that are given by --sizes, and pads none for --profile",
            hint="give --sizes of what comes, or profile at the sizes of the buckets",
        )
    target, options = plain_options(request, knows_target=not choices.target_file)
    peers = [] if profile else _read_peers(against)

    def measure(sizes: Mapping[str, int] | None) -> Comparison | KernelProfile:
        with (
            tempfile.TemporaryDirectory(prefix="intarsia-bench-") as folder,
            progress_bar() as tell,
        ):
            bench_model = make_bench_model(
                model,
                Path(folder),
                shapes=request.shapes,
                sizes=sizes,
                batch=batch,
                feeds=read_arrays(read_files("--input", inputs)),
                seed=seed,
            )
            if profile:
                found, explanation = _profile(bench_model, request, rounds)
                if page is not None:
                    title = f"intarsia bench {model.name} --profile"
                    write_report(page, title, explanation, profile=found)
                return found
            return compare(
                bench_model,
                target,
                peers,
                threads=request.threads,
                rounds=rounds,
                most_rounds=most_rounds,
                bar=least,
                options=options if sizes is None else {**options, "sizes": (sizes,)},
                check_errors=errors,
                streams=streams,
                progress=tell,
            )

    results = []
    for sizes in request.sizes or (None,):
        results.append(measure(sizes))
        if not json:
            _show(results[-1])
    if json:
        show_json(results if request.sizes else results[0])
    comparisons = [result for result in results if isinstance(result, Comparison)]
    if plot is not None:
        from intarsia.report.plots import plot_comparisons

        plot_comparisons(comparisons, plot)
        note(f"wrote {plot}")
    too_slow = [one for one in comparisons if least is not None and not _reaches(one, least)]
    if too_slow:
        raise typer.Exit(1)


def _check_plot(plot: Path, *, is_profile: bool) -> None:
    """Refuse a figure that cannot be drawn.

    Raises:
        SettingError: It is of a profile, or as `writable_plot`.
    """
    if is_profile:
        raise SettingError(
            "--plot draws a comparison, and --profile makes none",
            hint="leave one of the two out; `intarsia run --trace` shows kernels in time",
        )
    writable_plot(plot)


def _report_page(html: Path, model: Path, request: Request, *, is_profile: bool) -> Path:
    """Return where the report of a run goes.

    Raises:
        SettingError: Not one run is shown, or as `report_file`.
    """
    if not is_profile or len(request.sizes) > 1:
        raise SettingError(
            "--html shows one run, of --profile at one size of each free dimension",
            hint="add --profile, and give one size of each",
        )
    return report_file(html, source=model)


def _read_peers(text: str) -> list[str]:
    """Return the names of other runtimes, before anything is compiled.

    Raises:
        BackendError: One is not here, or has no runtime of its own.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    backends = installed_backends()
    for name in names:
        backends.baseline_of(name)
    return names


def _reaches(comparison: Comparison, least: float) -> bool:
    """Tell whether no ratio is below a limit; say which are, and which may be."""
    from intarsia.graph.free_sizes import sizes_text

    at = f" at {sizes_text(comparison.sizes)}" if comparison.sizes else ""
    peers = comparison.peers.items()
    unclear = [name for name, peer in peers if peer.low < least <= peer.high]
    if unclear:
        note(f"not clear whether below {least:g}{at}: {', '.join(unclear)}")
    slow = [name for name, peer in peers if peer.ratio < least]
    if slow:
        note(f"below {least:g}{at}: {', '.join(slow)}")
    return not slow


def _profile(model: BenchModel, request: Request, rounds: int) -> tuple[KernelProfile, Explanation]:
    """Compile a model here, time each of its kernels, and say what runs where."""
    from intarsia.bench.profile import profile_kernels
    from intarsia.compiler import carry_out

    sizes = () if model.sizes is None else (model.sizes,)
    fixed = replace(request, model=model.path, shapes=None, sizes=sizes)
    executable = carry_out(fixed).program.latest
    profile = profile_kernels(executable, model.feeds, threads=request.threads, rounds=rounds)
    return profile, executable.explain()


def _show(result: Comparison | KernelProfile) -> None:
    from intarsia.bench.compare import Comparison
    from intarsia.bench.profile import AWAY_PROFILE
    from intarsia.report.kernels import kernels_view

    if isinstance(result, Comparison):
        _show_comparison(result)
    else:
        show(kernels_view(result))
        if result.is_away:
            note(AWAY_PROFILE)


def _show_comparison(comparison: Comparison) -> None:
    from intarsia.graph.free_sizes import sizes_text
    from intarsia.report.tables import make_table

    sizes = f", {sizes_text(comparison.sizes)}" if comparison.sizes else ""
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
            f"{comparison.model} for {comparison.target}, {comparison.threads} threads{batch}"
            f"{sizes}, {comparison.rounds} rounds{streams}",
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
