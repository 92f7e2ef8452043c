# SPDX-License-Identifier: Apache-2.0
"""A model as a program that needs no Python: C99 source, or a shared library for this machine.

Both have a header with one plain function, `void NAME_run(const float *data, float *prob)`. The
whole model must be one region of native code, because nothing else can be written down like this:

    Request -> read_setting -> Setting: the prepared model
            -> _find_region -> the one region, and the target that takes it
            -> _lower -> Native: its program, in the model's order of inputs and outputs
            -> write_c, write_shared -> files
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.compiler import read_setting
from intarsia.errors import BackendError, SettingError, TargetError, UnsupportedError
from intarsia.place.request import Request

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.codegen.emit.c_memory import Footprint
    from intarsia.codegen.emit.c_program import Layout as CLayout
    from intarsia.codegen.emit.c_program import Sources, Tensor
    from intarsia.codegen.lower.program import Program
    from intarsia.codegen.unit import VectorUnit
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.native.machine import NativeCpu
    from intarsia.place.setting import Setting
    from intarsia.target import Target

DEFAULT_TARGET = "llvm"
"""This machine's CPU; C may be compiled for others of its vector width, too."""

_C_REGISTERS = 8
"""Vector registers that C is written for: with larger tiles, C compilers take minutes."""

_WIDEST_SCALAR = 8
"""Bytes: all that memory has to be aligned to where there are no vectors."""

_NAMED = 5
"""How many nodes in the way a message names."""


@dataclass(frozen=True, slots=True)
class Native:
    """A model as one native program, still to be written."""

    program: Program
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    target: Target
    unit: VectorUnit
    cpu: NativeCpu | None
    caches: Path


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
        shapes: Dimensions of inputs that the model leaves free, by name.
        backends: The backends to use; None means all that are installed.

    Raises:
        UnsupportedError: Some nodes have no native code.
        SettingError: The folder cannot be written.
        IntarsiaError: As `intarsia.compile`.
    """
    request = Request(model=model, target=target, shapes=shapes, backends=backends)
    return write_c(request, folder, name)


def write_c(
    request: Request,
    folder: str | Path,
    name: str | None = None,
    tell: Callable[[Footprint], None] | None = None,
) -> tuple[Path, ...]:
    """Write what a request asks for as C, as `export_c` does.

    Args:
        request: What is asked for.
        folder: Where to.
        name: What files and functions are called; None means the model's name.
        tell: Told how much memory the program needs.

    Raises:
        IntarsiaError: As `export_c`.
    """
    from intarsia.codegen.emit.c_program import emit_c_program, write_weights

    native, name = _lower(request, registers=_C_REGISTERS), _name(request.model, name)
    layout = _c_layout(native.target, native.unit)
    sources = emit_c_program(name, native.program, native.inputs, native.outputs, layout)
    if tell is not None:
        tell(sources.footprint)
    with _writing(folder):
        files = _write(Path(folder), name, sources)
        if sources.weights:
            files.append(Path(folder) / f"{name}.bin")
            write_weights(files[-1], sources.weights)
    return tuple(files)


def _c_layout(target: Target, unit: VectorUnit) -> CLayout:
    """Return where a program in C for a target keeps its data.

    Raises:
        TargetError: An alignment is no power of two.
    """
    from intarsia.codegen.emit.c_program import ALIGN, Layout, WeightsIn

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
    return Layout(
        WeightsIn(target.attrs.get("weights-in") or WeightsIn.AUTO),
        scratch,
        target.attrs.get("constants-byte-alignment") or scratch,
    )


def export_shared(
    model: str | Path,
    folder: str | Path,
    target: Any = DEFAULT_TARGET,
    *,
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    backends: Backends | None = None,
) -> tuple[Path, ...]:
    """Write a model as a shared library for this machine, its weights inside, and `NAME.h`.

    The library is `libNAME.so`; it needs the C library alone. See `export_c` for the arguments.

    Raises:
        UnsupportedError: Some nodes have no native code.
        BackendError: There is no C compiler to link with, or the target is not this machine.
        SettingError: The folder cannot be written.
        IntarsiaError: As `intarsia.compile`.
    """
    request = Request(model=model, target=target, shapes=shapes, backends=backends)
    return write_shared(request, folder, name)


def write_shared(request: Request, folder: str | Path, name: str | None = None) -> tuple[Path, ...]:
    """Write what a request asks for as a shared library, as `export_shared` does.

    Raises:
        IntarsiaError: As `export_shared`.
    """
    from intarsia.codegen.emit.c_program import emit_driver, write_weights
    from intarsia.native.native_target import why_not_here

    linker = _linker()
    native, name = _lower(request), _name(request.model, name)
    problem = "it writes C" if native.cpu is None else why_not_here(native.cpu)
    if problem:
        raise BackendError(
            f"a shared library is for this machine, and {str(native.target)!r} is not: {problem}",
            target=str(native.target),
            hint="give -t llvm, or write C with --emit c and compile it there",
        )
    sources = emit_driver(name, native.program, native.inputs, native.outputs)
    target_folder = Path(folder)
    with _writing(folder):
        target_folder.mkdir(parents=True, exist_ok=True)
    library = target_folder / f"lib{name}.so"
    with tempfile.TemporaryDirectory() as work:
        place = Path(work)
        _write(place, name, sources)
        write_weights(place / "weights.bin", sources.weights)
        (place / "weights.s").write_text(_ASSEMBLY.replace("NAME", name))
        (place / "exports.map").write_text(f"{{ global: {name}_run; {name}_run_in; local: *; }};\n")
        objects = _objects(native, place)
        command = [
            *(linker, "-std=c99", "-O2", "-fPIC", "-shared", "-Wl,--version-script=exports.map"),
            *("-Wl,--no-undefined", "-Wl,-z,noexecstack", f"{name}.c", "weights.s", *objects),
            *("-lm", "-o", str(library.resolve())),
        ]
        done = subprocess.run(command, cwd=place, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BackendError(
            f"{linker} failed to link {library.name}: {done.stderr.strip()[-500:]}",
            target=str(native.target),
            hint="check that it can build shared libraries, or use --emit c",
        )
    header = target_folder / f"{name}.h"
    header.write_text(sources.header)
    return library, header


_ASSEMBLY = """\
    .section .rodata
    .balign 64
    .globl NAME_weights
    .hidden NAME_weights
