# SPDX-License-Identifier: Apache-2.0
"""A whole program in C99: one plain function, its header, and its weights.

Weights up to `INLINE_BYTES` stand in the source; more lie in a file beside it, which a generated
function reads. The function calls kernels in order on inputs, outputs, weights and one block of
scratch memory; how a kernel is called is the caller's (`emit_c_program`: functions of the same
source; `emit_driver`: object files).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.codegen.emit import c_text as text
from intarsia.codegen.emit.c import emit_c
from intarsia.codegen.ir import Function
from intarsia.codegen.lower.program import Argument, Call, Program
from intarsia.codegen.storage import StorageKind
from intarsia.errors import BackendError

Array = np.ndarray[Any, np.dtype[Any]]

# C99 promises no larger objects (5.2.4.1: 65,535 bytes).
INLINE_BYTES = 64 << 10
"""Up to this many bytes of weights are written into the source."""

ALIGN = 64
"""Bytes to which weights and scratch memory are aligned."""

_PER_LINE = 8
"""Numbers of a weight in a line of source."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output.

    Attributes:
        name: In the model.
        dtype: By numpy's name.
        shape: Its dimensions.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sources:
    """A program as text.

    Attributes:
        header: What callers include.
        source: The program.
        weights: What `write_weights` puts into a file beside it; empty if nothing is.
    """

    header: str
    source: str
    weights: tuple[Array, ...]


