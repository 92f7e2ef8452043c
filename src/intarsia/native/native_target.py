# SPDX-License-Identifier: Apache-2.0
"""What native code is generated for, from a target: LLVM's CPU, and the vector unit of kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from intarsia.codegen.unit import (
    DOT_FEATURES,
    Accuracy,
    CpuModel,
    LoweringOptions,
    Requantise,
    WinogradMode,
)
from intarsia.errors import TargetError
from intarsia.native.machine import NativeCpu
from intarsia.native.tiles import usable_tiles
from intarsia.target import Target
from intarsia.target.cpu import NATIVE, host_cpu, host_triple, vector_bits, vector_registers
from intarsia.target.cpu_tables import (
    FAMILIES,
    GENERIC,
    find_family,
    load_table,
    read_flags,
)
from intarsia.target.cpu_there import RUNNER, named_cpu, why_unnamed
from intarsia.target.priority import SAYS_WHICH_CPU, why_elsewhere
from intarsia.target.text import suggest

_NO_FLOAT_CALLS = ("arm", "wasm")
"""Architectures where LLVM's calls of the C library pass floats wrongly, or there is no library."""
_ALWAYS_FUSED = ("aarch64", "riscv")
"""Architectures whose floating-point units multiply and add in one instruction."""
_L1_BYTES, _L2_BYTES = 32 << 10, 512 << 10
"""Caches of a core whose name does not tell them: what most have, or more."""


def target_cpu(target: Target) -> tuple[NativeCpu, CpuModel]:
    """Return what code for a target is generated for, and its vector unit.

    Raises:
        TargetError: The CPU is this machine's and cannot be told; or LLVM does not know it, or one
            of the features, or not together.
    """
    target = _named(target)
    attrs, features = target.attrs, target.features
    triple, cpu = _triple(target), attrs.get("mcpu") or ""
    name = cpu.partition("+")[0]
    family = find_family(triple or host_triple(), None)
    _check_cpu(target, name, family)
    l1_bytes, l2_bytes = _caches(target)
    unit = CpuModel(
        vector_bits(target),
        vector_registers(target) or 16,
        has_fma=bool(features.has_fma) or features.arch in _ALWAYS_FUSED,
        has_half=bool(features.has_f16c) or features.arch == "aarch64",
        l1_bytes=l1_bytes,
        l2_bytes=l2_bytes,
        dots=_fast_dots(features.isa or (), name, family),
        is_small=_is_small(target),
        is_32_bit=_is_32_bit(target, triple),
        calls_with_floats=features.arch not in _NO_FLOAT_CALLS,
    )
    flags = _llvm_flags(target, cpu, family)
    return NativeCpu(triple, name, ",".join(flags)), unit


def _fast_dots(features: Collection[str], name: str, family: str | None) -> tuple[str, ...]:
    """Return the features with dot products that a CPU has and that are worth using.

    Intel's cores with tiles do a quarter as many `vdpbf16ps` as multiply-adds of float32, so half
    the products (1.35 and 5.2 thousand million a second on Emerald Rapids); AMD's do as many.
    """
    is_slow = family == "x86" and "amx-tile" in load_table(family).features(name)
    slow = ("avx512bf16",) if is_slow else ()
    return tuple(item for item in DOT_FEATURES if item in features and item not in slow)


def target_features(target: Target) -> frozenset[str]:
    """Return LLVM's names of the features of a target's CPU; none where no CPU is known."""
    return frozenset(_named(target).features.isa or ())


def _named(target: Target) -> Target:
    """Return a target whose CPU is named: this machine's, where none is."""
    if target.attrs.get("mcpu") is not None or target.attrs.get("mtriple") is not None:
        return target
    given = {name: target.attrs[name] for name in ("mattr", "l2-cache") if name in target.attrs}
    return Target({"kind": "llvm", "mcpu": NATIVE, **given})


def _caches(target: Target) -> tuple[int, int]:
    """Return the bytes of a target's first and second cache; one that has no second has the first.

    What is not known is what most have.
    """
    features = target.features
    first = features.l1_bytes or _L1_BYTES
    second = _L2_BYTES if features.l2_bytes is None else features.l2_bytes
    return first, target.attrs.get("l2-cache") or second or first


def _is_32_bit(target: Target, triple: str) -> bool:
    """Tell whether addresses have 32 bits."""
    features = target.features
    return features.arch == "arm" or features.is_64_bit is False or triple.startswith("wasm32")


