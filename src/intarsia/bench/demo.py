# SPDX-License-Identifier: Apache-2.0
"""Networks beside other runtimes, which have them untouched, and a package in a new process."""

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
from intarsia.errors import ExecutionError
from intarsia.measure.agreement import Agreement, compare_outputs
from intarsia.measure.timing import Timing, time_interleaved

if TYPE_CHECKING:
    from intarsia.backends.device import Baseline
    from intarsia.backends.registry import Backends
    from intarsia.plan.placement import Placement
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.runtime.free import Program

CHILD_SECONDS = 600
"""How long the new process may take."""

_ROUNDS, _RUNS = 5, 6
"""Blocks of each runtime, and runs of a block: some hundred runs of ResNet-50 in all."""


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
class DemoContest:
    """Programs of one network beside other runtimes, on one input.

    Attributes:
        network: Its name.
        sizes: Of the input, by free dimension; None if the network has none.
        placement: What runs where, by program.
        agreement: How the outputs of each, but the judge, agree with the judge's.
        timing: Of each program and each other runtime.
        ratios: The time of each through that of the first program: above 1 means slower than it.
    """

    network: str
    sizes: Mapping[str, int] | None
    placement: Mapping[str, Placement]
    agreement: Mapping[str, Agreement]
    timing: Mapping[str, Timing]
    ratios: Mapping[str, float]

    @property
    def agrees(self) -> bool:
        """Whether the numbers of all programs do."""
        return all(self.agreement[name].agrees for name in self.placement)


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

    Attributes:
        threads: Of one run.
        targets: This machine's, as they are found.
        contests: The default target on each network, at each size.
        tuned: How the tuned plan was found.
        mixed: The plans that were chosen here beside the default one: tuned, and of two devices.
        second: The target that the second device's nodes were pinned to.
        is_device: Whether it has a memory of its own; else both are the CPU's.
        copies: How many tensors cross between memories in a run of it.
        copied_bytes: Their bytes.
        package: Of the mixed plan.
        files: What was written.
        agrees: Whether all numbers do.
    """

    threads: int
    targets: tuple[str, ...]
    contests: tuple[DemoContest, ...]
    tuned: str
    mixed: DemoContest
    second: str
    is_device: bool
    copies: int
    copied_bytes: int
    package: PackageFigures
    package_agreement: Agreement
    files: tuple[str, ...]
    agrees: bool


def load_in_peers(
    model: bytes,
    feeds: Mapping[str, Array],
    peers: Mapping[str, str],
    backends: Backends,
    threads: int,
) -> DemoModel:
    """Load a network into other runtimes as it is, and run it in the first.

    Args:
        model: The network's file.
        feeds: An array per input, by name.
        peers: The backend of each runtime, by its name in print.
        backends: Those that are installed.
        threads: Threads of one run.

    Raises:
        BackendError: A runtime is missing, or failed.
    """
    baselines = {
        title: backends.baseline_of(name)(model, feeds, threads) for title, name in peers.items()
    }
    judge = next(iter(baselines.values()))
    judge.run()
    return DemoModel(model, feeds, baselines, judge.outputs(), threads)


def hold_contest(
    network: str,
    subject: DemoModel,
    programs: Mapping[str, Program],
    sizes: Mapping[str, int] | None = None,
) -> DemoContest:
    """Compare programs with the judge, and time them beside all peers, in interleaved blocks.

    Args:
        network: Its name.
        subject: It.
        programs: Of it; the first is what ratios are to.
        sizes: As of `DemoContest`.

    Raises:
        ExecutionError: A backend failed.
    """
    at_size = {name: program.program_for(subject.feeds) for name, program in programs.items()}
    agreement = {
        name: compare_outputs(subject.expected, list(program.run(subject.feeds).values()))
        for name, program in at_size.items()
    }
    ours = {name: partial(program.run, subject.feeds) for name, program in programs.items()}
    peers = {title: peer.run for title, peer in subject.peers.items()}
    timing = time_interleaved({**ours, **peers}, rounds=_ROUNDS, runs=_RUNS)
    for title, peer in list(subject.peers.items())[1:]:
        agreement[title] = compare_outputs(subject.expected, peer.outputs())
    base = timing[next(iter(ours))].median_seconds
    return DemoContest(
        network=network,
        sizes=sizes,
        placement={name: program.placement for name, program in at_size.items()},
        agreement=agreement,
        timing=timing,
        ratios={name: each.median_seconds / base for name, each in timing.items()},
    )


def find_second_device(backends: Backends, kinds: tuple[str, ...]) -> str | None:
    """Return the text of the first target that a machine has of some kinds; None if it has none.

    Args:
        backends: Those that are installed.
        kinds: By which they are looked for, in this order; a backend of the kind's name serves it.
    """
    for kind in kinds:
        backend = backends.by_name.get(kind)
        found = () if backend is None else backend.detect().targets
        if found:
            return str(found[0])
    return None


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
