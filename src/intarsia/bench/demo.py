# SPDX-License-Identifier: Apache-2.0
"""A network beside other runtimes, which have it untouched, and its package in a new process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.values import TensorSpec
from intarsia.errors import ExecutionError
from intarsia.measure.agreement import Agreement, compare_outputs
from intarsia.measure.timing import Timing, time_interleaved
from intarsia.runtime.feeds import sample_feeds

if TYPE_CHECKING:
    import onnx

    from intarsia.backends.device import Baseline
    from intarsia.backends.registry import Backends
    from intarsia.plan.placement import Placement
    from intarsia.runtime.executor import PlanExecutable

CHILD_SECONDS = 600
"""How long the new process may take."""


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A network, its input, and how it runs in other runtimes.

    Attributes:
        model: The file's bytes.
        feeds: An array per input, by name.
        peers: The network as it is in other runtimes, by the name in print; the first is the judge.
        expected: The judge's outputs, in the model's order.
        threads: Threads of one run.
    """

    model: bytes
    feeds: Mapping[str, Array]
    peers: Mapping[str, Baseline]
    expected: list[Any]
    threads: int


@dataclass(frozen=True, slots=True)
class PackageFigures:
    """A program's way through a package into a new process.

    Attributes:
        nbytes: Size of the package.
        save_seconds: Writing it.
        process_seconds: The new process, from its start to its end.
        load_seconds: Loading the package there.
    """

    nbytes: int
    save_seconds: float
    process_seconds: float
    load_seconds: float


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """The figures of the demonstration, which `--json` prints.

    Ratios are the time of each through ours, so that above 1 means that we are faster.
    """

    network: str
    threads: int
    targets: tuple[str, ...]
    placement: Placement
    mixed_placement: Placement
    agreement: Mapping[str, Agreement]
    timing: Mapping[str, Timing]
    ratios: Mapping[str, float]
    package: PackageFigures
    agrees: bool


def load_in_peers(
    proto: onnx.ModelProto, peers: Mapping[str, str], backends: Backends, threads: int
) -> DemoModel:
    """Load a network into other runtimes as it is, and run it in the first.

    Args:
        proto: The network; its inputs are float32 and of fixed shape.
        peers: The backend of each runtime, by its name in print.
        backends: Those that are installed.
        threads: Threads of one run.

    Raises:
        BackendError: A runtime is missing, or failed.
    """
    model = proto.SerializeToString()
    feeds = sample_feeds(
        [
            TensorSpec(
                value.name,
                "float32",
                tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim),
            )
            for value in proto.graph.input
        ]
    )
    baselines = {
        title: backends.baseline_of(name)(model, feeds, threads) for title, name in peers.items()
    }
    judge = next(iter(baselines.values()))
    judge.run()
    return DemoModel(model, feeds, baselines, judge.outputs(), threads)


def compare_programs(
    subject: DemoModel, programs: Mapping[str, PlanExecutable]
) -> dict[str, Agreement]:
    """Run programs once, and return how their outputs agree with the judge's."""
    return {
        name: compare_outputs(subject.expected, list(program.run(subject.feeds).values()))
        for name, program in programs.items()
    }


def time_programs(subject: DemoModel, programs: Mapping[str, PlanExecutable]) -> dict[str, Timing]:
    """Time peers and programs, in interleaved blocks."""
    peers = {title: peer.run for title, peer in subject.peers.items()}
    ours = {name: partial(program.run, subject.feeds) for name, program in programs.items()}
    return time_interleaved({**peers, **ours})


def try_package(
    subject: DemoModel, program: PlanExecutable, stem: str
) -> tuple[PackageFigures, Agreement]:
    """Save a program, run it in a new process, and compare its first output with the judge's.

    Args:
        subject: The network that it was compiled from.
        program: What is saved, in a folder that goes afterwards.
        stem: The file's name, without the suffix.

    Raises:
        ExecutionError: The new process failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="intarsia-demo-") as name:
        folder = Path(name)
        package = folder / f"{stem}.intarsia"
        start = perf_counter()
        program.save(package)
        save_seconds = perf_counter() - start
        inputs = []
        for index, (tensor, array) in enumerate(subject.feeds.items()):
            np.save(folder / f"{index}.npy", array)
            inputs += ["--input", f"{tensor}={folder / f'{index}.npy'}"]
        outputs = ["--output", f"{program.outputs[0].name}={folder / 'output.npy'}"]
        start = perf_counter()
        answer = _run_child(package, [*inputs, *outputs, "--threads", str(subject.threads)])
        process_seconds = perf_counter() - start
        nbytes, load_seconds = package.stat().st_size, answer["load_seconds"]
        agreement = compare_outputs(subject.expected[:1], [np.load(folder / "output.npy")])
    return PackageFigures(nbytes, save_seconds, process_seconds, load_seconds), agreement


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
    return json.loads(done.stdout)


def time_ratios(timing: Mapping[str, Timing], base: str) -> dict[str, float]:
    """Return the median time of each through that of one."""
    seconds = timing[base].median_seconds
    return {name: each.median_seconds / seconds for name, each in timing.items()}
