# SPDX-License-Identifier: Apache-2.0
"""What an x86 CPU offers to code generation."""

from __future__ import annotations

import re
from typing import Any

_FACTS = {
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
_WIDTHS = {"avx512f": 512, "avx": 256, "sse": 128}
_IS_32_BIT = re.compile(r"(i[3-7]86|x86)(-.*)?")


def describe(isa: frozenset[str], triple: str) -> dict[str, Any]:
    """Return the features of a target whose CPU has the given ones of LLVM."""
    width = next((bits for name, bits in _WIDTHS.items() if name in isa), 0)
    is_32_bit = bool(_IS_32_BIT.fullmatch(triple))
    registers = 8 if is_32_bit else 32 if "avx512f" in isa else 16
    return {
        **{fact: name in isa for fact, name in _FACTS.items()},
        "is_64_bit": not is_32_bit,
        "vector_width": width,
        "vector_registers": registers if width else 0,
    }
