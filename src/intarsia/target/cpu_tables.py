# SPDX-License-Identifier: Apache-2.0
"""Which CPU has which features: LLVM's own tables, bundled, so that no LLVM is needed to ask.

`scripts/make_cpu_tables.py` writes the tables. They hold the features that compiled code may need;
those for operating systems and those that tune are left out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

GENERIC = "generic"
FAMILIES = ("x86", "aarch64", "arm", "riscv")
_TRIPLES = {
    "x86": re.compile(r"(x86_64|amd64|x64|i[3-7]86|x86)h?"),
    "aarch64": re.compile(r"(aarch64|arm64).*"),
    "arm": re.compile(r"(arm|thumb).*"),
    "riscv": re.compile(r"riscv(32|64)?.*"),
}
_VERSION = re.compile(r"from LLVM ([0-9.]+);")
_FLAG = re.compile(r"[+-][^+]+|[^+]+")
_SPELLINGS = {  # of Arm's `-march` and `-mcpu`, where LLVM has others
    "aarch64": {
        "fp": "fp-armv8",
        "fp16": "fullfp16",
        "memtag": "mte",
        "rng": "rand",
        "simd": "neon",
    },
    "arm": {"fp": "fpregs", "simd": "neon"},
}


@dataclass(frozen=True, slots=True)
class CpuTable:
    """The CPUs of one architecture.

    Attributes:
        name: Of the architecture: `x86`, `aarch64`, `arm` or `riscv`.
        llvm: The version of LLVM that the table comes from.
        cpus: The features of every CPU.
        implies: What every feature needs, however indirectly.
        others: Features that LLVM knows beside: for tuning and for operating systems.
    """

    name: str
    llvm: str
    cpus: Mapping[str, frozenset[str]]
    implies: Mapping[str, frozenset[str]]
    others: frozenset[str] = frozenset()

    def features(self, cpu: str, flags: Iterable[str] = ()) -> frozenset[str]:
        """Return the features of a CPU after flags such as `+avx2`; one not known is generic.

        Adding a feature adds what it needs, removing one removes what needs it. Unknown names
        change nothing.
        """
        enabled = set(self.cpus.get(cpu, self.cpus[GENERIC]))
        for flag in flags:
            sign, name = flag[0], self.spelled(flag[1:])
            if name not in self.implies:
                continue
            if sign == "+":
                enabled |= {name, *self.implies[name]}
            else:
                enabled -= {name, *(other for other in enabled if name in self.implies[other])}
        return frozenset(enabled)

    def has_feature(self, name: str) -> bool:
        """Tell whether a CPU of the architecture may have a feature of this name."""
        return self.spelled(name) in self.implies

    def knows(self, name: str) -> bool:
        """Tell whether code for the architecture can be made with or without a feature."""
        return self.has_feature(name) or self.spelled(name) in self.others

    def spelled(self, name: str) -> str:
        """Return LLVM's name of a feature."""
        if name in self.implies:
            return name
        return _SPELLINGS.get(self.name, {}).get(name, name)


@functools.cache
def load_table(family: str) -> CpuTable:
    """Read the table of an architecture."""
    from pathlib import Path  # only the first CPU pays for it

    path = Path(__file__).parent / "catalogue" / "cpus" / f"{family}.txt"
    text = path.read_text(encoding="utf-8")
    version = _VERSION.search(text)
    cpus: dict[str, frozenset[str]] = {}
    implies: dict[str, frozenset[str]] = {}
    others: frozenset[str] = frozenset()
    for line in text.splitlines():
        name, sign, *words = (*line.split(), "", "")
        if name == "~":
            others = frozenset(line.split()[1:])
        elif sign == ">":
            implies[name] = frozenset(filter(None, words))
        elif sign == "=":
            cpus[name] = _read_cpu(words, cpus)
    return CpuTable(family, version[1] if version else "", cpus, implies, others)


def _read_cpu(words: Iterable[str], cpus: Mapping[str, frozenset[str]]) -> frozenset[str]:
    features: set[str] = set()
    for word in filter(None, words):
        if word.startswith("+"):
            features.add(word[1:])
        elif word.startswith("-"):
            features.discard(word[1:])
        else:
            features |= cpus[word]
    return frozenset(features)


def find_family(triple: str | None, cpu: str | None) -> str | None:
    """Return the architecture that a triple, or else a CPU's name, says; None if none is known.

    Arm's microcontrollers are recognised whatever the triple. A CPU of both Arm architectures
    counts as one of 64 bits.
    """
    # A cortex-m33 with a triple of an application processor is still a microcontroller (row 65).
    if cpu and "mclass" in load_table("arm").cpus.get(cpu, ()):
        return "arm"
    if triple:
        # `arm64-apple-...` is of 64 bits, though it begins with `arm` (row 64): tables are asked in
        # order.
        first = triple.partition("-")[0].lower()
        return next((name for name in FAMILIES if _TRIPLES[name].fullmatch(first)), None)
    if not cpu or cpu == GENERIC:
        return None
    return next((name for name in FAMILIES if cpu in load_table(name).cpus), None)


def read_flags(
    cpu: str, mattr: Iterable[str], is_known: Callable[[str], bool] | None = None
) -> tuple[str, ...]:
    """Return every flag as +name or -name, Arm's `+noname` included.

    Args:
        cpu: The CPU, maybe with flags, as in `cortex-m55+nomve`.
        mattr: Flags, maybe several in one, as in `+nomve+nodsp`.
        is_known: Tells the names of features, of which some begin with `no`.
    """
    _, plus, modifiers = cpu.partition("+")
    flags = []
    for text in (plus + modifiers, *mattr):
        for word in _FLAG.findall(text):
            name = word.lstrip("+-")
            sign = "-" if word.startswith("-") else "+"
            less = name[2:] if sign == "+" and name.startswith("no") else ""
            # Some features begin with `no` themselves: `nopl` is no order to switch off `pl`.
            if is_known is not None and (is_known(name) or not is_known(less)):
                less = ""
            flags.append(f"-{less}" if less else sign + name)
    return tuple(flags)
