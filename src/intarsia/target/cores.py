# SPDX-License-Identifier: Apache-2.0
"""What one core of a CPU does in a cycle, by the CPU's name: for estimates of time.

The figures are in `catalogue/cores.toml`, from what makers and others publish. Sizes of caches that
`caches` knows, or that a target states, take precedence over those of the product that is named
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intarsia.target.target import Target


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """A cache of data.

    Attributes:
        nbytes: What one core has of it.
        bytes_per_cycle: That come from what is behind it; 0 where that is memory.
        latency: Cycles until a line from behind it is there.
    """

    nbytes: int
    bytes_per_cycle: float
    latency: float


@dataclass(frozen=True, slots=True)
class Core:
    """One core.

    Attributes:
        name: Of its microarchitecture.
        source: Where the figures are from.
        hz: The clock of the product that is named there.
        issue: Instructions that start in a cycle.
        bits: Of a pipe for vectors.
        ports: By class of operation, the pipes that do it, a letter each.
        slots: By class, cycles of a pipe that one takes; 1 where it is not said.
        latency: By class, cycles until a result is there.
        divide: Cycles of a division of float32 that fills a pipe.
        sqrt: The same of a square root.
        branch: Cycles that a branch costs that was not foreseen.
        taken: Cycles that one costs that was.
        caches: From the first on.
        sharers: Cores that share the last cache, of which each has its part.
        memory: Bytes in a second, of one core and of all.
        wait: Cycles until a line from memory is there.
        window: Instructions that are looked at for one that may start.
        misses: Lines that are waited for at once.
        overlaps: Whether data moves between caches while the core computes.
        in_order: Whether instructions wait for those before them.
        constants: Cycles that a load of a constant waits for flash memory.
    """

    name: str
    source: str
    hz: float
    issue: float
    bits: int
    ports: Mapping[str, str]
    latency: Mapping[str, float]
    divide: float
    sqrt: float
    branch: float
    caches: tuple[CacheLevel, ...]
    sharers: int = 1
    memory: tuple[float, float] = (0.0, 0.0)
    wait: float = 0.0
    window: int = 0
    misses: int = 1
    slots: Mapping[str, float] = field(default_factory=dict)
    taken: float = 0.0
    overlaps: bool = False
    in_order: bool = False
    constants: float = 0.0

    def has_caches(self, *nbytes: int) -> Core:
        """Return the core with first caches of other sizes; 0 leaves one as it is."""
        sizes = (*nbytes, *[0] * len(self.caches))
        caches = tuple(
            replace(level, nbytes=size or level.nbytes)
            for level, size in zip(self.caches, sizes, strict=False)
        )
        return replace(self, caches=caches)

    def alone(self) -> Core:
        """Return the core where those that share its last cache have nothing to do."""
        *others, last = self.caches
        return replace(self, caches=(*others, replace(last, nbytes=last.nbytes * self.sharers)))


@cache
def _cores() -> tuple[Mapping[str, Core], Mapping[str, str]]:
    """Return the cores by name, and the names of cores by CPU."""
    from pathlib import Path

    from intarsia.target.toml import read_toml

    text = (Path(__file__).parent / "catalogue" / "cores.toml").read_text("utf-8")
    cores: dict[str, Core] = {}
    names: dict[str, str] = {}
    for name, table in read_toml(text).items():
        names |= dict.fromkeys(table.pop("cpus").split(), name)
        cores[name] = _core(name, table)
    return cores, names


def _core(name: str, table: dict[str, Any]) -> Core:
    levels = table.pop("caches")
    caches = tuple(CacheLevel(int(size * 1024), rate, wait) for size, rate, wait in levels)
    one, every, wait = table.pop("memory", (0.0, 0.0, 0.0))
    hz = table.pop("ghz") * 1e9
    return Core(
        name=name,
        hz=hz,
        caches=caches,
        memory=(one * 1e9, every * 1e9),
        wait=wait * 1e-9 * hz,
        **table,
    )


def core_named(cpu: str) -> Core | None:
    """Return the core of a CPU by LLVM's name; None if nothing is known of it."""
    cores, names = _cores()
    name = names.get(cpu)
    return None if name is None else cores[name]


_TYPICAL = {"x86": "x86-64-v3", "aarch64": "cortex-a72", "arm": "cortex-a53", "riscv": "sifive-u74"}
"""What a CPU is taken for that is not named: one that is often met."""


def core_of(target: Target) -> tuple[Core, bool] | None:
    """Return the core of a target, and whether the target names it.

    Returns:
        None where the target is none of a CPU whose architecture we know.
    """
    from intarsia.target.cpu import NATIVE, host_cpu

    facts = target.features
    name = (target.attrs.get("mcpu") or "").partition("+")[0]
    if name == NATIVE:
        name = host_cpu().name
    core = core_named(name)
    is_named = core is not None
    if core is None:
        core = core_named(_typical(target, name))
    if core is None:
        return None
    return core.has_caches(
        facts.l1_bytes or 0, target.attrs.get("l2-cache") or facts.l2_bytes or 0
    ), (is_named)


def _typical(target: Target, name: str) -> str:
    facts = target.features
    if facts.is_m_profile:
        return "cortex-m55" if facts.has_mve else "cortex-m4"
    if facts.arch == "x86":
        if facts.has_avx512:
            return "x86-64-v4"
        return "x86-64-v3" if facts.has_avx2 else "x86-64"
    if facts.arch == "riscv" and facts.has_rvv:
        return "spacemit-x60"
    return _TYPICAL.get(facts.arch or "", "")
