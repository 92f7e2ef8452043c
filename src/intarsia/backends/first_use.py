# SPDX-License-Identifier: Apache-2.0
"""A program that crashes its driver ends one process, but none after it.

A driver's self-test has every operation that we emit, and yet some program may be too much for it.
So while a program is built, and while it runs for the first time, a note lies in the cache folder.
A process that finds the note of one that is gone tries the program in a process of its own: either
the driver dies there too, and the program is refused from then on, or that process was ended by
others.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np

from intarsia.backends.device import Step
from intarsia.backends.device_execution import DeviceExecutable, View
from intarsia.backends.device_payload import Payload
from intarsia.backends.queues import Block, QueueView
from intarsia.backends.values import Artifact, TensorSpec
from intarsia.cache import make_cache_folder
from intarsia.codegen.storage import StorageKind
from intarsia.errors import ExecutionError, SettingError
from intarsia.process import selftest

_BEGIN = 19
"""Of what follows the name in `/proc/PID/stat`: ticks from the system's start to the process's."""
_SLACK = 2.0
"""Seconds: the system's start is told in whole ones."""


class FirstUse:
    """The notes on one program, for one device and its driver.

    Args:
        key: All that the program and its device depend on.
        judge: Tries the program in a process of its own, or knows what came of that.
        device: Where it is to run.
        hint: What may help if the driver dies.
        caches: The folder of all caches, where notes are left.
    """

    def __init__(
        self,
        key: Sequence[str],
        judge: Callable[[], selftest.SelfTestVerdict],
        device: QueueView,
        hint: str,
        caches: Path,
    ) -> None:
        self._digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:32]
        self._judge = judge
        self._device = device
        self._hint = hint
        self._caches = caches
        self._folder = notes_folder(device.backend, caches)
        self._note = self._folder / f"{self._digest}.{os.getpid()}"
        self._has_run = False
        # A trial is watched from outside already.
        self._is_noted = not selftest.is_inside()

    def require(self) -> None:
        """Raise if the driver dies of the program: if another process did not outlive it.

        Raises:
            ExecutionError: It does.
        """
        if not self._is_noted:
            return
        left = [path for path in self._folder.glob(f"{self._digest}.*") if not _is_alive(path)]
        if not left:
            return
        verdict = self._judge()
        if verdict.problem:
            device = self._device
            raise ExecutionError(
                f"the driver of {device.backend}:{device.number} does not survive these kernels: "
                f"{verdict.problem}",
                backend=device.backend,
                hint=f"{self._hint}, or exclude the nodes; {selftest.FORGET}",
            )
        for path in left:
            path.unlink(missing_ok=True)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep the note inside the block."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def noting(self, step: Step, view: QueueView) -> Step:
        """Return a call that keeps the note in the program's first run, until that is over.

        Args:
            step: Queues its kernels.
            view: Where.
        """

        def end() -> None:
            self.end()
            self._has_run = True

        def run() -> None:
            if self._has_run:
                step()
                return
            self.begin()
            try:
                step()
            except BaseException:
                end()
                raise
            view.after_work(end)

        return step if self._has_run else run

    def begin(self) -> None:
        """Leave the note; where no file can be written, there is none."""
        if self._is_noted:
            with suppress(OSError, SettingError):
                make_cache_folder(self._caches)
                self._folder.mkdir(exist_ok=True)
                self._note.touch()

    def end(self) -> None:
        """Take the note away: the driver has done it, or has said that it cannot."""
        with suppress(OSError):
            self._note.unlink(missing_ok=True)


def notes_folder(backend: str, caches: Path) -> Path:
    """Return the folder of a backend's notes inside the cache folder."""
    return caches / f"{backend}-first"


def _is_alive(note: Path) -> bool:
    """Tell whether the process of a note is still there; in doubt it is."""
    number = note.suffix[1:]
    if os.name != "posix" or not number.isdecimal():
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    # Its number may belong to another process by now, which has begun after the note.
    began = _begin_of(int(number))
    try:
        return began is None or began <= note.stat().st_mtime + _SLACK
    except OSError:  # its process has just taken it away
        return True


def _begin_of(process: int) -> float | None:
    """Return when a process began, in seconds since 1970; None where the system does not say."""
    try:
        # After the name, which may have any characters (proc_pid_stat(5)).
        fields = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2]
        system = Path("/proc/stat").read_text("utf-8")
        booted = next(line for line in system.splitlines() if line.startswith("btime "))
        return int(booted.split()[1]) + int(fields.split()[_BEGIN]) / os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def text_of(payload: Payload) -> str:
    """Return a program for the process of a trial."""
    return base64.b85encode(msgspec.msgpack.encode(payload)).decode()


def program_of(text: str) -> tuple[Payload, Artifact]:
    """Return a program in the process of a trial, and an artifact without constants around it."""
    payload = msgspec.msgpack.decode(base64.b85decode(text), type=Payload)
    return payload, Artifact("", "", "", b"", (), (), (), {})


def run_on_zeros(executable: DeviceExecutable[View], view: View) -> None:
    """Run every kernel of a program once; all that it reads is zero.

    Args:
        executable: The program, without constants.
        view: Where.
    """
    payload = executable.payload
    faults = sum(payload.storages[check.storage][2] for check in payload.checks)
    scratch = _zeros(view, payload.scratch_bytes)
    found = _zeros(view, faults)
    places = []
    for kind, index, nbytes in payload.storages:
        shared = {StorageKind.SCRATCH: scratch, StorageKind.FAULT: found}.get(StorageKind(kind))
        block = shared or _zeros(view, nbytes)
        places.append((block.memory, index if shared else 0))
    executable.launch(view, places, None)()
    view.synchronize()


def _zeros(view: QueueView, nbytes: int) -> Block:
    block = view.allocate(nbytes)
    spec = TensorSpec("zeros", "uint8", (nbytes,))
    view.write(np.zeros(nbytes, np.uint8), view.tensor(block, 0, spec))
    return block
