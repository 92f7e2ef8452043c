# SPDX-License-Identifier: Apache-2.0
"""The laboratory: prepares probes of one model in its worker process, and races them.

Whatever a backend does to the worker costs the probe that was at work; what was ready in it is
compiled anew when it is needed. Nothing compiles while something is timed, because one worker does
both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.backends.artifact import tensor_spec
from intarsia.errors import BackendError, InternalError, ReasonCode
from intarsia.graph.region import Region
from intarsia.hashing import digest
from intarsia.place.setting import Setting
from intarsia.process.workers import CallOutcome, Limits
from intarsia.runtime.package import PACKAGE_SUFFIX
from intarsia.target import list_stand_ins
from intarsia.tuning.laboratory.model_worker import ModelWorker
from intarsia.tuning.laboratory.plug_ins import PlugIns, describe_plug_ins
from intarsia.tuning.laboratory.reference import check_given, text_arrays
from intarsia.tuning.laboratory.sampling import FixedKernel, whole_sample_seconds
from intarsia.tuning.laboratory.session import ANCHOR
from intarsia.tuning.laboratory.store import Mark, map_values, write_model
from intarsia.tuning.laboratory.values import (
    OutOfTimeError,
    Preparation,
    Probe,
    Race,
    ReferenceRun,
    Refused,
    SessionSpec,
)


class RaceRecord:
    """The rounds of one race, as they come in.

    Args:
        probes: Those that are raced, beside the fixed kernel.

    Attributes:
        probes: Each once.
        refusals: Why probes left.
        done: How many rounds there are.
    """

    def __init__(self, probes: Sequence[Probe]) -> None:
        self.probes = tuple(dict.fromkeys(probes))
        self.refusals: dict[Probe, Refused] = {}
        self.done = 0
        self._seconds: dict[Probe | None, list[float]] = {key: [] for key in (*self.probes, None)}
        self._taken_at: list[float] = []

    def add(self, live: Sequence[Probe], rounds: Mapping[str, Any], count: int) -> None:
        """Add rounds.

        Args:
            live: Those that ran, in the order of the rows; the fixed kernel comes after them.
            rounds: What `session.race` returned.
            count: How many rounds these are.
        """
        for probe, row in zip((*live, None), rounds["seconds"], strict=True):
            self._seconds[probe] += row
        self._taken_at += rounds["taken_at"]
        self.done += count
        self.fill(self.done)

    def fill(self, length: int) -> None:
        """Let probes with fewer rounds have no samples in the others."""
        for row in self._seconds.values():
            row.extend([math.nan] * (length - len(row)))

    def result(self, clocked: frozenset[Probe], start: int = 0) -> Race:
        """Return the rounds from one on.

        Args:
            clocked: Probes that their devices' own clocks time.
            start: How many rounds to leave out.
        """
        return Race(
            seconds={probe: tuple(self._seconds[probe][start:]) for probe in self.probes},
            anchor=FixedKernel.name,
            anchor_seconds=tuple(self._seconds[None][start:]),
            taken_at=tuple(self._taken_at[start:]),
            refusals=dict(self.refusals),
            clocked=clocked,
        )


_CHUNK_SECONDS = 1.0
"""Roughly how long one call of a race takes: what an interruption may lose."""

_PATIENCE = 30.0
_LEAST_PATIENCE = 5.0
_LEAK_BYTES = 32 << 20
"""Growth of a worker under a probe from which on the probe is blamed for lack of memory."""

_MOST_UNEXPLAINED = 3

_MOST_READY = 256
"""Probes in one worker; each may own threads and memory."""


class Laboratory(ModelWorker):
    """Prepares and races probes of one model on one machine.

    Args:
        setting: The model and the machine.
        feeds: Inputs by name; what is missing is made up.
        limits: As of a `ModelWorker`.
        seed: For inputs and orders.
        left: As of a `ModelWorker`.

    Attributes:
        prepared: How many probes were compiled and checked.
        repeated: How many were compiled again because their worker had died.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        feeds: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        seed: int = 0,
        left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        super().__init__(limits, left)
        self.setting = setting
        self.seed = seed
        self._feeds = feeds or {}
        self._reference: ReferenceRun | None = None
        self._plug_ins: PlugIns | None = None
        self._digest = write_model(setting.graph, self._folder)
        self._ids: dict[Probe, int] = {}
        self._known: dict[Probe, Preparation] = {}
        self._ready: dict[Probe, None] = {}  # in the order of their last use
        self.prepared = self.repeated = 0
        self._races = 0
        self._unexplained = 0

    @property
    def reference(self) -> ReferenceRun:
        """The run whose values probes begin with; made when it is first needed.

        Raises:
            InputError: A feed does not fit.
            BackendError: Nothing here can run the model.
            OutOfTimeError: There is no time for it.
        """
        if self._reference is None:
            graph, backends = self.setting.graph, self.setting.backends
            inputs = [tensor_spec(graph.values[position]) for position in graph.inputs]
            feeds = check_given(inputs, self._feeds)
            stand_ins = (
                name
                for name in list_stand_ins()
                if name in backends.by_name and backends.named(name).detect().targets
            )
            self._reference = self._run_reference(
                stand_ins, self.setting.num_threads, feeds, self.seed
            )
        return self._reference

    @property
    def plug_ins(self) -> PlugIns:
        """Backends that workers have to be given.

        Raises:
            BackendError: One cannot be handed to another process.
        """
        if self._plug_ins is None:
            self._plug_ins = describe_plug_ins(self.setting.backends)
        return self._plug_ins

    def _open(self) -> None:
        """Start a worker with the model open in it, unless there is one."""
        if self._is_open():
            return
        setting = self.setting
        spec = SessionSpec(
            folder=str(self._folder),
            config=setting.config.to_json(),
            num_threads=setting.num_threads,
            is_shared=len({each.backend.name for each in setting.capabilities}) > 1,
            reference=self.reference,
            plug_ins=self.plug_ins,
            hosts=[placed.to_json() for placed in setting.targets[len(setting.config.targets) :]],
            borders={
                setting.graph.values[value].name: domain
                for value, domain in setting.constraints.borders.items()
            },
        )
        self._open_session(spec, self._digest)

    def ask(self, function: str, *arguments: Any) -> Any:
        """Return what a function says in the worker, once the model is open there.

        Args:
            function: As `module:function`.
            arguments: Plain values.

        Raises:
            BackendError: It failed.
        """
        self._open()
        outcome = self._call(function, *arguments, limits=self.limits)
        if not outcome.is_ok:
            raise BackendError(f"measuring failed: {outcome.message}", hint=outcome.hint or None)
        return outcome.value

    def name_of(self, probe: Probe) -> str:
        """Return a name for what a probe runs; alike regions on alike targets share it."""
        from intarsia.graph.hashes import shape_hash

        parts = [
            f"{shape_hash(Region.of(self.setting.graph, nodes))} on "
            f"{self.setting.targets[position].target}"
            for position, nodes in probe.calls
        ]
        return parts[0] if len(parts) == 1 else f"{len(parts)} calls {digest(parts)}"

    def prepare(self, probes: Sequence[Probe]) -> dict[Probe, Preparation]:
        """Compile, load and run probes once, and compare what they compute.

        What was prepared before is not prepared again. A failure costs its probe only.

        Args:
            probes: In any number; their results stay in the worker until they are dropped.

        Raises:
            BackendError: No reference run, or no worker, can be had.
        """
        preparations = {}
        for probe in probes:
            if probe not in self._known or _is_out_of_reach(self._known[probe]):
                self._known[probe] = self._prepare(probe, is_checked=True)
                self.prepared += 1
                self._limit_ready()
            preparations[probe] = self._known[probe]
        return preparations

    def race(
        self,
        probes: Sequence[Probe],
        *,
        rounds: int,
        note: Callable[[Race], None] | None = None,
    ) -> Race:
        """Time probes and a fixed kernel in rounds, each in an order of its own.

        Args:
            probes: Those that were refused get no samples.
            rounds: How many samples of each.
            note: Given the rounds of every second or so as soon as they are there, to keep them:
                a tuner that is stopped in a long race loses no more than that.

        Raises:
            BackendError: No reference run, or no worker, can be had.
        """
        record = RaceRecord(probes)
        while record.done < rounds:
            live = self._load(record.probes, record.refusals)
            if not live:
                break
            count = min(rounds - record.done, self._chunk(live))
            outcome = self._race(live, count)
            if not outcome.is_ok:
                self._blame(outcome, record.refusals)
                continue
            self._note(outcome, live, count, record)
            if note is not None:
                note(record.result(self._clocked(probes), record.done - count))
        record.fill(rounds)
        return record.result(self._clocked(probes))

    def outputs(self, probe: Probe) -> dict[str, Array]:
        """Run a probe once on the reference run's values and return what comes out, by name.

        Raises:
            BackendError: It cannot be run.
        """
        outcome = self._call_with(probe, "outputs")
        return {name: outcome.arrays[name] for name in outcome.value}

    def save(self, probe: Probe) -> Path:
        """Write a whole plan as a package, and return the file, which is removed in the end.

        Raises:
            BackendError: It cannot be compiled.
            OutOfTimeError: There is no time for it.
        """
        file = self._folder / f"{self._ids.setdefault(probe, len(self._ids))}{PACKAGE_SUFFIX}"
        self._call_with(probe, "save", str(file))
        return file

    def values(self) -> dict[str, Array]:
        """Return the values of the reference run by name, the model's inputs among them.

        Raises:
            BackendError: Nothing here can run the model.
            OutOfTimeError: There is no time for it.
        """
        graph, reference = self.setting.graph, self.reference
        stored = map_values(self._folder, reference.stored)
        named = {graph.values[i].name: np.asarray(array) for i, array in stored.items()}
        return named | text_arrays(graph, reference.texts)

    def weigh(self, probe: Probe) -> int:
        """Return by how many bytes one more instance of a probe makes the worker grow.

        Constants are counted by their size, wherever they are held; buffers at the border are not.

        Raises:
            BackendError: It cannot be run, or not twice in one process.
            OutOfTimeError: There is no time for it.
        """
        return int(self._call_with(probe, "weigh").value)

    def drop(self, probes: Iterable[Probe]) -> None:
        """Let the worker forget probes; they are compiled again if they are raced again."""
        gone = [probe for probe in dict.fromkeys(probes) if probe in self._ready]
        for probe in gone:
            del self._ready[probe]
        if gone and self._is_open():
            with suppress(OutOfTimeError):  # then the memory is not needed any more
                self._call("drop", [self._ids[probe] for probe in gone], limits=self.limits)

    def _prepare(self, probe: Probe, *, is_checked: bool) -> Preparation:
        self._open()
        number = self._ids.setdefault(probe, len(self._ids))
        calls = [[position, list(nodes)] for position, nodes in probe.calls]
        arguments = (number, calls, is_checked, probe.is_part)
        is_alone = not self._ready
        outcome = self._call("prepare", *arguments, limits=self.limits)
        if _is_full(outcome) and not is_alone:  # of all that was ready: again, alone
            self._open()
            outcome = self._call("prepare", *arguments, limits=self.limits)
        if not outcome.is_ok:
            if outcome.reason is None:
                raise InternalError(f"preparing a probe failed: {outcome.message}")
            return Preparation((outcome.reason, self._explain(outcome)))
        preparation = msgspec.convert(outcome.value, Preparation)
        if preparation.refusal is None:
            self._ready[probe] = None
        return preparation

    def _is_open(self) -> bool:
        is_open = super()._is_open()
        if not is_open:
            self._ready.clear()
        return is_open

    def _load(self, probes: Sequence[Probe], refusals: dict[Probe, Refused]) -> list[Probe]:
        """Return those that are ready, and make ready those that can be."""
        self._open()
        self.prepare([probe for probe in probes if probe not in self._known])
        live = []
        for probe in probes:
            refusal = self._known[probe].refusal
            if refusal is None and probe not in self._ready:
                again = self._prepare(probe, is_checked=False)
                self.repeated += 1
                refusal = again.refusal
                if refusal is not None:
                    self._known[probe] = again
            if refusal is not None:
                refusals[probe] = refusal
        live = [probe for probe in probes if probe in self._ready]
        for probe in live:
            self._ready[probe] = self._ready.pop(probe)
        return live if len(live) + len(refusals) == len(probes) else self._load(probes, refusals)

    def _call_with(self, probe: Probe, function: str, *arguments: Any) -> CallOutcome:
        """Call a function of the worker with the number of a probe that is ready, and arguments.

        Raises:
            BackendError: The probe was refused, or the call failed.
        """
        refusals: dict[Probe, Refused] = {}
        self._load((probe,), refusals)
        if probe in refusals:
            raise BackendError(f"{self.name_of(probe)}: {refusals[probe][1]}")
        outcome = self._call(function, self._ids[probe], *arguments, limits=self.limits)
        if not outcome.is_ok:
            raise BackendError(f"{self.name_of(probe)}: {outcome.message}")
        return outcome

    def _race(self, live: Sequence[Probe], rounds: int) -> CallOutcome:
        numbers = [*(self._ids[probe] for probe in live), ANCHOR]
        self._races += 1
        patience = _LEAST_PATIENCE + _PATIENCE * rounds * self._round_seconds(live)
        limits = Limits(patience, self.limits.memory_bytes)
        seed = self.seed + self._races
        return self._call("race", numbers, rounds, seed, limits=limits)

    def _round_seconds(self, live: Sequence[Probe]) -> float:
        """Return roughly how long a round takes."""
        total = 0.0
        for probe in live:
            preparation = self._known[probe]
            total += 2 * preparation.run_seconds + 0.005
            count = sum(len(nodes) for _, nodes in probe.calls)
            is_whole = count == len(self.setting.graph.nodes) and not probe.is_part
            if is_whole and not preparation.has_clock:
                total += whole_sample_seconds(preparation.run_seconds, self.setting.num_threads)
        return total

    def _chunk(self, live: Sequence[Probe]) -> int:
        return max(1, int(_CHUNK_SECONDS / self._round_seconds(live)))

    def _note(
        self, outcome: CallOutcome, live: Sequence[Probe], count: int, record: RaceRecord
    ) -> None:
        record.add(live, outcome.value, count)
        for position, message in outcome.value["failures"].items():
            if position < len(live):
                self._refuse(live[position], (ReasonCode.CRASHED, message), record.refusals)

    def _clocked(self, probes: Iterable[Probe]) -> frozenset[Probe]:
        return frozenset(probe for probe in probes if self._known[probe].has_clock)

    def _blame(self, outcome: CallOutcome, refusals: dict[Probe, Refused]) -> None:
        """Refuse the probe at fault for the worker's death: at work, or grown out of all measure.

        Raises:
            BackendError: No probe was, time and again.
        """
        mark = Mark(self._folder)
        at_work, (grown, nbytes) = mark.get()[1], mark.get_growth()
        if outcome.reason is None:
            raise InternalError(f"a race failed: {outcome.message}")
        number = grown if _is_full(outcome) and nbytes >= _LEAK_BYTES else at_work
        guilty = next((probe for probe, probe_id in self._ids.items() if probe_id == number), None)
        if guilty is not None:
            self._refuse(guilty, (outcome.reason, self._explain(outcome)), refusals)
            return
        self._unexplained += 1
        if self._unexplained > _MOST_UNEXPLAINED:
            raise BackendError(f"the measurement worker keeps crashing: {outcome.message}")

    def _refuse(self, probe: Probe, refusal: Refused, refusals: dict[Probe, Refused]) -> None:
        refusals[probe] = refusal
        self._known[probe] = Preparation(refusal)
        self.drop((probe,))

    def _limit_ready(self) -> None:
        if len(self._ready) > _MOST_READY:
            self.drop(list(self._ready)[: _MOST_READY // 4])


def _is_out_of_reach(preparation: Preparation) -> bool:
    """Tell whether only the way to a machine failed, which may be there again."""
    return preparation.refusal is not None and preparation.refusal[0] is ReasonCode.UNAVAILABLE


def _is_full(outcome: CallOutcome) -> bool:
    """Whether a worker was killed from outside, as happens to one that uses too much memory."""
    return outcome.reason is ReasonCode.CRASHED and outcome.signal_name == "SIGKILL"
