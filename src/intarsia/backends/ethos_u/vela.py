# SPDX-License-Identifier: Apache-2.0
"""Arm's compiler Vela, called in a process of its own: its core's Python API, not its program.

The program `vela` prints figures for people and takes a second to start. Its core, `ethosu.regor`,
returns them as values. What it puts back on a CPU it says on standard output alone: those lines
are read for their words, never for figures.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from intarsia.arrays import Array
from intarsia.errors import BackendError
from intarsia.process.workers import CallOutcome, Limits, Worker

PACKAGE = "ethos-u-vela"
HINT = "pip install 'intarsia[ethos-u]'"
DEFAULT = "ethos-u55-256"
_LIMITS = Limits(seconds=300.0)
_READ_ONLY, _ARENA, _FAST = 0, 1, 2


@dataclass(frozen=True, slots=True)
class System:
    """A processor in the system that Vela takes for it where nothing else is said.

    Attributes:
        architecture: Vela's name of its family.
        macs: Multiplications of a core in a cycle.
        cores: How many cores.
        system: The section of Vela's configuration that has its memories.
        memory: The section that says which memory holds what.
        hertz: The clock that this system has there.
    """

    architecture: str
    macs: int
    cores: int
    system: str
    memory: str
    hertz: float


_SYSTEMS = {
    "ethos-u55": ("EthosU55", "Ethos_U55_High_End_Embedded", "Shared_Sram", 500e6),
    "ethos-u65": ("EthosU65", "Ethos_U65_Client_Server", "Dedicated_Sram_384KB", 1e9),
    "ethos-u85": ("EthosU85", "Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB", 1e9),
}
"""The defaults of Vela 5.2 (`architecture_features.py`), and their `core_clock` (`vela.ini`)."""


def system_of(accelerator: str) -> System:
    """Return the system of an accelerator such as `ethos-u55-128`."""
    family, _, macs = accelerator.rpartition("-")
    architecture, system, memory, hertz = _SYSTEMS[family]
    is_double = accelerator == "ethos-u65-512"  # the only one of two cores
    count = int(macs)
    return System(
        architecture,
        count // 2 if is_double else count,
        2 if is_double else 1,
        system,
        memory,
        hertz,
    )


@dataclass(frozen=True, slots=True)
class ArenaPlace:
    """Where a tensor at the border lies in the arena.

    Attributes:
        offset: Bytes from its start.
        size: Bytes.
    """

    offset: int
    size: int


@dataclass(frozen=True, eq=False)
class Stream:
    """What an Ethos-U runs.

    Attributes:
        commands: The command stream as its driver takes it, `u8[n]`.
        weights: Read-only data, `u8[n]`: weights, biases and scales, packed by Vela.
        arena_bytes: Size of the memory for tensors.
        fast_bytes: Size of a second, faster one; 0 for none.
        inputs: In the order of the network.
        outputs: Likewise.
    """

    commands: Array
    weights: Array
    arena_bytes: int
    fast_bytes: int
    inputs: tuple[ArenaPlace, ...]
    outputs: tuple[ArenaPlace, ...]


@dataclass(frozen=True, slots=True)
class VelaReport:
    """What Vela says of a network.

    Attributes:
        refusal: What it leaves to a CPU and why, in its words; empty if it takes everything.
        cycles: Of one run, by its model.
        arena_bytes: Memory for tensors.
        macs: Multiplications.
    """

    refusal: str
    cycles: int
    arena_bytes: int
    macs: int


_FORECASTS: dict[tuple[bytes, str], VelaReport] = {}
"""By a network's digest, since networks are large, and the accelerator."""


def version() -> str:
    """Return Vela's version.

    Raises:
        BackendError: It is not installed.
    """
    try:
        found = package_version(PACKAGE)
    except PackageNotFoundError:
        found = ""
    if not found or find_spec("tflite") is None:
        missing = PACKAGE if not found else "tflite"
        raise BackendError(f"{missing} is not installed", backend="ethos-u", hint=HINT)
    return found


def forecast(network: bytes, accelerator: str) -> VelaReport:
    """Return what Vela says of a network, which it compiles for that, once.

    Args:
        network: A TFLite flat buffer.
        accelerator: Such as `ethos-u55-128`.

    Raises:
        BackendError: Vela is not installed.
    """
    key = hashlib.sha256(network).digest(), accelerator
    if key not in _FORECASTS:
        outcome = _call("forecast_here", network, accelerator)
        if outcome.is_ok:
            _FORECASTS[key] = VelaReport(**outcome.value)
        else:  # crashes of Vela's are of this network alone
            _FORECASTS[key] = VelaReport(f"Vela fails on it: {outcome.message}", 0, 0, 0)
    return _FORECASTS[key]


