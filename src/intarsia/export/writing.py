# SPDX-License-Identifier: Apache-2.0
"""Writes the program of a model: as C, or compiled and linked for the target's machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.errors import BackendError, SettingError, TargetError
from intarsia.files import writing_hint
from intarsia.place.request import Request

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.codegen.emit.c_function import Linkage
    from intarsia.codegen.emit.c_memory import Footprint
    from intarsia.codegen.emit.c_program import ProgramLayout as CLayout
    from intarsia.codegen.emit.c_program import Sharing, Sources
    from intarsia.codegen.ir import Function
    from intarsia.codegen.unit import CpuModel
    from intarsia.export.region import Native
    from intarsia.native.linking import BinaryKind
    from intarsia.target import Target

DEFAULT_TARGET = "llvm"
"""This machine's CPU; C may be compiled for others of its vector width, too."""

_C_REGISTERS = 8
"""Vector registers that C is written for: with larger tiles, C compilers take minutes."""

_WIDEST_SCALAR = 8
"""Bytes: all that memory has to be aligned to where there are no vectors."""


class Product(StrEnum):
    """What is written."""

    C = "c"
    OBJECT = "object"
    SHARED = "shared"
    EXECUTABLE = "executable"
    PTX = "ptx"


def export_c(
    model: str | Path,
    folder: str | Path,
    target: Any = DEFAULT_TARGET,
    *,
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    backends: Backends | None = None,
) -> tuple[Path, ...]:
    """Write a model as C99: `NAME.c`, `NAME.h`, and `NAME.bin` if its weights are in a file.

    Args:
        model: The ONNX file.
        folder: Where to; it is made if it is missing.
        target: `llvm` or `c`, with a CPU whose vectors decide how many lanes kernels have.
        name: What files and functions are called; None means the file's name.
        shapes: Dimensions of inputs that the model leaves free, by name: sizes, or bounds as text
            (`{"batch": "1..8"}`), which make the size a parameter of the program's function.
        backends: The backends to use; None means all that are installed.

    Raises:
        UnsupportedError: Some nodes have no native code.
        SettingError: The folder cannot be written.
        IntarsiaError: As `intarsia.compile`.
    """
    request = Request(model=model, target=target, shapes=shapes, backends=backends)
    return write_program(request, folder, Product.C, name)


def export_object(
    model: str | Path,
    folder: str | Path,
    target: Any = DEFAULT_TARGET,
    *,
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    backends: Backends | None = None,
    num_threads: int = 1,
) -> tuple[Path, ...]:
    """Write a model as one relocatable object, its weights inside: `NAME.o` and `NAME.h`.

    What it takes of the C library is left to whoever links it. See `export_shared`.

    Raises:
        IntarsiaError: As `export_shared`.
    """
    request = Request(
        model=model, target=target, shapes=shapes, backends=backends, num_threads=num_threads
    )
    return write_program(request, folder, Product.OBJECT, name)


def export_shared(
    model: str | Path,
    folder: str | Path,
    target: Any = DEFAULT_TARGET,
    *,
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    backends: Backends | None = None,
    num_threads: int = 1,
) -> tuple[Path, ...]:
    """Write a model as a shared library, its weights inside: `libNAME.so` and `NAME.h`.

    It needs the C library alone. For WebAssembly it is a module, `NAME.wasm`. See `export_c` for
    the arguments; the target is of the kind `llvm`, for any machine. `num_threads` share a run.

    Raises:
        UnsupportedError: Some nodes have no native code.
        BackendError: There is no C compiler that links for the target, or it failed.
        SettingError: The folder cannot be written.
        IntarsiaError: As `intarsia.compile`.
    """
    request = Request(
        model=model, target=target, shapes=shapes, backends=backends, num_threads=num_threads
    )
    return write_program(request, folder, Product.SHARED, name)


def export_executable(
    model: str | Path,
    folder: str | Path,
    target: Any = DEFAULT_TARGET,
    *,
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    backends: Backends | None = None,
    num_threads: int = 1,
) -> tuple[Path, ...]:
    """Write a model as a program that runs it: `NAME`, or `NAME.wasm` for WebAssembly.

    It reads inputs from files of numpy's or makes them from a seed (`c_main.seeded_input`), tells
    the time, and writes outputs. See `export_shared`.

    Raises:
        IntarsiaError: As `export_shared`.
    """
    request = Request(
        model=model, target=target, shapes=shapes, backends=backends, num_threads=num_threads
    )
    return write_program(request, folder, Product.EXECUTABLE, name)


