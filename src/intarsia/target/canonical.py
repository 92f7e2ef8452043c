# SPDX-License-Identifier: Apache-2.0
"""Canonicalisers of the catalogue's kinds, by the name that the catalogue calls them.

They check what a type cannot, fill in what follows from the rest, and derive keys and features.
Every one is idempotent.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from intarsia.errors import TargetError
from intarsia.target import cpu as machine
from intarsia.target.architectures import (
    DESCRIBE,
    arm_triple_flags,
    describe_wasm,
    read_arm_march,
    read_riscv_march,
    restrict_arm,
)
from intarsia.target.caches import cpu_caches, untold_caches
from intarsia.target.cpu_tables import GENERIC, find_family, load_table, read_flags
from intarsia.target.kind import Canonical, Canonicalizer

_CL_OPT = re.compile(r"--?[A-Za-z0-9][\w.-]*(?::(?P<type>\w+))?(?:=(?P<value>.+))?", re.DOTALL)
_CL_VALUES = {"bool": r"true|false|0|1", "int": r"-?[0-9]+", "uint": r"[0-9]+", "string": r".*"}
NVPTX_TRIPLE = "nvptx64-nvidia-cuda"
ROCM_TRIPLE = "amdgcn-amd-amdhsa-hcc"
# `sm_90a` and `sm_100f`: features of one GPU or family alone; the original refused them until 2024
# (row 54).
_NVIDIA_ARCH = re.compile(r"sm_(?P<number>[1-9][0-9]{1,2})[af]?")
# Hexadecimal at its end, as gfx90a is, which the original refused (row 56).
_AMD_ARCH = re.compile(r"gfx[1-9][0-9]{1,3}[0-9a-f](:[a-z]+[+-])*|gfx[1-9][0-9-]*-generic")
_ROCM_SPELLINGS = ("amdgcn-amd-amdhsa",)
_HEXAGON_VERSIONS = (
    "v60", "v62", "v65", "v66", "v67", "v67t", "v68", "v69", "v71", "v71t", "v73", "v75", "v79",
    "v81",
)  # fmt: skip
_HEXAGON = "hexagon"
_HVX_LENGTH = re.compile(r"\+hvx-length(64|128)b")


def canonicalize_llvm(attrs: Mapping[str, Any]) -> Canonical:
    """Check the form of LLVM's options, and do what is done for every CPU.

    `generic` without a triple is the baseline of this machine's architecture: the triple is added.
    Where the name of a `native` CPU does not tell its caches, this machine does.
    """
    for index, option in enumerate(attrs.get("cl-opt", ())):
        _check_cl_opt(option, f"cl-opt[{index}]")
    if _base_name(attrs) == GENERIC and not attrs.get("mtriple"):
        attrs = {**attrs, "mtriple": machine.host_triple()}
    is_native = _base_name(attrs) == machine.NATIVE
    canonical = canonicalize_cpu(attrs)
    if not is_native:
        return canonical
    here = untold_caches(_base_name(canonical.attrs))
    return replace(canonical, attrs={**here, **canonical.attrs}) if here else canonical


def canonicalize_cpu(attrs: Mapping[str, Any]) -> Canonical:
    """Name the CPU that `native` means, and say what the CPU has.

    A target without a CPU and without a triple is left alone: it says nothing about a machine.
    """
    attrs = _with_native(attrs)
    cpu, triple, flags = attrs.get("mcpu", ""), attrs.get("mtriple", ""), attrs.get("mattr", ())
    # `-march` is read last: what names a CPU or a triple says more.
    if not cpu and not triple:
        cpu, triple, flags = _read_march(attrs.get("march", ""), flags)
    features = _features(cpu, triple, flags)
    # Both, or ARM targets get schedules for x86 (rows 40 and 60).
    keys = ("arm_cpu", "cpu") if features.get("arch") in ("arm", "aarch64") else ()
    return Canonical(attrs, keys=keys, features=features, needed_keys=keys)


def _with_native(attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    if _base_name(attrs) != machine.NATIVE:
        return attrs
    here, triple = machine.host_cpu(), attrs.get("mtriple")
    family = find_family(here.triple, None)
    if triple and find_family(triple, None) != family:
        raise TargetError(
            f"mcpu: {machine.NATIVE!r} is this machine's CPU, of {here.triple}, not of {triple}",
            hint="name the CPU, or leave out mtriple",
        )
    resolved = {**attrs, "mcpu": here.name}
    feature_names = load_table(family).knows if family else None
    mattr = (*here.mattr, *read_flags(attrs["mcpu"], (), feature_names))
    if mattr:
        resolved["mattr"] = (*mattr, *attrs.get("mattr", ()))
    if not triple and find_family(None, here.name) != family:
        resolved["mtriple"] = here.triple  # the name alone does not say the architecture
    return resolved


def _base_name(attrs: Mapping[str, Any]) -> str:
    """Return the name of the CPU without flags, as in `native+noavx512f`."""
    return str(attrs.get("mcpu", "")).partition("+")[0]


@functools.lru_cache(maxsize=512)
def _features(cpu: str, triple: str, mattr: tuple[str, ...]) -> Mapping[str, Any]:
    name = cpu.partition("+")[0]
    family = find_family(triple, name)
    if family is None and triple.startswith("wasm"):
        return describe_wasm(mattr)
    if family is None:
        return {"cpu_known": False} if name not in ("", GENERIC) else {}
    table = load_table(family)
    flags = read_flags(cpu, mattr, table.knows)
    implied = arm_triple_flags(triple) if family == "arm" and name in ("", GENERIC) else ()
    isa = table.features(name, (*implied, *flags))
    if family in ("arm", "aarch64"):
        isa = restrict_arm(isa, flags)
    recognised: dict[str, Any] = {"cpu_known": name in table.cpus} if name else {}
    caches = cpu_caches(name)
    if caches is not None:
        recognised["l1_bytes"], recognised["l2_bytes"] = caches
    described = DESCRIBE[family](isa, triple)
    return {**recognised, "arch": family, "isa": tuple(sorted(isa)), **described}


def _read_march(march: str, mattr: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """Read the C compilers' `-march`, a CPU's name or an ISA, as a CPU, a triple and flags."""
    if march.startswith("rv"):
        cpu, flags = read_riscv_march(march)
        return cpu, "", (*flags, *mattr)
    if march.startswith("armv"):
        triple, flags = read_arm_march(march)
        return "", triple, (*flags, *mattr)
    return (march, "", mattr) if find_family(None, march) else ("", "", mattr)


def _check_cl_opt(option: str, path: str) -> None:
    match = _CL_OPT.fullmatch(option)
    kind, value = (match["type"], match["value"]) if match else (None, None)
    well_formed = match and (kind or "bool") in _CL_VALUES and (value or not kind)
    if not well_formed or (value and not re.fullmatch(_CL_VALUES[kind or "bool"], value)):
        raise TargetError(
            f"{path}: {option!r} is not an LLVM option",
            hint="write -name[:bool|int|uint|string][=value]",
        )


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
        raise TargetError(
            f"mcpu: {arch!r} is not an AMD architecture", hint="write it as in gfx90a"
        )
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
    """Return the features of an architecture; without one, the attributes that compiling needs.

    Source:
        NVIDIA CUDA C++ Programming Guide, features by compute capability.
    """
    arch = attrs.get(name)
    if arch is None:
        return {"missing": (name,)}
    match = _NVIDIA_ARCH.fullmatch(arch)
    if match is None:
        raise TargetError(
            f"{name}: {arch!r} is not a CUDA architecture", hint="write it as in sm_80"
        )
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
    written = attrs.get("mtriple", triple)
    if written not in (triple, *spellings):
        raise TargetError(f"mtriple: {written!r} has to be {triple!r}", hint="leave it out")
    return {**attrs, "mtriple": triple}


def canonicalize_hexagon(attrs: Mapping[str, Any]) -> Canonical:
    """Spell the CPU as LLVM does, and say which vectors it has.

    Source:
        LLVM 22, Hexagon.td: names of CPUs; HVX is used only if `+hvx...` asks for it.
    """
    rewritten = {**attrs, "mtriple": attrs.get("mtriple", _HEXAGON)}
    cpu = attrs.get("mcpu")
    if cpu is not None:
        version = cpu.removeprefix(_HEXAGON)
        if version not in _HEXAGON_VERSIONS:
            raise TargetError(
                f"mcpu: {cpu!r} is not a Hexagon processor",
                hint=f"versions: {', '.join(_HEXAGON_VERSIONS)}",
            )
        rewritten["mcpu"] = f"{_HEXAGON}{version}"
    mattr = attrs.get("mattr", ())
    lengths = [match for match in map(_HVX_LENGTH.fullmatch, mattr) if match]
    width = 8 * int(lengths[-1][1]) if lengths else 0
    features = {
        "has_hvx": any(flag.startswith("+hvx") for flag in mattr),
        "vector_width": width,
        "vector_registers": 32 if width else 0,
    }
    return Canonical(rewritten, features=features)


def canonicalize_test(attrs: Mapping[str, Any]) -> Canonical:
    """Set the feature that tells tests that features reach them."""
    return Canonical(attrs, features={"is_test": True})


CANONICALIZERS: dict[str, Canonicalizer] = {
    "cpu": canonicalize_cpu,
    "cuda": canonicalize_cuda,
    "hexagon": canonicalize_hexagon,
    "llvm": canonicalize_llvm,
    "nvptx": canonicalize_nvptx,
    "rocm": canonicalize_rocm,
    "test": canonicalize_test,
    "webgpu": canonicalize_webgpu,
}
