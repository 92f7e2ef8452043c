# SPDX-License-Identifier: Apache-2.0
"""Compiling many kernels at once: on a thread of this process, and in workers while many wait.

LLVM's binding lets go of Python's lock, so that a thread compiles while this process still makes
kernels; but it has one lock of its own for a process, so that threads compile one after another,
and workers are processes (`compile_worker`). One starts when modules wait whose compilation takes
several times as long as its start. In the end all share what is left, the largest first. Who
compiles a module changes nothing about its object.

A worker that cannot start, or is killed, is done without. If LLVM ends the process of a worker, the
kernel is at fault, and what would have been the end of this process is an error.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from intarsia.cpus import available_cpus
from intarsia.errors import BackendError
from intarsia.native import compile_worker
from intarsia.native.compile_worker import read_answer, write_request
from intarsia.native.machine import NativeCpu, compile_object, driver
from intarsia.native.objects import ObjectCache

logger = logging.getLogger(__name__)

_WORTH = 1 << 20
"""Bytes of text that wait for which a worker pays: a third of a second of compiling, four times its
start, all of which is time of a CPU."""

# A bound for machines with many CPUs: each start is 0.07 s of a CPU, and few networks have text for
# more.
_MOST_WORKERS = 15
_GRACE_SECONDS = 2.0
_CRASHES = frozenset(("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"))
"""Signals by which LLVM ends a process, if it does not exit; others come from outside."""


@dataclass(frozen=True, slots=True)
class _Job:
    number: int
    name: str
    text: str


class _Worker:
    """One process."""

    def __init__(self) -> None:
        folders = [_folder(compile_worker.__file__, 3), _folder(driver().__file__, 3)]
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            # Isolated and without site packages: nothing of the user's runs at its start.
            [sys.executable, "-I", "-S", compile_worker.__file__, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            # Ctrl-C in a terminal goes to its whole process group: this process alone is to hear
            # it.
            start_new_session=True,
        )

        self._is_ready = False

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def compile(self, text: str, cpu: NativeCpu) -> tuple[bool, bytes]:
        """Return whether LLVM refused, and the object file or what LLVM says.

        Raises:
            OSError: The process is gone.
            EOFError: The process is gone.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if not self._is_ready:
            read_answer(process.stdout)
            self._is_ready = True
        write_request(process.stdin, text, (cpu.triple, cpu.name, cpu.features))
        return read_answer(process.stdout)

    def last_words(self) -> str:
        """Return how LLVM ended the process, which is gone; empty if it was not LLVM."""
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return ""
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        # Before it is ready it was not LLVM; a signal from outside (killed for memory) is not
        # either.
        if not self._is_ready or (code < 0 and name not in _CRASHES):
            return ""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()
        said = next((line.strip() for line in lines if "error:" in line.lower()), "")
        return f"{name}: {said}" if said else name

    def kill(self) -> None:
        """End the process."""
        self._process.kill()

    def close(self) -> None:
        """Give back what is left of it."""
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError:  # a request that is not read any more
                logger.debug("a compile worker ended without reading its job")
        self._stderr.close()