def compile_stream(network: bytes, accelerator: str) -> Stream:
    """Compile a network that Vela takes as a whole.

    Args:
        network: A TFLite flat buffer.
        accelerator: Such as `ethos-u55-128`.

    Raises:
        BackendError: Vela is not installed, fails, or leaves something to a CPU.
    """
    outcome = _call("compile_here", network, accelerator)
    if not outcome.is_ok:
        raise BackendError(f"Vela failed: {outcome.message}", backend=f"vela {version()}")
    value, arrays = outcome.value, outcome.arrays
    places = {
        side: tuple(ArenaPlace(*numbers) for numbers in value[side])
        for side in ("inputs", "outputs")
    }
    return Stream(
        arrays["commands"].copy(),
        arrays["weights"].copy(),
        value["arena_bytes"],
        value["fast_bytes"],
        places["inputs"],
        places["outputs"],
    )


_LOCK = threading.Lock()


@cache
def _worker() -> Worker:
    worker = Worker()
    atexit.register(worker.close)
    return worker


def _call(function: str, network: bytes, accelerator: str) -> CallOutcome:
    version()
    with _LOCK:
        return _worker().call(f"{__name__}:{function}", network, accelerator, limits=_LIMITS)


def forecast_here(network: bytes, accelerator: str) -> dict[str, Any]:
    """Compile in this process; return the fields of a `VelaReport`."""
    with tempfile.TemporaryFile() as said:
        try:
            with _output_to(said):
                model = _compile(network, accelerator, "TFLite")
        except RuntimeError as error:
            return _fields(_words(said) or str(error).strip())
        report = model.perf_report
        # Beside the operators of the network, Vela counts what it adds for their results.
        refusal = (_words(said) or f"Vela leaves {report.cpuOps} to a CPU") if report.cpuOps else ""
        arena = sum(
            memory.peakUsage
            for memory in report.memories.values()
            if memory.memoryName.lower() in ("sram", "dram")
        )
        return _fields(refusal, int(report.totalCycles), int(arena), int(report.macCount))


def _fields(refusal: str, cycles: int = 0, arena: int = 0, macs: int = 0) -> dict[str, Any]:
    return {"refusal": refusal, "cycles": cycles, "arena_bytes": arena, "macs": macs}


def compile_here(network: bytes, accelerator: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Compile in this process; return the fields of a `Stream`.

    Raises:
        BackendError: Vela fails, or leaves something to a CPU.
    """
    import numpy as np

    with tempfile.TemporaryFile() as said:
        try:
            with _output_to(said):
                model = _compile(network, accelerator, "Raw")
        except RuntimeError as error:
            raise BackendError(_words(said) or str(error).strip(), backend="vela") from error
    for tensor, region in ((model.read_only, _READ_ONLY), (model.scratch, _ARENA)):
        if tensor.region != region:
            raise BackendError(f"Vela put data into region {tensor.region}", backend="vela")
    places: dict[str, Any] = {
        side: [[int(one.address), int(one.size * one.element_size)] for one in tensors]
        for side, tensors in (("inputs", model.inputs), ("outputs", model.outputs))
    }
    if any(one.region != _ARENA for one in (*model.inputs, *model.outputs)):
        raise BackendError("Vela put the border outside the arena", backend="vela")
    fast = int(model.scratch_fast.size) if model.scratch_fast.region == _FAST else 0
    places |= {"arena_bytes": int(model.scratch.size), "fast_bytes": fast}
    return places, {
        "commands": np.frombuffer(bytes(model.command_stream), np.uint8),
        "weights": np.frombuffer(bytes(model.read_only.data), np.uint8),
    }


def _compile(network: bytes, accelerator: str, form: str) -> Any:
    import ethosu
    from ethosu import regor

    system = system_of(accelerator)
    memories = Path(ethosu.__path__[0]) / "config_files" / "Arm" / "vela.ini"
    machine = (
        f"[architecture]\nmacs={system.macs}\ncores={system.cores}\n[vela]\n"
        f"system_config_name={system.system}\nmemory_mode_name={system.memory}\n"
        + memories.read_text(encoding="utf-8")
    )
    options = (
        f"[compiler]\nenable_db=true\noutput_format={form}\ncop_format=COP1\n"
        "[scheduler]\noptimize=Performance\ncpu_tensor_alignment=16\n"
    )
    return regor.compile(
        system.architecture, network, "TFLITE", machine, options=options, verbose=False
    )


@contextmanager
def _output_to(said: IO[bytes]) -> Iterator[None]:
    """Let what native code prints go into a file."""
    kept = os.dup(1)
    os.dup2(said.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _words(said: IO[bytes]) -> str:
    """Return what Vela printed of operators that it does not take, on one line."""
    said.seek(0)
    text = said.read().decode(errors="replace")
    found = re.findall(
        r"operator: (\w+), ofm: .*\n((?:(?!\s*$|Warning|Info).*(?:\n|$))+)", text, re.M
    )
    reasons = []
    for operator, lines in found:
        words = " ".join(line.strip() for line in lines.splitlines())
        reasons.append(f"{operator}: {words.removeprefix('Reason: ')}")
    return "; ".join(dict.fromkeys(reasons))
