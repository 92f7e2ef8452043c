# SPDX-License-Identifier: Apache-2.0
"""The queue of a model: requests wait there for a thread that runs them, alone or together.

Whoever waits for a request may go away: one that has not begun is not run then, and a run for
which nobody waits any more ends before its next step. A library that hangs keeps its thread, in
whose place another one works, up to a limit: beyond it, when no thread is left that works, requests
are refused until one of those that hang comes back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from intarsia.arrays import Array
from intarsia.errors import IntarsiaError, ServingError
from intarsia.runtime.device_array import to_host
from intarsia.serving.batching import BatchRule, batch_key, join, split

if TYPE_CHECKING:
    from intarsia.runtime.free import Program

logger = logging.getLogger("intarsia")

MOST_LEFT = 4
"""Threads that hang in whose place another one works."""


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request to a model.

    Attributes:
        feeds: Its inputs, in the model's order.
        future: Gets its outputs.
        is_over: Whether nobody waits for it any more.
        rows: Its rows, where requests are run together; else 0.
        key: What others must share to be run with it; None if it runs alone.
        worker: The thread that runs it, once one does.
    """

    feeds: dict[str, Array]
    future: Future[dict[str, Array]] = field(default_factory=Future)
    is_over: bool = False
    rows: int = 0
    key: Any = None
    worker: _QueueThread | None = None


@dataclass(slots=True, eq=False)
class _QueueThread:
    """A thread that runs requests.

    Attributes:
        jobs: Those that it runs now.
        is_left: Whether nobody waits for them any more: it ends after this run if another one
            has taken its place.
    """

    jobs: list[QueuedRequest] = field(default_factory=list)
    is_left: bool = False


