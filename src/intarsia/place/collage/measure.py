# SPDX-License-Identifier: Apache-2.0
"""The laboratory: prepares probes of one model in a worker process, and races them.

Whatever a backend does to the worker costs the probe that was at work; the worker is replaced, and
what was ready in it is compiled anew when it is needed. Nothing compiles while something is timed,
because one worker does both.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from intarsia.backends.api import Array, ReasonCode
from intarsia.cost.key import digest
from intarsia.errors import BackendError, InternalError
from intarsia.graph.region import Region
from intarsia.place.collage.artifacts import ArtifactStore
from intarsia.place.collage.reference import ReferenceRun, run_reference
from intarsia.place.collage.sampling import LEAST_SECONDS, FixedKernel, lead_of, spent_lead
from intarsia.place.collage.session import ANCHOR
from intarsia.place.collage.store import Mark, Stage, graph_digest, write_model
from intarsia.place.collage.strangers import Strangers, describe_strangers
from intarsia.place.collage.values import (
    OutOfTimeError,
    Prepared,
    Probe,
    Race,
    Refused,
    Report,
    SessionSpec,
    Tally,
)
from intarsia.place.setting import Progress, Setting, quiet
from intarsia.runtime.package import PACKAGE_SUFFIX
from intarsia.runtime.workers import Limits, Outcome, Worker

__all__ = ["Laboratory", "Prepared", "Probe", "Race", "Refused", "Tally"]

logger = logging.getLogger(__name__)

_WORKER = "intarsia.place.collage.probe"
_MEMORY_PART = 0.75
_PREPARE_SECONDS = 60.0
_START_SECONDS = 300.0
"""Loading runtimes and a model may take long where many share a disk."""

_CHUNK_SECONDS = 1.0
"""Roughly how long one call of a race takes: what an interruption may lose."""

_PATIENCE = 30.0
_LEAST_PATIENCE = 5.0
_LEAK_BYTES = 32 << 20
"""By what a worker must have grown under a probe for that to be why its memory ran out."""

_MOST_UNEXPLAINED = 3

_MOST_READY = 256
"""Probes in one worker; each may own threads and memory."""


class Laboratory:
    """Prepares and races probes of one model on one machine.

    Args:
        setting: The model and the machine.
        feeds: Inputs by name; what is missing is made up.
        limits: Of preparing one probe: seconds, and the worker's memory. None means a minute, and
            three quarters of the machine's memory.
        is_shared: Whether parts of the model run as among several runtimes, whose threads do not
            spin; None means whether the machine has targets of several backends.
        seed: For inputs and orders.
        tell: Told about progress.

    Attributes:
        left: Tells how many seconds the next call of the worker may take, beside its own limit.
            What would take longer is stopped, and raises `OutOfTimeError`.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        feeds: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        is_shared: bool | None = None,
        seed: int = 0,
        tell: Progress | None = None,
    ) -> None:
        self.setting = setting
        self.limits = limits or Limits(_PREPARE_SECONDS, int(_MEMORY_PART * _memory_bytes()))
        backends = {capability.backend.name for capability in setting.capabilities}
        self.is_shared = len(backends) > 1 if is_shared is None else is_shared
        self.tally = Tally()
        self.left: Callable[[], float] = _forever
        self.seed = seed
        self._feeds, self._tell = feeds, tell or quiet
        self._scratch = tempfile.TemporaryDirectory(prefix="intarsia-")
        self._folder = Path(self._scratch.name)
        self._worker = Worker()
        self._reference: ReferenceRun | None = None
        self._strangers: Strangers | None = None
        self._ids: dict[Probe, int] = {}
        self._known: dict[Probe, Prepared] = {}
        self._ready: dict[Probe, None] = {}  # in the order of their last use
        self._opened: int | None = None  # the process that has the model
        self._races = 0
        self._unexplained = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker and remove the files."""
        self._worker.close()
        self._scratch.cleanup()

    @property
    def reference(self) -> ReferenceRun:
        """The run whose values probes begin with; made when it is first needed.

        Raises:
            InputError: A feed does not fit.
            BackendError: Nothing here can run the model.
            OutOfTimeError: There is no time for it.
        """
        if self._reference is None:
            self._tell("reference run", 0, 1)
            write_model(self.setting.graph, self._folder)
            limits, is_cut = self._limited(Limits(memory_bytes=self.limits.memory_bytes))
            try:
                self._reference = run_reference(
                    *(self._worker, self.setting.graph, self._folder, self.setting.backends),
                    self._feeds,
                    seed=self.seed,
                    num_threads=self.setting.num_threads,
                    limits=limits,
                )
            except BackendError as error:
                if is_cut and self.left() <= 0:
                    raise OutOfTimeError(error.message) from error
                raise
        return self._reference

    @property
    def strangers(self) -> Strangers:
        """Backends that workers have to be given.

        Raises:
            BackendError: One cannot be handed to another process.
        """
        if self._strangers is None:
            self._strangers = describe_strangers(self.setting.backends)
        return self._strangers

    @property
    def folder(self) -> Path:
        """Where everything is that outlives a worker; removed in the end."""
        return self._folder

    @property
    def artifacts(self) -> ArtifactStore:
        """What took long to compile, for who compiles the same regions elsewhere meanwhile."""
        return ArtifactStore(self._folder)

    def name_of(self, probe: Probe) -> str:
        """Return a name for what a probe runs; alike regions on alike targets share it."""
        from intarsia.graph.hashes import shape_hash

        parts = [
            f"{shape_hash(Region.of(self.setting.graph, nodes))} on "
            f"{self.setting.config.targets[position].target}"
            for position, nodes in probe.calls
        ]
        return parts[0] if len(parts) == 1 else f"{len(parts)} calls {digest(parts)}"

    def prepare(self, probes: Sequence[Probe]) -> dict[Probe, Prepared]:
        """Compile, load and run probes once, and compare what they compute.

        What was prepared before is not prepared again. A failure costs its probe only.

        Args:
            probes: In any number; their results stay in the worker until they are dropped.

        Raises:
            BackendError: No reference run, or no worker, can be had.
        """
        found = {}
        for index, probe in enumerate(probes):
            if probe not in self._known:
                self._tell("compile", index, len(probes))
                self._known[probe] = self._prepare(probe, is_checked=True)
                self.tally.prepared += 1
                self._limit_ready()
            found[probe] = self._known[probe]
        return found

    def race(
        self,
        probes: Sequence[Probe],
        *,
        rounds: int,
        anchor: Probe | None = None,
        least_seconds: float = LEAST_SECONDS,
        note: Callable[[Race], None] | None = None,
    ) -> Race:
        """Time probes against each other in rounds, each in an order of its own.

        Args:
            probes: Those that were refused get no samples.
            rounds: How many samples of each.
            anchor: What is timed beside them in every round; None means a fixed kernel.
            least_seconds: What one sample lasts at least, of several runs if need be.
            note: Given the rounds of every second or so as soon as they are there, to keep them:
                who is stopped in a long race loses no more than that.

        Raises:
            BackendError: No reference run, or no worker, can be had.
        """
        field_ = tuple(dict.fromkeys((*probes, *([anchor] if anchor is not None else []))))
        seconds: dict[Probe | None, list[float]] = {probe: [] for probe in (*field_, None)}
        refusals: dict[Probe, Refused] = {}
        taken_at: list[float] = []

        def result(start: int = 0) -> Race:
            return Race(
                seconds={probe: tuple(seconds[probe][start:]) for probe in probes},
                anchor=FixedKernel.name if anchor is None else self.name_of(anchor),
                anchor_seconds=tuple(seconds[anchor][start:]),
                taken_at=tuple(taken_at[start:]),
                refusals=dict(refusals),
                clocked=frozenset(probe for probe in probes if self._known[probe].has_clock),
            )

        done = 0
        while done < rounds:
            live = self._load(field_, refusals)
            if not live:
                break
            count = min(rounds - done, self._chunk(live))
            self._tell("measure", done, rounds)
            outcome = self._race(live, count, least_seconds, anchor is None)
            if not outcome.is_ok:
                self._blame(outcome, refusals)
                continue
            self._note(outcome, live, seconds, refusals)
            taken_at += outcome.value["taken_at"]
            done += count
            _fill(seconds.values(), done)
            if note is not None:
                note(result(done - count))
        _fill(seconds.values(), rounds)
        return result()

    def measurer(
        self, anchor: Probe | None = None, note: Callable[[Race], None] | None = None
    ) -> Callable[[Sequence[Probe], int], Mapping[Probe, tuple[float, ...]]]:
        """Return what `racing.halve` and `racing.confirm` call to measure.

        Args:
            anchor: As in `race`.
            note: As in `race`.
        """

        def measure(probes: Sequence[Probe], rounds: int) -> Mapping[Probe, tuple[float, ...]]:
            return self.race(probes, rounds=rounds, anchor=anchor, note=note).seconds

        return measure

    def outputs(self, probe: Probe) -> dict[str, Array]:
        """Run a probe once on the reference run's values and return what comes out, by name.

        Raises:
            BackendError: It cannot be run.
        """
        refusals: dict[Probe, Refused] = {}
        self._load((probe,), refusals)
        if probe in refusals:
            raise BackendError(f"{self.name_of(probe)}: {refusals[probe][1]}")
        outcome = self._call("outputs", self._ids[probe], limits=self.limits)
        if not outcome.is_ok:
            raise BackendError(f"{self.name_of(probe)}: {outcome.message}")
        return {name: outcome.arrays[name] for name in outcome.value}

    def save(self, probe: Probe) -> Path:
        """Write a whole plan as a package, and return the file, which is removed in the end.

        Raises:
            BackendError: It cannot be compiled.
            OutOfTimeError: There is no time for it.
        """
        refusals: dict[Probe, Refused] = {}
        self._load((probe,), refusals)
        file = self._folder / f"{self._ids.get(probe, -1)}{PACKAGE_SUFFIX}"
        if probe not in refusals:
            outcome = self._call("save", self._ids[probe], str(file), limits=self.limits)
            if outcome.is_ok:
                return file
            raise BackendError(f"{self.name_of(probe)}: {outcome.message}")
        raise BackendError(f"{self.name_of(probe)}: {refusals[probe][1]}")

    def weigh(self, probe: Probe) -> int:
        """Return by how many bytes one more instance of a probe makes the worker grow.

        Constants are counted by their size, whoever holds them; buffers at the border are not.

        Raises:
            BackendError: It cannot be run, or not twice in one process.
            OutOfTimeError: There is no time for it.
        """
        refusals: dict[Probe, Refused] = {}
        self._load((probe,), refusals)
        if probe in refusals:
            raise BackendError(f"{self.name_of(probe)}: {refusals[probe][1]}")
        outcome = self._call("weigh", self._ids[probe], limits=self.limits)
        if not outcome.is_ok:
            raise BackendError(f"{self.name_of(probe)}: {outcome.message}")
        return int(outcome.value)

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

    def drop(self, probes: Iterable[Probe]) -> None:
        """Let the worker forget probes; they are compiled again if they are raced again."""
        gone = [probe for probe in dict.fromkeys(probes) if probe in self._ready]
        for probe in gone:
            del self._ready[probe]
        if gone and self._is_open():
            with suppress(OutOfTimeError):  # then nobody needs the memory any more
                self._call("drop", [self._ids[probe] for probe in gone], limits=self.limits)

    def _prepare(self, probe: Probe, *, is_checked: bool) -> Prepared:
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
            return Prepared(probe, (outcome.reason, self._explain(outcome)))
        report = msgspec.convert(outcome.value, Report)
        self.tally.compile_seconds += report.compile_seconds
        refusal = (ReasonCode(report.code), report.message) if report.code else None
        if refusal is None:
            self._ready[probe] = None
        return Prepared(
            *(probe, refusal, report.compile_seconds, report.run_seconds),
            *(report.nbytes, report.error, report.has_clock),
        )

    def _is_open(self) -> bool:
        """Whether the process lives that has the model; if not, nothing is ready any more."""
        is_open = self._opened is not None and self._opened == self._worker.pid
        if not is_open:
            self._opened = None
            self._ready.clear()
        return is_open

    def _open(self) -> None:
        if self._is_open():
            return
        reference = self.reference
        spec = SessionSpec(
            folder=str(self._folder),
            config=self.setting.config.to_json(),
            num_threads=self.setting.num_threads,
            is_shared=self.is_shared,
            values=list(reference.stored),
            texts=dict(reference.texts),
            strangers=self.strangers,
        )
        limits = Limits(_START_SECONDS, self.limits.memory_bytes)
        outcome = self._call("open_session", msgspec.to_builtins(spec), limits=limits)
        if not outcome.is_ok:
            raise BackendError(
                f"no process could be made ready to measure in: {outcome.message}",
                hint=outcome.hint or None,
            )
        if outcome.value != graph_digest(self.setting.graph):
            raise InternalError("the model became another graph in the worker")
        self._opened = self._worker.pid

    def _load(self, probes: Sequence[Probe], refusals: dict[Probe, Refused]) -> list[Probe]:
        """Return those that are ready, and make ready those that can be."""
        self._open()
        self.prepare([probe for probe in probes if probe not in self._known])
        live = []
        for probe in probes:
            known = self._known[probe].refusal
            if known is None and probe not in self._ready:
                again = self._prepare(probe, is_checked=False)
                self.tally.repeated += 1
                known = again.refusal
                if known is not None:
                    self._known[probe] = again
            if known is not None:
                refusals[probe] = known
        live = [probe for probe in probes if probe in self._ready]
        for probe in live:
            self._ready[probe] = self._ready.pop(probe)
        return live if len(live) + len(refusals) == len(probes) else self._load(probes, refusals)

    def _race(
        self, live: Sequence[Probe], rounds: int, least_seconds: float, has_kernel: bool
    ) -> Outcome:
        numbers = [self._ids[probe] for probe in live] + [ANCHOR] * has_kernel
        self._races += 1
        patience = _LEAST_PATIENCE + _PATIENCE * rounds * self._round_seconds(live)
        limits = Limits(patience, self.limits.memory_bytes)
        seed = self.seed + self._races
        return self._call("race", numbers, rounds, least_seconds, seed, limits=limits)

    def _round_seconds(self, live: Sequence[Probe]) -> float:
        """Return roughly how long a round takes."""
        lead, total = lead_of(self.setting.num_threads), 0.0
        for probe in live:
            known = self._known[probe]
            total += 2 * known.run_seconds + 0.005
            count = sum(len(nodes) for _, nodes in probe.calls)
            is_whole = count == len(self.setting.graph.nodes) and not probe.is_part
            if is_whole and not known.has_clock:
                total += spent_lead(known.run_seconds, lead)
        return total

    def _chunk(self, live: Sequence[Probe]) -> int:
        return max(1, int(_CHUNK_SECONDS / self._round_seconds(live)))

    def _note(
        self,
        outcome: Outcome,
        live: Sequence[Probe],
        seconds: Mapping[Probe | None, list[float]],
        refusals: dict[Probe, Refused],
    ) -> None:
        rows = outcome.value["seconds"]
        for probe, row in zip((*live, None), rows, strict=False):
            seconds[probe] += row
        self.tally.rounds += len(rows[0])
        self.tally.samples += sum(math.isfinite(one) for row in rows for one in row)
        for position, message in outcome.value["failures"].items():
            if position < len(live):
                self._refuse(live[position], (ReasonCode.CRASHED, message), refusals)

    def _blame(self, outcome: Outcome, refusals: dict[Probe, Refused]) -> None:
        """Refuse the probe at fault for the worker's death: at work, or grown out of all measure.

        Raises:
            BackendError: Nobody was, time and again.
        """
        mark = Mark(self._folder)
        at_work, (grown, nbytes) = mark.get()[1], mark.get_growth()
        if outcome.reason is None:
            raise InternalError(f"a race failed: {outcome.message}")
        number = grown if _is_full(outcome) and nbytes >= _LEAK_BYTES else at_work
        guilty = next((probe for probe, own in self._ids.items() if own == number), None)
        if guilty is not None:
            self._refuse(guilty, (outcome.reason, self._explain(outcome)), refusals)
            return
        self._unexplained += 1
        if self._unexplained > _MOST_UNEXPLAINED:
            raise BackendError(f"the process to measure in dies again and again: {outcome.message}")

    def _refuse(self, probe: Probe, refusal: Refused, refusals: dict[Probe, Refused]) -> None:
        refusals[probe] = refusal
        self._known[probe] = Prepared(probe, refusal)
        self.drop((probe,))

    def _explain(self, outcome: Outcome) -> str:
        stage = Mark(self._folder).get()[0]
        doing = {
            Stage.IDLE: "starting",
            Stage.COMPILE: "compiling",
            Stage.RUN: "running once",
            Stage.MEASURE: "being timed",
        }[stage]
        return f"while {doing}: {outcome.message}"

    def _call(self, function: str, *arguments: Any, limits: Limits) -> Outcome:
        name = function if ":" in function else f"{_WORKER}:{function}"
        limits, is_cut = self._limited(limits)
        outcome = self._worker.call(name, *arguments, limits=limits)
        if is_cut and outcome.reason is ReasonCode.TIMEOUT:
            raise OutOfTimeError(f"out of time {self._explain(outcome)}")
        if self._opened is not None and self._worker.pid not in (None, self._opened):
            outcome = Outcome(
                reason=ReasonCode.CRASHED,
                message="the process was ended between two calls",
                signal_name="SIGKILL",
            )
        if outcome.reason in (ReasonCode.CRASHED, ReasonCode.TIMEOUT):
            logger.info("a worker ended %s", self._explain(outcome))
            self.tally.deaths += 1
        return outcome

    def _limited(self, limits: Limits) -> tuple[Limits, bool]:
        """Return limits that end with the time that is left, and whether that changed them.

        Raises:
            OutOfTimeError: Nothing is left.
        """
        left = self.left()
        if left <= 0:
            raise OutOfTimeError("out of time")
        if left >= (math.inf if limits.seconds is None else limits.seconds):
            return limits, False
        return replace(limits, seconds=left), True

    def _limit_ready(self) -> None:
        if len(self._ready) > _MOST_READY:
            self.drop(list(self._ready)[: _MOST_READY // 4])


def _is_full(outcome: Outcome) -> bool:
    """Whether a worker was killed from outside, as it is for using too much memory."""
    return outcome.reason is ReasonCode.CRASHED and outcome.signal_name == "SIGKILL"


def _fill(rows: Iterable[list[float]], length: int) -> None:
    """Let rows that have too few samples say so."""
    for row in rows:
        row.extend([math.nan] * (length - len(row)))


def _forever() -> float:
    return math.inf


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
