# SPDX-License-Identifier: Apache-2.0
"""What CPUs of each architecture offer to code generation, and what C compilers call them.

Source:
    Arm Architecture Reference Manual: FEAT_DotProd and FEAT_I8MM are optional from Armv8.2 on,
    FEAT_DotProd is required from Armv8.4 on and FEAT_I8MM from Armv8.6 on; Armv9.0 is Armv8.5.
    RISC-V "V" vector extension 1.0: 32 vector registers of VLEN bits; `zvlNb` says VLEN >= N.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_X86_FACTS = {
    "has_sse41": "sse4.1",
    "has_avx": "avx",
    "has_avx2": "avx2",
    "has_fma": "fma",
    "has_f16c": "f16c",
    "has_avx512": "avx512f",
    "has_avx512bw": "avx512bw",
    "has_avx512vl": "avx512vl",
    "has_avx512_vnni": "avx512vnni",
    "has_avx512_bf16": "avx512bf16",
    "has_avx512_fp16": "avx512fp16",
    "has_avx_vnni": "avxvnni",
    "has_amx_bf16": "amx-bf16",
    "has_amx_int8": "amx-int8",
}
_X86_WIDTHS = {"avx512f": 512, "avx": 256, "sse": 128}
_X86_32_BIT = re.compile(r"(i[3-7]86|x86)(-.*)?")
_ARM_VERSION = re.compile(r"\+v([0-9]+(?:\.[0-9]+)?)a")
_ARM_TRIPLE = re.compile(
    r"(?:arm|thumb)(?:eb)?v(?P<version>[0-9]+(?:\.[0-9]+)?)-?(?P<profile>[a-z.]*)(?:-.*)?"
)
_ARM_MARCH = re.compile(
    r"armv(?P<version>[0-9]+(?:\.[0-9]+)?)(?:-?(?P<profile>[a-z]+(?:\.[a-z]+)?))?(?P<flags>\+.*)?"
)
_ARM_CORES = {"v7m": "v7", "v7em": "v7", "v8m.base": "v8m"}
_ARM_PROFILES = {"a": ("+aclass",), "r": ("+rclass",)}
_FIRST_64_BIT = 8.0
_FIRST_OPTIONAL = 8.2
_ARM_OPTIONAL = ("dotprod", "i8mm")
_ARM_FACTS = {
    "has_asimd": "neon",
    "has_dotprod": "dotprod",
    "has_matmul_i8": "i8mm",
    "has_fp16_simd": "fullfp16",
    "has_bf16": "bf16",
    "has_sve": "sve",
    "has_sve2": "sve2",
    "has_sme": "sme",
}
_NEON_WIDTH = 128
_MVE_WIDTH = 128
_WASM_WIDTH, _WASM_REGISTERS = 128, 16
_RISCV_MARCH = re.compile(r"rv(?P<width>32|64)(?P<letters>[a-z]*)(?P<rest>(?:_[a-z0-9]+)*)")
_MINIMUM_LENGTH = re.compile(r"zvl([0-9]+)b")
_RISCV_GENERAL = ("+i", "+m", "+a", "+f", "+d")


def describe_x86(isa: frozenset[str], triple: str) -> dict[str, Any]:
    """Return the features of a target whose CPU has the given ones of LLVM."""
    # 512 bits also on CPUs for which LLVM prefers 256 (`prefer-256-bit`): that is tuning, not what
    # a CPU has.
    width = next((bits for name, bits in _X86_WIDTHS.items() if name in isa), 0)
    is_32_bit = bool(_X86_32_BIT.fullmatch(triple))
    registers = 8 if is_32_bit else 32 if "avx512f" in isa else 16
    return {
        **{fact: name in isa for fact, name in _X86_FACTS.items()},
        "is_64_bit": not is_32_bit,
        "vector_width": width,
        "vector_registers": registers if width else 0,
    }


def restrict_arm(isa: frozenset[str], flags: Sequence[str]) -> frozenset[str]:
    """Remove features that the version of the architecture asked for (`+v8.0a`) cannot have."""
    versions = [match for match in map(_ARM_VERSION.fullmatch, flags) if match]
    if versions and float(versions[0][1]) < _FIRST_OPTIONAL:
        # `+v8.0a,+dotprod` has no dot products (row 62): LLVM would switch them on.
        return isa - set(_ARM_OPTIONAL)
    return isa


def arm_triple_flags(triple: str) -> tuple[str, ...]:
    """Return the features that the sub-architecture of a 32-bit triple stands for, without SIMD.

    Vectors are an option of the A profile in 32 bits, except where a later version requires them.
    """
    match = _ARM_TRIPLE.fullmatch(triple.lower())
    if match is None:
        return ()
    version, profile = match["version"], match["profile"]
    if profile in ("m", "em", "m.main", "m.base"):
        name = f"v{version}{profile}"
        return f"+{_ARM_CORES.get(name, name)}", "+mclass", *(("+dsp",) if profile == "em" else ())
    letter = "a" if "." in version or version == "9" else ""
    return f"+v{version}{letter}", *_ARM_PROFILES.get(profile, ())


def read_arm_march(march: str) -> tuple[str, tuple[str, ...]]:
    """Return the architecture, as in a triple, and the flags of `-march`: `armv8.2-a+dotprod`.

    From Armv8-A on that is the 64-bit state.
    """
    match = _ARM_MARCH.fullmatch(march)
    if match is None:
        return "", ()
    version, profile, flags = match["version"], match["profile"] or "", match["flags"] or ""
    if profile == "a" and float(version) >= _FIRST_64_BIT:
        return "aarch64", (f"+v{version}a", *((flags,) if flags else ()))
    name = "em" if profile == "e" else profile
    return f"armv{version}{name}", (flags,) if flags else ()


def describe_aarch64(isa: frozenset[str], triple: str) -> dict[str, Any]:
    """Return the features of a 64-bit target whose CPU has the given ones of LLVM."""
    return _describe_arm_a(isa, is_aarch64=True)


def describe_arm(isa: frozenset[str], triple: str) -> dict[str, Any]:
    """Return the features of a 32-bit target whose CPU has the given ones of LLVM."""
    if "mclass" not in isa:
        return _describe_arm_a(isa, is_aarch64=False)
    has_mve = "mve" in isa
    return {
        "is_m_profile": True,
        "has_dsp": "dsp" in isa,
        "has_mve": has_mve,
        "has_mve_fp": "mve.fp" in isa,
        "vector_width": _MVE_WIDTH if has_mve else 0,
        "vector_registers": 8 if has_mve else 0,
    }


def _describe_arm_a(isa: frozenset[str], *, is_aarch64: bool) -> dict[str, Any]:
    has_asimd = "neon" in isa
    return {
        "is_aarch64": is_aarch64,
        **{fact: name in isa for fact, name in _ARM_FACTS.items()},
        "vector_width": _NEON_WIDTH if has_asimd else 0,
        "vector_registers": (32 if is_aarch64 else 16) if has_asimd else 0,
    }


def describe_riscv(isa: frozenset[str], triple: str) -> dict[str, Any]:
    """Return the features of a target whose CPU has the given ones of LLVM."""
    lengths = [int(match[1]) for match in map(_MINIMUM_LENGTH.fullmatch, isa) if match]
    has_vectors = "zve32x" in isa
    return {
        "is_64_bit": not triple.startswith("riscv32") and "32bit" not in isa,
        "has_rvv": "v" in isa,
        "has_zvfh": "zvfh" in isa,
        "has_zvfbfwma": "zvfbfwma" in isa,
        "vector_width": max(lengths, default=0) if has_vectors else 0,
        "vector_registers": 32 if has_vectors else 0,
    }


def describe_wasm(flags: Sequence[str]) -> dict[str, Any]:
    """Return the features of a WebAssembly target: it has no CPUs, and few features.

    How many registers its vectors are in is the engine's: most CPUs have 16 or more.
    """
    last = {flag[1:]: flag[0] == "+" for flag in flags}
    has_vectors = last.get("simd128", False)
    return {
        "arch": "wasm",
        "isa": tuple(sorted(name for name, has in last.items() if has)),
        "vector_width": _WASM_WIDTH if has_vectors else 0,
        "vector_registers": _WASM_REGISTERS if has_vectors else 0,
    }


def read_riscv_march(march: str) -> tuple[str, tuple[str, ...]]:
    """Return LLVM's CPU and flags of an ISA string such as `rv64gcv_zvl256b`."""
    match = _RISCV_MARCH.fullmatch(march)
    if match is None:
        return "", ()
    flags: list[str] = []
    for letter in match["letters"]:
        flags += _RISCV_GENERAL if letter == "g" else (f"+{letter}",)
    flags += (f"+{name}" for name in match["rest"].split("_") if name)
    return f"generic-rv{match['width']}", tuple(flags)


DESCRIBE: Mapping[str, Callable[[frozenset[str], str], dict[str, Any]]] = {
    "x86": describe_x86,
    "aarch64": describe_aarch64,
    "arm": describe_arm,
    "riscv": describe_riscv,
}
"""By architecture, the function that derives a target's features from LLVM's and the triple."""
