# SPDX-License-Identifier: Apache-2.0
"""The data caches of CPUs: what a model of CPU has, and what this machine says of its own.

With Arm's cores the maker of a chip chooses how large they are, within bounds: the table has those
of a product then, and a machine that is asked knows better.

Source:
    Intel 64 and IA-32 Architectures Optimization Reference Manual, volumes 1 and 2, the tables of
    cache parameters of each microarchitecture.
    AMD, Software Optimization Guides for families 10h, 15h, 16h, 17h, 19h and 1Ah, "Cache
    Organization".
    Fujitsu, A64FX Microarchitecture Manual; Ampere Computing, AmpereOne product brief.
    Arm, Technical Reference Manual of each core, for what may be chosen; the products are named
    beside the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_CPU0 = "/sys/devices/system/cpu/cpu0"
_CPUS = {  # KiB of the first data cache, and of what one core has of the second one
    (32, 256): """nehalem corei7 core_i7_sse4_2 westmere core_aes_pclmulqdq sandybridge corei7-avx
        core_2nd_gen_avx ivybridge core-avx-i core_3rd_gen_avx haswell core-avx2 core_4th_gen_avx
        core_4th_gen_avx_tsx broadwell core_5th_gen_avx core_5th_gen_avx_tsx skylake cannonlake""",
    (32, 512): "znver1 znver2 znver3 knl knm mic_avx512 btver1 btver2",
    (64, 512): "amdfam10 barcelona",
    (32, 1024): """skylake-avx512 skylake_avx512 skx cascadelake cooperlake znver4 x86-64-v4
        sierraforest grandridge clearwaterforest""",
    (48, 512): "icelake-client icelake_client rocketlake",
    (48, 1024): "znver5",
    (48, 1280): "icelake-server icelake_server tigerlake alderlake",
    (48, 2048): """raptorlake meteorlake sapphirerapids emeraldrapids graniterapids graniterapids-d
        graniterapids_d""",
    (48, 2560): "lunarlake",
    (48, 3072): "arrowlake arrowlake-s arrowlake_s",
    (64, 2048): "ampere1 ampere1a ampere1b",
    (64, 680): "a64fx",
}
_CHOSEN = {  # of cores whose caches the maker of a chip chooses, those of a product; 0: it has none
    "cortex-a53": (32, 128),  # 8 to 64; 512 of four cores in Broadcom's BCM2837 (Raspberry Pi 3)
    "cortex-a55": (32, 128),  # 16 to 64; none, 64, 128 or 256: Qualcomm's Snapdragon 855
    "cortex-a72": (32, 256),  # 32; 1024 of four cores in Broadcom's BCM2711 (Raspberry Pi 4)
    "cortex-a76": (64, 512),  # 64; 128 to 512: Broadcom's BCM2712 (Raspberry Pi 5)
    "cortex-a78": (64, 256),  # 32 or 64; 256 or 512: as Cortex-A78AE in NVIDIA's Jetson Orin
    "cortex-a78ae": (64, 256),
    "cortex-x1": (64, 1024),  # 64; 512 or 1024: Qualcomm's Snapdragon 888
    "neoverse-n1": (64, 1024),  # 64; 256 to 1024: AWS Graviton2, Ampere Altra
    "neoverse-v1": (64, 1024),  # 64; 512 or 1024: AWS Graviton3
    "cortex-m7": (16, 0),  # none, or 4 to 64: STMicroelectronics' STM32F767
    "cortex-m55": (32, 0),  # none, or 4 to 64: Arm's Corstone-300
    "cortex-m85": (16, 0),  # none, or 4 to 64: Renesas' RA8M1
}
_TOLD: Mapping[str, tuple[int, int]] = {
    name: sizes for sizes, names in _CPUS.items() for name in names.split()
}
_TABLE: Mapping[str, tuple[int, int]] = {
    name: (first << 10, second << 10) for name, (first, second) in {**_TOLD, **_CHOSEN}.items()
}


def cpu_caches(name: str) -> tuple[int, int] | None:
    """Return the bytes of a CPU's first data cache, and of what one core has of the second.

    Args:
        name: LLVM's name of the CPU.

    Returns:
        Of Arm's cores those of a product, 0 for a cache that it has not; None where there is no
        telling.
    """
    return _TABLE.get(name)


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache that holds data.

    Attributes:
        name: Its level, as in `L1d` or `L2`.
        size: As Linux says it, in `48K`.
        cpus: How many logical CPUs share it; 0 where the system does not tell.
    """

    name: str
    size: str
    cpus: int

    @property
    def nbytes(self) -> int:
        """Its size; 0 where the system does not tell."""
        shift = {"K": 10, "M": 20, "G": 30}.get(self.size[-1:])
        digits = self.size if shift is None else self.size[:-1]
        return int(digits) << (shift or 0) if digits.isdecimal() else 0


def read_caches(cpu0: Path) -> tuple[Cache, ...]:
    """Return the caches that hold data, from what Linux says of the first CPU in a folder."""
    letters = {"Data": "d", "Unified": ""}
    caches = []
    for index in sorted((cpu0 / "cache").glob("index[0-9]*")):
        letter, level = letters.get(_read(index / "type")), _read(index / "level")
        size = _read(index / "size")
        if letter is not None and level and size:
            cpus = count_cpus(_read(index / "shared_cpu_list"))
            caches.append(Cache(f"L{level}{letter}", size, cpus))
    return tuple(caches)


def core_l2_bytes(cpu0: Path | None = None) -> int:
    """Return what one core of this machine has of the second cache; 0 if that cannot be told.

    Args:
        cpu0: The folder that Linux has of the first CPU; None means this machine's.
    """
    from pathlib import Path  # only those who ask pay for it

    folder = Path(_CPU0) if cpu0 is None else cpu0
    threads = count_cpus(_read(folder / "topology" / "thread_siblings_list"))
    second = next((cache for cache in read_caches(folder) if cache.name == "L2"), None)
    return 0 if second is None else second.nbytes // max(1, second.cpus // max(1, threads))


def untold_caches(name: str) -> dict[str, int]:
    """Return what a target must say of this machine's caches beside the name of its CPU.

    Args:
        name: LLVM's name of this machine's CPU.

    Returns:
        The attribute `l2-cache`; nothing if the name says it, or the system does not.
    """
    here = 0 if name in _TOLD else core_l2_bytes()
    return {"l2-cache": here} if here else {}


def count_cpus(listed: str) -> int:
    """Return how many CPUs a list such as `0-1,4` has; 0 if it is none."""
    total = 0
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return 0
        total += int(last or first) - int(first) + 1
    return total


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
