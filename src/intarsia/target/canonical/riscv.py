# SPDX-License-Identifier: Apache-2.0
"""What a RISC-V CPU offers to code generation.

Source:
    RISC-V "V" vector extension 1.0: 32 vector registers of VLEN bits; `zvlNb` says VLEN >= N.
"""

from __future__ import annotations

import re
from typing import Any

_MARCH = re.compile(r"rv(?P<width>32|64)(?P<letters>[a-z]*)(?P<rest>(?:_[a-z0-9]+)*)")
_MINIMUM_LENGTH = re.compile(r"zvl([0-9]+)b")
_GENERAL = ("+i", "+m", "+a", "+f", "+d")


def describe(isa: frozenset[str], triple: str) -> dict[str, Any]:
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


def read_march(march: str) -> tuple[str, tuple[str, ...]]:
    """Return LLVM's CPU and flags of an ISA string such as `rv64gcv_zvl256b`."""
    match = _MARCH.fullmatch(march)
    if match is None:
        return "", ()
    flags: list[str] = []
    for letter in match["letters"]:
        flags += _GENERAL if letter == "g" else (f"+{letter}",)
    flags += (f"+{name}" for name in match["rest"].split("_") if name)
    return f"generic-rv{match['width']}", tuple(flags)
