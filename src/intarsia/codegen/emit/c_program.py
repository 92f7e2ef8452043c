# SPDX-License-Identifier: Apache-2.0
"""A whole program in C99: one plain function, its header, and its weights.

It is freestanding (`-ffreestanding`): no library, no allocation, no files. Weights are constants of
the source, in a section that the user may name; or they are in a file beside it, which a generated
function reads, for hosts. The function calls kernels in order on inputs, outputs, weights and one
block of scratch memory, the arena; how a kernel is called is the caller's (`emit_c_program`:
functions of the same source; `emit_driver`: object files). A step may be a call into a library
(`c_function`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.codegen.emit import c_text as text
from intarsia.codegen.emit.c import emit_c
from intarsia.codegen.emit.c_function import CFunction
from intarsia.codegen.emit.c_memory import Footprint, stack_bytes, with_tight_arena
from intarsia.codegen.emit.c_sizes import HELPERS, at_most, largest, refuse_sizes, spell
from intarsia.codegen.emit.c_threads import pool_source
from intarsia.codegen.ir import Function
from intarsia.codegen.lower.program import Argument, Call, Program
from intarsia.codegen.storage import StorageKind
from intarsia.errors import BackendError
from intarsia.extents import Extent, Symbol

Array = np.ndarray[Any, np.dtype[Any]]

INLINE_BYTES = 8 << 20
"""Up to this many bytes of weights are written into the source unless it is said where: gcc takes
half a second for each megabyte of them."""

ALIGN = 64
"""Bytes to which weights in a file are aligned; scratch memory too unless the target says less."""

_WORD = 8
"""Bytes of the words that weights in the source are: compilers take their time by the number."""

_PER_LINE = 5
"""Words of a weight in a line of source."""


class WeightsIn(StrEnum):
    """Where weights are: values of `-weights-in`."""

    AUTO = "auto"  # up to `INLINE_BYTES` in the source, else in a file
    SOURCE = "source"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class ProgramLayout:
    """Where a program in C keeps its data.

    Attributes:
        weights_in: Where weights are.
        scratch_align: Bytes to which blocks of scratch memory are aligned: a power of two.
        weights_align: Bytes to which weights in the source are aligned: a power of two.
    """

    weights_in: WeightsIn = WeightsIn.AUTO
    scratch_align: int = ALIGN
    weights_align: int = ALIGN


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output.

    Attributes:
        name: In the model.
        dtype: By numpy's name.
        shape: Its dimensions, which may depend on sizes that are parameters.
    """

    name: str
    dtype: str
    shape: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    """How threads share a program.

    Attributes:
        threads: How many there are, the caller's included.
        chunks: Into how many chunks each call of the program is cut at most.
    """

    threads: int
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """A program as text.

    Attributes:
        header: What callers include.
        source: The program.
        weights: What `write_weights` puts into a file beside it; empty if nothing is.
        footprint: The memory that it needs.
        files: Sources of others that are compiled with it.
    """

    header: str
    source: str
    weights: tuple[Array, ...]
    footprint: Footprint
    files: tuple[Path, ...] = ()


def write_weights(path: Path, arrays: Sequence[Array]) -> None:
    """Write weights one after the other, each at a multiple of `ALIGN` bytes."""
    with path.open("wb") as file:
        for array in arrays:
            file.write(bytes(-file.tell() % ALIGN))
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def emit_c_program(
    name: str,
    program: Program,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    layout: ProgramLayout = ProgramLayout(),
    *,
    sizes: Sequence[Symbol] = (),
) -> Sources:
    """Return a program as one C99 source that needs nothing but a C compiler.

    Args:
        name: What its functions' names begin with: a C identifier.
        program: Calls of kernels and of functions of others.
        inputs: In the order of the region's inputs.
        outputs: In the order of the region's outputs.
        layout: Where it keeps its data.
        sizes: Dimensions that a run is told, all of them bounded.

    Raises:
        UnsupportedError: A dimension is not bounded, or found by a run.
    """
    writer = _Writer(name, program, inputs, outputs, layout, tuple(sizes), is_native=False)
    return writer.sources()


def emit_driver(
    name: str,
    program: Program,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    sizes: Sequence[Symbol] = (),
    sharing: Sharing | None = None,
) -> Sources:
    """Return the C part of a shared library whose kernels are object files.

    Its weights are the symbol `<name>_weights`, and functions that call a library are in it
    (`CFunction.linkage`). See `emit_c_program`; `sharing` says how threads share the calls, and
    None that there is one thread.

    Raises:
        UnsupportedError: A dimension is not bounded, or found by a run.
    """
    writer = _Writer(
        name, program, inputs, outputs, ProgramLayout(), tuple(sizes), sharing, is_native=True
    )
    return writer.sources()


