# SPDX-License-Identifier: Apache-2.0
"""Which machines measure alike: the fingerprint that costs are filed under, and which host this is.

In it is what decides speed and does not change between two runs: CPU, instructions, how many CPUs
this process may use, caches, system. Clock rates, governors and versions of kernels are not: they
change too often, and samples are compared within a round.
"""

from __future__ import annotations

import functools
import hashlib
import math
import platform
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from intarsia.cost.machine import ProcessorFacts, find_cpu
from intarsia.cpus import available_cpus, quota_cpus, read_text
from intarsia.hashing import digest
from intarsia.target.caches import count_cpus, read_caches

_CPU0 = Path("/sys/devices/system/cpu/cpu0")
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is alike on machines whose measurements may be used for one another.

    Attributes:
        cpu: The CPU's name, as the system says it.
        architecture: As Python says it.
        extensions: Instructions that runtimes choose their kernels by, in order of names.
        cpus: CPUs that this process may use, the grant of its control groups counted in.
        threads_per_core: Of the first core; 0 where the system does not tell.
        caches: Of the first core, as in `L1d 48K`.
        system: Name of the operating system.
    """

    cpu: str
    architecture: str
    extensions: tuple[str, ...]
    cpus: float
    threads_per_core: int
    caches: tuple[str, ...]
    system: str

    @property
    def text(self) -> str:
        """One line that says all of it."""
        smt = f" ({self.threads_per_core} per core)" if self.threads_per_core else ""
        facts = (
            self.cpu,
            self.architecture,
            f"{self.cpus:g} CPUs{smt}",
            *self.caches,
            " ".join(name.replace(" ", "-") for name in self.extensions) or "extensions unknown",
            self.system,
        )
        return ", ".join(facts)

    @property
    def digest(self) -> str:
        """A hash of its text, as 16 hexadecimal digits."""
        return hashlib.blake2b(self.text.encode(), digest_size=_DIGEST_BYTES).hexdigest()

    def __str__(self) -> str:
        return f"{self.digest} ({self.text})"


def find_fingerprint(cpu0: Path = _CPU0) -> Fingerprint:
    """Return this machine's fingerprint as it is now."""
    return _fingerprint(find_cpu(), cpu0, available_cpus(), quota_cpus(), platform.system())


def _fingerprint(
    cpu: ProcessorFacts, cpu0: Path, cpus: float, granted: float, system: str
) -> Fingerprint:
    if math.isfinite(granted):
        # Grants are in microseconds of a period: two digits tell machines apart, and rounding noise
        # does not.
        cpus = min(cpus, round(granted, 2))
    return Fingerprint(
        cpu=" ".join(cpu.model.split()),
        architecture=cpu.architecture,
        extensions=tuple(sorted(name for name, has in cpu.extensions.items() if has)),
        cpus=cpus,
        threads_per_core=count_cpus(_read(cpu0 / "topology" / "thread_siblings_list")),
        caches=tuple(f"{cache.name} {cache.size}" for cache in read_caches(cpu0)),
        system=system,
    )


_FACTS = """\
uname -m; uname -s; getconf _NPROCESSORS_ONLN || nproc || echo 1
for file in /proc/cpuinfo /sys/devices/system/cpu/cpu0/topology/thread_siblings_list \
    /sys/devices/system/cpu/cpu0/cache/index*/*
do [ -f $file ] && printf '==> %s\\n' $file && cat $file; done; exit 0
"""
_FACT = re.compile(
    r"/proc/cpuinfo|/sys/devices/system/cpu/cpu0/(topology|cache/index[0-9]+)/[a-z_]+"
)
"""The files that `_FACTS` shows."""
_SHELL_SECONDS = 60.0


@functools.cache
def machine_of(runner: str) -> Fingerprint:
    """Return the fingerprint of the machine that a runner leads to, found once for each process.

    What an emulator plays is none of the machines that exist, and is called by the emulator.

    Args:
        runner: Its text; empty means this machine.

    Raises:
        TargetError: The text names no runner.
        LinkError: The machine is out of reach.
        ExecutionError: It has no shell.
    """
    if not runner:
        return this_machine()
    from intarsia.process.runner import HERE, RemoteFolder, parse_runner  # most machines are here

    way = parse_runner(runner)
    if way.emulator:
        way.shell("")  # raises if it is not here
        here = this_machine()
        return replace(here, cpu=f"{' '.join(way.emulator)} on {here.cpu}", extensions=())
    if way.text == HERE:
        return this_machine()
    with RemoteFolder(way) as folder:
        said = folder.run("sh", "-c", _FACTS, seconds=_SHELL_SECONDS).stdout
    head, *files = said.decode(errors="replace").split("==> ")
    architecture, system, cpus = [*head.split(), "", "", ""][:3]
    with tempfile.TemporaryDirectory(prefix="intarsia-") as work:
        root = Path(work)
        for text in files:
            name, _, content = text.partition("\n")
            if _FACT.fullmatch(name):  # what the other side says is not trusted
                file = root / name.lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
        cpu = find_cpu(root / "proc/cpuinfo", architecture)
        cpu0 = root / str(_CPU0).lstrip("/")
        return _fingerprint(cpu, cpu0, int(cpus) if cpus.isdecimal() else 1, math.inf, system)


def machines_digest(runners: Sequence[str]) -> str:
    """Return the digest of the fingerprint of what runs where these lead to.

    Raises:
        LinkError: A machine is out of reach.
    """
    digests = list(dict.fromkeys(machine_of(runner).digest for runner in runners))
    return digests[0] if len(digests) == 1 else digest(digests)


@functools.cache
def this_machine() -> Fingerprint:
    """Return the fingerprint of this machine, found once for each process."""
    return find_fingerprint()


@functools.cache
def host_id() -> str:
    """Return which host this is among those with its fingerprint, as 12 hexadecimal digits.

    The machine's id is hashed with our name, as its manual asks of programs that pass it on.

    Source:
        machine-id(5) of systemd.
    """
    identity = _read(Path("/etc/machine-id")) or _read(Path("/var/lib/dbus/machine-id"))
    data = f"intarsia\0{identity}\0{platform.node()}".encode()
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def _read(file: Path) -> str:
    return read_text(file).strip()
