# SPDX-License-Identifier: Apache-2.0
"""Verifies a program: monitored runs in a worker process, then the smallest model of a fault.

Every region of a real run is compared with what the reference makes of the inputs that it really
had: so a fault is found where it is, also one that comes in one run and not in the next, and no
error counts twice.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import onnx_ir as ir

from intarsia import errors
from intarsia.arrays import Array
from intarsia.errors import BackendError, IntarsiaError, InternalError, ReasonCode
from intarsia.files import ModelFile
from intarsia.graph.graph import Graph
from intarsia.graph.load import load, parse
from intarsia.plan.placement import PlacedRegion
from intarsia.process.workers import CallOutcome, Limits, Worker
from intarsia.runtime.package import is_package
from intarsia.tuning.laboratory.plug_ins import PlugIns, describe_plug_ins
from intarsia.tuning.laboratory.store import Mark, WorkerStage
from intarsia.verifying.bisecting import SIDE_SECONDS
from intarsia.verifying.reducing import Reducer
from intarsia.verifying.references import evaluate_all, region_fault
from intarsia.verifying.repro import write_repro
from intarsia.verifying.sides import OURS, REFERENCE, SideTrial, fault_of, worker_variables
from intarsia.verifying.values import (
    RegionAgreement,
    RegionFault,
    SmallestModel,
    Verification,
)
from intarsia.verifying.watching import REGION_INPUTS, REGION_MODEL, WHOLE

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.place.request import Request

_WORKER = "intarsia.verifying.watching"
_OPEN_SECONDS = 600.0
RUNS = 3
"""So that something is seen that comes late, and that memory is seen to grow."""


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How to verify.

    Attributes:
        runs: How many monitored runs.
        run_seconds: How long one call of a region may take; what takes longer hangs.
        side_seconds: How long a small model may take, when the fault is looked for.
        reduce_seconds: How long to look for the smallest model.
        out: The folder for it; None makes none.
        seed: Of inputs that are made up.
        trust: Whether a package's code runs whoever wrote it.
        isolate: Backends whose regions run in processes of their own.
    """

    runs: int = RUNS
    run_seconds: float = 600.0
    side_seconds: float = SIDE_SECONDS
    reduce_seconds: float = 600.0
    out: Path | None = None
    seed: int = 0
    trust: bool = False
    isolate: tuple[str, ...] = ()


class VerifyWorkers:
    """Processes that verify more than once: libraries are imported once, and not for each call.

    All else is done anew for each: reading, compiling, the runs, the reference, each small model.

    Args:
        threads: Threads of one run, of all that is verified; it also has the same plug-ins.

    Attributes:
        watching: Runs programs.
        trying: Tries small models.
    """

    def __init__(self, threads: int | None) -> None:
        self.watching = Worker(worker_variables(threads))
        self.trying = Worker(worker_variables(threads or 1))

    def close(self) -> None:
        """End them; what is verified next starts others."""
        self.watching.close()
        self.trying.close()


def verify(
    file: Path,
    request: Request | None = None,
    *,
    feeds: Mapping[str, Array] | None = None,
    options: VerifyOptions | None = None,
    threads: int | None = None,
    workers: VerifyWorkers | None = None,
) -> Verification:
    """Compare every region of real runs with the reference, and find the smallest model of a fault.

    Args:
        file: A model or a package.
        request: What is asked for; of a package, the model that it was made of, if the package
            does not have it.
        feeds: Inputs by name; None makes them up.
        options: How.
        threads: Threads of one run of a package.
        workers: Processes that have verified before, which stay the caller's; None starts fresh
            ones. A leak is seen only in a process whose memory no other call has used.

    Raises:
        BackendError: The program cannot be compiled or loaded.
        IntarsiaError: As `intarsia.compile` and `intarsia.load`.
    """
    options = options or VerifyOptions()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="intarsia-") as scratch:
        folder = Path(scratch)
        watcher = _Watcher(file, request, feeds, options, folder, threads, workers)
        try:
            faults, regions, runs = watcher.watch()
            smallest, note = None, watcher.unchecked
            inner = [fault for fault in faults if fault.region != WHOLE]
            if inner and options.out is not None:
                watcher.reach(inner[0])
                watcher.close()
                smallest, note = _find_smallest(inner[0], folder, options, watcher)
            elif faults and options.out is not None:
                note = "every region agrees: what was rewritten before placement is to blame"
        finally:
            watcher.close()
    spent = time.monotonic() - start
    return Verification(str(file), runs, regions, tuple(faults), smallest, note, spent)


