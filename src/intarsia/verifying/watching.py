# SPDX-License-Identifier: Apache-2.0
"""A program whose every region is compared with the reference while it runs.

The functions at the end are what a worker process does: whatever a backend does to it, the mark
that it leaves tells under which region.
"""

from __future__ import annotations

import faulthandler
import gc
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.backends.registry import Backends
from intarsia.compiler import carry_out, read_setting
from intarsia.errors import IntarsiaError, SettingError
from intarsia.files import ModelFile
from intarsia.graph.graph import Graph
from intarsia.graph.load import load as load_model
from intarsia.graph.stored import join_model
from intarsia.opening import load as load_package
from intarsia.place.request import Request
from intarsia.runtime.monitor import Begin, RunMonitor, WatchedRegion
from intarsia.runtime.package import is_package, read_package
from intarsia.settings import Settings
from intarsia.target import CompilationConfig
from intarsia.tuning.laboratory.plug_ins import PlugIns, load_all
from intarsia.tuning.laboratory.store import Mark, WorkerStage
from intarsia.verifying.judging import judge_outputs
from intarsia.verifying.references import (
    RegionJudge,
    RegionReference,
    embedded,
    precision_of,
    worst_of,
)
from intarsia.verifying.values import Fault, RegionAgreement, RegionFault, Symptom

if TYPE_CHECKING:
    from intarsia.runtime.executor import PlanExecutable
    from intarsia.runtime.free import Program

WHOLE = -1
"""In the place of a region: the program as a whole, against the model as the user has it."""

REGION_MODEL, REGION_INPUTS = "region.onnx", "region.npz"
"""The region at fault as a model, and what it read."""


class VerifiedProgram:
    """A program and the model that it was made of: each run of it compares every region.

    It runs as fast as the reference does, which is Python.

    Args:
        program: It, for the sizes of the feeds.
        graph: The prepared model that it was made of.
        model: Reads the model as the user has it, if no region is at fault.
        begin: As of a `RunMonitor`.

    Attributes:
        judge: Has what was found.
        unchecked: Why the outputs of the whole were not compared; empty if they were.
    """

    def __init__(
        self,
        program: PlanExecutable,
        graph: Graph,
        model: Callable[[], Graph | None] = lambda: None,
        begin: Begin | None = None,
    ) -> None:
        self.program = program
        self.judge = RegionJudge(graph, program.placement)
        self.runs = 0
        self.unchecked = ""
        self._model = model
        self._monitor = RunMonitor(program) if begin is None else RunMonitor(program, begin)
        self._whole: list[RegionFault] = []

    @property
    def faults(self) -> list[RegionFault]:
        """What went wrong so far; of the whole, only if no region is to blame."""
        return self.judge.faults or self._whole

    def agreements(self) -> tuple[RegionAgreement, ...]:
        """Return how near each region came to the reference."""
        return self.judge.agreements()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once, compare every region, and return the outputs, by name.

        Args:
            feeds: An array per input, by name.

        Raises:
            InputError: A name, dtype or shape is wrong.
            ExecutionError: A backend failed; names the region.
        """
        self.judge.run = self.runs
        outputs = self._monitor.run(feeds, self._watch)
        if not self.runs and not self.judge.faults:
            self._judge_whole(feeds, outputs)
        self.runs += 1
        return outputs

    def run_alone(self, feeds: Mapping[str, Any]) -> None:
        """Run once and compare nothing: what a region reads does not depend on that.

        Args:
            feeds: An array per input, by name.

        Raises:
            ExecutionError: A backend failed; names the region.
        """
        self._monitor.run(feeds, lambda _: faulthandler.cancel_dump_traceback_later())

    def _watch(self, watched: WatchedRegion) -> None:
        faulthandler.cancel_dump_traceback_later()  # the reference takes as long as it takes
        self.judge.judge(watched)

    def _judge_whole(self, feeds: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Compare the outputs with those of the model as it is: what was rewritten counts too."""
        try:
            model = self._model()
            if model is None:
                return
            reference = RegionReference(model.whole)
            expected = reference(feeds)
        except IntarsiaError as error:  # sizes that are not known, or operators without a reference
            self.unchecked = f"the outputs of the whole were not compared: {error.message}"
            return
        placement = self.program.placement
        precisions = [precision_of(region.target) for region in placement.regions]
        fault, _ = judge_outputs(
            {name: feeds[name] for name in reference.inputs},
            expected,
            outputs,
            {node.op_type for node in model.nodes},
            next(filter(None, precisions), ""),
            reference,
        )
        if fault is not None:
            worst = fault.worst or worst_of(expected, outputs)
            names = tuple(node.name for node in model.nodes)
            count = f"{len(names)} nodes"
            targets = ", ".join(placement.targets)
            self._whole.append(
                RegionFault(WHOLE, targets, names, count, self.runs, replace(fault, worst=worst))
            )