class RunQueue:
    """Runs requests to a model in the order in which they came.

    Args:
        name: Of the model.
        program: What runs.
        workers: Runs at once.
        most: Most requests that wait.
        rule: How requests are run together; None if each runs alone.
        on_run: Told of each run how many requests it had, and its seconds.
    """

    def __init__(
        self,
        name: str,
        program: Program,
        *,
        workers: int,
        most: int,
        rule: BatchRule | None,
        on_run: Callable[[int, float], None],
    ) -> None:
        self._name, self._program, self._most, self._rule = name, program, most, rule
        self._on_run = on_run
        self._jobs: deque[QueuedRequest] = deque()
        self._changed = threading.Condition()
        self._collecting = threading.Lock()  # who waits for more requests is the only one
        self._is_closed = False
        self._running = 0
        self._left = 0
        self._workers, self._working = workers, 0
        for _ in range(workers):
            self._start_worker()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._jobs)

    @property
    def running(self) -> int:
        """How many runs are under way, or are about to be."""
        return self._running

    @property
    def hung(self) -> int:
        """How many runs have not ended although nobody waits for them any more."""
        return self._left

    @property
    def is_stuck(self) -> bool:
        """Whether all threads hang: nothing runs until one of them comes back."""
        return not self._working

    def check_alive(self) -> None:
        """Refuse what nothing would run.

        Raises:
            ServingError: All threads hang.
        """
        if self.is_stuck:
            raise self._stuck()

    def put(self, feeds: dict[str, Array]) -> QueuedRequest:
        """Have a request run.

        Args:
            feeds: Its inputs, in the model's order.

        Raises:
            ServingError: Too many wait already, the model is going, or all its threads hang.
        """
        job = QueuedRequest(feeds)
        if self._rule is not None:
            found = batch_key(feeds)
            if found is not None and found[0] < self._rule.rows:
                job.rows, job.key = found
        with self._changed:
            if self._is_closed:
                raise ServingError(f"model {self._name!r} is being unloaded", status=503)
            self.check_alive()
            if len(self._jobs) >= self._most:
                raise ServingError(
                    f"{len(self._jobs)} requests wait for model {self._name!r} already",
                    status=429,
                    hint="ask again later; --queue says how many may wait",
                )
            self._jobs.append(job)
            self._changed.notify_all()
        return job

    def leave(self, job: QueuedRequest) -> None:
        """Say that nobody waits for a request any more.

        Args:
            job: The request.
        """
        with self._changed:
            job.is_over = True
            job.future.cancel()
            if job in self._jobs:
                self._jobs.remove(job)
                return
            worker = job.worker
            if worker is None or worker.is_left or not all(one.is_over for one in worker.jobs):
                return
            if all(one.future.done() for one in worker.jobs):
                return
            worker.is_left = True
            self._left += 1
            self._working -= 1
            if self._left <= MOST_LEFT:
                self._start_worker()
            elif self.is_stuck:
                self._refuse_waiting()

    def close(self, timeout: float) -> bool:
        """Take no more requests, and wait for those that are there.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether all of them have ended.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._jobs and not self._running, timeout)

    def _stuck(self) -> ServingError:
        return ServingError(
            f"all threads of model {self._name!r} hang: {self._left} runs that nobody waits for "
            "any more have not ended",
            status=503,
            hint="load the model again, or ask later: one that comes back works again",
        )

    def _refuse_waiting(self) -> None:
        """Tell those who wait that nothing will run them."""
        logger.error("all threads of model %r hang; requests to it are refused", self._name)
        while self._jobs:
            job = self._jobs.popleft()
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(self._stuck())
        self._changed.notify_all()

    def _start_worker(self) -> None:
        # Of a daemon no exit of the process waits for a library that hangs.
        self._working += 1
        worker = _QueueThread()
        threading.Thread(
            target=self._work, args=(worker,), name=f"intarsia-serve-{self._name}", daemon=True
        ).start()

    def _work(self, worker: _QueueThread) -> None:
        while True:
            with self._collecting:
                jobs = self._take(worker)
            if not jobs:
                return
            try:
                self._run(jobs)
            finally:
                with self._changed:
                    self._running -= 1
                    worker.jobs = jobs = []  # an idle thread keeps no tensors
                    is_needed = self._come_back(worker)
                    self._changed.notify_all()
            if not is_needed:
                return

    def _come_back(self, worker: _QueueThread) -> bool:
        """Tell whether a thread whose run has ended goes on: none may have taken its place."""
        if not worker.is_left:
            return True
        self._left -= 1
        if self._working >= self._workers:
            return False
        logger.warning("a thread of model %r that hung works again", self._name)
        worker.is_left = False
        self._working += 1
        return True

    def _take(self, worker: _QueueThread) -> list[QueuedRequest]:
        """Return what is to run next, as soon as there is something; nothing if that is never."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._jobs or self._is_closed)
                if not self._jobs:
                    return []
                jobs = [self._jobs.popleft()]
                self._running += 1
                if self._rule is not None and jobs[0].key is not None:
                    self._collect(jobs, self._rule)
                worker.jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
                for job in worker.jobs:
                    job.worker = worker
                if worker.jobs:
                    return worker.jobs
                self._running -= 1
                self._changed.notify_all()

    def _collect(self, jobs: list[QueuedRequest], rule: BatchRule) -> None:
        """Add requests that can be run with the first one; wait for some."""
        end = time.monotonic() + rule.wait
        rows = jobs[0].rows
        while True:
            for job in [one for one in self._jobs if one.key == jobs[0].key]:
                if rows + job.rows <= rule.rows:
                    self._jobs.remove(job)
                    jobs.append(job)
                    rows += job.rows
            left = end - time.monotonic()
            if rows >= rule.rows or left <= 0 or self._is_closed:
                return
            self._changed.wait(left)

    def _run(self, jobs: list[QueuedRequest]) -> None:
        feeds = [job.feeds for job in jobs]
        try:
            outputs = self._run_once(jobs, feeds[0] if len(jobs) == 1 else join(feeds))
            parts = [outputs] if len(jobs) == 1 else split(outputs, [job.rows for job in jobs])
        except Exception as error:  # whoever waits gets it, whatever it is
            if len(jobs) > 1 and isinstance(error, IntarsiaError):
                for job in jobs:  # what is wrong with one of them is not the others' fault
                    self._run([job])
                return
            for job in jobs:
                job.future.set_exception(error)
            return
        for job, part in zip(jobs, parts, strict=True):
            job.future.set_result(part)

    def _run_once(self, jobs: list[QueuedRequest], feeds: Mapping[str, Array]) -> dict[str, Array]:
        start = time.perf_counter()
        outputs = to_host(self._program.run_until(feeds, lambda: all(job.is_over for job in jobs)))
        self._on_run(len(jobs), time.perf_counter() - start)
        return outputs
