# SPDX-License-Identifier: Apache-2.0
"""`intarsia demo`: one real network, placed, checked, timed, mixed, packed and run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from intarsia.cli.models import installed_backends
from intarsia.cli.options import JsonOption, ThreadsOption
from intarsia.cli.output import milliseconds, note, show, show_json, size_text, write
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.bench.demo import DemoFigures, DemoModel
    from intarsia.runtime.executor import PlanExecutable

NETWORK = "resnet50"
PINNED = "layer3/*"
PIN_TARGET = "onnxruntime"
PEERS = {"ONNX Runtime": "onnxruntime", "OpenVINO": "openvino"}
"""The name in print and the backend of each runtime that we compare ourselves with; the first says
which numbers are right."""

OURS, MIXED = "intarsia", f"intarsia, {PINNED} pinned"


def demo_command(threads: ThreadsOption = None, json: JsonOption = False) -> None:
    """Place ResNet-50 as `compile` does without a target, check its numbers and time it.

    Weights are random. Nothing is downloaded, and nothing is left behind.
    """
    from intarsia.bench.demo import (
        DemoFigures,
        compare_programs,
        time_programs,
        time_ratios,
        try_package,
    )

    subject = _prepare(Settings.from_environment().threads(threads))
    ours = _compile(subject, {})
    targets = ours.placement.targets
    _show_placement(ours, f"This machine, as it is found: {', '.join(targets)}", as_json=json)
    mixed = _compile(subject, {PINNED: PIN_TARGET})
    summary = mixed.explain().summary
    _show_placement(
        mixed, f"The same with {PINNED} pinned to {PIN_TARGET}: {summary}", as_json=json
    )
    programs = {OURS: ours, MIXED: mixed}
    note("[4/6] checking the numbers against ONNX Runtime on the untouched model")
    agreement = compare_programs(subject, programs)
    note("[5/6] timing, in interleaved blocks")
    timing = time_programs(subject, programs)
    note("[6/6] saving the mixed plan, and running it in a new process")
    package, agreement["the package in a new process"] = try_package(subject, mixed, NETWORK)
    figures = DemoFigures(
        network=NETWORK,
        threads=subject.threads,
        targets=targets,
        placement=ours.placement,
        mixed_placement=mixed.placement,
        agreement=agreement,
        timing=timing,
        ratios=time_ratios(timing, OURS),
        package=package,
        agrees=all(each.agrees for each in agreement.values()),
    )
    if json:
        show_json(figures)
    else:
        _show_figures(figures)
    if not figures.agrees:
        note("the numbers disagree")
        raise typer.Exit(1)


def _prepare(threads: int) -> DemoModel:
    from intarsia.bench.demo import load_in_peers
    from intarsia.zoo import build

    note(f"[1/6] building {NETWORK} with random weights (seed 0)")
    proto = build(NETWORK)
    size = size_text(proto.ByteSize())
    note(f"[2/6] loading it into {' and '.join(PEERS)} as it is ({size})")
    return load_in_peers(proto, PEERS, installed_backends(), threads)


def _compile(subject: DemoModel, pins: dict[str, str]) -> PlanExecutable:
    from intarsia.compiler import compile as compile_model

    what = f" with {PINNED} pinned to {PIN_TARGET}" if pins else ""
    note(f"[3/6] compiling it for this machine{what}")
    return compile_model(subject.model, pins=pins, num_threads=subject.threads).latest


def _show_placement(executable: PlanExecutable, title: str, *, as_json: bool) -> None:
    if not as_json:
        from intarsia.report.tables import placement_table

        write(f"{title}\n")
        show(placement_table(executable.placement))


def _show_figures(figures: DemoFigures) -> None:
    from intarsia.report.tables import make_table

    rows = (
        (
            name,
            milliseconds(timing.median_seconds),
            milliseconds(timing.min_seconds),
            f"{figures.ratios[name]:.3f}",
        )
        for name, timing in figures.timing.items()
    )
    title = f"time of one run, {figures.threads} threads"
    show(
        make_table(
            "numbers, against ONNX Runtime on the untouched model",
            ("what", "largest absolute error>", "verdict"),
            (
                (
                    name,
                    f"{agreement.max_abs_error:.2e}",
                    "agrees" if agreement.agrees else "DISAGREES",
                )
                for name, agreement in figures.agreement.items()
            ),
        ),
        make_table(title, ("what", "median>", "fastest>", f"its time / {OURS}'s>"), rows),
    )
    package = figures.package
    write(
        f"the mix takes {figures.ratios[MIXED]:.2f} times the time of {OURS} alone\n"
        f"package: {size_text(package.nbytes)}, loaded in {package.load_seconds:.2f} s; "
        f"the new process took {package.process_seconds:.2f} s in all\n"
    )
