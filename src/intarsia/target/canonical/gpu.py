# SPDX-License-Identifier: Apache-2.0
"""Kinds that make code for GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from intarsia.errors import TargetError
from intarsia.target.kind import Canonical

NVPTX_TRIPLE = "nvptx64-nvidia-cuda"
ROCM_TRIPLE = "amdgcn-amd-amdhsa-hcc"
_NVIDIA_ARCH = re.compile(r"sm_(?P<number>[1-9][0-9]{1,2})[af]?")
_AMD_ARCH = re.compile(r"gfx[1-9][0-9]{1,3}[0-9a-f](:[a-z]+[+-])*|gfx[1-9][0-9-]*-generic")
_ROCM_SPELLINGS = ("amdgcn-amd-amdhsa",)


def canonicalize_cuda(attrs: Mapping[str, Any]) -> Canonical:
    """Check the architecture's form, as in `sm_80` or `sm_90a`."""
    return Canonical(attrs, features=_nvidia_features(attrs, "arch"))


def canonicalize_nvptx(attrs: Mapping[str, Any]) -> Canonical:
    """Fill in the triple, and check the architecture's form."""
    features = _nvidia_features(attrs, "mcpu")
    return Canonical(_with_triple(attrs, NVPTX_TRIPLE), features=features)


def canonicalize_rocm(attrs: Mapping[str, Any]) -> Canonical:
    """Fill in the triple, and check the architecture's form, as in `gfx90a`."""
    arch = attrs.get("mcpu")
    if arch is not None and not _AMD_ARCH.fullmatch(arch):
        raise TargetError(f"mcpu: {arch!r} is no AMD architecture", hint="write it as in gfx90a")
    features = {"arch": arch.partition(":")[0]} if arch else {"missing": ("mcpu",)}
    return Canonical(_with_triple(attrs, ROCM_TRIPLE, _ROCM_SPELLINGS), features=features)


def canonicalize_webgpu(attrs: Mapping[str, Any]) -> Canonical:
    """Check that sub-groups are there if they are counted on."""
    if attrs["thread_warp_size"] > 1 and not attrs["supports_subgroups"]:
        raise TargetError(
            f"thread_warp_size: {attrs['thread_warp_size']} needs sub-groups",
            hint="add -supports_subgroups",
        )
    return Canonical(attrs)


def _nvidia_features(attrs: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Say what an architecture has; without one, what compiling will ask for.

    Source:
        NVIDIA CUDA C++ Programming Guide, features by compute capability.
    """
    arch = attrs.get(name)
    if arch is None:
        return {"missing": (name,)}
    match = _NVIDIA_ARCH.fullmatch(arch)
    if match is None:
        raise TargetError(f"{name}: {arch!r} is no CUDA architecture", hint="write it as in sm_80")
    capability = int(match["number"])
    return {
        "arch": arch,
        "compute_capability": capability,
        "has_integer_dot_product": capability >= 61,  # noqa: PLR2004 - facts of the guide
        "has_tensor_cores": capability >= 70,  # noqa: PLR2004
        "has_bf16": capability >= 80,  # noqa: PLR2004
        "has_fp8": capability >= 89,  # noqa: PLR2004
    }


def _with_triple(
    attrs: Mapping[str, Any], triple: str, spellings: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    given = attrs.get("mtriple", triple)
    if given not in (triple, *spellings):
        raise TargetError(f"mtriple: {given!r} has to be {triple!r}", hint="leave it out")
    return {**attrs, "mtriple": triple}
