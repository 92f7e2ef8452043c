# SPDX-License-Identifier: Apache-2.0
"""The CPU of the machine that a runner leads to, by what its system says of it.

    named_cpu("ssh://pi@board").attrs -> {"mtriple": "aarch64-unknown-linux-gnu", "mcpu": ...}

A machine whose system says the same as this one's is like this one (`-mcpu=native`). Of others the
name comes from a table of Arm's cores, or is the level of x86-64 (psABI) that they reach; features
that change what code is made are added to it, or taken away, as the system says.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from intarsia.cpu_text import cpu_lines, cpu_text
from intarsia.errors import BackendError
from intarsia.target.cpu import NATIVE
from intarsia.target.cpu_tables import GENERIC, load_table

RUNNER = "runner"
"""The attribute that says how another machine is reached."""

_SCRIPT = "uname -m; uname -s; cat /proc/cpuinfo"
_SECONDS = 60.0
_AGAIN_SECONDS = 60.0
"""A machine that could not be asked is asked again after so long."""

_LEVELS = {
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl avx2 fma f16c bmi1 bmi2 abm movbe",
    "x86-64-v3": "avx2 fma f16c bmi1 bmi2 abm movbe",
    "x86-64-v2": "cx16 lahf_lm popcnt ssse3 sse4_1 sse4_2",
    "x86-64": "",
}
"""Levels, the highest first, and the flags in `/proc/cpuinfo` that they need."""

_PARTS = {
    0xC05: "cortex-a5",
    0xC07: "cortex-a7",
    0xC08: "cortex-a8",
    0xC09: "cortex-a9",
    0xC0E: "cortex-a17",
    0xC0F: "cortex-a15",
    0xD03: "cortex-a53",
    0xD04: "cortex-a35",
    0xD05: "cortex-a55",
    0xD07: "cortex-a57",
    0xD08: "cortex-a72",
    0xD09: "cortex-a73",
    0xD0A: "cortex-a75",
    0xD0B: "cortex-a76",
    0xD0C: "neoverse-n1",
    0xD0D: "cortex-a77",
    0xD40: "neoverse-v1",
    0xD41: "cortex-a78",
    0xD44: "cortex-x1",
    0xD46: "cortex-a510",
    0xD47: "cortex-a710",
    0xD49: "neoverse-n2",
    0xD4F: "neoverse-v2",
}
"""LLVM's names of the parts that Arm has numbered itself.

Source:
    Main ID registers in the technical reference manuals of these cores.
"""
_OF_ARM = "0x41"

_ARM_FEATURES = {
    "aarch64": {
        "asimddp": "dotprod",
        "asimdhp": "fullfp16",
        "bf16": "bf16",
        "i8mm": "i8mm",
    },
    "arm": {"neon": "neon", "vfpv4": "vfp4"},
}
"""By architecture: flags of `/proc/cpuinfo`, and LLVM's features, that change what code is made."""

_X86_FEATURES = {
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_vnni": "avx512vnni",
    "avx_vnni": "avxvnni",
    "avx_vnni_int8": "avxvnniint8",
    "avx512f": "avx512f",
    "avx2": "avx2",
    "avx": "avx",
    "f16c": "f16c",
    "fma": "fma",
}

_RISCV_ISA = re.compile(r"rv64([a-z]+)")
_RISCV_LETTERS = {"i": "", "g": "mafd", **{letter: letter for letter in "mafdcv"}}


@dataclass(frozen=True, slots=True)
class NamedCpu:
    """How a target names the CPU of a machine.

    Attributes:
        attrs: Attributes of `llvm`; empty if it cannot be told.
        problem: Why not.
    """

    attrs: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    problem: str = ""