class CompilePool:
    """Compiles modules for one CPU; use it in a `with` block, which ends its workers.

    Args:
        cpu: What to generate code for.
        cache: Where objects are looked up and kept.
        most_workers: Beside this process; None for one less than there are CPUs.
    """

    def __init__(
        self, cpu: NativeCpu, cache: ObjectCache, *, most_workers: int | None = None
    ) -> None:
        self._cpu, self._cache = cpu, cache
        most = min(available_cpus() - 1, _MOST_WORKERS) if most_workers is None else most_workers
        self._most = most if sys.executable and not getattr(sys, "frozen", False) else 0
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._running = 0
        self._is_closed = False
        self._objects: dict[str, bytes] = {}
        self._problems: dict[int, str] = {}
        self._count = 0
        self._workers: list[tuple[_Worker, threading.Thread]] = []
        self._thread: threading.Thread | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """The numbers of the processes that were started."""
        return tuple(worker.pid for worker, _ in self._workers)

    @property
    def is_waiting(self) -> bool:
        """Whether a module waits that is not being compiled yet."""
        return bool(self._waiting)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, name: str, text: str) -> None:
        """Have a module compiled, unless its object is in the cache.

        Args:
            name: Of the kernel.
            text: The module, in LLVM IR.
        """
        code = self._cache.find_object(text, self._cpu)
        if code is not None:
            self._objects[name] = code
            return
        with self._changed:
            self._waiting.append(_Job(self._count, name, text))
            self._count += 1
            waiting = sum(len(job.text) for job in self._waiting)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._compile_here, daemon=True)
            self._thread.start()
        if len(self._workers) < self._most and waiting >= _WORTH:
            self._start()

    def finish(self, tell: Callable[[int, int], None] | None = None) -> dict[str, bytes]:
        """Compile what is left, and return all objects by the names of their kernels.

        Args:
            tell: Told how many modules are compiled, and of how many, as it goes.

        Raises:
            BackendError: LLVM refused a module, or failed on it; of several, the first.
        """
        with self._changed:
            # Longest first ends within 4/3 of the best order (Graham, "Bounds on multiprocessing
            # timing anomalies", SIAM Journal on Applied Mathematics 17(2), 1969). Before that,
            # order of arrival, as lowering still goes on.
            self._waiting = deque(sorted(self._waiting, key=lambda job: -len(job.text)))
        done = -1
        while done < self._count:
            with self._changed:
                while done == (ended := self._count - len(self._waiting) - self._running):
                    self._changed.wait()
                done = ended
            if tell is not None and self._count:
                tell(done, self._count)
        if self._problems:
            raise BackendError(self._problems[min(self._problems)], backend="llvm")
        return self._objects

    def close(self) -> None:
        """End the workers; what was not compiled is dropped."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()
        for worker, _ in self._workers:
            worker.kill()
        if self._thread is not None:
            self._thread.join()
        for worker, thread in self._workers:
            thread.join()
            worker.close()

    def _start(self) -> None:
        """Start a worker, if the system lets us."""
        try:
            worker = _Worker()
        except OSError as error:
            logger.info("kernels are compiled in this process alone: %s", error)
            self._most = 0
            return
        thread = threading.Thread(target=self._serve, args=(worker,), daemon=True)
        self._workers.append((worker, thread))
        thread.start()

    def _take(self) -> _Job | None:
        """Wait for the next job, which runs from now on; None if the pool is closed."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return None
            self._running += 1
            return self._waiting.popleft()

    def _compile_here(self) -> None:
        """Compile jobs in this process, on a thread of its own."""
        while (job := self._take()) is not None:
            problem, code = f"kernel {job.name} was not compiled", b""
            try:
                code, problem = compile_object(job.text, self._cpu), ""
            except BackendError as error:
                problem = error.message
            finally:  # whatever ends this thread, nothing waits for it
                self._end(job, problem, code)

    def _serve(self, worker: _Worker) -> None:
        """Hand jobs to a worker as long as there are some and it lives."""
        while (job := self._take()) is not None:
            problem, is_gone, is_refused, code = "", False, False, b""
            try:
                is_refused, code = worker.compile(job.text, self._cpu)
                problem = code.decode(errors="replace") if is_refused else ""
            except (OSError, EOFError):
                is_gone = True
                words = "" if self._is_closed else worker.last_words()
                problem = f"LLVM failed on kernel {job.name} ({words})" if words else ""
            self._end(job, problem, None if is_gone else code)
            if is_gone:
                logger.info("a compile worker ended; the others go on")
                return

    def _end(self, job: _Job, problem: str, code: bytes | None) -> None:
        """Keep what became of a job; None puts it back, for others."""
        with self._changed:
            self._running -= 1
            if problem:
                self._problems[job.number] = problem
            elif code is None:
                self._waiting.appendleft(job)
            else:
                self._objects[job.name] = code
                self._cache.keep_object(job.text, self._cpu, code)
            self._changed.notify_all()


def _folder(file: Any, ups: int) -> str:
    """Return the folder that a package's file is imported from."""
    path = Path(file)
    for _ in range(ups):
        path = path.parent
    return str(path)
