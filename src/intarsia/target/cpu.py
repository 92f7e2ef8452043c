# SPDX-License-Identifier: Apache-2.0
"""The CPU of this machine, and what code generation asks of a target's CPU."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from intarsia.errors import SettingError, TargetError
from intarsia.target.cpu_tables import FAMILIES, find_family, load_table, read_flags

if TYPE_CHECKING:
    from intarsia.target.target import Target

NATIVE = "native"
"""What `-mcpu` says for the CPU of this machine."""


@dataclass(frozen=True, slots=True)
class LlvmCpu:
    """A CPU as LLVM sees it.

    Attributes:
        name: LLVM's name of the model.
        mattr: Features that it has or lacks unlike LLVM's table for that name, as in `-avx512f`.
        features: All features that compiled code may use.
        triple: Of programs for it.
    """

    name: str
    mattr: tuple[str, ...]
    features: frozenset[str]
    triple: str


def has_llvm() -> bool:
    """Tell whether LLVM is installed, without loading it."""
    try:
        return find_spec("llvmlite") is not None
    except ValueError:  # it is being replaced by something that has no specification
        return False


@functools.cache
def host_cpu() -> LlvmCpu:
    """Return the CPU of this machine, as the operating system lets programs use it.

    Raises:
        TargetError: llvmlite is not installed.
    """
    name, triple, flags = _host_facts()
    family = find_family(triple, None)
    if family is None:
        return LlvmCpu(name, (), frozenset(), triple)
    table = load_table(family)
    here = {flag[1:]: flag[0] == "+" for flag in flags.split(",") if flag[1:] in table.implies}
    is_known = name in table.cpus
    expected = table.features(name)
    # Only differences to LLVM's table: of a CPU that a hypervisor has taken AVX-512 from,
    # `-avx512f`.
    mattr = tuple(
        f"{'+' if has else '-'}{key}"
        for key, has in sorted(here.items())
        if not is_known or has != (key in expected)
    )
    return LlvmCpu(name, mattr, table.features(name, mattr), triple)


def foreign_features(mattr: Iterable[str]) -> tuple[str, ...]:
    """Return the features, of flags such as `+neon`, that only CPUs of other architectures have.

    Raises:
        TargetError: llvmlite is not installed.
    """
    names = [flag[1:] for flag in read_flags("", mattr)]
    family = find_family(host_cpu().triple, None) if names else None
    others = [load_table(other) for other in FAMILIES if names and other != family]
    here = load_table(family) if family else None
    return tuple(
        name
        for name in names
        if not (here and here.has_feature(name)) and any(t.has_feature(name) for t in others)
    )


def host_triple() -> str:
    """Return the triple of this process.

    Raises:
        TargetError: llvmlite is not installed.
    """
    return _host_facts().triple


def vector_bits(target: Target) -> int:
    """Return the width of the target's vector registers in bits; 0 for none, or if not known.

    Of those of variable width it is what every such CPU has: 128 bits for SVE, VLEN for RISC-V.
    """
    width: int = target.features.vector_width or 0
    return width


def vector_registers(target: Target) -> int:
    """Return the number of the target's vector registers; 0 for none, or if not known."""
    count: int = target.features.vector_registers or 0
    return count


class _HostFacts(NamedTuple):
    """What LLVM says of this machine: its CPU, the triple of this process, flags with commas."""

    name: str
    triple: str
    flags: str


@functools.cache
def _host_facts() -> _HostFacts:
    """Return what LLVM says of this machine.

    It is remembered for a CPU and a version of llvmlite, whose import takes a tenth of a start.
    """
    from intarsia.cache import make_cache_folder, write_entry
    from intarsia.cpu_text import cpu_text
    from intarsia.hashing import digest
    from intarsia.settings import Settings

    version = _import("llvmlite").__version__
    try:
        caches = Settings.from_environment().cache_folder()
    except SettingError:
        return _ask(_import("llvmlite.binding"))
    note = caches / "installed" / f"cpu-{digest((cpu_text(), version))}"
    with suppress(OSError, ValueError, TypeError):
        return _HostFacts(*note.read_text("ascii").splitlines())
    facts = _ask(_import("llvmlite.binding"))
    with suppress(OSError, SettingError):
        make_cache_folder(caches)
        write_entry(note, "\n".join(facts).encode())
    return facts


def _ask(llvm: Any) -> _HostFacts:
    flags = (f"{'+' if has else '-'}{name}" for name, has in llvm.get_host_cpu_features().items())
    return _HostFacts(llvm.get_host_cpu_name(), llvm.get_process_triple(), ",".join(flags))


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise TargetError(
            f"cannot tell the CPU of this machine: llvmlite is missing ({error})",
            hint="pip install llvmlite, or name the CPU: -mcpu=NAME",
        ) from None