class _Watcher:
    """Monitored runs in a worker, which is replaced if it dies."""

    def __init__(
        self,
        file: Path,
        request: Request | None,
        feeds: Mapping[str, Array] | None,
        options: VerifyOptions,
        folder: Path,
        threads: int | None,
        workers: VerifyWorkers | None,
    ) -> None:
        self._options, self._folder, self._feeds = options, folder, feeds
        self.threads = threads if request is None else request.num_threads
        self.plug_ins = _plug_ins(request)
        self._spec = _spec(file, request, options, folder, self.threads, self.plug_ins)
        self._is_own = workers is None
        self.workers = workers or VerifyWorkers(self.threads)
        self.unchecked = ""

    def close(self) -> None:
        """End the workers, unless they are the caller's: what comes next needs the memory."""
        if self._is_own:
            self.workers.close()

    def watch(self) -> tuple[list[RegionFault], tuple[RegionAgreement, ...], int]:
        """Return what went wrong, how near regions came, and how many runs there were."""
        placed = self._open()
        faults: list[RegionFault] = []
        regions: tuple[RegionAgreement, ...] = ()
        for run in range(self._options.runs):
            outcome = self._call("run_in_worker")
            fatal = fault_of(outcome, self._options.run_seconds)
            if fatal is not None:
                stage, region = Mark(self._folder).get()
                if stage is not WorkerStage.RUN:
                    raise _failed(outcome)
                faults.insert(0, region_fault(region, placed[region], run, fatal))
                return faults, regions, run + 1
            if not outcome.is_ok:
                raise _failed(outcome)
            self.unchecked = outcome.value["unchecked"]
            faults = msgspec.convert(outcome.value["faults"], list[RegionFault])
            regions = msgspec.convert(outcome.value["regions"], tuple[RegionAgreement, ...])
            if faults and faults[0].region != WHOLE:
                return faults, regions, run + 1
        return faults, regions, self._options.runs

    def reach(self, fault: RegionFault) -> None:
        """Have a region written with what it reads, unless that is done."""
        if (self._folder / REGION_MODEL).exists():
            return
        if self.workers.watching.pid is None:
            self._open()
        self._call("reach_in_worker", fault.region, str(self._folder))

    def _open(self) -> list[PlacedRegion]:
        feeds = None if self._feeds is None else dict(self._feeds)
        outcome = self._call(
            "open_in_worker", self._spec, arrays=feeds, limits=Limits(_OPEN_SECONDS)
        )
        if not outcome.is_ok:
            raise _failed(outcome)
        return msgspec.convert(outcome.value, list[PlacedRegion])

    def _call(self, function: str, *arguments: Any, **more: Any) -> CallOutcome:
        return self.workers.watching.call(f"{_WORKER}:{function}", *arguments, **more)


def _failed(outcome: CallOutcome) -> IntarsiaError:
    if outcome.reason in (ReasonCode.CRASHED, ReasonCode.TIMEOUT):
        return BackendError(
            f"the program could not be compiled: {outcome.message}",
            hint="find the target at fault: give one target at a time",
        )
    named = getattr(errors, outcome.error_type, IntarsiaError)
    same = (kind for kind in (BackendError, InternalError) if issubclass(named, kind))
    return next(same, IntarsiaError)(outcome.message, hint=outcome.hint or None)


def _plug_ins(request: Request | None) -> PlugIns:
    backends: Backends | None = None if request is None else request.backends
    return PlugIns() if backends is None else describe_plug_ins(backends)


def _spec(
    file: Path,
    request: Request | None,
    options: VerifyOptions,
    folder: Path,
    threads: int | None,
    plug_ins: PlugIns,
) -> dict[str, Any]:
    """Return what the worker needs to know, as plain values."""
    model, root, config = "", "", None
    if request is not None:
        model = str(request.model)
        if isinstance(request.model, ModelFile):
            root = str(request.model.data_root)
        elif not isinstance(request.model, str | Path):
            path = folder / "model.onnx"
            path.write_bytes(ir.to_proto(parse(request.model)).SerializeToString())
            model = str(path)
        if not is_package(file):
            config = request.find_machine().config.to_json()
    asked = request
    exclude = () if asked is None else asked.exclude
    return {
        "file": str(file) if is_package(file) else model,
        "model": model,
        "data_root": root,
        "config": config,
        "shapes": None if asked is None or asked.shapes is None else dict(asked.shapes),
        "pins": None if asked is None else dict(asked.pins or {}),
        "exclude": dict(exclude) if isinstance(exclude, Mapping) else list(exclude),
        "layers": None if asked is None else dict(asked.layers or {}),
        "placement": "auto" if asked is None else asked.placement,
        "threads": threads,
        "seed": options.seed,
        "trust": options.trust,
        "isolate": list(options.isolate),
        "seconds": options.run_seconds,
        "plug_ins": msgspec.to_builtins(plug_ins),
        "folder": str(folder),
    }


def _find_smallest(
    fault: RegionFault, folder: Path, options: VerifyOptions, watcher: _Watcher
) -> tuple[SmallestModel | None, str]:
    """Return the smallest model that shows a fault of a region, or why there is none."""
    assert options.out is not None
    if not (folder / REGION_MODEL).exists():
        return None, "the region could not be cut out of the model"
    payload = (folder / REGION_MODEL).read_bytes()
    with np.load(folder / REGION_INPUTS, allow_pickle=False) as opened:
        feeds = {name: opened[name] for name in opened.files}
    runs = options.runs if fault.run else 1
    suspect = f"{OURS} {fault.target}"
    trial = SideTrial(
        suspect,
        threads=watcher.threads or 1,
        runs=runs,
        seconds=options.side_seconds,
        plug_ins=watcher.plug_ins,
        worker=watcher.workers.trying,
    )
    graph = Graph.from_model(load(payload))
    values = evaluate_all(graph, feeds)
    seconds = options.reduce_seconds if options.reduce_seconds else math.inf
    symptom = fault.fault.symptom
    reduced = Reducer(graph, values, trial.judge, seconds, symptom, is_direct=True).reduce()
    if reduced is None:
        options.out.mkdir(parents=True, exist_ok=True)
        for name in (REGION_MODEL, REGION_INPUTS):
            (options.out / name).write_bytes((folder / name).read_bytes())
        return None, (
            f"the region alone does not show it again: it comes not every time, or needs what "
            f"runs before; the region and what it read are in {options.out}"
        )
    return write_repro(options.out, reduced, suspect, REFERENCE, trial.trials, runs), ""