def _check_cpu(target: Target, name: str, family: str | None) -> None:
    """Check that LLVM knows a CPU, and for the architecture of the triple."""
    families = [other for other in FAMILIES if name in load_table(other).cpus]
    if not name or family in families or name == host_cpu().name:
        return
    if not families:
        message = f"mcpu: no CPU is called {name!r}"
        hint = "name one that LLVM has, as in -mcpu=x86-64-v3, or leave it out for this machine"
    else:
        triple = target.attrs.get("mtriple") or host_triple()
        message = f"mcpu: {name!r} is a CPU of {_listed(families)}, but mtriple is {triple!r}"
        hint = "leave one of them out"
    raise TargetError(message, target=str(target), hint=hint)


def _llvm_flags(target: Target, cpu: str, family: str | None) -> tuple[str, ...]:
    """Return the features asked for as LLVM wants them: it prints those that it does not know.

    Raises:
        TargetError: One is unknown, of another architecture, or needed by all code.
    """
    mattr = target.attrs.get("mattr") or ()
    if family is None:
        return (*read_flags(cpu, ()), *mattr)
    table = load_table(family)
    flags = []
    for attribute, texts in (("mcpu", read_flags(cpu, (), table.knows)), ("mattr", mattr)):
        for flag in read_flags("", texts, table.knows):
            name = flag[1:]
            if not table.knows(name):
                _fail_feature(target, f"{attribute}: {flag!r}", name, family)
            needed = _NEEDED.get(family)
            if flag[0] == "-" and needed and needed not in table.features(GENERIC, (flag,)):
                raise TargetError(
                    f"{attribute}: {flag!r} leaves code for {family} without {needed}",
                    target=str(target),
                    hint="all 64-bit code needs that for floating-point numbers: leave it out",
                )
            flags.append(f"{flag[0]}{table.spelled(name)}")
    return tuple(flags)


_NEEDED = {"x86": "sse2", "aarch64": "fp-armv8"}
"""What calls of 64-bit code pass floats in."""


def _fail_feature(target: Target, what: str, name: str, family: str) -> NoReturn:
    others = [other for other in FAMILIES if load_table(other).has_feature(name)]
    if others:
        message = f"{what} is a feature of {_listed(others)}, not of {family}"
        hint = "leave it out, or name the machine that has it: -mtriple= or -mcpu="
    else:
        message = f"{what} is not a feature of {family} that code can be made for"
        hint = suggest(name, sorted(load_table(family).implies), what="features")
    raise TargetError(message, target=str(target), hint=hint)


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def check_here(target: Target) -> tuple[str, ...]:
    """Check that code for a target can be run: by this machine, or by the one of its runner.

    Returns:
        The names of the attributes that change nothing.

    Raises:
        TargetError: An attribute means another machine, contradicts another one, or is unknown;
            the message starts with its name.
    """
    attrs = target.attrs
    cpu, unit = target_cpu(target)
    if "mcpu" not in attrs and "mtriple" not in attrs:
        if attrs.get(RUNNER):
            raise _unnamed(target, why_elsewhere(target) or "no CPU is named")
        vague = next((name for name in SAYS_WHICH_CPU if name in attrs), "keys")
        raise TargetError(
            f"{vague}: it may mean another machine than this one, and no CPU is named",
            target=str(target),
            hint=f"add -mcpu=native if it is this machine, or leave -{vague} out",
        )
    family = target.features.arch
    for name in ("mfloat-abi", "mabi"):
        if name in attrs and family not in _WITH_CHOICE[name]:
            raise TargetError(
                f"{name}: {attrs[name]!r} is a choice of {_listed(_WITH_CHOICE[name])}, not of "
                f"{family}",
                target=str(target),
                hint="leave it out",
            )
    if attrs.get(RUNNER):
        _check_system(target)
    problem = "" if attrs.get(RUNNER) else why_not_here(cpu)
    if problem:
        raise TargetError(
            f"{_to_blame(target, cpu)}: the code could not run here: {problem}",
            target=str(target),
            hint="say how that machine is reached (-runner=), plan for it with "
            "`intarsia plan absent`, or write code for it with `intarsia compile --emit shared`",
        )
    _has_half_weights(target, unit)
    return tuple(name for name in attrs if name in _UNUSED)


_WITH_CHOICE = {"mfloat-abi": ("arm",), "mabi": ("arm", "riscv")}
"""Architectures with several binary interfaces."""