def identifier(name: str) -> str:
    """Return a C identifier that is like a name."""
    word = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
    return f"_{word}" if word[0].isdigit() else word


class _Writer:
    def __init__(
        self,
        name: str,
        program: Program,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        layout: ProgramLayout,
        sizes: tuple[Symbol, ...] = (),
        sharing: Sharing | None = None,
        *,
        is_native: bool,
    ) -> None:
        self._name = name
        self._layout = layout
        checked = (check.storage for check in program.checks)
        self._fault_counts = {i: program.storages[i].nbytes // _FAULT_BYTES for i in checked}
        program = at_most(program) if sizes else program
        if not is_native:
            program = with_tight_arena(program, layout.scratch_align)
        self._program = program
        self._inputs = inputs
        self._outputs = outputs
        self._is_native = is_native
        self._sizes = sizes
        self._sharing = sharing
        for tensor in (*inputs, *outputs):
            if tensor.dtype not in text.MEMORY:
                raise BackendError(
                    f"{tensor.name!r} is of {tensor.dtype}, which C has no type for", target="c"
                )
        used = sorted({call.kernel for call in program.calls})
        self._kernels = {number: program.kernels[number] for number in used}
        taken = {kernel.name for kernel in self._kernels.values()}
        taken |= {"scratch", "memory", "weights", "block", "arguments", "l"}
        taken |= {"faults", "any_of", "arena", "quotient", "larger", "pool", "parallel"}

        def unique(name: str) -> str:
            candidate = identifier(name)
            while candidate in taken or candidate in text.KEYWORDS:
                candidate += "_"
            taken.add(candidate)
            return candidate

        self._names = [unique(tensor.name) for tensor in (*inputs, *outputs)]
        self._size_names = {symbol.name: unique(symbol.name) for symbol in sizes}
        self._weights = tuple(program.constants.values())
        self._offsets, self._size = _laid_out(self._weights)
        self._has_file = not is_native and (
            layout.weights_in is WeightsIn.FILE
            or (layout.weights_in is WeightsIn.AUTO and self._size > INLINE_BYTES)
        )
        self._is_inline = not self._has_file and not is_native
        self._footprint = Footprint(
            int(program.scratch_bytes) + (layout.scratch_align if program.scratch_bytes else 0),
            stack_bytes(program),
            sum(array.nbytes for array in self._weights),
        )

    def sources(self) -> Sources:
        """Return all texts."""
        files = dict.fromkeys(
            file
            for kernel in self._kernels.values()
            if isinstance(kernel, CFunction)
            for file in kernel.files
        )
        return Sources(
            self._header(),
            self._source(),
            () if self._is_inline else self._weights,
            self._footprint,
            tuple(files),
        )

    # The header

    def _header(self) -> str:
        name, guard = self._name, f"{self._name.upper()}_H"
        lines = [
            f"/* Generated by Intarsia: {name}. */",
            f"#ifndef {guard}",
            f"#define {guard}",
            "",
            "#include <stddef.h>",
            "#include <stdint.h>",
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            *self._described(),
            *self._bounds(),
        ]
        if self._has_file:
            lines += [
                f"/* Call it once, before all else; it reads {name}.bin.",
                "   Returns 0, or -1 if it cannot be read, is another file, or memory is short. */",
                f"int {name}_init(const char *path);",
                "",
                "/* Gives back what it holds. */",
                f"void {name}_free(void);",
                "",
            ]
        lines += [
            "/* Runs the model. It works in memory of its own: one call at a time.",
            *(f"   {line}" for line in self._results()),
            f"int {name}_run({self._signature()});",
            "",
            f"/* Runs the model in memory of the caller; {self._beside()} */",
            f"int {name}_run_in(void *scratch, {self._signature()});",
            "",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "",
            "#endif",
            "",
        ]
        return "\n".join(lines)

    def _beside(self) -> str:
        """Return the end of a comment: whether calls may run at once."""
        kernels = self._kernels.values()
        if any(isinstance(item, CFunction) and item.linkage is not None for item in kernels):
            return "one call at a time: a library keeps memory of its own."
        return "calls may run side by side."

    def _bounds(self) -> list[str]:
        """Return what the header says of memory."""
        name, need = self._name.upper(), self._footprint
        lines = [
            f"/* Bytes of memory that {self._name}_run_in works in. */",
            f"#define {name}_SCRATCH_BYTES {need.arena}u",
            "",
        ]
        if not self._is_native:
            lines += [
                "/* Bytes of the stack that a run takes at most, and of its constants. */",
                f"#define {name}_STACK_BYTES {need.stack}u",
                f"#define {name}_WEIGHT_BYTES {need.weights}u",
                "",
            ]
        return lines

    def _described(self) -> list[str]:
        lines = ["/* Tensors are dense and row-major."]
        for number, tensor in enumerate((*self._inputs, *self._outputs)):
            role = "input" if number < len(self._inputs) else "output"
            shape = " x ".join(self._dimension(one) for one in tensor.shape) or "a scalar"
            lines.append(f"   {role} {self._names[number]}: {tensor.dtype}, {shape}")
        for symbol in self._sizes:
            bounds = f"{symbol.low} to {symbol.high}"
            if symbol.multiple != 1:
                bounds += f", a multiple of {symbol.multiple}"
            lines.append(f"   {self._size_names[symbol.name]}: {bounds}")
        counts = []
        for role, tensors in (("INPUT", self._inputs), ("OUTPUT", self._outputs)):
            for number, tensor in enumerate(tensors):
                entries = largest(math.prod(tensor.shape))
                counts.append(f"#define {self._name.upper()}_{role}{number}_COUNT {entries}u")
        return [*lines[:-1], f"{lines[-1]} */", "", self._counted(), *counts, ""]

    def _counted(self) -> str:
        return f"/* Their entries{', at the largest sizes' if self._sizes else ''}. */"

    def _dimension(self, extent: Extent) -> str:
        """Return a dimension for people: a size by its parameter's name."""
        return str(extent) if isinstance(extent, int) else spell(extent, self._size_names)

    def _results(self) -> list[str]:
        """Return the end of a comment: what a run returns."""
        calls_others = any(isinstance(item, CFunction) for item in self._kernels.values())
        if not self._program.checks and not calls_others and not self._sizes:
            return ["Returns 0. */"]
        lines = ["Returns 0, or what is wrong; then no output is to be used:"]
        if calls_others:
            lines.append("-1: a function of a library has failed")
        if self._sizes:
            lines.append("-2: a size is not within its bounds")
        for number, check in enumerate(self._program.checks, 1):
            line = f"{number}: an index in {check.indices!r} is out of bounds: "
            line += f"node {check.node!r} has {check.extent} entries"
            if not check.extent:
                line = f"{number}: {check.indices!r} does not fit the shapes of node {check.node!r}"
            # A node's name may be any text, and would end the comment.
            lines.append(_in_comment(line))
        return [*lines[:-1], f"{lines[-1]} */"]

    def _signature(self) -> str:
        parts = [f"int64_t {name}" for name in self._size_names.values()]
        for number, tensor in enumerate((*self._inputs, *self._outputs)):
            const = "const " if number < len(self._inputs) else ""
            parts.append(f"{const}{text.MEMORY[tensor.dtype]} *{self._names[number]}")
        return ", ".join(parts)

    # The source

    def _source(self) -> str:
        name, need = self._name, self._footprint
        parts = [f'#include "{name}.h"\n']
        kernels = list(self._kernels.values())
        others = [kernel for kernel in kernels if isinstance(kernel, CFunction)]
        if self._is_native:
            parts.append(f"extern const uint8_t {name}_weights[];\n")
            parts += [
                f"extern void {kernel.name}"
                "(const uint64_t *arguments, int64_t begin, int64_t end);\n"
                for kernel in kernels
                if not isinstance(kernel, CFunction)
            ]
            parts += [f"{kernel.source.rstrip()}\n" for kernel in others]
        else:
            headers = dict.fromkeys(item for kernel in others for item in kernel.includes)
            parts += [f"#include {header}\n" for header in headers]
            parts.append(emit_c([item for item in kernels if not isinstance(item, CFunction)]))
            parts += [f"{kernel.source.rstrip()}\n" for kernel in others]
            parts += self._weight_parts()
        if self._program.checks:
            parts.append(_ANY)
        if self._sizes:
            parts.append(HELPERS)
        if self._sharing is not None:
            parts.append(pool_source(self._sharing.threads))
        parts.append(self._run_in())
        names = ", ".join((*self._size_names.values(), *self._names))
        if not need.arena:
            parts.append(
                f"int {name}_run({self._signature()})\n{{\n"
                f"    return {name}_run_in(NULL, {names});\n}}\n"
            )
            return "\n".join(parts)
        macro = f"{name.upper()}_ARENA"
        parts.append(
            f"/* Define it to say where the arena lies; or define {name.upper()}_NO_ARENA to have\n"
            f"   none, and no {name}_run. */\n"
            f"#ifndef {macro}\n#define {macro}\n#endif\n"
            f"#ifndef {name.upper()}_NO_ARENA\n"
            f"int {name}_run({self._signature()})\n{{\n"
            f"    static {macro} uint8_t arena[{need.arena}];\n"
            f"    return {name}_run_in(arena, {names});\n}}\n#endif\n"
        )
        return "\n".join(parts)

    def _weights_align(self) -> int:
        """Return the bytes to which weights are aligned, for libraries and drivers too."""
        kernels = self._kernels.values()
        wanted = (kernel.align for kernel in kernels if isinstance(kernel, CFunction))
        return max((self._layout.weights_align, *wanted))

    def _weight_parts(self) -> list[str]:
        if self._has_file:
            return [_READER.replace("NAME", self._name).replace("SIZE", str(self._size))]
        if not self._weights:
            return []
        place = _PLACE.replace("NAME", self._name.upper()).replace("SECTION", self._name)
        place = place.replace("ALIGNMENT", str(self._weights_align()))
        arrays = [
            _array(f"weights{number}", array, f"{self._name.upper()}_WEIGHTS")
            for number, array in enumerate(self._weights)
            if array.size
        ]
        return [place, *arrays]

    def _run_in(self) -> str:
        lines = [f"int {self._name}_run_in(void *scratch, {self._signature()})", "{"]
        storages = self._program.storages
        faults = {check.storage: at for at, check in enumerate(self._program.checks, 1)}
        if faults:
            nbytes = (storages[storage].nbytes for storage in faults)
            lines.append(f"    int64_t faults[{sum(nbytes) // _FAULT_BYTES}];")
        lines += [
            "    uint8_t *memory = (uint8_t *)scratch;",
            *self._aligning(),
            "    (void)memory;",
            *(f"    (void){name};" for name in self._names),
        ]
        if self._sizes:  # rounded extents are made of what the model needs, and of no more
            lines += ["    (void)larger;", "    (void)quotient;"]
            wrong = refuse_sizes(self._sizes, self._size_names)
            lines += [f"    if ({wrong})", "        return -2;"]
        for number, call in enumerate(self._program.calls):
            kernel = self._kernels[call.kernel]
            what = " + ".join(call.nodes) or call.note
            if what:
                lines.append(f"    /* {_in_comment(what)} */")
            lines += self._call(kernel, call, number)
            for argument in call.arguments:
                if argument.storage in faults:
                    count = spell(self._fault_counts[argument.storage], self._size_names)
                    pointer = f"any_of({self._pointer(argument)}, {count})"
                    lines.append(f"    if ({pointer}) return {faults[argument.storage]};")
        return "\n".join((*lines, "    return 0;", "}", ""))

    def _aligning(self) -> list[str]:
        """Return what rounds the address of scratch memory up; NULL may come where none is used."""
        if not self._footprint.arena:
            return []
        align = self._layout.scratch_align
        return [f"    memory += ({align} - (uintptr_t)memory % {align}) % {align};"]

    def _call(self, kernel: Function, call: Call, number: int) -> list[str]:
        sizes = [spell(size, self._size_names) for size in call.sizes]
        extent = spell(call.extent, self._size_names)
        pairs = zip(kernel.buffers, call.arguments, strict=True)
        if isinstance(kernel, CFunction) or not self._is_native:
            passed = []
            for buffer, argument in pairs:
                const = "" if buffer.is_written else "const "
                element = text.MEMORY[buffer.dtype]
                passed.append(f"({const}{element} *)({self._pointer(argument)})")
            if isinstance(kernel, CFunction):
                listed = ",\n        ".join(passed)
                return [f"    if ({kernel.name}(\n        {listed}) != 0)", "        return -1;"]
            listed = "".join(f"\n        {item}," for item in (*passed, *sizes))
            return [f"    {kernel.name}({listed}", f"        0, {extent});"]
        # Eight bytes for each address, on machines of 32 bits too.
        words = [f"(uintptr_t)({self._pointer(argument)})" for _, argument in pairs]
        listed = ", ".join((*words, *(f"(uint64_t){size}" for size in sizes)))
        run = f"{kernel.name}(arguments, 0, {extent});"
        if self._sharing is not None and self._sharing.chunks[number] > 1:
            run = f"parallel({kernel.name}, arguments, {extent}, {self._sharing.chunks[number]});"
        return [
            "    {",
            f"        const uint64_t arguments[] = {{{listed}}};",
            f"        {run}",
            "    }",
        ]

    def _pointer(self, argument: Argument) -> str:
        storage = self._program.storages[argument.storage]
        offset, cast = argument.offset, "(const uint8_t *)"
        if storage.kind is StorageKind.SCRATCH:
            offset, cast, base = offset + storage.index, "", "memory"
        elif storage.kind is StorageKind.FAULT:
            offset, cast, base = storage.index // _FAULT_BYTES, "", "faults"
        elif storage.kind is StorageKind.INPUT:
            base = self._names[storage.index]
        elif storage.kind is StorageKind.OUTPUT:
            base, cast = self._names[len(self._inputs) + storage.index], "(uint8_t *)"
        elif self._is_inline:
            # An empty tensor has no array, and nobody reads it.
            base = f"weights{storage.index}.bytes" if self._weights[storage.index].size else "NULL"
            cast = ""
        else:
            base = f"{self._name}_weights" if self._is_native else "weights"
            offset, cast = offset + self._offsets[storage.index], ""
        shift = spell(offset, self._size_names)
        return f"{cast}{base} + {shift}" if shift != "0" else base


_FAULT_BYTES = 8

_ANY = """\
static int any_of(const int64_t *faults, int64_t count)
{
    int64_t number;
    for (number = 0; number < count; ++number)
        if (faults[number] != 0)
            return 1;
    return 0;
}
"""

# It asks for one byte more than it wants: a longer file is another model's.
_READER = """\
#include <stdio.h>
#include <stdlib.h>

static uint8_t *block;
static const uint8_t *weights;

int NAME_init(const char *path)
{
    FILE *file;
    size_t count;
    if (block != NULL)
        return 0;
    file = fopen(path, "rb");
    if (file == NULL)
        return -1;
    block = malloc((size_t)SIZE + 65);
    if (block == NULL) {
        fclose(file);
        return -1;
    }
    weights = block + (64 - (uintptr_t)block % 64) % 64;
    count = fread(block + (weights - block), 1, (size_t)SIZE + 1, file);
    fclose(file);
    if (count != (size_t)SIZE) {
        NAME_free();
        return -1;
    }
    return 0;
}

void NAME_free(void)
{
    free(block);
    block = NULL;
    weights = NULL;
}
"""


def _laid_out(arrays: Sequence[Array]) -> tuple[list[int], int]:
    """Return where each array begins in the file of weights, and the file's size."""
    offsets, size = [], 0
    for array in arrays:
        size += -size % ALIGN
        offsets.append(size)
        size += array.nbytes
    return offsets, size


_PLACE = """\
/* Define NAME_WEIGHTS to say where weights lie: a section of flash memory, say. */
#ifndef NAME_WEIGHTS
#if defined(__GNUC__) && defined(__ELF__)
#define NAME_WEIGHTS __attribute__((section(".rodata.SECTION_weights"), aligned(ALIGNMENT)))
#else
#define NAME_WEIGHTS
#endif
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the weights are written for a machine with the lowest byte first"
#endif
"""


def _in_comment(text: str) -> str:
    """Return what names of a model say, on one line that ends no comment, nor begins one."""
    # A backslash before the end of a line would join what is left and right of it.
    return " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")


def _array(name: str, array: Array, place: str) -> str:
    """Return a constant array as source: its bytes as words, and the type that kernels read."""
    element = text.MEMORY[array.dtype.name]
    held = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    count = -(-held.size // _WORD)
    words = np.pad(held, (0, count * _WORD - held.size)).view("<u8")
    numbers = [f"{word:#x}" for word in words.tolist()]
    rows = [
        ",".join(numbers[first : first + _PER_LINE]) + ","
        for first in range(0, len(numbers), _PER_LINE)
    ]
    listed = "\n".join(rows)
    return (
        f"static const {place} union {{\n"
        f"    uint64_t words[{count}];\n    uint8_t bytes[{held.size}];\n"
        f"    {element} items[{array.size}];\n"
        f"}} {name} = {{{{\n{listed}\n}}}};\n"
    )
