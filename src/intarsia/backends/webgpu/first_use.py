# SPDX-License-Identifier: Apache-2.0
"""Programs that crash a WebGPU driver, and their trial in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from intarsia.backends.device import ThreadOptions
from intarsia.backends.device_payload import Payload, source_of
from intarsia.backends.first_use import FirstUse, program_of, run_on_zeros, text_of
from intarsia.backends.webgpu.device import WebGpuDevice
from intarsia.backends.webgpu.driver import DRIVER, list_adapters, version
from intarsia.backends.webgpu.execution import WebGpuExecutable
from intarsia.codegen.emit.wgsl import split_modules
from intarsia.process import selftest
from intarsia.settings import Settings


def first_use(
    modules: Sequence[str], payload: Payload, device: WebGpuDevice, caches: Path
) -> FirstUse:
    """Return the notes on one program, for one device and its driver.

    Args:
        modules: The source of each kernel.
        payload: Its calls.
        device: Where it is to run.
        caches: The folder of all caches, where notes are left.
    """
    entry = device.entry
    # Sizes count: a driver may die of the same kernel only when it runs over more items.
    key = (*modules, *map(str, payload.global_sizes), *entry.key, version())

    def judge() -> selftest.SelfTestVerdict:
        test = selftest.SelfTest(
            f"a program on {entry.name}",
            f"{__name__}:try_program",
            (entry.name, text_of(payload)),
            (*entry.key, version()),
        )
        return selftest.judge(test, caches)

    return FirstUse(key, judge, device, DRIVER, caches)


def try_program(name: str, text: str) -> None:
    """Build a program and run it on zeros: in the process of a trial.

    Args:
        name: Of the device; where there is none of that name, nothing is tried.
        text: The program, as `text_of` wrote it.
    """
    adapters = list_adapters(Settings.from_environment())
    entry = next((each for each in adapters if each.name == name), None)
    if entry is None:
        return
    payload, artifact = program_of(text)
    device = WebGpuDevice(0, entry, ThreadOptions())
    modules = split_modules(source_of(artifact, payload))
    run_on_zeros(WebGpuExecutable(artifact, payload, modules, device, None), device)