_UNUSED = frozenset(
    (
        "opt-level",
        "cl-opt",
        "fast-math",
        "fast-math-nnan",
        "fast-math-ninf",
        "fast-math-nsz",
        "fast-math-arcp",
        "fast-math-contract",
        "fast-math-reassoc",
        "mfloat-abi",
        "mabi",
    )
)
"""Attributes that change nothing: kernels are optimised here, and round as written; none passes or
returns a number."""


def _to_blame(target: Target, cpu: NativeCpu) -> str:
    """Return which attribute says what this machine is not."""
    if not is_platform_here(cpu.triple):
        return "mtriple" if "mtriple" in target.attrs else "mcpu"
    family = find_family(cpu.triple or host_triple(), None)
    needed = load_table(family).features(cpu.name) if family else frozenset()
    return "mcpu" if needed - host_cpu().features else "mattr"


def cpu_behind_runner(target: Target) -> NativeCpu:
    """Return what C is compiled for on the machine of a target's runner.

    Raises:
        TargetError: The target has no runner; or its machine is a microcontroller, which no program
            can be carried to; or nothing says which CPU it has.
    """
    attrs = target.attrs
    runner = attrs.get(RUNNER)
    if not runner:
        raise TargetError(
            f"{RUNNER}: C is compiled for other machines, and the target does not say how its own "
            "is reached",
            target=str(target),
            hint=f"add -{RUNNER}=here for this machine, an emulator's command or ssh://HOST; to "
            "write the C, `intarsia compile --emit c`, as intarsia.export.export_c does",
        )
    _check_system(target)
    if attrs.get("mcpu") or attrs.get("mtriple"):
        return target_cpu(target)[0]
    problem = why_unnamed(runner)
    if problem:
        raise _unnamed(target, problem)
    return NativeCpu(str(named_cpu(runner).attrs.get("mtriple") or ""))


def _check_system(target: Target) -> None:
    """Check that programs can be carried to a target's machine.

    Raises:
        TargetError: It is a microcontroller.
    """
    attrs = target.attrs
    if target.features.is_m_profile or "-none" in (attrs.get("mtriple") or ""):
        raise TargetError(
            f"{RUNNER}: {attrs.get('mcpu') or attrs['mtriple']} has no operating system: there is "
            "nowhere to put a file, and nothing that starts a program",
            target=str(target),
            hint="write one program for the board with `intarsia compile --emit c`; "
            "examples/microcontroller builds it and runs it under qemu-system-arm",
        )


def _unnamed(target: Target, why: str) -> TargetError:
    return TargetError(
        f"{RUNNER}: {why}",
        target=str(target),
        hint="name it, as in -mtriple=aarch64-linux-gnu -mcpu=cortex-a76; -mcpu=native if it is "
        "like this machine's",
    )


def target_threads(target: Target, num_threads: int) -> int:
    """Return how many threads run code for a target, of those that one run may use here.

    A machine behind a runner has its own: as many as `num-cores` says.
    """
    if target.features.is_m_profile:  # without an operating system
        return 1
    if target.attrs.get(RUNNER):
        return int(target.attrs.get("num-cores") or 1)
    return min(num_threads, target.attrs.get("num-cores") or num_threads)


_PLAIN_BITS, _PLAIN_REGISTERS = 128, 16
"""Vectors that C is written for where the target names no CPU: those of every 64-bit one."""


def tiles_for(target: Target, caches: Path) -> tuple[str, ...]:
    """Return the features of tiles that kernels for a target may use: of this machine alone.

    Args:
        target: Of native code, or of C.
        caches: The folder of all caches, where the verdict on this machine's tiles is kept.

    Raises:
        TargetError: As `target_cpu`.
    """
    if not target.kind.is_native or target.attrs.get(RUNNER):
        return ()
    if why_not_here(target_cpu(target)[0]):
        return ()
    tiles = usable_tiles(target_features(target), caches)
    is_bf16 = target.attrs.get("precision") == "bf16"  # bytes lose nothing, so nobody is asked
    return tuple(name for name in tiles if is_bf16 or name != _BFLOAT16_TILES)


_BFLOAT16_TILES = "amx-bf16"