def open_verified(  # noqa: PLR0913 - what the commands ask for
    file: Path,
    request: Request | None,
    feeds: Mapping[str, Any] | None,
    *,
    seed: int = 0,
    threads: int | None = None,
    trust: bool = False,
    isolate: Collection[str] = (),
    begin: Begin | None = None,
    backends: Backends | None = None,
    sizes: Mapping[str, int] | None = None,
) -> tuple[VerifiedProgram, Mapping[str, Any]]:
    """Open a model or a package for verified runs; return it with its inputs.

    Args:
        file: The model or package.
        request: What is asked for; of a package, the model that it was made of, or None if the
            package has it.
        feeds: Inputs by name; None makes them up.
        seed: Of inputs that are made up.
        threads: Threads of one run of a package.
        trust: Whether a package's code runs whoever wrote it.
        isolate: Backends whose regions run in processes of their own.
        begin: As of a `RunMonitor`.
        backends: The backends to use; None means all that are installed.
        sizes: Of free dimensions, for inputs that are made up.

    Raises:
        SettingError: A package has no model to compare with.
        IntarsiaError: As `intarsia.compile` and `intarsia.load`.
    """
    program: Program
    graph: Graph | None = None
    if is_package(file):
        program = load_package(
            file, num_threads=threads, backends=backends, trust=trust, isolate=isolate
        )
        request = _request_of(file, program, request)
    else:
        assert request is not None
        compiled = carry_out(replace(request, cache=False, isolate=isolate))
        program, graph = compiled.program, compiled.graph
    inputs = program.sample_feeds(seed, sizes) if feeds is None else feeds
    plain = program.program_for(inputs)
    if plain is not program:
        shapes = {name: tuple(np.shape(array)) for name, array in inputs.items()}
        request = replace(request, shapes=shapes, sizes=(), buckets={}, pad_values={})
    asked = request
    if graph is None:
        graph = read_setting(asked).graph
    return VerifiedProgram(plain, graph, lambda: _read_model(asked), begin), inputs


def _read_model(request: Request) -> Graph:
    """Return the model as the user has it.

    Raises:
        IntarsiaError: Its sizes are not all known.
    """
    return Graph.from_model(load_model(request.model, request.shapes))


def _request_of(file: Path, program: Program, request: Request | None) -> Request:
    """Return what a package was made of."""
    if request is not None:
        return replace(request, target=", ".join(program.targets))
    package = read_package(file)
    stored = package.source if package.free is None else package.free.model
    if stored is None:
        raise SettingError(
            f"{str(file)!r} holds no model to compare with: only packages with code do",
            hint="give the model that it was compiled from: --model MODEL.onnx",
        )
    recipe = stored.recipe
    return Request(
        model=join_model(stored.payload, {one.name: one.data for one in stored.tensors}),
        target=recipe.target,
        shapes=recipe.shapes,
        pins=recipe.pins,
        exclude=recipe.exclude,
        layers=recipe.layers,
        placement="greedy",
        cache=False,
    )


class _ReachedError(Exception):
    """The region is about to run."""


_opened: list[tuple[VerifiedProgram, Mapping[str, Any], Path]] = []
_stop: dict[int, Path] = {}


