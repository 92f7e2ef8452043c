# SPDX-License-Identifier: Apache-2.0
"""`intarsia demo`: one real network, placed, checked, timed, mixed, packed and run again."""

from __future__ import annotations

import json as json_text
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from intarsia.cli.models import installed_backends
from intarsia.cli.options import JsonOption, ThreadsOption
from intarsia.cli.output import milliseconds, note, show, show_json, size_text, write
from intarsia.errors import ExecutionError
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.backends.device import Baseline
    from intarsia.measure.agreement import Agreement
    from intarsia.measure.timing import Timing
    from intarsia.runtime.executor import PlanExecutable

NETWORK = "resnet50"
PINNED = "layer3/*"
PIN_TARGET = "onnxruntime"
PEERS = {"ONNX Runtime": "onnxruntime", "OpenVINO": "openvino"}
"""The name in print and the backend of each runtime that we compare ourselves with."""

OURS, MIXED = "intarsia", f"intarsia, {PINNED} pinned"
CHILD_SECONDS = 600


@dataclass(frozen=True, slots=True)
class DemoModel:
    """The demonstrated model, its input, and how it runs in other runtimes."""

    model: bytes
    feeds: dict[str, Any]
    peers: dict[str, Baseline]
    expected: list[Any]
    threads: int


@dataclass(slots=True)
class Figures:
    """The figures of the demonstration, which `--json` prints.

    Ratios are the time of each through ours, so that above 1 means that we are faster.
    """

    network: str
    threads: int
    targets: tuple[str, ...] = ()
    placement: Any = None
    mixed_placement: Any = None
    agreement: dict[str, Agreement] = field(default_factory=dict)
    timing: dict[str, Timing] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    package: dict[str, float] = field(default_factory=dict)
    agrees: bool = False


def demo_command(threads: ThreadsOption = None, json: JsonOption = False) -> None:
    """Place ResNet-50 as `compile` does without a target, check its numbers and time it.

    Weights are random. Nothing is downloaded, and nothing is left behind.
    """
    figures = Figures(NETWORK, Settings.from_environment().threads(threads))
    say = partial(_say, as_json=json)
    subject = _prepare(figures.threads)
    ours = _compile(subject, {})
    figures.placement, figures.targets = ours.placement, ours.placement.targets
    say(f"This machine, as it is found: {', '.join(figures.targets)}")
    _show_placement(ours, as_json=json)
    mixed = _compile(subject, {PINNED: PIN_TARGET})
    figures.mixed_placement = mixed.placement
    say(f"The same with {PINNED} pinned to {PIN_TARGET}: {mixed.explain().summary}")
    _show_placement(mixed, as_json=json)
    _check(subject, {OURS: ours, MIXED: mixed}, figures)
    _time(subject, ours, mixed, figures)
    _package(subject, mixed, figures)
    figures.agrees = all(agreement.agrees for agreement in figures.agreement.values())
    if json:
        show_json(figures)
    else:
        _show_figures(figures)
    if not figures.agrees:
        note("the numbers disagree")
        raise typer.Exit(1)


def _say(text: str, *, as_json: bool) -> None:
    if not as_json:
        write(f"{text}\n")


def _prepare(threads: int) -> DemoModel:
    from intarsia.runtime.feeds import sample_feeds
    from intarsia.zoo import build

    note(f"[1/6] building {NETWORK} with random weights (seed 0)")
    proto = build(NETWORK)
    model = proto.SerializeToString()
    note(f"[2/6] loading it into {' and '.join(PEERS)} as it is ({size_text(len(model))})")
    backends = installed_backends()
    feeds: dict[str, Any] = dict(sample_feeds(_input_specs(proto)))
    peers = {
        title: backends.baseline_of(name)(model, feeds, threads) for title, name in PEERS.items()
    }
    peers["ONNX Runtime"].run()
    return DemoModel(model, feeds, peers, peers["ONNX Runtime"].outputs(), threads)


def _input_specs(proto: Any) -> list[Any]:
    from intarsia.backends.values import TensorSpec

    return [
        TensorSpec(
            value.name,
            "float32",
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim),
        )
        for value in proto.graph.input
    ]


def _compile(subject: DemoModel, pins: dict[str, str]) -> PlanExecutable:
    from intarsia.compiler import compile as compile_model

    what = f" with {PINNED} pinned to {PIN_TARGET}" if pins else ""
    note(f"[3/6] compiling it for this machine{what}")
    return compile_model(subject.model, pins=pins, num_threads=subject.threads)


def _show_placement(executable: PlanExecutable, *, as_json: bool) -> None:
    if not as_json:
        from intarsia.report.tables import placement_table

        show(placement_table(executable.placement))


def _check(subject: DemoModel, executables: dict[str, PlanExecutable], figures: Figures) -> None:
    from intarsia.measure.agreement import compare_outputs

    note("[4/6] checking the numbers against ONNX Runtime on the untouched model")
    for name, executable in executables.items():
        outputs = list(executable.run(subject.feeds).values())
        figures.agreement[name] = compare_outputs(subject.expected, outputs)


def _time(
    subject: DemoModel, ours: PlanExecutable, mixed: PlanExecutable, figures: Figures
) -> None:
    from intarsia.measure.timing import time_interleaved

    note("[5/6] timing, in interleaved blocks")
    figures.timing = time_interleaved(
        {
            **{title: peer.run for title, peer in subject.peers.items()},
            OURS: partial(ours.run, subject.feeds),
            MIXED: partial(mixed.run, subject.feeds),
        }
    )
    base = figures.timing[OURS].median_seconds
    figures.ratios = {name: timing.median_seconds / base for name, timing in figures.timing.items()}


def _package(subject: DemoModel, executable: PlanExecutable, figures: Figures) -> None:
    import numpy as np

    from intarsia.measure.agreement import compare_outputs

    note("[6/6] saving the mixed plan, and running it in a new process")
    with tempfile.TemporaryDirectory(prefix="intarsia-demo-") as name:
        folder = Path(name)
        package = folder / f"{NETWORK}.intarsia"
        start = perf_counter()
        executable.save(package)
        figures.package["nbytes"] = package.stat().st_size
        figures.package["save_seconds"] = perf_counter() - start
        inputs = []
        for index, (tensor, array) in enumerate(subject.feeds.items()):
            np.save(folder / f"{index}.npy", array)
            inputs += ["--input", f"{tensor}={folder / f'{index}.npy'}"]
        output = executable.outputs[0].name
        outputs = ["--output", f"{output}={folder / 'output.npy'}"]
        start = perf_counter()
        answer = _run_child(package, [*inputs, *outputs, "--threads", str(subject.threads)])
        figures.package["process_seconds"] = perf_counter() - start
        figures.package["load_seconds"] = answer["load_seconds"]
        agreement = compare_outputs(subject.expected[:1], [np.load(folder / "output.npy")])
    figures.agreement["the package in a new process"] = agreement


def _run_child(package: Path, options: list[str]) -> Any:
    command = [sys.executable, "-P", "-m", "intarsia", "run", str(package), "--json", *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ExecutionError(f"the new process took over {CHILD_SECONDS} s") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise ExecutionError(f"the new process ended with {done.returncode}: {last[0]}")
    return json_text.loads(done.stdout)


def _show_figures(figures: Figures) -> None:
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
        f"package: {size_text(package['nbytes'])}, loaded in {package['load_seconds']:.2f} s; "
        f"the new process took {package['process_seconds']:.2f} s in all\n"
    )