def write_program(
    request: Request,
    folder: str | Path,
    product: Product,
    name: str | None = None,
    tell: Callable[[Footprint], None] | None = None,
) -> tuple[Path, ...]:
    """Write what a request asks for; see `export_c` and its neighbours.

    Args:
        request: What is asked for.
        folder: Where to; it is made if it is missing.
        product: As what.
        name: What files and functions are called; None means the model's name.
        tell: Told how much memory a program in C needs.

    Raises:
        IntarsiaError: As `export_c` and `export_shared`.
    """
    from intarsia.export.region import lower_model

    if product is Product.PTX:
        return _write_ptx(request, Path(folder), _name(request.model, name))
    native = lower_model(request, _C_REGISTERS if product is Product.C else None)
    name = _name(request.model, name)
    with _writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        if product is Product.C:
            return _write_c(native, Path(folder), name, tell)
        return _write_linked(native, Path(folder), name, product)


def _write_ptx(request: Request, folder: Path, name: str) -> tuple[Path, ...]:
    from intarsia.codegen.emit.nvptx import emit_nvptx
    from intarsia.export.region import lower_for_gpu
    from intarsia.native.ptx import capability_of, compile_ptx, ptx_arch

    program, target, limits = lower_for_gpu(request)
    kernels = [emit_nvptx(kernel, limits) for kernel in program.kernels]
    text = compile_ptx(kernels, ptx_arch(capability_of(target) or 0))
    file = folder / f"{name}.ptx"
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return (file,)


def _write_c(
    native: Native, folder: Path, name: str, tell: Callable[[Footprint], None] | None
) -> tuple[Path, ...]:
    from intarsia.codegen.emit.c_program import emit_c_program, write_weights

    layout = _c_layout(native.target, native.unit)
    if native.threads > 1:
        raise SettingError(
            "C that is written for any compiler runs on one thread",
            hint="leave --threads out, or write an object (--emit object)",
        )
    sources = emit_c_program(
        name, native.program, native.inputs, native.outputs, layout, sizes=tuple(native.sizes)
    )
    if tell is not None:
        tell(sources.footprint)
    files = _write(folder, name, sources)
    if sources.weights:
        files.append(folder / f"{name}.bin")
        write_weights(files[-1], sources.weights)
    return tuple(files)


def _c_layout(target: Target, unit: CpuModel) -> CLayout:
    """Return where a program in C for a target keeps its data.

    Raises:
        TargetError: An alignment is no power of two.
    """
    from intarsia.codegen.emit.c_program import ALIGN, ProgramLayout, WeightsIn

    for name in ("workspace-byte-alignment", "constants-byte-alignment"):
        given = target.attrs.get(name)
        if given is not None and given & (given - 1):
            raise TargetError(
                f"{name}: {given} is no power of two",
                target=str(target),
                hint=f"give {1 << given.bit_length()}",
            )
    widest = ALIGN if unit.bits else _WIDEST_SCALAR
    scratch = target.attrs.get("workspace-byte-alignment") or widest
    return ProgramLayout(
        WeightsIn(target.attrs.get("weights-in") or WeightsIn.AUTO),
        scratch,
        target.attrs.get("constants-byte-alignment") or scratch,
    )


