# SPDX-License-Identifier: Apache-2.0
"""What native code is generated for, from a target: LLVM's CPU, and the vector unit of kernels."""

from __future__ import annotations

from intarsia.codegen.lower.winograd import Winograd
from intarsia.codegen.machine import Cpu
from intarsia.codegen.unit import VectorUnit
from intarsia.errors import TargetError
from intarsia.target import Target
from intarsia.target.cpu import host_cpu, host_triple, vector_bits, vector_registers
from intarsia.target.cpu_tables import FAMILIES, find_family, load_table, read_flags

_ALWAYS_FUSED = ("aarch64", "riscv")
"""Architectures whose floating-point units multiply and add in one instruction."""


def target_cpu(target: Target) -> tuple[Cpu, VectorUnit]:
    """Return what code for a target is generated for, and its vector unit.

    Raises:
        TargetError: The CPU is this machine's and cannot be told, or it is in no table.
    """
    if target.attrs.get("mcpu") is None and target.attrs.get("mtriple") is None:
        here = host_cpu()
        mattr = [*here.mattr, *(target.attrs.get("mattr") or ())]
        target = Target({"kind": "llvm", "mcpu": here.name, "mattr": mattr})
    elif not _is_known(target.attrs.get("mcpu") or ""):
        raise TargetError(
            f"no CPU is called {target.attrs['mcpu']!r}",
            target=str(target),
            hint="name one that LLVM has, as in -mcpu=x86-64-v3, or leave -mcpu out for this one",
        )
    attrs, features = target.attrs, target.features
    unit = VectorUnit(
        vector_bits(target),
        vector_registers(target) or 16,
        has_fma=bool(features.has_fma) or features.arch in _ALWAYS_FUSED,
        has_half=bool(features.has_f16c) or features.arch == "aarch64",
    )
    name = attrs.get("mcpu") or ""
    flags = ",".join((*read_flags(name, ()), *(attrs.get("mattr") or ())))
    return Cpu(_triple(target), name.partition("+")[0], flags), unit


def target_threads(target: Target, num_threads: int) -> int:
    """Return how many threads run code for a target, of those that one run may use."""
    return min(num_threads, target.attrs.get("num-cores") or num_threads)


def target_winograd(target: Target) -> Winograd:
    """Return which convolutions may be computed by Winograd's transforms."""
    return Winograd(target.attrs.get("winograd") or Winograd.AUTO)


def target_half_weights(target: Target) -> bool:
    """Return whether large weights may be kept as float16.

    Raises:
        TargetError: The target asks for it, and its CPU converts no vectors of float16.
    """
    if target.attrs.get("weights") != "f16":
        return False
    if not target_cpu(target)[1].has_half:
        raise TargetError(
            "-weights=f16 needs a CPU that converts vectors of float16",
            target=str(target),
            hint="leave it out, or name a CPU with f16c, as in -mcpu=haswell",
        )
    return True


def _is_known(name: str) -> bool:
    """Tell whether a CPU is in a table, or this machine's, which may be newer than the tables."""
    first = name.partition("+")[0]
    is_listed = any(first in load_table(family).cpus for family in FAMILIES)
    return not first or is_listed or first == host_cpu().name


def _triple(target: Target) -> str:
    """Return the triple of a target; empty for this machine's, if its CPUs are of one family."""
    given, name = target.attrs.get("mtriple"), target.attrs.get("mcpu") or ""
    family = find_family(None, name.partition("+")[0])
    if given or family in (None, find_family(host_triple(), None)):
        return given or ""
    return _TRIPLES[family]


_TRIPLES = {
    "x86": "x86_64-unknown-linux-gnu",
    "aarch64": "aarch64-unknown-linux-gnu",
    "arm": "armv7-unknown-linux-gnueabihf",
    "riscv": "riscv64-unknown-linux-gnu",
}
"""What a CPU of a family is taken for if no triple is given."""


def why_not_here(cpu: Cpu) -> str:
    """Say why this machine cannot run code for a CPU; empty if it can."""
    here = host_cpu()
    if cpu.triple and _platform(cpu.triple) != _platform(here.triple):
        return f"it is for {cpu.triple}, and this machine is {here.triple}"
    family = find_family(cpu.triple or here.triple, None)
    flags = [flag for flag in cpu.features.split(",") if flag]
    needed = load_table(family).features(cpu.name, flags) if family else frozenset()
    missing = sorted(needed - here.features)
    if not missing:
        return ""
    return f"it is for {cpu.name}, and this CPU ({here.name}) lacks {', '.join(missing)}"


def _platform(triple: str) -> tuple[str | None, bool, str]:
    """Return a triple's architecture, whether it has 64 bits, and the operating system."""
    first, _, rest = triple.partition("-")
    system = next((name for name in _SYSTEMS if name in rest), rest)
    return find_family(triple, None), "64" in first, "darwin" if system == "macos" else system


_SYSTEMS = ("linux", "windows", "darwin", "macos")
