# SPDX-License-Identifier: Apache-2.0
"""`intarsia demo`: two networks beside other runtimes, a tuned plan, and a mix of two devices."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intarsia.cli.files import writable_folder
from intarsia.cli.models import installed_backends
from intarsia.cli.options import JsonOption, ThreadsOption
from intarsia.cli.output import milliseconds, note, show, show_json, size_text, write
from intarsia.cli.pages import report_file, write_report
from intarsia.errors import BackendError
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.bench.demo import DemoContest, DemoFigures, DemoModel
    from intarsia.runtime.free import Program

NETWORK = "resnet50"
PINNED = "layer3/*"
FREE_NETWORK = "minilm:free"
SIZES: tuple[Mapping[str, int], ...] = ({"batch": 1, "seq": 16}, {"batch": 1, "seq": 128})
TUNE_SECONDS = 20.0
"""How long the tuner may measure, roughly."""

DEVICES = ("cuda", "opencl", "webgpu")
"""Kinds with a memory of their own, of which the mix takes the first that is here."""
STAND_IN = "onnxruntime"
"""What the mix takes where no such device is: another runtime on the same CPU."""

PEERS = {"ONNX Runtime": "onnxruntime", "OpenVINO": "openvino"}
"""The name in print and the backend of each runtime that we compare ourselves with; the first says
which numbers are right."""

FILES = ("two-devices.trace.json", "two-devices.html", "tuned.html")
"""What is written: a traced run of the mix, and the reports of two plans."""

OURS, TUNED, MIXED = "intarsia", "intarsia, tuned", "intarsia, two devices"
STAGES = 6


def demo_command(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where what is to be looked at is written.")
    ] = Path("intarsia-demo"),
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Show what Intarsia does, on this machine, in about two minutes.

    ResNet-50 and a small transformer of free sizes run as `compile` places them without a target,
    beside ONNX Runtime and OpenVINO; then ResNet-50 as tuned, and on two devices. All numbers are
    checked. Weights are random; nothing is downloaded; what is written is in the folder of --out.
    """
    from intarsia.bench.demo import DemoFigures, find_second_device, hold_contest, try_package

    writable_folder(out)
    count, backends = Settings.from_environment().threads(threads), installed_backends()
    _find_peers(backends)

    _stage(1, f"{NETWORK} for this machine, beside {' and '.join(PEERS)}")
    model, ours = _compile(NETWORK, count)
    subject = _load(model, ours, count)
    contest = hold_contest(NETWORK, subject, {OURS: ours})
    targets = ours.placement.targets
    _show_contest(contest, count, as_json=json)

    _stage(2, f"{FREE_NETWORK}, whose batch and length are free, at {len(SIZES)} sizes")
    free = _run_free(count, as_json=json)

    _stage(3, f"{NETWORK} tuned: measuring for about {TUNE_SECONDS:g} s")
    tuned = _tune(model, count)
    found = tuned.explain().tuning

    device = find_second_device(backends, DEVICES)
    second = device or STAND_IN
    why = "" if device else " (no such device is here: two runtimes share the CPU)"
    _stage(4, f"{NETWORK} on two devices: {PINNED} on {second}{why}")
    mixed = _compile_mix(model, (*targets, second), second, count)
    both = hold_contest(NETWORK, subject, {OURS: ours, TUNED: tuned, MIXED: mixed})
    _show_contest(both, count, as_json=json)

    _stage(5, "saving the mixed plan, and running it in a new process")
    package, agreement = try_package(subject, mixed.latest, NETWORK)

    _stage(6, f"writing what is to be looked at into {out}")
    files = _write_files(out, mixed, tuned, subject.feeds)
    copies = mixed.explain().copies
    figures = DemoFigures(
        threads=count,
        targets=targets,
        contests=(contest, *free),
        tuned="" if found is None else found.summary,
        mixed=both,
        second=second,
        is_device=device is not None,
        copies=len(copies),
        copied_bytes=sum(row.nbytes for row in copies),
        package=package,
        package_agreement=agreement,
        files=tuple(map(str, files)),
        agrees=agreement.agrees and all(one.agrees for one in (contest, *free, both)),
    )
    if json:
        show_json(figures)
    else:
        _show_figures(figures)
    if not figures.agrees:
        note("the numbers disagree")
        raise typer.Exit(1)


def _find_peers(backends: Backends) -> None:
    """Say before anything runs which runtime is missing, and how all of them are installed at once.

    Raises:
        BackendError: One of `PEERS` cannot be used.
    """
    for name in PEERS.values():
        try:
            backends.by_name[name].version()
        except BackendError as error:
            raise BackendError(
                error.message, backend=name, hint="pip install 'intarsia[all]'"
            ) from error