def _write_linked(native: Native, folder: Path, name: str, product: Product) -> tuple[Path, ...]:
    """Compile and link a program for its machine.

    Raises:
        BackendError: The target writes C, or no compiler links for it.
    """
    from intarsia.codegen.emit.c_main import emit_main
    from intarsia.codegen.emit.c_program import emit_driver, write_weights
    from intarsia.native.linking import BinaryKind, Linker
    from intarsia.native.machine import triple_words

    if native.cpu is None:
        raise BackendError(
            f"machine code is written for the kind llvm, and {str(native.target)!r} writes C",
            target=str(native.target),
            hint="give -t llvm, or write C with --emit c and compile it",
        )
    architecture, system, environment = triple_words(native.cpu.triple)
    linked = list(filter(None, (_linkage(kernel) for kernel in native.program.kernels)))
    if linked and (system, environment) not in _GNU:
        raise BackendError(
            f"{native.cpu.triple} has not the C library that the library of a region is for",
            target=str(native.target),
            hint="name a triple such as aarch64-linux-gnu",
        )
    is_wasm = architecture.startswith("wasm")
    if product is not Product.OBJECT and native.cpu.triple and not system and not is_wasm:
        raise BackendError(
            f"{native.cpu.triple} has no system that loads a program or a shared library",
            target=str(native.target),
            hint="use --emit object and link it with what starts that machine",
        )
    linker = None if linked else Linker.find(native.cpu, native.caches)
    sources = emit_driver(
        name,
        native.program,
        native.inputs,
        native.outputs,
        sizes=tuple(native.sizes),
        sharing=_sharing(native, has_system=bool(system) and not is_wasm),
    )
    output = folder / _file_name(name, product, is_wasm=is_wasm)
    with tempfile.TemporaryDirectory() as work:
        place = Path(work)
        _write(place, name, sources)
        write_weights(place / "weights.bin", sources.weights)
        (place / "weights.c").write_text(_WEIGHTS.replace("NAME", name))
        files = [f"{name}.c", "weights.c"]
        objects = _objects(native, place)
        options = ["-std=gnu11", "-g0", "-w"]
        if product is Product.EXECUTABLE:
            told = {symbol.name: size for symbol, size in native.sizes.items()}
            main = emit_main(name, native.inputs, native.outputs, told)
            (place / "main.c").write_text(main)
            files.append("main.c")
        elif product is Product.SHARED:
            options += _exports(name, place, is_wasm=is_wasm)
            # Threads that wait would be left without their code.
            options += ["-Wl,-z,nodelete"] if native.threads > 1 else []
        options += ["-pthread"] if native.threads > 1 else []
        libraries = ("m",) if system and not is_wasm else ()
        # A module of WebAssembly that is called is linked as a program is, without a `main`.
        form = (
            BinaryKind.EXECUTABLE if is_wasm and product is Product.SHARED else BinaryKind(product)
        )
        if linker is None:
            _link_library(form, output, files, objects, options, linked, folder=place)
        else:
            files += objects
            linker.link(form, output, files, options=options, libraries=libraries, folder=place)
    header = folder / f"{name}.h"
    header.write_text(sources.header)
    return output, header


def _sharing(native: Native, *, has_system: bool) -> Sharing | None:
    """Return how threads share a program; None if there is one.

    Raises:
        BackendError: Threads are asked for where there are none.
    """
    from intarsia.codegen.emit.c_function import CFunction
    from intarsia.codegen.emit.c_program import Sharing
    from intarsia.extents import typical
    from intarsia.native.chunks import call_work, chunk_count
    from intarsia.native.work import count_work

    if native.threads == 1:
        return None
    assert native.cpu is not None
    if not has_system and native.cpu.triple:
        raise BackendError(
            f"{native.cpu.triple} has no POSIX threads",
            target=str(native.target),
            hint="leave --threads out: the program has one thread then",
        )
    chunks = []
    for call in native.program.calls:
        kernel = native.program.kernels[call.kernel]
        if isinstance(kernel, CFunction):
            chunks.append(1)
            continue
        work = call_work(count_work(kernel, native.unit), call.flop, call.nbytes)
        chunks.append(chunk_count(typical(call.extent), work, native.threads))
    return Sharing(native.threads, tuple(chunks))


_GNU = (("", ""), ("linux", "gnu"), ("linux", ""))


def _linkage(kernel: Function) -> Linkage | None:
    from intarsia.codegen.emit.c_function import CFunction

    return kernel.linkage if isinstance(kernel, CFunction) else None


