# SPDX-License-Identifier: Apache-2.0
"""A program that crashes its driver ends one process, but none after it.

A driver's self-test has every operation that we emit, and yet some program may be too much for it.
So while a program is built, and while it runs for the first time, a note lies in the cache folder.
A process that finds the note of one that is gone tries the program in a process of its own: either
the driver dies there too, and the program is refused from then on, or that process was ended by
others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.backends.device import ThreadOptions
from intarsia.backends.device_payload import Payload, start_of
from intarsia.backends.opencl.binaries import build_program
from intarsia.backends.opencl.device import OpenClDevice
from intarsia.backends.opencl.driver import (
    BACKEND_NAME,
    OTHER_DRIVER,
    driver,
    list_devices,
)
from intarsia.backends.opencl.vendors import offered_libraries, visible
from intarsia.cache import make_cache_folder
from intarsia.codegen.storage import StorageKind
from intarsia.errors import ExecutionError, SettingError
from intarsia.process import selftest
from intarsia.settings import Settings

KIND = "opencl-first"
"""The folder of the notes inside the cache folder."""

Launch = tuple[str, list[tuple[int, int]], list[int], list[int]]
"""A kernel's name, the block and first element of each argument, global and local sizes."""

_SCRATCH, _FAULTS, _STORAGES = 0, 1, 2
"""Numbers of blocks: scratch memory, what checks find, and from there on one for each storage."""


class FirstUse:
    """The notes on one program, for one device and its driver.

    Args:
        source: Of the program.
        options: To build it with.
        payload: Its calls.
        device: Where it is to run.
        version: Of pyopencl and the platforms.
        caches: The folder of all caches, where notes are left.
    """

    def __init__(
        self,
        source: str,
        options: Sequence[str],
        payload: Payload,
        device: OpenClDevice,
        version: str,
        caches: Path,
    ) -> None:
        self._version = version
        sizes = map(str, payload.global_sizes)
        parts = (source, *options, *sizes, *device.entry.key, version)
        # Sizes count: a driver may die of the same kernel only when it runs over more items.
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
        self._program = source, list(options), payload
        self._device = device
        self._caches = caches
        self._folder = caches / KIND
        self._name = f"{digest}.{os.getpid()}"
        # A trial is watched from outside already.
        self._is_noted = not selftest.is_inside()

    def require(self) -> None:
        """Raise if the driver dies of the program: if another process did not outlive it.

        Raises:
            ExecutionError: It does.
        """
        if not self._is_noted:
            return
        digest = self._name.partition(".")[0]
        left = [path for path in self._folder.glob(f"{digest}.*") if not _is_alive(path)]
        if not left:
            return
        source, options, payload = self._program
        sizes, launches = _calls_of(payload)
        entry = self._device.entry
        with visible(offered_libraries(self._caches)) as shown:
            verdict = selftest.judge(
                selftest.SelfTest(
                    f"a program on {entry.name}",
                    f"{__name__}:try_program",
                    (entry.name, source, options, sizes, launches),
                    (*entry.key, self._version),
                    shown,
                ),
                self._caches,
            )
        if verdict.problem:
            raise ExecutionError(
                f"the driver of opencl:{self._device.number} does not survive these kernels: "
                f"{verdict.problem}",
                backend=BACKEND_NAME,
                hint=f"{OTHER_DRIVER}, or exclude the nodes; {selftest.FORGET}",
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

    def begin(self) -> None:
        """Leave the note; where no file can be written, there is none."""
        if self._is_noted:
            with suppress(OSError, SettingError):
                make_cache_folder(self._caches)
                self._folder.mkdir(exist_ok=True)
                (self._folder / self._name).touch()

    def end(self) -> None:
        """Take the note away: the driver has done it, or has said that it cannot."""
        with suppress(OSError):
            (self._folder / self._name).unlink(missing_ok=True)


def _is_alive(note: Path) -> bool:
    """Tell whether the process of a note is still there; in doubt it is."""
    number = note.suffix[1:]
    if os.name != "posix" or not number.isdecimal():
        return True
    try:
        # Its number may belong to another process by now: then a note stays, which costs nothing.
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _calls_of(payload: Payload) -> tuple[list[int], list[Launch]]:
    """Return the bytes of each block of a program's memory, and its calls."""
    faults = sum(payload.storages[check.storage][2] for check in payload.checks)
    sizes = [payload.scratch_bytes, faults, *(nbytes for _, _, nbytes in payload.storages)]
    blocks = {StorageKind.SCRATCH: _SCRATCH, StorageKind.FAULT: _FAULTS}
    launches: list[Launch] = []
    for call, global_size in zip(payload.calls, payload.global_sizes, strict=True):
        kernel = payload.kernels[call.kernel]
        arguments = [
            (
                blocks.get(StorageKind(payload.storages[storage][0]), _STORAGES + storage),
                (start_of(payload, storage) + offset) // size,
            )
            for (storage, offset), size in zip(call.arguments, kernel.item_bytes, strict=True)
        ]
        launches.append((kernel.name, arguments, global_size, kernel.local_size))
    return sizes, launches


def try_program(
    name: str,
    source: str,
    options: Sequence[str],
    sizes: Sequence[int],
    launches: Sequence[Launch],
) -> None:
    """Build a program and run it on zeros: in the process of a trial.

    Args:
        name: Of the device; where there is none of that name, nothing is tried.
        source: Of the program.
        options: To build it with.
        sizes: Bytes of each block of memory.
        launches: Its calls.
    """
    devices = list_devices(Settings.from_environment())
    entry = next((each for each in devices if each.name == name), None)
    if entry is None:
        return
    cl: Any = driver()
    device = OpenClDevice(0, entry, ThreadOptions())
    program = build_program(source, options, device)
    blocks = [device.allocate(nbytes).memory for nbytes in sizes]
    for block in blocks:
        cl.enqueue_fill_buffer(device.queue, block, np.uint8(0), 0, block.size)
    for kernel_name, arguments, global_size, local_size in launches:
        kernel = cl.Kernel(program, kernel_name)
        for position, (block, start) in enumerate(arguments):
            kernel.set_arg(2 * position, blocks[block])
            kernel.set_arg(2 * position + 1, np.int64(start))
        cl.enqueue_nd_range_kernel(device.queue, kernel, tuple(global_size), tuple(local_size))
    device.queue.finish()
