# SPDX-License-Identifier: Apache-2.0
"""Kinds that make code for CPUs: what their CPU has, from the bundled tables."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from intarsia.errors import TargetError
from intarsia.target import cpu as machine
from intarsia.target.canonical import arm, riscv, x86
from intarsia.target.cpu_tables import GENERIC, find_family, load_table, read_flags
from intarsia.target.kind import Canonical

_CL_OPT = re.compile(r"--?[A-Za-z0-9][\w.-]*(?::(?P<type>\w+))?(?:=(?P<value>.+))?", re.DOTALL)
_CL_VALUES = {"bool": r"true|false|0|1", "int": r"-?[0-9]+", "uint": r"[0-9]+", "string": r".*"}
_DESCRIBE: Mapping[str, Callable[[frozenset[str], str], dict[str, Any]]] = {
    "x86": x86.describe,
    "aarch64": arm.describe_aarch64,
    "arm": arm.describe_arm,
    "riscv": riscv.describe,
}


def canonicalize_llvm(attrs: Mapping[str, Any]) -> Canonical:
    """Check the form of LLVM's options, and do what is done for every CPU.

    `generic` without a triple is the baseline of this machine's architecture: the triple is added.
    """
    for index, option in enumerate(attrs.get("cl-opt", ())):
        _check_cl_opt(option, f"cl-opt[{index}]")
    if _base_name(attrs) == GENERIC and not attrs.get("mtriple"):
        attrs = {**attrs, "mtriple": machine.host_triple()}
    return canonicalize_cpu(attrs)


def canonicalize_cpu(attrs: Mapping[str, Any]) -> Canonical:
    """Name the CPU that `native` means, and say what the CPU has.

    A target without a CPU and without a triple is left alone: it says nothing about a machine.
    """
    attrs = _with_native(attrs)
    cpu, triple, flags = attrs.get("mcpu", ""), attrs.get("mtriple", ""), attrs.get("mattr", ())
    if not cpu and not triple:
        cpu, triple, flags = _read_march(attrs.get("march", ""), flags)
    features = _features(cpu, triple, flags)
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
    known = load_table(family).knows if family else None
    mattr = (*here.mattr, *read_flags(attrs["mcpu"], (), known))
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
    if family is None:
        return {"cpu_known": False} if name not in ("", GENERIC) else {}
    table = load_table(family)
    flags = read_flags(cpu, mattr, table.knows)
    implied = arm.triple_flags(triple) if family == "arm" and name in ("", GENERIC) else ()
    isa = table.features(name, (*implied, *flags))
    if family in ("arm", "aarch64"):
        isa = arm.restrict(isa, flags)
    known = {"cpu_known": name in table.cpus} if name else {}
    described = _DESCRIBE[family](isa, triple)
    return {**known, "arch": family, "isa": tuple(sorted(isa)), **described}


def _read_march(march: str, mattr: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """Read the C compilers' `-march`, a CPU's name or an ISA, as a CPU, a triple and flags."""
    if march.startswith("rv"):
        cpu, flags = riscv.read_march(march)
        return cpu, "", (*flags, *mattr)
    if march.startswith("armv"):
        triple, flags = arm.read_march(march)
        return "", triple, (*flags, *mattr)
    return (march, "", mattr) if find_family(None, march) else ("", "", mattr)


def _check_cl_opt(option: str, path: str) -> None:
    match = _CL_OPT.fullmatch(option)
    kind, value = (match["type"], match["value"]) if match else (None, None)
    well_formed = match and (kind or "bool") in _CL_VALUES and (value or not kind)
    if not well_formed or (value and not re.fullmatch(_CL_VALUES[kind or "bool"], value)):
        raise TargetError(
            f"{path}: {option!r} is no LLVM option",
            hint="write -name[:bool|int|uint|string][=value]",
        )