def lowering_options(target: Target, caches: Path | None = None) -> LoweringOptions:
    """Return how regions are lowered for a target of native code, or of C.

    Args:
        target: What kernels are for.
        caches: The folder of all caches, for kernels that this process may run: they use the tiles
            that it may (`tiles_for`). Without it, kernels use none, as those of a library do.

    Raises:
        TargetError: As `target_cpu`; or large weights are to be float16, and the CPU converts no
            vectors of it.
    """
    if target.kind.is_native:
        _, unit = target_cpu(target)
        if caches is not None:
            unit = replace(unit, tiles=tiles_for(target, caches))
    else:
        # Compilers make no vectors of floats with MVE, whose denormals are zero; and of codes gcc
        # makes code that is no faster, and takes more of the stack.
        is_small = _is_small(target)
        l1_bytes, l2_bytes = _caches(target)
        width = 0 if is_small else target.features.vector_width
        unit = CpuModel(
            _PLAIN_BITS if width is None else width,
            vector_registers(target) or _PLAIN_REGISTERS,
            l1_bytes=l1_bytes,
            l2_bytes=l2_bytes,
            is_small=is_small,
        )
    winograd = WinogradMode(target.attrs.get("winograd") or WinogradMode.AUTO)
    accuracy = Accuracy(target.attrs.get("accuracy") or Accuracy.MODEL)
    is_bf16 = target.attrs.get("precision") == "bf16"
    half_weights = _has_half_weights(target, unit)
    requantise = Requantise(target.attrs.get("requantise") or Requantise.ONNX)
    return LoweringOptions(unit, winograd, half_weights, accuracy, is_bf16, requantise)


def _is_small(target: Target) -> bool:
    """Tell whether a target is a microcontroller, where memory counts first."""
    return "mclass" in (target.features.isa or ())


def _has_half_weights(target: Target, unit: CpuModel) -> bool:
    """Tell whether large weights may be kept as float16.

    Raises:
        TargetError: The target asks for it, and its CPU converts no vectors of float16.
    """
    if target.attrs.get("weights") != "f16":
        return False
    if not unit.has_half:
        raise TargetError(
            "-weights=f16 needs a CPU that converts vectors of float16",
            target=str(target),
            hint="leave it out, or name a CPU with f16c, as in -mcpu=haswell",
        )
    return True


def _triple(target: Target) -> str:
    """Return the triple of a target; empty for this machine's, if its CPUs are of one family."""
    given, name = target.attrs.get("mtriple"), target.attrs.get("mcpu") or ""
    family = find_family(None, name.partition("+")[0])
    if given or family in (None, find_family(host_triple(), None)):
        return given or ""
    return _arm_triple(target.features.isa) if family == "arm" else _TRIPLES[family]


_TRIPLES = {
    "x86": "x86_64-unknown-linux-gnu",
    "aarch64": "aarch64-unknown-linux-gnu",
    "riscv": "riscv64-unknown-linux-gnu",
}
"""What a CPU of a family is taken for if no triple is given."""


def _arm_triple(isa: Collection[str]) -> str:
    """Return what a 32-bit CPU of Arm is taken for: without memory management it has no Linux."""
    if "mclass" in isa:
        core = next(core for feature, core in _M_CORES if feature in isa)
        return f"thumb{'v7em' if core == 'v7m' and 'dsp' in isa else core}-none-eabi"
    if "rclass" in isa:
        return f"armv{8 if 'v8' in isa else 7}r-none-eabi"
    return f"armv{7 if 'v7' in isa else 6}-unknown-linux-gnueabihf"


_M_CORES = (
    ("v8.1m.main", "v8.1m.main"),
    ("v8m.main", "v8m.main"),
    ("v7", "v7m"),
    ("v8m", "v8m.base"),
    ("v6m", "v6m"),
)
"""Feature and sub-architecture of the M profile, the latest first."""


def why_not_here(cpu: NativeCpu) -> str:
    """Say why this machine cannot run code for a CPU; empty if it can."""
    here = host_cpu()
    if not is_platform_here(cpu.triple):
        return f"it is for {cpu.triple}, and this machine is {here.triple}"
    family = find_family(cpu.triple or here.triple, None)
    flags = [flag for flag in cpu.features.split(",") if flag]
    needed = load_table(family).features(cpu.name, flags) if family else frozenset()
    missing = sorted(needed - here.features)
    if not missing:
        return ""
    return f"it is for {cpu.name}, and this CPU ({here.name}) lacks {', '.join(missing)}"


def is_platform_here(triple: str) -> bool:
    """Tell whether a triple has this machine's architecture and system; an empty one has."""
    return not triple or _platform(triple) == _platform(host_cpu().triple)


def _platform(triple: str) -> tuple[str | None, bool, str]:
    """Return a triple's architecture, whether it has 64 bits, and the operating system."""
    first, _, rest = triple.partition("-")
    system = next((name for name in _SYSTEMS if name in rest), rest)
    return find_family(triple, None), "64" in first, "darwin" if system == "macos" else system


_SYSTEMS = ("linux", "windows", "darwin", "macos")
