# SPDX-License-Identifier: Apache-2.0
"""Programs built for a device: what was built once is taken from the cache.

An entry is found by the source, the options, and the device with its driver; a binary that the
driver does not take any more is built anew. A driver that keeps what it built from source by itself
(PoCL's, NVIDIA's) is left to it: PoCL would compile every kernel twice for the sake of a binary.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intarsia.backends.opencl.device import OpenClDevice
from intarsia.backends.opencl.driver import BACKEND_NAME, PROCESS, driver
from intarsia.errors import BackendError
from intarsia.native.entries import Entries

KIND = "opencl"
"""The folder of the entries inside the cache folder."""

LIMIT_BYTES = 512 << 20
"""Entries together."""

logger = logging.getLogger(__name__)

_BUILDING = threading.Lock()
"""Held while warnings of pyopencl are off: that is a state of the whole process."""


class BinaryCache(Entries):
    """Binaries of programs by what they are made of.

    Args:
        folder: The folder of all caches; None keeps nothing.
        limit_bytes: Of all entries together.
    """

    __slots__ = ()

    def __init__(self, folder: Path | None, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__(folder, KIND, ".bin", limit_bytes)

    def program_of(
        self, source: str, options: Sequence[str], device: OpenClDevice, version: str
    ) -> Any:
        """Return a built program for a device, from the folder if it is there.

        Args:
            source: Of the program.
            options: To build it with.
            device: Where it is to run.
            version: Of pyopencl and the platforms.

        Raises:
            BackendError: The driver does not build it.
        """
        if device.entry.keeps_builds:
            return build_program(source, options, device)
        parts = (source, *options, *device.entry.key, version)
        binary = self.find(parts)
        program = _load(binary, options, device) if binary is not None else None
        if program is None:
            program = build_program(source, options, device)
            binary = _binary_of(program)
            if binary is not None:
                self.keep(parts, binary)
        return program


def build_program(source: str, options: Sequence[str], device: OpenClDevice) -> Any:
    """Build a program from its source; what its compiler warns of is not shown.

    Raises:
        BackendError: The driver does not build it.
    """
    cl = driver()
    PROCESS.check()
    with _BUILDING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # pyopencl's own cache is off: nothing bounds it, and `intarsia cache` does not see it.
            return cl.Program(device.context, source).build(list(options), cache_dir=False)
        except cl.Error as error:
            device.keep_context()
            raise BackendError(
                f"opencl:{device.number} does not build the kernels: {_first_error(str(error))}",
                backend=BACKEND_NAME,
                hint=f"its driver is {', '.join(device.entry.key)}; INTARSIA_DUMP keeps the source",
            ) from error


def _load(binary: bytes, options: Sequence[str], device: OpenClDevice) -> Any:
    """Return a program from its binary, or None if the driver does not take it."""
    cl = driver()
    with _BUILDING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = cl.Program(device.context, [device.entry.device], [binary])
            return program.build(list(options))
        except cl.Error as error:
            device.keep_context()
            logger.info("a cached program is not taken: %s", error)
            return None


def _binary_of(program: Any) -> bytes | None:
    cl = driver()
    try:
        (binary,) = program.get_info(cl.program_info.BINARIES)
    except (cl.Error, ValueError):  # a driver need not give any
        return None
    return bytes(binary) or None


def _first_error(log: str) -> str:
    """Return the most telling line of a build log."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line.lower()), lines[0] if lines else "")
