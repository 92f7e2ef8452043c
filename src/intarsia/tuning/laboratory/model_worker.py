# SPDX-License-Identifier: Apache-2.0
"""A worker process that has one model open, and the reference run's values with it.

What it needs to know of the model lies in a folder. It is started when it is first needed and
replaced when it has died; what was ready in it is gone then. Every call has limits of time and
memory, and ends with the time that is left for all.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import msgspec

from intarsia.arrays import Array
from intarsia.errors import BackendError, InternalError, ReasonCode
from intarsia.process.workers import CallOutcome, Limits, Worker
from intarsia.tuning.laboratory.reference import list_texts
from intarsia.tuning.laboratory.store import ArtifactStore, Mark, WorkerStage
from intarsia.tuning.laboratory.values import OutOfTimeError, ReferenceRun, SessionSpec

logger = logging.getLogger(__name__)

_WORKER = "intarsia.tuning.laboratory.session"
_REFERENCE = "intarsia.tuning.laboratory.reference"
_MEMORY_PART = 0.75
_PREPARE_SECONDS = 60.0
_START_SECONDS = 300.0
"""Loading runtimes and a model may take long where many share a disk."""


class ModelWorker:
    """One worker at a time, with one model open in it.

    Args:
        limits: Of preparing one probe: seconds, and the worker's memory. None means a minute, and
            three quarters of the machine's memory.
        left: Tells how many seconds the next call of the worker may take, beside its own limit.
            What would take longer is stopped, and raises `OutOfTimeError`.

    Attributes:
        deaths: How many workers died or were killed.
    """

    def __init__(self, limits: Limits | None, left: Callable[[], float]) -> None:
        self.limits = limits or preparing_limits()
        self.deaths = 0
        self.left = left
        self._scratch = tempfile.TemporaryDirectory(prefix="intarsia-")
        self._folder = Path(self._scratch.name)
        self._worker = Worker()
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
    def folder(self) -> Path:
        """Where everything is that outlives a worker; removed in the end."""
        return self._folder

    @property
    def artifacts(self) -> ArtifactStore:
        """Stored artifacts of slow compilations, for later compilations of the same regions."""
        return ArtifactStore(self._folder)

    def _run_reference(
        self, stand_ins: Iterable[str], num_threads: int, feeds: Mapping[str, Array], seed: int
    ) -> ReferenceRun:
        """Run the model in the folder once and keep every value of it.

        Args:
            stand_ins: Targets that may run all of it, the best one first.
            num_threads: Threads that the run may use.
            feeds: Inputs by name; those that are missing are made up.
            seed: For inputs that are made up.

        Raises:
            BackendError: Nothing here can run the model.
            OutOfTimeError: There is no time for it.
        """
        arrays = {name: array for name, array in feeds.items() if array.dtype != object}
        arguments = (num_threads, seed, list_texts(feeds))
        problems = []
        for target in stand_ins:
            outcome = self._call(
                f"{_REFERENCE}:keep_values",
                str(self._folder),
                target,
                *arguments,
                arrays=arrays,
                limits=Limits(memory_bytes=self.limits.memory_bytes),
            )
            if outcome.is_ok:
                return msgspec.convert(outcome.value, ReferenceRun)
            problems.append(f"{target}: {outcome.message}")
        raise BackendError(
            f"the model could not be run once for comparison: {'; '.join(problems)}",
            hint="give inputs that are legal for it: feeds=, or --input NAME=FILE",
        )

    def _is_open(self) -> bool:
        """Whether the process lives that has the model; if not, nothing is ready any more."""
        if self._opened is None or self._opened != self._worker.pid:
            self._opened = None
        return self._opened is not None

    def _open_session(self, spec: SessionSpec, digest: str) -> None:
        """Open a model in the worker.

        Args:
            spec: What the worker needs to know.
            digest: Of the graph that node and value ids are of.
        """
        limits = Limits(_START_SECONDS, self.limits.memory_bytes)
        outcome = self._call("open_session", msgspec.to_builtins(spec), limits=limits)
        if not outcome.is_ok:
            raise BackendError(
                f"the measurement worker could not be prepared: {outcome.message}",
                hint=outcome.hint or None,
            )
        if outcome.value != digest:
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

    def _call(
        self,
        function: str,
        *arguments: Any,
        limits: Limits,
        arrays: Mapping[str, Array] | None = None,
    ) -> CallOutcome:
        name = function if ":" in function else f"{_WORKER}:{function}"
        limits, is_cut = self._limited(limits)
        outcome = self._worker.call(name, *arguments, arrays=arrays, limits=limits)
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