def _link_library(
    form: BinaryKind,
    output: Path,
    files: Sequence[str],
    objects: Sequence[str],
    options: Sequence[str],
    linked: Sequence[Linkage],
    folder: Path,
) -> None:
    """Link a program with a library of C++, by the compiler that the library's code is made by.

    Raises:
        BackendError: That compiler failed.
    """
    from intarsia.native.linking import BinaryKind, Linker

    cxx = linked[0].cxx
    linker = Linker(cxx[0], cxx, cxx)
    c_options = [option for option in options if not option.startswith("-Wl,")]
    # A compiler of C++ takes C for C++ unless it is told otherwise, of each file.
    told = [word for file in files for word in ("-xc", file)]
    linker.link(BinaryKind.OBJECT, folder / "driver.o", told, options=c_options, folder=folder)
    parts = ["driver.o", *objects]
    held = dict.fromkeys(code for one in linked for code in one.objects)
    for number, code in enumerate(held):
        parts.append(f"library{number}.o")
        (folder / parts[-1]).write_bytes(code)
    archives = dict.fromkeys(str(path) for one in linked for path in one.libraries)
    link_options = [option for option in options if option.startswith("-Wl,")]
    if form is not BinaryKind.OBJECT:
        parts += archives
        # The machine has a C library; one of C++ of this release it may not have.
        link_options += ["-static-libstdc++", "-static-libgcc", "-pthread", "-Wl,--gc-sections"]
    linker.link(form, output, parts, options=link_options, libraries=["m"], folder=folder)


def _file_name(name: str, product: Product, *, is_wasm: bool) -> str:
    if product is Product.OBJECT:
        return f"{name}.o"
    if is_wasm:
        return f"{name}.wasm"
    return f"lib{name}.so" if product is Product.SHARED else name


def _exports(name: str, place: Path, *, is_wasm: bool) -> list[str]:
    """Return the options by which a library shows its functions, and nothing else."""
    functions = [f"{name}_run", f"{name}_run_in"]
    if is_wasm:  # who calls them puts arrays behind what the module has of its memory
        shown = (*functions, "__heap_base")
        return ["-nostdlib", "-Wl,--no-entry", *(f"-Wl,--export={one}" for one in shown)]
    (place / "exports.map").write_text(f"{{ global: {'; '.join(functions)}; local: *; }};\n")
    script, stack = "-Wl,--version-script=exports.map", "-Wl,-z,noexecstack"
    return [script, "-Wl,--no-undefined", stack]


_WEIGHTS = """\
#ifdef __has_embed
__attribute__((visibility("hidden"), aligned(64))) const unsigned char NAME_weights[] = {
#embed "weights.bin" if_empty(0)
};
#else
__asm__(".section .rodata\\n"
        ".balign 64\\n"
        ".globl NAME_weights\\n"
        ".hidden NAME_weights\\n"
        "NAME_weights:\\n"
        ".incbin \\"weights.bin\\"\\n"
        ".byte 0\\n"
        ".text\\n");
#endif
"""
"""Both take a file of any size in no time, as initialisers would not."""


def _objects(native: Native, folder: Path) -> list[str]:
    """Write an object file for each kernel that is called, and return their names."""
    from intarsia.codegen.emit.c_function import CFunction
    from intarsia.codegen.emit.llvm import emit_llvm
    from intarsia.native.objects import ObjectCache

    assert native.cpu is not None
    cache = ObjectCache(native.caches)
    names = []
    for number in sorted({call.kernel for call in native.program.calls}):
        kernel = native.program.kernels[number]
        if isinstance(kernel, CFunction):
            continue  # its code is there
        text = emit_llvm(kernel, native.unit)
        names.append(f"{kernel.name}.o")
        (folder / names[-1]).write_bytes(cache.object_of(text, native.cpu))
    return names


@contextmanager
def _writing(folder: str | Path) -> Iterator[None]:
    """Turn what the system says of files into an error of ours.

    Raises:
        SettingError: The folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise SettingError(
            f"cannot write into {str(folder)!r}: {error.strerror or error}",
            hint=writing_hint(error),
        ) from error


def _write(folder: Path, name: str, sources: Sources) -> list[Path]:
    source, header = folder / f"{name}.c", folder / f"{name}.h"
    source.write_text(sources.source)
    header.write_text(sources.header)
    return [source, header]


def _name(model: str | Path, name: str | None) -> str:
    from intarsia.codegen.emit.c_program import identifier

    if name is None:
        return identifier(Path(model).stem)
    if identifier(name) != name:
        raise SettingError(
            f"{name!r} cannot be part of a C function's name", hint=f"use {identifier(name)!r}"
        )
    return name
