# SPDX-License-Identifier: Apache-2.0
"""What an Arm CPU offers to code generation: the A profile (and R) in 32 and 64 bits, and the M.

Source:
    Arm Architecture Reference Manual: FEAT_DotProd and FEAT_I8MM are optional from Armv8.2 on,
    FEAT_DotProd is required from Armv8.4 on and FEAT_I8MM from Armv8.6 on; Armv9.0 is Armv8.5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_VERSION = re.compile(r"\+v([0-9]+(?:\.[0-9]+)?)a")
_TRIPLE = re.compile(
    r"(?:arm|thumb)(?:eb)?v(?P<version>[0-9]+(?:\.[0-9]+)?)-?(?P<profile>[a-z.]*)(?:-.*)?"
)
_MARCH = re.compile(
    r"armv(?P<version>[0-9]+(?:\.[0-9]+)?)(?:-?(?P<profile>[a-z]+(?:\.[a-z]+)?))?(?P<flags>\+.*)?"
)
_CORES = {"v7m": "v7", "v7em": "v7", "v8m.base": "v8m"}
_PROFILES = {"a": ("+aclass",), "r": ("+rclass",)}
_FIRST_64_BIT = 8.0
_FIRST_OPTIONAL = 8.2
_OPTIONAL = ("dotprod", "i8mm")
_A_FACTS = {
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


def restrict(isa: frozenset[str], flags: Sequence[str]) -> frozenset[str]:
    """Remove features that the version of the architecture asked for (`+v8.0a`) cannot have."""
    versions = [match for match in map(_VERSION.fullmatch, flags) if match]
    if versions and float(versions[0][1]) < _FIRST_OPTIONAL:
        return isa - set(_OPTIONAL)
    return isa


def triple_flags(triple: str) -> tuple[str, ...]:
    """Return the features that the sub-architecture of a 32-bit triple stands for, without SIMD.

    Vectors are an option of the A profile in 32 bits, except where a later version requires them.
    """
    match = _TRIPLE.fullmatch(triple.lower())
    if match is None:
        return ()
    version, profile = match["version"], match["profile"]
    if profile in ("m", "em", "m.main", "m.base"):
        name = f"v{version}{profile}"
        return f"+{_CORES.get(name, name)}", "+mclass", *(("+dsp",) if profile == "em" else ())
    letter = "a" if "." in version or version == "9" else ""
    return f"+v{version}{letter}", *_PROFILES.get(profile, ())


def read_march(march: str) -> tuple[str, tuple[str, ...]]:
    """Return the architecture, as in a triple, and the flags of `-march`: `armv8.2-a+dotprod`.

    From Armv8-A on that is the 64-bit state.
    """
    match = _MARCH.fullmatch(march)
    if match is None:
        return "", ()
    version, profile, flags = match["version"], match["profile"] or "", match["flags"] or ""
    if profile == "a" and float(version) >= _FIRST_64_BIT:
        return "aarch64", (f"+v{version}a", *((flags,) if flags else ()))
    name = "em" if profile == "e" else profile
    return f"armv{version}{name}", (flags,) if flags else ()


def describe_aarch64(isa: frozenset[str], triple: str) -> dict[str, Any]:
    """Return the features of a 64-bit target whose CPU has the given ones of LLVM."""
    del triple
    return _describe_a(isa, is_aarch64=True)


def describe_arm(isa: frozenset[str], triple: str) -> dict[str, Any]:
    """Return the features of a 32-bit target whose CPU has the given ones of LLVM."""
    del triple
    if "mclass" not in isa:
        return _describe_a(isa, is_aarch64=False)
    has_mve = "mve" in isa
    return {
        "is_m_profile": True,
        "has_dsp": "dsp" in isa,
        "has_mve": has_mve,
        "has_mve_fp": "mve.fp" in isa,
        "vector_width": _MVE_WIDTH if has_mve else 0,
        "vector_registers": 8 if has_mve else 0,
    }


def _describe_a(isa: frozenset[str], *, is_aarch64: bool) -> dict[str, Any]:
    has_asimd = "neon" in isa
    return {
        "is_aarch64": is_aarch64,
        **{fact: name in isa for fact, name in _A_FACTS.items()},
        "vector_width": _NEON_WIDTH if has_asimd else 0,
        "vector_registers": (32 if is_aarch64 else 16) if has_asimd else 0,
    }