def open_in_worker(
    spec: Mapping[str, Any], arrays: Mapping[str, Array] | None = None
) -> list[dict[str, Any]]:
    """Open a program in this process; return its regions, as dictionaries.

    Args:
        spec: What `verify` was asked for, as plain values.
        arrays: Inputs by name; None makes them up.
    """
    _opened.clear()  # two programs at once would take twice the memory, and this one has cycles
    gc.collect()
    folder = Path(spec["folder"])
    mark = Mark(folder)
    mark.set(WorkerStage.COMPILE)
    backends = load_all(msgspec.convert(spec["plug_ins"], PlugIns), Settings.from_environment())
    request = None
    if spec["model"]:
        model, root = Path(spec["model"]), spec["data_root"]
        request = Request(
            model=ModelFile(model, Path(root)) if root else model,
            target=None if spec["config"] is None else CompilationConfig.from_json(spec["config"]),
            shapes=spec["shapes"],
            pins=spec["pins"],
            exclude=spec["exclude"],
            layers=spec["layers"],
            placement=spec["placement"],
            num_threads=spec["threads"],
            backends=backends,
            cache=False,
            probe=False,
        )

    def begin(region: int, inputs: Mapping[str, Any]) -> None:
        if region in _stop:
            _save(_opened[0][0].judge, region, inputs, _stop[region])
            raise _ReachedError
        mark.set(WorkerStage.RUN, region)
        faulthandler.dump_traceback_later(spec["seconds"], exit=True)

    verified, feeds = open_verified(
        Path(spec["file"]),
        request,
        arrays or None,
        seed=spec["seed"],
        threads=spec["threads"],
        trust=spec["trust"],
        isolate=spec["isolate"],
        begin=begin,
        backends=backends,
    )
    _opened[:] = [(verified, feeds, folder)]
    mark.set(WorkerStage.IDLE)
    rows: list[dict[str, Any]] = msgspec.to_builtins(verified.program.placement.regions)
    return rows


def run_in_worker() -> dict[str, Any]:
    """Run the program once; return what was found so far, and write the first region at fault."""
    verified, feeds, folder = _opened[0]
    try:
        verified.run(feeds)
    except IntarsiaError as error:
        faulthandler.cancel_dump_traceback_later()
        region = Mark(folder).get()[1]
        _fail(verified, region, error.message)
    Mark(folder).set(WorkerStage.IDLE)
    if verified.judge.faults and not (folder / REGION_MODEL).exists():
        first = verified.judge.faults[0].region
        _save(verified.judge, first, verified.judge.evidence, folder)
    return {
        "faults": msgspec.to_builtins(verified.faults),
        "regions": msgspec.to_builtins(verified.agreements()),
        "unchecked": verified.unchecked,
    }


def _fail(verified: VerifiedProgram, region: int, message: str) -> None:
    from intarsia.verifying.references import region_fault

    placed = verified.program.placement.regions[region]
    fault = Fault(Symptom.FAILED, message)
    verified.judge.faults.append(region_fault(region, placed, verified.runs, fault))
    verified.runs += 1


def reach_in_worker(region: int, folder: str) -> None:
    """Run up to a region, and write it with what it is about to read.

    Args:
        region: Its position.
        folder: Where.
    """
    verified, feeds, _ = _opened[0]
    _stop[region] = Path(folder)
    try:
        verified.run_alone(feeds)
    except (IntarsiaError, _ReachedError):  # what was reached is written; else no file tells so
        pass
    finally:
        _stop.clear()


def _save(judge: RegionJudge, region: int, inputs: Mapping[str, Any], folder: Path) -> None:
    """Write a region as a model, and arrays that it read."""
    part = judge.region_of(region)
    if part is None:
        return
    names = {part.graph.values[i].name for i in part.inputs}
    arrays = {
        name: value
        for name, value in inputs.items()
        if name in names and isinstance(value, np.ndarray) and value.dtype != object
    }
    with (folder / REGION_INPUTS).open("wb") as opened:
        np.savez(opened, allow_pickle=False, **arrays)
    (folder / REGION_MODEL).write_bytes(embedded(part))
