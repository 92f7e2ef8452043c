# SPDX-License-Identifier: Apache-2.0
"""A worker process that has one model open, and the reference run's values with it.

It is started when it is first needed and replaced when it has died; what was ready in it is gone
then. Every call has limits of time and memory, and ends with the time that is left for all.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import msgspec

from intarsia.errors import BackendError, InternalError, ReasonCode
from intarsia.place.setting import Setting
from intarsia.process.workers import CallOutcome, Limits, Worker
from intarsia.tuning.laboratory.plug_ins import PlugIns, describe_plug_ins
from intarsia.tuning.laboratory.reference import ReferenceRun, run_reference
from intarsia.tuning.laboratory.store import (
    ArtifactStore,
    Mark,
    WorkerStage,
    graph_digest,
    write_model,
)
from intarsia.tuning.laboratory.values import OutOfTimeError, SessionSpec

logger = logging.getLogger(__name__)

_WORKER = "intarsia.tuning.laboratory.session"
_MEMORY_PART = 0.75
_PREPARE_SECONDS = 60.0
_START_SECONDS = 300.0
"""Loading runtimes and a model may take long where many share a disk."""


class ModelWorker:
    """One worker at a time, with one model open in it.

    Args:
        setting: The model and the machine.
        feeds: Inputs by name; what is missing is made up.
        limits: Of preparing one probe: seconds, and the worker's memory. None means a minute, and
            three quarters of the machine's memory.
        seed: For inputs and orders.
        left: Tells how many seconds the next call of the worker may take, beside its own limit.
            What would take longer is stopped, and raises `OutOfTimeError`.

    Attributes:
        is_shared: Whether parts of the model run as among several runtimes, whose threads do not
            spin: where the machine has targets of several backends.
        deaths: How many workers died or were killed.
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
        self.setting = setting
        self.limits = limits or preparing_limits()
        backends = {capability.backend.name for capability in setting.capabilities}
        self.is_shared = len(backends) > 1
        self.deaths = 0
        self.left = left
        self.seed = seed
        self._feeds = feeds
        self._scratch = tempfile.TemporaryDirectory(prefix="intarsia-")
        self._folder = Path(self._scratch.name)
        self._worker = Worker()
        self._reference: ReferenceRun | None = None
        self._plug_ins: PlugIns | None = None
        self._opened: int | None = None  # the process that has the model

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
            write_model(self.setting.graph, self._folder)
            limits, is_cut = self._limited(Limits(memory_bytes=self.limits.memory_bytes))
            try:
                self._reference = run_reference(
                    self._worker,
                    self.setting.graph,
                    self._folder,
                    self.setting.backends,
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
    def plug_ins(self) -> PlugIns:
        """Backends that workers have to be given.

        Raises:
            BackendError: One cannot be handed to another process.
        """
        if self._plug_ins is None:
            self._plug_ins = describe_plug_ins(self.setting.backends)
        return self._plug_ins

    @property
    def folder(self) -> Path:
        """Where everything is that outlives a worker; removed in the end."""
        return self._folder

    @property
    def artifacts(self) -> ArtifactStore:
        """Stored artifacts of slow compilations, for later compilations of the same regions."""
        return ArtifactStore(self._folder)

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

    def _is_open(self) -> bool:
        """Whether the process lives that has the model; if not, nothing is ready any more."""
        if self._opened is None or self._opened != self._worker.pid:
            self._opened = None
        return self._opened is not None

    def _open(self) -> None:
        if self._is_open():
            return
        reference, target_count = self.reference, len(self.setting.config.targets)
        spec = SessionSpec(
            folder=str(self._folder),
            config=self.setting.config.to_json(),
            num_threads=self.setting.num_threads,
            is_shared=self.is_shared,
            values=list(reference.stored),
            texts=dict(reference.texts),
            plug_ins=self.plug_ins,
            hosts=[placed.to_json() for placed in self.setting.targets[target_count:]],
            borders={
                self.setting.graph.values[value].name: domain
                for value, domain in self.setting.constraints.borders.items()
            },
        )
        limits = Limits(_START_SECONDS, self.limits.memory_bytes)
        outcome = self._call("open_session", msgspec.to_builtins(spec), limits=limits)
        if not outcome.is_ok:
            raise BackendError(
                f"the measurement worker could not be prepared: {outcome.message}",
                hint=outcome.hint or None,
            )
        if outcome.value != graph_digest(self.setting.graph):
            raise InternalError("the worker made another graph of the model")
        self._opened = self._worker.pid

    def _explain(self, outcome: CallOutcome) -> str:
        stage = Mark(self._folder).get()[0]
        doing = {
            WorkerStage.IDLE: "starting",
            WorkerStage.COMPILE: "compiling",
            WorkerStage.RUN: "running once",
            WorkerStage.MEASURE: "being timed",
        }[stage]
        return f"while {doing}: {outcome.message}"

    def _call(self, function: str, *arguments: Any, limits: Limits) -> CallOutcome:
        name = function if ":" in function else f"{_WORKER}:{function}"
        limits, is_cut = self._limited(limits)
        outcome = self._worker.call(name, *arguments, limits=limits)
        if is_cut and outcome.reason is ReasonCode.TIMEOUT:
            raise OutOfTimeError(f"out of time {self._explain(outcome)}")
        if self._opened is not None and self._worker.pid not in (None, self._opened):
            outcome = CallOutcome(
                reason=ReasonCode.CRASHED,
                message="something ended the worker between two calls",
                signal_name="SIGKILL",
            )
        if outcome.reason in (ReasonCode.CRASHED, ReasonCode.TIMEOUT):
            logger.info("a worker ended %s", self._explain(outcome))
            self.deaths += 1
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


def preparing_limits(seconds: float = 0.0) -> Limits:
    """Return the limits of preparing one probe: a minute, or longer, and most of the memory."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Limits(max(_PREPARE_SECONDS, seconds), int(_MEMORY_PART * machine_bytes))
