# SPDX-License-Identifier: Apache-2.0
"""One model in a worker process, and its probes: compiled, loaded, bound, checked and timed.

All of it but the timing is done by the code that does it for the plan. The functions at the end are
called by name through `process.workers`; they take and return plain values.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.artifact import shared_sizes
from intarsia.backends.device import Step
from intarsia.backends.values import Piece, TensorSpec
from intarsia.errors import IntarsiaError, InternalError, LinkError, ReasonCode
from intarsia.graph.arena import aligned_bytes
from intarsia.measure.divergence import ValueComparison, asked_precision, compare_value
from intarsia.place.assign import Assignment, Policy
from intarsia.place.build import RegionBuilder
from intarsia.place.decide import Decision
from intarsia.place.machine import Machine
from intarsia.place.request import quiet
from intarsia.place.schedule import PlanDraft, make_draft
from intarsia.place.setting import open_setting
from intarsia.plan.plan import HOST, RegionStep, TensorStorage
from intarsia.process.runner import insist
from intarsia.process.workers import resident_bytes
from intarsia.settings import Settings
from intarsia.target import CompilationConfig, PlacedTarget
from intarsia.tuning.laboratory.plug_ins import load_all
from intarsia.tuning.laboratory.reference import text_arrays
from intarsia.tuning.laboratory.sampling import (
    RUNS_TO_SETTLE,
    FixedKernel,
    Rounds,
    Sampler,
    TimedRun,
    program_clock,
    time_in_rounds,
)
from intarsia.tuning.laboratory.store import (
    ArtifactStore,
    Mark,
    WorkerStage,
    graph_digest,
    map_values,
    open_model,
)
from intarsia.tuning.laboratory.values import Preparation, SessionSpec

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.runtime.context import Context
    from intarsia.runtime.device_array import DeviceArray
    from intarsia.runtime.executor import PlanExecutable


Calls = Sequence[tuple[int, Sequence[int]]]
"""What runs one after another: the position of a target, and node ids."""

ANCHOR = -1
"""The id of the fixed kernel among those of probes."""


@dataclass(slots=True)
class _BoundProbe:
    """A probe that can run."""

    draft: PlanDraft
    executable: PlanExecutable
    context: Context
    subject: TimedRun


class Session:
    """One model in one worker, and the probes that are ready.

    Args:
        spec: How it is to run.
        mark: Where to say what is being done.
        graph: The model.
        values: The reference run's, by value id.
        store: Keeps what takes long to compile.
    """

    def __init__(
        self,
        spec: SessionSpec,
        mark: Mark,
        graph: Graph,
        values: Mapping[int, Array],
        store: ArtifactStore | None = None,
    ) -> None:
        self.spec = spec
        self.mark = mark
        self.graph = graph
        self.values = values
        # before the targets: they may bring kinds
        backends = load_all(spec.plug_ins, Settings.from_environment())
        self.setting = open_setting(
            graph,
            Machine(CompilationConfig.from_json(spec.config), backends),
            spec.num_threads,
            [PlacedTarget.parse(items) for items in spec.hosts],
            {graph.value_named(name).id: domain for name, domain in spec.borders.items()},
        )
        self.builder = RegionBuilder(self.setting, strict=True, tell=quiet, store=store)
        self.sampler = Sampler()
        self.bound: dict[int, _BoundProbe] = {}
        self.anchor = TimedRun(FixedKernel())
        self.mark.set_growth(ANCHOR, 0)
        self._growth: dict[int, int] = {}
        self._at_work = (ANCHOR, 0)
        self._model_bytes = sum(value.nbytes for value in self.graph.values)

    @classmethod
    def open(cls, spec: SessionSpec) -> Session:
        """Open the model in a folder."""
        folder = Path(spec.folder)
        graph = open_model(folder)
        values = map_values(folder, spec.reference.stored)
        for name, array in text_arrays(graph, spec.reference.texts).items():
            values[graph.value_named(name).id] = array
        return cls(spec, Mark(folder), graph, values, ArtifactStore(folder))

    def prepare(
        self, probe: int, calls: Calls, *, is_checked: bool, is_part: bool = False
    ) -> Preparation:
        """Compile, load, bind and run a probe, and compare what comes out.

        Args:
            probe: The id by which it will be called.
            calls: What it is.
            is_checked: Whether to compare; a probe that was checked by a worker before need not be.
            is_part: Whether it counts as a part of a model although it is all of this one.
        """
        before = resident_bytes()
        self.mark.set(WorkerStage.COMPILE, probe)
        try:
            draft = self._draft(calls, is_part=is_part)
            failed = self.builder.build(draft)
            if failed is not None:
                refusal = next(iter(failed[1].values()))
                return Preparation((ReasonCode(refusal.code), refusal.reason))
            executable = self.builder.finish(draft, ())
            lie = _find_lie(executable)
            if lie:
                return Preparation((ReasonCode.NUMERICS, lie))
        except InternalError:
            raise
        except IntarsiaError as error:
            return Preparation((ReasonCode.COMPILE_FAILED, error.message))
        self.mark.set(WorkerStage.RUN, probe)
        try:
            bound = insist(lambda: self._bind(draft, executable, is_part=is_part))
        except LinkError as error:
            return Preparation((ReasonCode.UNAVAILABLE, error.message))
        except _NoValueError as error:
            return Preparation((ReasonCode.DYNAMIC_SHAPE, error.message))
        except IntarsiaError as error:
            return Preparation((ReasonCode.CRASHED, error.message))
        finding = self._check(bound, calls) if is_checked else ValueComparison()
        if finding.problem:
            return Preparation((ReasonCode.NUMERICS, finding.problem), error=finding.error)
        self.bound[probe] = bound
        return Preparation(
            run_seconds=bound.subject.typical_seconds,
            nbytes=max(0, resident_bytes() - before),
            error=finding.error,
            has_clock=bound.subject.clock is not None,
        )

    def _draft(self, calls: Calls, *, is_part: bool) -> PlanDraft:
        """Return the plan that runs the calls: of the whole model, or of a part with its border."""
        graph = self.graph
        nodes = [node for _, members in calls for node in members]
        is_whole = len(nodes) == len(graph.nodes) and not is_part
        assignment = Assignment((), ("probe",) * len(graph.nodes), ())
        targets = self.setting.targets
        pieces = tuple(Piece(targets[at], tuple(members)) for at, members in calls)
        decision = Decision(assignment, pieces, (), Policy.COLLAGE)
        if is_whole:
            return make_draft(self.setting, decision)
        inner = replace(self.setting.constraints, borders={})
        part = replace(self.setting, graph=_part(graph, nodes), constraints=inner)
        return replace(make_draft(part, decision), is_shared=self.spec.is_shared)

    def _bind(self, draft: PlanDraft, executable: PlanExecutable, *, is_part: bool) -> _BoundProbe:
        """Bind a probe to inputs of its own, and run it once."""
        plan = executable.plan
        inputs: dict[str, Array | DeviceArray] = {}
        contents, loose = [], {}
        for position in plan.inputs:
            tensor = plan.tensors[position]
            value = self._value(tensor.name)
            is_dense = tensor.shape is not None and tensor.dtype != "string"
            if tensor.storage is not TensorStorage.INPUT or not is_dense:
                loose[tensor.name] = value
                continue
            if tensor.device != HOST:
                held = executable.device_array(tensor.name)
                held.write(value)
                inputs[tensor.name] = held
                continue
            array = _empty(tensor.spec)
            np.copyto(array, value)
            inputs[tensor.name] = array
            contents.append((array, value))
        outputs = {}
        for position in plan.outputs:
            tensor = plan.tensors[position]
            if tensor.storage is TensorStorage.OUTPUT and tensor.device == HOST:
                outputs[tensor.name] = _empty(tensor.spec)
        context = executable.context(inputs, outputs)
        if loose:
            names = [plan.tensors[position].name for position in plan.inputs]
            context.write_inputs([self._value(name) for name in names])
        covered = draft.num_nodes
        is_whole = covered == len(self.graph.nodes) and not is_part
        clock = program_clock(executable)
        start = time.perf_counter()
        began = clock() if clock is not None else 0.0
        context.run()
        seconds = time.perf_counter() - start if clock is None else clock() - began
        run = context.step() if is_whole else _in_turn(context.inner_steps())
        cold = 0 if is_whole else self._cold_bytes(draft)
        num_threads = self.spec.num_threads if is_whole else 1
        subject = TimedRun(
            run, clock, cold, contents, tuple(outputs.values()), seconds, num_threads=num_threads
        )
        return _BoundProbe(draft, executable, context, subject)

    def _value(self, name: str) -> Array:
        value = self.values.get(self.graph.value_named(name).id)
        if value is None:
            raise _NoValueError(f"the reference run stored no value of {name!r} to begin with")
        return value

    def _cold_bytes(self, draft: PlanDraft) -> int:
        """Return how much of other data the caches see between two runs of a part of the model."""
        touched: set[int] = set()
        for assigned in draft.regions:
            for node in assigned.region.nodes:
                touched.update((*self.graph.nodes[node].reads, *self.graph.nodes[node].outputs))
        used = sum(self.graph.values[value].nbytes for value in touched if value >= 0)
        return min(self._model_bytes - used, 2 * self.sampler.cache_bytes) // 8 * 8

    def _check(self, bound: _BoundProbe, calls: Calls) -> ValueComparison:
        """Return the first problem of an output, or the largest error."""
        attrs = [self.setting.targets[position].target.attrs for position, _ in calls]
        precision = next(filter(None, map(asked_precision, attrs)), "")
        worst = 0.0
        for name, actual in bound.context.read_outputs().items():
            expected = self.values.get(self.graph.value_named(name).id)
            if expected is None:
                continue
            finding = compare_value(name, expected, actual, precision)
            worst = max(worst, finding.error)
            if finding.problem:
                return finding
        return ValueComparison(error=worst)

    def weigh(self, probe: int) -> int:
        """Return by how many bytes one more instance of a probe makes this process grow.

        The second instance shares what a library takes for itself, and nothing is compiled for it
        that an artifact holds. Its constants are counted by their size: they are shared, too.
        """
        self.mark.set(WorkerStage.RUN, probe)
        first = self.bound[probe]
        program, plan = first.executable, first.executable.plan
        is_whole = first.draft.num_nodes == len(self.graph.nodes)
        loader = self.builder.loader(first.draft)
        before = _settled_bytes()
        loaded = [
            loader.load(artifact, region.device)
            for artifact, region in zip(program.artifacts, plan.placement.regions, strict=True)
        ]
        again = type(program)(plan, program.artifacts, loaded, program.devices, program.constants)
        second = self._bind(first.draft, again, is_part=not is_whole)
        for _ in range(RUNS_TO_SETTLE):
            second.subject.run()
        grown = _settled_bytes() - before
        border = (*plan.inputs, *plan.outputs)
        grown -= sum(plan.tensors[position].spec.nbytes for position in border)
        return max(0, grown) + sum(shared_sizes(program.artifacts))

    def race(self, probes: Sequence[int], rounds: int, seed: int) -> Rounds:
        """Time probes in rounds, each in an order of its own.

        Args:
            probes: Ids; `ANCHOR` is the fixed kernel.
            rounds: How many samples of each.
            seed: For the orders.
        """
        subjects = [self.anchor if i == ANCHOR else self.bound[i].subject for i in probes]
        rounds_timed = time_in_rounds(
            self.sampler,
            subjects,
            rounds,
            seed=seed,
            begin=lambda position: self._begin(probes[position]),
        )
        self._begin(ANCHOR)
        self.mark.set(WorkerStage.IDLE)
        return rounds_timed

    def _begin(self, probe: int) -> None:
        """Note what is going to be timed, and by how much the process grew under the one before."""
        self.mark.set(WorkerStage.MEASURE, probe)
        resident = resident_bytes()
        before, self._at_work = self._at_work, (probe, resident)
        if before[0] != ANCHOR:
            grown = self._growth.get(before[0], 0) + max(0, resident - before[1])
            self._growth[before[0]] = grown
            worst = max(self._growth, key=self._growth.__getitem__)
            self.mark.set_growth(worst, self._growth[worst])

    def drop(self, probes: Sequence[int]) -> None:
        """Forget probes, and what only they needed."""
        for probe in probes:
            self.bound.pop(probe, None)
        self.builder.keep([bound.draft for bound in self.bound.values()])


class _NoValueError(IntarsiaError):
    """A border has a value that the reference run did not keep."""


def _part(graph: Graph, nodes: Sequence[int]) -> Graph:
    from intarsia.graph.region import Region

    region = Region.of(graph, nodes)
    return graph.with_ends(region.inputs, region.outputs)


def _empty(spec: TensorSpec) -> Array:
    array: Array = aligned_bytes(spec.nbytes).view(np_dtype(spec.dtype)).reshape(spec.shape or ())
    return array


def _find_lie(executable: PlanExecutable) -> str:
    """Return how an artifact's border differs from its region's; empty if it does not."""
    for step in executable.plan.steps:
        if not isinstance(step, RegionStep):
            continue
        artifact = executable.artifacts[step.region]
        for specs, positions in ((artifact.inputs, step.inputs), (artifact.outputs, step.outputs)):
            wanted = [executable.plan.tensors[position].spec for position in positions]
            for spec, other in zip(specs, wanted, strict=False):
                if spec != other:
                    return f"its program says {spec}, the model says {other}"
            if len(specs) != len(wanted):
                return f"its program has {len(specs)} tensors at a border of {len(wanted)}"
    return ""


def _settled_bytes() -> int:
    """Return the resident memory of this process, once what is free has been given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
    return resident_bytes()


