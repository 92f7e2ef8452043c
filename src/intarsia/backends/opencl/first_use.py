# SPDX-License-Identifier: Apache-2.0
"""Programs that crash an OpenCL driver, and their trial in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from intarsia.backends.device import ThreadOptions
from intarsia.backends.device_payload import Payload, source_of
from intarsia.backends.first_use import FirstUse, program_of, run_on_zeros, text_of
from intarsia.backends.opencl.binaries import build_program
from intarsia.backends.opencl.device import OpenClDevice
from intarsia.backends.opencl.driver import OTHER_DRIVER, list_devices
from intarsia.backends.opencl.execution import OpenClExecutable
from intarsia.backends.opencl.vendors import offered_libraries, visible
from intarsia.process import selftest
from intarsia.settings import Settings


def first_use(
    source: str,
    options: Sequence[str],
    payload: Payload,
    device: OpenClDevice,
    version: str,
    caches: Path,
) -> FirstUse:
    """Return the notes on one program, for one device and its driver.

    Args:
        source: Of the program.
        options: To build it with.
        payload: Its calls.
        device: Where it is to run.
        version: Of pyopencl and the platforms.
        caches: The folder of all caches, where notes are left.
    """
    entry = device.entry
    # Sizes count: a driver may die of the same kernel only when it runs over more items.
    key = (source, *options, *map(str, payload.global_sizes), *entry.key, version)

    def judge() -> selftest.SelfTestVerdict:
        with visible(offered_libraries(caches)) as shown:
            test = selftest.SelfTest(
                f"a program on {entry.name}",
                f"{__name__}:try_program",
                (entry.name, list(options), text_of(payload)),
                (*entry.key, version),
                shown,
            )
            return selftest.judge(test, caches)

    return FirstUse(key, judge, device, OTHER_DRIVER, caches)


def try_program(name: str, options: Sequence[str], text: str) -> None:
    """Build a program and run it on zeros: in the process of a trial.

    Args:
        name: Of the device; where there is none of that name, nothing is tried.
        options: To build it with.
        text: The program, as `text_of` wrote it.
    """
    devices = list_devices(Settings.from_environment())
    entry = next((each for each in devices if each.name == name), None)
    if entry is None:
        return
    payload, artifact = program_of(text)
    device = OpenClDevice(0, entry, ThreadOptions())
    built = build_program(source_of(artifact, payload), options, device)
    run_on_zeros(OpenClExecutable(artifact, payload, built, device, None), device)