def write_weights(path: Path, arrays: Sequence[Array]) -> None:
    """Write weights one after the other, each at a multiple of `ALIGN` bytes."""
    with path.open("wb") as file:
        for array in arrays:
            file.write(bytes(-file.tell() % ALIGN))
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def emit_c_program(
    name: str, program: Program, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Sources:
    """Return a program as one C99 source that needs nothing but a C compiler.

    Args:
        name: What its functions' names begin with: a C identifier.
        program: Calls of kernels.
        inputs: In the order of the region's inputs.
        outputs: In the order of the region's outputs.
    """
    return _Writer(name, program, inputs, outputs, is_native=False).sources()


def emit_driver(
    name: str, program: Program, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Sources:
    """Return the C part of a shared library whose kernels are object files.

    Its weights are the symbol `<name>_weights`. See `emit_c_program`.
    """
    return _Writer(name, program, inputs, outputs, is_native=True).sources()


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
        *,
        is_native: bool,
    ) -> None:
        self._name = name
        self._program = program
        self._inputs = inputs
        self._outputs = outputs
        self._is_native = is_native
        for tensor in (*inputs, *outputs):
            if tensor.dtype not in text.MEMORY:
                raise BackendError(
                    f"{tensor.name!r} is of {tensor.dtype}, which C has no type for", target="c"
                )
        used = sorted({call.kernel for call in program.calls})
        self._kernels = {number: program.kernels[number] for number in used}
        taken = {kernel.name for kernel in self._kernels.values()}
        taken |= {"scratch", "memory", "weights", "block", "arguments", "l"}
        taken |= {"faults", "any_of"}
        self._names: list[str] = []
        for tensor in (*inputs, *outputs):
            candidate = identifier(tensor.name)
            while candidate in taken or candidate in text.KEYWORDS:
                candidate += "_"
            taken.add(candidate)
            self._names.append(candidate)
        self._weights = tuple(program.constants.values())
        self._offsets, self._size = _laid_out(self._weights)
        self._is_inline = self._size <= INLINE_BYTES and not is_native
        self._has_file = not self._is_inline and not is_native

    def sources(self) -> Sources:
        """Return all texts."""
        return Sources(self._header(), self._source(), () if self._is_inline else self._weights)

    # The header

    def _header(self) -> str:
        name, guard = self._name, f"{self._name.upper()}_H"
        size = self._program.scratch_bytes + ALIGN
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
            f"/* Bytes of memory that {name}_run_in works in. */",
            f"#define {name.upper()}_SCRATCH_BYTES {size}u",
            "",
        ]
        if not self._is_native:
            where = f"{name}.bin" if self._has_file else "nothing: the weights are in the source"
            lines += [
                f"/* Call it once, before all else; it reads {where}.",
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
            "/* Runs the model in memory of the caller; calls may run side by side. */",
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

    def _described(self) -> list[str]:
        lines = ["/* Tensors are dense and row-major."]
        for number, tensor in enumerate((*self._inputs, *self._outputs)):
            role = "input" if number < len(self._inputs) else "output"
            shape = " x ".join(map(str, tensor.shape)) or "a scalar"
            lines.append(f"   {role} {self._names[number]}: {tensor.dtype}, {shape}")
        return [*lines[:-1], f"{lines[-1]} */", ""]

    def _results(self) -> list[str]:
        """Return the end of a comment: what a run returns."""
        if not self._program.checks:
            return ["Returns 0. */"]
        lines = ["Returns 0, or what is wrong; then no output is to be used:"]
        for number, check in enumerate(self._program.checks, 1):
            line = f"{number}: an index in {check.indices!r} is out of bounds: "
            line += f"node {check.node!r} has {check.extent} entries"
            if not check.extent:
                line = f"{number}: {check.indices!r} does not fit the shapes of node {check.node!r}"
            # A node's name may be any text, and would end the comment.
            lines.append(line.replace("*/", "* /"))
        return [*lines[:-1], f"{lines[-1]} */"]

    def _signature(self) -> str:
        parts = []
        for number, tensor in enumerate((*self._inputs, *self._outputs)):
            const = "const " if number < len(self._inputs) else ""
            parts.append(f"{const}{text.MEMORY[tensor.dtype]} *{self._names[number]}")
        return ", ".join(parts)

    # The source

    def _source(self) -> str:
        name = self._name
        size = self._program.scratch_bytes + ALIGN
        parts = [f'#include "{name}.h"\n', "#include <stdio.h>\n#include <stdlib.h>\n"]
        kernels = list(self._kernels.values())
        if self._is_native:
            parts.append(f"extern const uint8_t {name}_weights[];\n")
            parts += [
                f"extern void {kernel.name}(void **arguments, int64_t begin, int64_t end);\n"
                for kernel in kernels
            ]
        else:
            parts += [emit_c(kernels), *self._weight_parts()]
        if self._program.checks:
            parts.append(_ANY)
        parts.append(self._run_in())
        names = ", ".join(self._names)
        parts.append(
            f"int {name}_run({self._signature()})\n{{\n"
            f"    static uint8_t memory[{size}];\n"
            f"    return {name}_run_in(memory, {names});\n}}\n"
        )
        return "\n".join(parts)

    def _weight_parts(self) -> list[str]:
        name = self._name
        if self._is_inline:
            arrays = [
                _array(f"weights{number}", array)
                for number, array in enumerate(self._weights)
                if array.size
            ]
            empty = f"int {name}_init(const char *path)\n{{\n    (void)path;\n    return 0;\n}}\n"
            return [*arrays, empty, f"void {name}_free(void)\n{{\n}}\n"]
        return [_READER.replace("NAME", name).replace("SIZE", str(self._size))]

    def _run_in(self) -> str:
        lines = [f"int {self._name}_run_in(void *scratch, {self._signature()})", "{"]
        storages = self._program.storages
        faults = {check.storage: at for at, check in enumerate(self._program.checks, 1)}
        if faults:
            sizes = (storages[storage].nbytes for storage in faults)
            lines.append(f"    int64_t faults[{sum(sizes) // _FAULT_BYTES}];")
        lines += [
            "    uint8_t *memory = (uint8_t *)scratch;",
            f"    memory += ({ALIGN} - (uintptr_t)memory % {ALIGN}) % {ALIGN};",
            "    (void)memory;",
            *(f"    (void){name};" for name in self._names),
        ]
        for call in self._program.calls:
            kernel = self._kernels[call.kernel]
            what = " + ".join(call.nodes) or call.note
            if what:
                lines.append(f"    /* {what.replace('*/', '* /')} */")
            lines += self._call(kernel, call)
            for argument in call.arguments:
                if argument.storage in faults:
                    count = storages[argument.storage].nbytes // _FAULT_BYTES
                    pointer = f"any_of({self._pointer(argument)}, {count})"
                    lines.append(f"    if ({pointer}) return {faults[argument.storage]};")
        return "\n".join((*lines, "    return 0;", "}", ""))

    def _call(self, kernel: Function, call: Call) -> list[str]:
        pairs = zip(kernel.buffers, call.arguments, strict=True)
        if not self._is_native:
            passed = []
            for buffer, argument in pairs:
                const = "" if buffer.is_written else "const "
                element = text.MEMORY[buffer.dtype]
                passed.append(f"({const}{element} *)({self._pointer(argument)})")
            listed = "".join(f"\n        {item}," for item in passed)
            return [f"    {kernel.name}({listed}", f"        0, {call.extent});"]
        listed = ", ".join(f"(void *)({self._pointer(argument)})" for _, argument in pairs)
        return [
            "    {",
            f"        void *arguments[] = {{{listed}}};",
            f"        {kernel.name}(arguments, 0, {call.extent});",
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
            base = f"weights{storage.index}"
        else:
            base = f"{self._name}_weights" if self._is_native else "weights"
            offset, cast = offset + self._offsets[storage.index], ""
        return f"{cast}{base} + {offset}" if offset else base


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


def _array(name: str, array: Array) -> str:
    """Return a constant array as source."""
    dtype = array.dtype.name
    held = array.reshape(-1)
    # C99 has no type for it: kernels take its bits apart.
    if dtype == "float16":
        held, dtype = held.view(np.uint16), "uint16"
    elif dtype == "bool":
        held, dtype = held.view(np.uint8), "uint8"
    numbers = [text.literal(number, dtype) for number in held]
    rows = [
        "    " + ", ".join(numbers[first : first + _PER_LINE]) + ","
        for first in range(0, len(numbers), _PER_LINE)
    ]
    listed = "\n".join(rows)
    return f"static const {text.MEMORY[dtype]} {name}[{len(numbers)}] = {{\n{listed}\n}};\n"
