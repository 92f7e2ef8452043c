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
from dataclasses import dataclass
from pathlib import Path

from intarsia.cost.machine import find_cpu, quota_cpus, read_text
from intarsia.settings import available_cpus
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
    cpu = find_cpu()
    granted = quota_cpus()
    cpus: float = available_cpus()
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
        system=platform.system(),
    )


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
