# SPDX-License-Identifier: Apache-2.0
"""The one process manager: work in processes of their own, with limits, that may die.

A worker is a fresh interpreter (spawned, never forked) that calls functions of ours by name. What
it answers is a value: the function's result, or why there is none. A worker that crashed, hung or
grew too large is killed and replaced; the caller goes on.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Self

from intarsia.arrays import Array
from intarsia.errors import ReasonCode, SettingError
from intarsia.process.channel import Reply, WorkerCall, receive, send
from intarsia.process.interpreter import fresh_python

# A look into /proc takes 60 µs, so that this costs a thousandth of a CPU.
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 2.0
_STDERR_BYTES = 4000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use.

    Attributes:
        seconds: Wall-clock time; None means no limit.
        memory_bytes: Resident memory of the worker, while the call lasts and at its end; None
            means no limit.
    """

    seconds: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What became of one call.

    Attributes:
        value: What the function returned, if it did.
        arrays: Arrays that it returned beside, by name.
        reason: Why there is no value, or None: `crashed`, `timeout`, or what the error says.
        message: The error in words; empty if there is none.
        error_type: Name of the exception that the function raised, if it did.
        hint: Of that exception, if it is one of ours.
        signal_name: The signal that ended the worker, such as `SIGSEGV`.
        exit_code: How the worker ended, if it ended by itself.
        seconds: Wall-clock time of the call.
        peak_bytes: The worker's largest resident memory so far.
    """

    value: Any = None
    arrays: Mapping[str, Array] = field(default_factory=dict)
    reason: ReasonCode | None = None
    message: str = ""
    error_type: str = ""
    hint: str = ""
    signal_name: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    peak_bytes: int = 0

    @property
    def is_ok(self) -> bool:
        """Whether the function returned."""
        return not self.message


class Worker:
    """One process that calls functions by name; replaced by itself when it dies.

    Args:
        environment: Variables that differ from this process's; those that set thread counts must
            be there before a runtime is loaded.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stderr: IO[bytes] | None = None  # a file: it need not be drained

    @property
    def pid(self) -> int | None:
        """The process id, if the process is alive."""
        alive = self._process is not None and self._process.poll() is None
        return self._process.pid if alive and self._process is not None else None

    def call(
        self,
        function: str,
        *arguments: Any,
        arrays: Mapping[str, Array] | None = None,
        files: Sequence[int] = (),
        limits: Limits | None = None,
    ) -> CallOutcome:
        """Call a function in the worker and wait for what becomes of it. Never raises for it.

        Args:
            function: `module:function`; it is called with the arguments, and with `arrays=` and
                `files=` if there are some. It returns a value, or a value and arrays by name.
            arguments: Made of numbers, text, bytes, lists, dictionaries and None.
            arrays: Handed over in shared memory, not copied through a pipe.
            files: Descriptors, of which the worker gets its own.
            limits: What the call may use.

        Raises:
            SettingError: No process can be started here.
        """
        limits = limits or Limits()
        start = time.monotonic()
        try:
            channel = self._connect()
            send(channel, WorkerCall(function, list(arguments)), arrays or {}, files)
            reason = self._wait(channel, limits, start)
            if reason is not None:
                return self._killed(reason, limits, time.monotonic() - start)
            reply, returned, _ = receive(channel, Reply)
            if self._is_too_large(limits):  # grown between two looks: the next call is not to blame
                return self._killed(ReasonCode.CRASHED, limits, time.monotonic() - start)
        except (EOFError, OSError):
            return self._died(time.monotonic() - start)
        except KeyboardInterrupt:  # its answer would be taken for that of the next call
            self._kill()
            raise
        seconds = time.monotonic() - start
        if reply.message:
            return CallOutcome(
                reason=ReasonCode(reply.reason) if reply.reason else None,
                message=reply.message,
                error_type=reply.error_type,
                hint=reply.hint,
                seconds=seconds,
                peak_bytes=reply.peak_bytes,
            )
        return CallOutcome(reply.value, returned, seconds=seconds, peak_bytes=reply.peak_bytes)

    def autopsy(self) -> CallOutcome:
        """Return how the process has ended, for whoever found out without calling; it must have."""
        if self._process is None:
            return CallOutcome(reason=ReasonCode.CRASHED, message="the process has ended")
        return self._died(0.0)

    def stop(self) -> None:
        """Kill the process, from any thread; a call that another thread waits for has `crashed`."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with whatever it has started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process: ask first, then kill."""
        if self._socket is not None:
            self._socket.close()  # the worker reads the end of its input, and leaves
            self._socket = None
        if self._process is not None:
            try:
                self._process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._forget()

    def _connect(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._forget()
        if self._socket is None:
            ours, theirs = socket.socketpair()
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            with theirs:
                command = fresh_python("intarsia.process.serve:main", str(theirs.fileno()))
                try:
                    self._process = subprocess.Popen(
                        command,
                        pass_fds=(theirs.fileno(),),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=self._stderr,
                        env={**os.environ, **self._environment},  # noqa: TID251 - handed on, not read
                        # Ctrl-C ends what is in the foreground's group: the owner decides what
                        # becomes of its workers. And the group can be killed with all that the
                        # worker has started.
                        start_new_session=True,
                    )
                except OSError as error:  # nothing is to blame that was to be called
                    ours.close()
                    self._forget()
                    raise SettingError(
                        f"cannot start a measurement worker: {error}",
                        hint="raise the limits of processes and files (ulimit -u, ulimit -n)",
                    ) from error
            self._socket = ours
        return self._socket

    def _wait(self, channel: socket.socket, limits: Limits, start: float) -> ReasonCode | None:
        """Wait for an answer; return why the worker has to be killed, if it has to.

        Raises:
            EOFError: It has ended without one.
        """
        assert self._process is not None
        while True:
            left = _POLL_SECONDS
            if limits.seconds is not None:
                left = min(left, max(0.0, limits.seconds - (time.monotonic() - start)))
            has_ended = self._process.poll() is not None  # what it has started may hold its end
            if select.select([channel], [], [], 0.0 if has_ended else left)[0]:
                return None
            if has_ended:
                raise EOFError
            if limits.seconds is not None and time.monotonic() - start >= limits.seconds:
                return ReasonCode.TIMEOUT
            if self._is_too_large(limits):
                return ReasonCode.CRASHED

    def _is_too_large(self, limits: Limits) -> bool:
        assert self._process is not None
        most = limits.memory_bytes
        return most is not None and resident_bytes(self._process.pid) > most

    def _killed(self, reason: ReasonCode, limits: Limits, seconds: float) -> CallOutcome:
        assert self._process is not None
        peak = peak_bytes(self._process.pid)
        self._kill()
        if reason is ReasonCode.TIMEOUT:
            message = f"took more than {limits.seconds:g} s and was killed"
        else:
            message = f"used more than {limits.memory_bytes} bytes of memory and was killed"
        return CallOutcome(
            reason=reason,
            message=message,
            signal_name="SIGKILL",
            seconds=seconds,
            peak_bytes=peak,
        )

    def _kill(self) -> None:
        self.stop()
        if self._process is not None:
            self._process.wait()
        self._forget()

    def _died(self, seconds: float) -> CallOutcome:
        assert self._process is not None
        try:
            code = self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:  # it closed its end, but lives on
            self._process.kill()
            code = self._process.wait()
        said = self._last_words()
        self._forget()
        name = signal.Signals(-code).name if code < 0 else ""
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
        how = f"was ended by {name}" if name else f"ended with exit code {code}"
        return CallOutcome(
            reason=ReasonCode.CRASHED,
            message=f"the process {how}" + (f": {last.strip()}" if last else ""),
            signal_name=name,
            exit_code=None if name else code,
            seconds=seconds,
        )

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._stderr is not None:
            self._stderr.close()
        self._socket = self._process = self._stderr = None

    def _last_words(self) -> str:
        assert self._stderr is not None
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _STDERR_BYTES))
        return self._stderr.read().decode(errors="replace")


def own_seconds() -> float:
    """Return a clock of this thread that stands still while others have the CPU that it could use.

    What sleeps or waits for something goes on, so that on a machine that does much else a step
    takes as long as on an idle one. Where the system does not tell (`schedstat` of Linux), it is an
    ordinary clock.
    """
    waited = _waited_seconds()
    while True:
        now, before = time.perf_counter(), waited
        waited = _waited_seconds()
        if waited == before:  # else it waited between the two, which only one of them knows
            return now - waited


def _waited_seconds() -> float:
    """Return for how long this thread could have run and had no CPU; 0 where nobody tells."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as facts:  # noqa: PTH123 - quickly
            return int(facts.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def resident_bytes(pid: int | str = "self") -> int:
    """Return the resident memory of a process; 0 where the system does not tell."""
    return _status_bytes(pid, "VmRSS")


def peak_bytes(pid: int | str = "self") -> int:
    """Return the largest resident memory that a process had; 0 where the system does not tell."""
    return _status_bytes(pid, "VmHWM")


def _status_bytes(pid: int | str, key: str) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
            for line in status:
                if line.startswith(f"{key}:"):
                    return int(line.split()[1]) * 1024
    except OSError:  # the process has ended, or there is no /proc
        pass
    return 0