def _stage(number: int, what: str) -> None:
    note(f"[{number}/{STAGES}] {what}")


def _compile(network: str, threads: int) -> tuple[bytes, Program]:
    from intarsia.compiler import compile as compile_model
    from intarsia.zoo import build

    model = build(network).SerializeToString()
    return model, compile_model(model, num_threads=threads)


def _load(
    model: bytes, program: Program, threads: int, sizes: Mapping[str, int] | None = None
) -> DemoModel:
    from intarsia.bench.demo import load_in_peers

    feeds = program.sample_feeds(0, sizes)
    return load_in_peers(model, feeds, PEERS, installed_backends(), threads)


def _run_free(threads: int, *, as_json: bool) -> tuple[DemoContest, ...]:
    """Run one program of a network at several sizes, beside the others."""
    from intarsia.bench.demo import hold_contest

    model, program = _compile(FREE_NETWORK, threads)
    contests = []
    for sizes in SIZES:
        subject = _load(model, program, threads, sizes)
        contests.append(hold_contest(FREE_NETWORK, subject, {OURS: program}, sizes))
        _show_contest(contests[-1], threads, as_json=as_json)
    return tuple(contests)


def _tune(model: bytes, threads: int) -> Program:
    """Tune for this machine; what is measured of a network of random weights is not kept."""
    from intarsia.compiler import tune

    with tempfile.TemporaryDirectory(prefix="intarsia-demo-") as folder:
        costs = str(Path(folder) / "costs.sqlite")
        return tune(model, budget=TUNE_SECONDS, num_threads=threads, costs=costs, cache=False)


def _compile_mix(model: bytes, targets: tuple[str, ...], second: str, threads: int) -> Program:
    from intarsia.compiler import compile as compile_model

    machine = ", ".join(dict.fromkeys(targets))
    return compile_model(model, machine, pins={PINNED: second}, num_threads=threads)


def _write_files(
    folder: Path, mixed: Program, tuned: Program, feeds: Mapping[str, Any]
) -> tuple[Path, ...]:
    """Write what is to be looked at, and return where it is: the report of the tuned plan last.

    Raises:
        SettingError: A file cannot be written.
    """
    from intarsia.report.trace_events import write_trace
    from intarsia.runtime.tracing import trace_runs

    folder.mkdir(parents=True, exist_ok=True)
    trace, *pages = (folder / name for name in FILES)
    write_trace(trace_runs(mixed.program_for(feeds), feeds), f"{NETWORK}, two devices", trace)
    for page, (what, program) in zip(
        pages, (("two devices", mixed), ("tuned", tuned)), strict=True
    ):
        write_report(report_file(page), f"intarsia demo: {NETWORK}, {what}", program.explain())
    return trace, *pages


def _show_contest(contest: DemoContest, threads: int, *, as_json: bool) -> None:
    if as_json:
        return
    from intarsia.graph.free_sizes import sizes_text
    from intarsia.report.tables import make_table

    for name, placement in contest.placement.items():
        places = ", ".join(
            f"{n} nodes on {target}" for target, n in placement.coverage().items() if n
        )
        count = len(placement.regions)
        write(f"{name}: {places}, in {count} region{'s' * (count != 1)}\n")
    at = f" at {sizes_text(contest.sizes)}" if contest.sizes else ""
    rows = []
    for name, timing in contest.timing.items():
        agreement, told = contest.agreement.get(name), "the judge"
        if agreement is not None:
            verdict = "agrees" if agreement.agrees else "DISAGREES"
            told = f"{verdict} ({agreement.max_abs_error:.1e})"
        times = milliseconds(timing.median_seconds), milliseconds(timing.min_seconds)
        rows.append((name, *times, f"{contest.ratios[name]:.3f}", told))
    first = next(iter(contest.agreement))
    columns = ("runtime", "median>", "fastest>", f"through {first}'s>", "numbers")
    show(make_table(f"{contest.network}{at}, {threads} threads", columns, rows))


def _show_figures(figures: DemoFigures) -> None:
    package = figures.package
    verdict = "agrees" if figures.package_agreement.agrees else "DISAGREES"
    copies = f"{figures.copies} copies of {size_text(figures.copied_bytes)} in all"
    write(
        f"tuned: {figures.tuned}\n"
        f"two devices: {PINNED} on {figures.second}; {copies} in a run\n"
        f"package of the mix: {size_text(package.nbytes)}, loaded in {package.load_seconds:.2f} s; "
        f"the new process took {package.process_seconds:.2f} s in all, and {verdict}\n"
    )
    trace, _, report = figures.files
    write(
        f"wrote {trace}: open it at https://ui.perfetto.dev or in chrome://tracing\n"
        f"the report is {report}: open it in a browser\n"
    )