def _in_turn(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    return run


_sessions: list[Session] = []
"""The session of this process, once it is open: a process has one."""


def open_session(spec: Mapping[str, Any]) -> str:
    """Open a model; return the hash of its graph, so that ids are known to mean the same.

    Args:
        spec: A `SessionSpec` as a dictionary.
    """
    _sessions[:] = [Session.open(msgspec.convert(spec, SessionSpec))]
    return graph_digest(_sessions[0].graph)


def session() -> Session:
    """Return the session of this process."""
    return _sessions[0]


def prepare(probe: int, calls: Calls, is_checked: bool, is_part: bool) -> dict[str, Any]:
    """Prepare a probe; return its `Preparation` as a dictionary."""
    report = session().prepare(probe, calls, is_checked=is_checked, is_part=is_part)
    session().mark.set(WorkerStage.IDLE)
    return dict(msgspec.to_builtins(report))


def race(probes: Sequence[int], rounds: int, seed: int) -> dict[str, Any]:
    """Time probes as `Session.race` does; return its `Rounds` as a dictionary."""
    rounds_timed = session().race(probes, rounds, seed)
    return {
        "seconds": rounds_timed.seconds,
        "failures": rounds_timed.failures,
        "taken_at": rounds_timed.taken_at,
    }


def drop(probes: Sequence[int]) -> None:
    """Forget probes."""
    session().drop(probes)


def weigh(probe: int) -> int:
    """Return by how many bytes one more instance of a probe makes this process grow."""
    nbytes = session().weigh(probe)
    session().mark.set(WorkerStage.IDLE)
    return nbytes


def save(probe: int, file: str) -> None:
    """Write the package of a whole plan."""
    session().bound[probe].executable.save(file)


def outputs(probe: int) -> tuple[list[str], dict[str, Array]]:
    """Run a probe once; return the names of its outputs and the outputs by name."""
    context = session().bound[probe].context
    context.run()
    arrays = context.read_outputs()
    return list(arrays), arrays
