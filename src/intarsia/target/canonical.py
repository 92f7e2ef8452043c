# SPDX-License-Identifier: Apache-2.0
"""Canonicalisers of the catalogue's kinds.

They check what a type cannot, and derive keys and features. Every one is idempotent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from intarsia.errors import TargetError
from intarsia.target.kind import Canonical, Canonicalizer

_CUDA_ARCH = re.compile(r"sm_[1-9][0-9]+[af]?")
_M_PROFILE_DSP = ("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m35p", "cortex-m55", "cortex-m85")
_M_PROFILE_MVE = ("cortex-m55", "cortex-m85")
_M_PROFILE = ("cortex-m0", "cortex-m0plus", "cortex-m3", *_M_PROFILE_DSP)
_CL_OPT = re.compile(r"--?[A-Za-z0-9][\w.-]*(?::(?P<type>\w+))?(?:=(?P<value>.+))?", re.DOTALL)
_CL_VALUES = {"bool": r"true|false|0|1", "int": r"-?[0-9]+", "uint": r"[0-9]+", "string": r".*"}


def canonicalize_cuda(attrs: Mapping[str, Any]) -> Canonical:
    """Check the architecture's form, as in `sm_80` or `sm_90a`."""
    arch = attrs.get("arch")
    if arch is not None and not _CUDA_ARCH.fullmatch(arch):
        raise TargetError(f"arch: {arch!r} is no CUDA architecture", hint="write it as in sm_80")
    return Canonical(attrs)


def canonicalize_cpu(attrs: Mapping[str, Any]) -> Canonical:
    """Recognise Arm's M-profile, and check the form of LLVM's options.

    Source:
        Arm Cortex-M comparison table: which cores have the DSP extension and MVE (Helium).
    """
    for index, option in enumerate(attrs.get("cl-opt", ())):
        _check_cl_opt(option, f"cl-opt[{index}]")
    cpu, *modifiers = str(attrs.get("mcpu", "")).split("+")
    if cpu not in _M_PROFILE:
        return Canonical(attrs)
    flags = [f"+{flag}" for flag in modifiers] + list(attrs.get("mattr", ()))
    has_dsp = cpu in _M_PROFILE_DSP and "+nodsp" not in flags and "-dsp" not in flags
    has_mve = has_dsp and cpu in _M_PROFILE_MVE and "+nomve" not in flags and "-mve" not in flags
    features = {"is_m_profile": True, "has_dsp": has_dsp, "has_mve": has_mve}
    return Canonical(attrs, keys=("arm_cpu", "cpu"), features=features)


def _check_cl_opt(option: str, path: str) -> None:
    match = _CL_OPT.fullmatch(option)
    kind, value = (match["type"], match["value"]) if match else (None, None)
    well_formed = match and (kind or "bool") in _CL_VALUES and (value or not kind)
    if not well_formed or (value and not re.fullmatch(_CL_VALUES[kind or "bool"], value)):
        raise TargetError(
            f"{path}: {option!r} is no LLVM option",
            hint="write -name[:bool|int|uint|string][=value]",
        )


CANONICALIZERS: dict[str, Canonicalizer] = {"cpu": canonicalize_cpu, "cuda": canonicalize_cuda}
