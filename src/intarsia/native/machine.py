# SPDX-License-Identifier: Apache-2.0
"""From the text of LLVM IR to machine code, and from that to addresses in this process.

This and the target system's look-up of the host CPU are the only places that know llvmlite.
Compiling yields object files as bytes; linking is separate, so that objects can come from a cache
or from other processes. A start whose objects are in the cache imports no more than this module.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from intarsia.errors import BackendError


@dataclass(frozen=True, slots=True)
class NativeCpu:
    """What code is generated for.

    Attributes:
        triple: LLVM's target triple; empty means this machine's.
        name: LLVM's name of the CPU.
        features: Features with `+` or `-`, separated by commas, in addition to the name's.
    """

    triple: str = ""
    name: str = ""
    features: str = ""


@cache
def driver() -> Any:
    """Import llvmlite's binding and initialise every target.

    Raises:
        BackendError: llvmlite is not installed.
    """
    try:
        import llvmlite.binding as llvm
    except ImportError as error:
        raise _missing(error) from error
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    return llvm


def _missing(error: ImportError) -> BackendError:
    return BackendError(
        f"the native code generator is not available: {error}",
        backend="llvm",
        hint="pip install llvmlite",
    )


@cache
def ir_layer() -> Any:
    """Import what llvmlite builds LLVM IR with; see `driver`."""
    driver()
    from llvmlite import ir

    return ir


def generator_version() -> str:
    """Return what objects in a cache are told apart by: llvmlite's version, which says LLVM's.

    LLVM itself is not loaded for it.

    Raises:
        BackendError: llvmlite is not installed.
    """
    try:
        import llvmlite
    except ImportError as error:
        raise _missing(error) from error
    return f"llvmlite {llvmlite.__version__}"


def llvm_version() -> str:
    """Return LLVM's version.

    Raises:
        BackendError: llvmlite is not installed.
    """
    return ".".join(map(str, driver().llvm_version_info))


def triple_words(triple: str) -> tuple[str, str, str]:
    """Return the architecture, the system and the environment that LLVM reads in a triple.

    Returns:
        LLVM's words, as in `("arm", "linux", "gnueabihf")`; empty where the triple says nothing.

    Raises:
        BackendError: llvmlite is not installed.
    """
    parts = driver().get_triple_parts(triple)
    words = (parts.Arch, parts.OS, parts.Env)
    architecture, system, environment = ("" if word == "unknown" else word for word in words)
    return architecture, system, environment


@cache
def target_machine(cpu: NativeCpu) -> Any:
    """Return LLVM's target machine; its code is position-independent where there is a system.

    Raises:
        BackendError: LLVM does not know the triple.
    """
    llvm = driver()
    triple = cpu.triple or llvm.get_process_triple()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise BackendError(f"LLVM cannot generate code: {error}", backend="llvm") from error
    features = cpu.features
    if triple.startswith(("x86_64", "amd64")):  # without it LLVM ends the process
        features = f"{features},+64bit".lstrip(",")
    # llvmlite's default code model is for its own loader, not for object files; RISC-V needs
    # `medium`, and the name of its ABI, or floats would be passed as with lp64, in registers of
    # integers.
    options: dict[str, str] = {"codemodel": "small"}
    if triple.startswith("riscv64"):
        options = {"codemodel": "medium", "abiname": "lp64d"}
    # Without a system, nothing moves code.
    reloc = "pic" if triple_words(triple)[1] else "static"
    return target.create_target_machine(
        cpu=cpu.name, features=features, opt=3, reloc=reloc, **options
    )


_lock = threading.RLock()
"""llvmlite has one lock around each call; several calls on one machine need one of our own."""

if hasattr(os, "register_at_fork"):  # or a child may find LLVM's locks taken for good
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def compile_object(text: str, cpu: NativeCpu, level: int = 0) -> bytes:
    """Return the object file of a module.

    Args:
        text: The module, in LLVM IR.
        cpu: What to generate code for.
        level: 0 runs instruction combining, which is enough for kernels that are unrolled already
            and whose addresses the emitter shares; 1 to 3 run LLVM's pipeline of that level.

    Raises:
        BackendError: LLVM refused the module; that is a bug of an emitter.
    """
    return bytes(_emit(text, cpu, level, "emit_object"))


def compile_assembly(text: str, cpu: NativeCpu) -> str:
    """Return the assembly of a module; see `compile_object`."""
    return str(_emit(text, cpu, 0, "emit_assembly"))


def _emit(text: str, cpu: NativeCpu, level: int, method: str) -> Any:
    with _lock:
        module = _optimise(text, cpu, level)
        code = getattr(target_machine(cpu), method)(module)
        del module  # under the lock: freeing it enters LLVM too
        return code


def _optimise(text: str, cpu: NativeCpu, level: int) -> Any:
    llvm = driver()
    machine = target_machine(cpu)
    try:
        module = llvm.parse_assembly(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise BackendError(f"LLVM refused a kernel: {error}", backend="llvm") from error
    options = llvm.create_pipeline_tuning_options(speed_level=max(level, 1))
    # Kernels are vectors already, and what is left scalar (routines) gains nothing.
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    if level:
        manager = builder.getModulePassManager()
        manager.run(module, builder)
        return module
    manager = llvm.create_new_function_pass_manager()
    manager.add_instruction_combine_pass()  # no `new_gvn`: LLVM 22's aborts on some loop nests
    for function in module.functions:
        if not function.is_declaration:
            manager.run(function, builder)
    return module


def link_object(name: str, code: bytes, symbols: Mapping[str, int]) -> Any:
    """Have LLVM link an object into this process, where it stays as long as the result lives.

    Args:
        name: Of the function that it defines; `[name]` of the result is its address.
        code: The object file.
        symbols: Addresses of what it refers to beside this process's own libraries.

    Raises:
        BackendError: It does not fit this process, or lacks its function.
    """
    with _lock:
        jit = _jit()  # one for the process: of two, one would go with its code
    library = f"{name}.{next(_serial)}"
    builder = driver().JITLibraryBuilder().add_object_img(code).export_symbol(name)
    builder.add_current_process()
    for symbol, address in symbols.items():
        builder.import_symbol(symbol, address)
    try:
        with _lock:
            return builder.link(jit, library)
    except RuntimeError as error:
        raise BackendError(f"cannot link kernel {name}: {error}", backend="llvm") from error


_serial = itertools.count()


def host_machine() -> NativeCpu:
    """Return this machine, with all that its CPU has."""
    llvm = driver()
    return NativeCpu("", llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


@cache
def _jit() -> Any:
    return driver().create_lljit_compiler(target_machine(NativeCpu()))