def named_cpu(runner: str) -> NamedCpu:
    """Return how the CPU of a machine is named: each machine is asked once in a process.

    Args:
        runner: The text of the way there.

    Raises:
        TargetError: The text names no runner.
    """
    from intarsia.process.runner import HERE, parse_runner  # most targets have none

    way = parse_runner(runner)
    if way.text == HERE:
        return NamedCpu({"mcpu": NATIVE})
    if way.emulator:
        return NamedCpu(problem=f"{way.emulator[0]} does not say which CPU it plays")
    return _try(way.text, int(time.monotonic() // _AGAIN_SECONDS))


@functools.lru_cache(maxsize=64)
def _try(runner: str, period: int) -> NamedCpu:
    """Ask, once in a period if that fails."""
    try:
        return _ask(runner)
    except BackendError as error:
        return NamedCpu(problem=error.message)


@functools.cache
def _ask(runner: str) -> NamedCpu:
    """Ask the machine.

    Raises:
        LinkError: It is out of reach.
        ExecutionError: It has no shell.
    """
    from intarsia.process.runner import RemoteFolder, parse_runner

    with RemoteFolder(parse_runner(runner)) as folder:
        said = folder.run("sh", "-c", _SCRIPT, seconds=_SECONDS).stdout
    machine, system, *lines = [*said.decode(errors="replace").splitlines(), "", ""]
    return name_cpu(machine.strip(), system.strip(), lines)


def name_cpu(machine: str, system: str, lines: Sequence[str]) -> NamedCpu:
    """Return how a CPU is named.

    Args:
        machine: What `uname -m` says.
        system: What `uname -s` says.
        lines: Of `/proc/cpuinfo`.
    """
    if cpu_lines(machine, lines) == cpu_text():
        return NamedCpu({"mcpu": NATIVE})
    if system != "Linux":
        return NamedCpu(problem=f"its system is {system!r}, of which this cannot be told")
    flags = frozenset(" ".join(_values(lines, "flags", "Features")).split())
    if machine == "x86_64":
        level = next(level for level, needed in _LEVELS.items() if flags >= set(needed.split()))
        triple, name = "x86_64-unknown-linux-gnu", level
        return _named(triple, name, "x86", _X86_FEATURES, flags)
    if machine in ("aarch64", "arm64"):
        name = _arm_part(lines, "aarch64")
        return _named("aarch64-unknown-linux-gnu", name, "aarch64", _ARM_FEATURES["aarch64"], flags)
    if machine.startswith(("armv7", "armv8")):
        name = _arm_part(lines, "arm")
        triple = "armv7-unknown-linux-gnueabihf"
        return _named(triple, name, "arm", _ARM_FEATURES["arm"], flags)
    isa = _RISCV_ISA.match(next(iter(_values(lines, "isa")), ""))
    if machine == "riscv64" and isa is not None:
        letters = dict.fromkeys("".join(_RISCV_LETTERS.get(one, "") for one in isa[1]))
        mattr = tuple(f"+{letter}" for letter in letters)
        return NamedCpu({"mtriple": "riscv64-unknown-linux-gnu", "mattr": mattr})
    return NamedCpu(problem=f"it is {machine!r}, which is not known by that")


def _named(
    triple: str, name: str, family: str, known: Mapping[str, str], flags: frozenset[str]
) -> NamedCpu:
    expected = load_table(family).features(name)
    differ = (
        f"{'+' if flag in flags else '-'}{feature}"
        for flag, feature in known.items()
        if (flag in flags) != (feature in expected)
    )
    attrs: dict[str, str | tuple[str, ...]] = {"mtriple": triple, "mcpu": name}
    mattr = tuple(sorted(differ))
    return NamedCpu({**attrs, "mattr": mattr} if mattr else attrs)


def _arm_part(lines: Sequence[str], family: str) -> str:
    """Return the name of the last core: that is a fast one where there are several sorts."""
    makers, parts = _values(lines, "CPU implementer"), _values(lines, "CPU part")
    for maker, part in reversed(list(zip(makers, parts, strict=False))):
        name = _PARTS.get(int(part, 16)) if maker == _OF_ARM else None
        if name in load_table(family).cpus:
            return str(name)
    return GENERIC


def _values(lines: Iterable[str], *names: str) -> list[str]:
    """Return what follows some names, of each CPU."""
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip() in names]


def why_unnamed(runner: str) -> str:
    """Say why a target with a runner has to name its CPU; nothing if it need not.

    Raises:
        TargetError: The text names no runner.
    """
    problem = named_cpu(runner).problem
    return f"no CPU is named, and {runner} cannot be asked for one: {problem}" if problem else ""
