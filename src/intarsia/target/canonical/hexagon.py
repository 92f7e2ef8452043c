# SPDX-License-Identifier: Apache-2.0
"""Qualcomm's Hexagon processors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from intarsia.errors import TargetError
from intarsia.target.kind import Canonical

VERSIONS = (
    "v60", "v62", "v65", "v66", "v67", "v67t", "v68", "v69", "v71", "v71t", "v73", "v75", "v79",
    "v81",
)  # fmt: skip
_TRIPLE = "hexagon"
_LENGTH = re.compile(r"\+hvx-length(64|128)b")


def canonicalize_hexagon(attrs: Mapping[str, Any]) -> Canonical:
    """Spell the CPU as LLVM does, and say which vectors it has.

    Source:
        LLVM 22, Hexagon.td: names of CPUs; HVX is used only if `+hvx...` asks for it.
    """
    rewritten = {**attrs, "mtriple": attrs.get("mtriple", _TRIPLE)}
    cpu = attrs.get("mcpu")
    if cpu is not None:
        version = cpu.removeprefix(_TRIPLE)
        if version not in VERSIONS:
            raise TargetError(
                f"mcpu: {cpu!r} is no Hexagon processor", hint=f"versions: {', '.join(VERSIONS)}"
            )
        rewritten["mcpu"] = f"{_TRIPLE}{version}"
    mattr = attrs.get("mattr", ())
    lengths = [match for match in map(_LENGTH.fullmatch, mattr) if match]
    width = 8 * int(lengths[-1][1]) if lengths else 0
    features = {
        "has_hvx": any(flag.startswith("+hvx") for flag in mattr),
        "vector_width": width,
        "vector_registers": 32 if width else 0,
    }
    return Canonical(rewritten, features=features)
