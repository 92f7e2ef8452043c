# SPDX-License-Identifier: Apache-2.0
"""What a machine can do at most: from its target's attributes, or measured here in a moment.

Where the target does not say it, the figure is what the fastest machines of its kind have, so that
a bound that is made of it stays a bound.
"""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from intarsia.cpus import available_cpus, read_text
from intarsia.target import DeviceType

if TYPE_CHECKING:
    from intarsia.target import Target

HZ = {"x86": 5.5e9, "aarch64": 4.5e9, "arm": 2.5e9, "riscv": 3.0e9}
"""Highest clock of CPUs of an architecture that are sold, where a machine does not tell."""

_HZ_FILE = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")  # kHz
_UNITS = {"x86": 2, "aarch64": 4, "arm": 2, "riscv": 2}  # that multiply and add, in a core: at most
_MANY_CORES = 256
_LOADS_BYTES = 2 * 64  # what one core loads from its first cache in a cycle, at most
_MEMORY_BYTES_PER_SECOND = 6e11  # of a socket with twelve channels of DDR5 or with HBM
_CACHE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Peak:
    """What a machine can do at most.

    Attributes:
        flop_per_second: By element type; of others what `float32` says.
        bytes_per_second: From and to memory.
        cache_bytes_per_second: The same of data that fits into caches.
        cache_bytes: How much does.
        text: Where the figures come from, for people.
        doubt: By how many times the slowest machines that fit the description are slower: 1 where
            the description says enough.
    """

    flop_per_second: Mapping[str, float]
    bytes_per_second: float
    cache_bytes_per_second: float
    cache_bytes: int
    text: str = field(compare=False, default="")
    doubt: float = 1.0

    def flops(self, dtype: str) -> float:
        """Return the operations in a second on elements of a type."""
        return self.flop_per_second.get(dtype) or self.flop_per_second["float32"]

    def bandwidth(self, nbytes: int) -> float:
        """Return the bytes in a second of something that works on so many bytes."""
        if nbytes <= self.cache_bytes:
            return self.cache_bytes_per_second
        return self.bytes_per_second


def target_peak(target: Target, num_threads: int | None = None) -> Peak:
    """Return what a target can do at most, by its attributes.

    Args:
        target: A partial target counts as the device that it refines.
        num_threads: Of one run on a CPU; None means all its cores.
    """
    if target.device_type is not DeviceType.CPU:
        return _GPU if target.device_type.name in _GPUS else _ACCELERATOR
    facts = target.features
    architecture = facts.arch if facts.arch in HZ else "x86"
    # Nobody said how many: more than any socket has, so that the bound stays one.
    cores = min(num_threads or _MANY_CORES, target.attrs.get("num-cores") or _MANY_CORES)
    hz = (_host_hz() if architecture == _host_architecture() else 0.0) or HZ[architecture]
    bits = facts.vector_width or _WIDEST[architecture]
    if facts.has_sve or architecture == "riscv":  # of those what every such CPU has is known
        bits = max(bits, _WIDEST[architecture])
    lanes = cores * hz * _UNITS[architecture] * bits / 32
    # A product and a sum, as the roofline counts them.
    float32 = lanes * 2
    flop = {"float32": float32, "float64": float32 / 2}
    half = float32 * (2 if facts.has_avx512_fp16 or facts.has_fp16_simd else 1)
    # Without VNNI two instructions (`pmaddubsw` and an addition) serve four times the elements.
    int8 = float32 * (4 if facts.has_avx512_vnni or facts.has_avx_vnni or facts.has_dotprod else 2)
    bfloat16 = float32 * (2 if facts.has_avx512_bf16 or facts.has_bf16 else 1)
    if facts.has_amx_bf16:
        bfloat16 = max(bfloat16, cores * hz * _AMX_FLOP)
    if facts.has_amx_int8:
        int8 = max(int8, cores * hz * _AMX_FLOP * 2)
    if facts.has_matmul_i8:
        int8 = max(int8, float32 * 8)
    flop |= {"float16": half, "bfloat16": bfloat16, "int8": int8, "uint8": int8}
    return Peak(
        flop,
        _MEMORY_BYTES_PER_SECOND,
        cores * hz * _LOADS_BYTES,
        _CACHE_BYTES * cores,
        f"{cores} cores x {hz / 1e9:.2g} GHz x {bits} bits",
    )


_WIDEST = {"x86": 512, "aarch64": 512, "arm": 128, "riscv": 1024}

_AMX_FLOP = 1024
"""Operations of AMX on bfloat16 in a core's cycle: 16 x 16 x 32 multiply-adds in 16 cycles.

Source:
    Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX.
"""

_ACCELERATOR = Peak(
    {"float32": 1e15}, 1e13, 1e14, 256 << 20, "an accelerator of unknown speed", 1e3
)
_GPU = Peak(
    {"float32": 1e14, "float16": 2.5e15, "bfloat16": 2.5e15, "int8": 5e15, "float64": 1e14},
    8e12,
    4e13,
    256 << 20,
    "the fastest GPUs on sale",
    300.0,
)
"""GPUs inside CPUs reach some 3e11 operations on float32 in a second."""
_GPUS = ("CUDA", "CUDA_MANAGED", "METAL", "OPENCL", "OPENGL", "ONEAPI", "ROCM", "VULKAN", "WEBGPU")


def _host_architecture() -> str:
    """Return the architecture of this machine, as targets name it."""
    name = platform.machine().lower()
    target_names = {"amd64": "x86", "x86_64": "x86", "arm64": "aarch64"}
    return target_names.get(name, next((each for each in HZ if name.startswith(each)), name))


@functools.cache
def _host_hz() -> float:
    """Return the highest clock of this machine's first CPU, or 0 where the system hides it."""
    text = read_text(_HZ_FILE).strip()
    return 1e3 * int(text) if text.isdecimal() else 0.0


@functools.cache
def measured_peak(num_threads: int | None = None) -> Peak:
    """Return what numpy reaches on this machine: of one run, in a fifth of a second, kept.

    Args:
        num_threads: Of one run; numpy's own matrix product uses what it was started with, and its
            rate is scaled from that.
    """
    cpus = available_cpus()
    share = min(num_threads or cpus, cpus) / cpus
    rng = np.random.default_rng(0)
    size = 768
    left, right = (rng.random((size, size), dtype=np.float32) for _ in range(2))
    product = np.empty_like(left)
    seconds = _best(lambda: np.matmul(left, right, out=product), 0.08)
    flop = 2 * size**3 / seconds * share
    # With its copy 1 MiB, which a server core's second cache holds; the other takes 96 MiB.
    small = np.ones(1 << 17, np.float32)
    large = np.ones(12 << 20, np.float32)
    cache = _copy_rate(small) * min(num_threads or cpus, cpus)
    memory = _copy_rate(large)
    return Peak({"float32": flop}, memory, cache, small.nbytes * 2, "measured with numpy")


def _copy_rate(array: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    """Return the bytes read and written in a second."""
    copy = np.empty_like(array)
    return 2 * array.nbytes / _best(lambda: np.copyto(copy, array), 0.05)


def _best(run: Callable[[], object], budget_seconds: float) -> float:
    """Return the shortest of several runs: what else goes on can only lengthen them."""
    run()
    best, end = float("inf"), time.perf_counter() + budget_seconds
    while True:
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return best