NAME_weights:
    .incbin "weights.bin"
    .byte 0
    .section .note.GNU-stack,"",%progbits
"""


def _linker() -> str:
    """Return the system's C compiler.

    Raises:
        BackendError: There is none, or this system has another format of libraries.
    """
    if not sys.platform.startswith("linux"):
        raise BackendError(
            f"shared libraries are written for Linux, and this is {sys.platform}",
            hint="use --emit c and compile it here",
        )
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return path
    raise BackendError(
        "there is no C compiler to link a shared library with",
        hint="install gcc or clang, or use --emit c and compile it elsewhere",
    )


def _objects(native: Native, folder: Path) -> list[str]:
    """Write an object file for each kernel that is called, and return their names."""
    from intarsia.codegen.emit.llvm import emit_llvm
    from intarsia.native.objects import ObjectCache

    assert native.cpu is not None
    cache = ObjectCache(native.caches)
    names = []
    for number in sorted({call.kernel for call in native.program.calls}):
        kernel = native.program.kernels[number]
        text = emit_llvm(kernel, has_fma=native.unit.has_fma, dots=native.unit.dots)
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
            hint="choose a writable folder",
        ) from error


def _write(folder: Path, name: str, sources: Sources) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
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


# From the request to the program of its one region


def _lower(request: Request, registers: int | None = None) -> Native:
    """Return the program of a model whose nodes all have native code.

    Args:
        request: What is asked for; its machine may be another one than this.
        registers: Vector registers that kernels are shaped for; None means those of the target.

    Raises:
        UnsupportedError: Some nodes lie elsewhere or have no native code.
        IntarsiaError: As `intarsia.compile`.
    """
    from intarsia.codegen.emit.c_program import Tensor
    from intarsia.codegen.lower.region import lower_region
    from intarsia.codegen.storage import StorageKind
    from intarsia.codegen.unit import WinogradMode
    from intarsia.native.native_target import lowering_options, target_cpu

    setting = read_setting(replace(request, is_here=False))
    target, region = _find_region(setting)
    graph = setting.graph
    cpu = target_cpu(target)[0] if target.kind.is_native else None
    options = lowering_options(target)
    unit, winograd = options.unit, options.winograd
    if registers is not None:
        unit = replace(unit, registers=registers)
        if not target.attrs.get("winograd"):  # in C, the transforms' local buffers lie on the stack
            winograd = WinogradMode.OFF
    program = lower_region(
        region,
        unit,
        winograd,
        half_weights=options.half_weights,
        accuracy=options.accuracy,
        is_bf16=options.is_bf16,
        requantise=options.requantise,
    )
    inputs = [i for i in graph.inputs if i in region.inputs]
    outputs = list(dict.fromkeys(graph.outputs))
    orders = {
        StorageKind.INPUT: [inputs.index(i) for i in region.inputs],
        StorageKind.OUTPUT: [outputs.index(i) for i in region.outputs],
    }
    storages = tuple(
        replace(item, index=orders[item.kind][item.index]) if item.kind in orders else item
        for item in program.storages
    )
    tensors = [
        tuple(
            Tensor(graph.values[i].name, graph.values[i].dtype, graph.values[i].shape or ())
            for i in side
        )
        for side in (inputs, outputs)
    ]
    program = replace(program, storages=storages)
    caches = request.settings.cache_folder()
    return Native(program, tensors[0], tensors[1], target, unit, cpu, caches)


def _find_region(setting: Setting) -> tuple[Target, Region]:
    """Return the whole model as a region, and the target of native code that takes it.

    Raises:
        UnsupportedError: Some nodes lie on other targets, or have no native code.
    """
    from intarsia.graph.region import Region
    from intarsia.place.decide import decide_in_order

    graph, targets = setting.graph, setting.config.targets
    if len(targets) == 1 and _has_native_code(targets[0].target):
        target = targets[0].target
    else:
        pieces = decide_in_order(setting).pieces
        natives = [piece.target for piece in pieces if _has_native_code(piece.target.target)]
        away = [
            f"{graph.nodes[node].name!r} ({graph.nodes[node].op_type}) on {piece.target}"
            for piece in pieces
            if piece.target not in natives[:1]
            for node in piece.nodes
        ]
        if away or not natives:
            raise UnsupportedError(
                f"the model is not one region of native code: {_some(away)}",
                hint="give -t llvm alone; a package (--emit package) may mix targets",
            )
        target = natives[0].target
    _refuse(graph, target)
    region = Region.of(graph, range(len(graph.nodes)))
    _check_outputs(graph, region, target)
    return target, region


def _has_native_code(target: Target) -> bool:
    return target.kind.is_native or target.kind.is_source


def _refuse(graph: Graph, target: Target) -> None:
    """Check that every node has native code.

    Raises:
        UnsupportedError: Some have none.
    """
    from intarsia.codegen.lower.region import refuse_node

    problems = []
    for node in graph.nodes:
        problem = refuse_node(graph, node)
        if problem is not None:
            problems.append((node.name, f"{node.name!r} ({node.op_type}): {problem[1]}"))
    if problems:
        raise UnsupportedError(
            f"{len(problems)} of {len(graph.nodes)} nodes have no native code on {target}: "
            f"{_some([text for _, text in problems])}",
            node=problems[0][0],
            target=str(target),
            hint="write a package instead (--emit package), in which other targets take them",
        )


def _check_outputs(graph: Graph, region: Region, target: Target) -> None:
    """Check that the model's outputs are what its nodes compute.

    Raises:
        UnsupportedError: One is an input or a constant.
    """
    idle = [graph.values[i].name for i in graph.outputs if i not in region.outputs]
    if idle:
        raise UnsupportedError(
            f"nothing computes the output {_some([repr(name) for name in idle])}: "
            "it is an input or a constant",
            target=str(target),
            hint="take it out of the model's outputs",
        )


def _some(texts: Sequence[str]) -> str:
    shown = "; ".join(texts[:_NAMED])
    return f"{shown}; ..." if len(texts) > _NAMED else shown
