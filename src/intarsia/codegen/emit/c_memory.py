# SPDX-License-Identifier: Apache-2.0
"""How much memory a program in C needs: its arena, packed tightly, and the stack.

A program for a microcontroller is written once, so that its arena may take longer to plan than
that of a program which is made while somebody waits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from intarsia.codegen import ir
from intarsia.codegen.emit.c_function import CFunction
from intarsia.codegen.lower.program import Argument, MemoryBlock, Program, place_scratch
from intarsia.codegen.storage import StorageKind

_SAVED_BYTES = 192
"""What a call takes beside variables: registers that are saved (36 words on Armv7-M with floats),
the return address, alignment."""

_ROUTINE_BYTES = 160
"""What a compiler's own routines need below a kernel: division of 64 bits, floats by software."""

_WORD = 8
"""Bytes of a parameter, and of a scalar, at most."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory that a program in C needs beside its code, in bytes.

    Attributes:
        arena: What a run works in.
        stack: What a run takes of the stack at most.
        weights: Constants.
    """

    arena: int
    stack: int
    weights: int

    def __str__(self) -> str:
        return (
            f"{self.arena} bytes of arena, at most {self.stack} bytes of stack, "
            f"{self.weights} bytes of weights"
        )


def with_tight_arena(program: Program, alignment: int) -> Program:
    """Return a program whose arena holds the kernels' own buffers too, and is as small as we can.

    Args:
        program: Of sizes that are known.
        alignment: Bytes to which each block is aligned.
    """
    storages, calls = list(program.storages), []
    for call in program.calls:
        own = []
        for buffer in program.kernels[call.kernel].locals:
            own.append(Argument(len(storages), 0))
            nbytes = int(buffer.span) * buffer.item_bytes
            storages.append(MemoryBlock(StorageKind.SCRATCH, 0, nbytes))
        calls.append(replace(call, arguments=(*call.arguments, *own)))
    kernels = tuple(
        replace(kernel, buffers=(*kernel.buffers, *kernel.locals), locals=())
        if kernel.locals
        else kernel
        for kernel in program.kernels
    )
    placed, size = place_scratch(storages, tuple(calls), alignment)
    return replace(
        program, kernels=kernels, calls=tuple(calls), storages=placed, scratch_bytes=size
    )


def stack_bytes(program: Program) -> int:
    """Return how much of the stack a run takes at most, whatever a compiler does.

    Every value of a kernel may have a place of its own there, as without optimisation.
    """
    called = {call.kernel for call in program.calls}
    deepest = max((_kernel_bytes(program.kernels[number]) for number in called), default=0)
    most = max((len(call.arguments) for call in program.calls), default=0)
    ends = sum(item.kind in (StorageKind.INPUT, StorageKind.OUTPUT) for item in program.storages)
    faults = sum(int(program.storages[check.storage].nbytes) for check in program.checks)
    own = 2 * _SAVED_BYTES + 2 * (ends + most) * _WORD + faults  # of `run` and `run_in`
    return -(-(own + deepest) // _WORD) * _WORD


def _kernel_bytes(kernel: ir.Function) -> int:
    if isinstance(kernel, CFunction):
        return kernel.stack_bytes
    total = _SAVED_BYTES + _ROUTINE_BYTES + (len(kernel.buffers) + 2) * _WORD
    for operation in ir.walk(kernel.body):
        if isinstance(operation, ir.Constant | ir.Splat):
            continue  # they are written where they are used
        values = list(ir.results(operation))
        if isinstance(operation, ir.Loop):
            total += _WORD
            values = list(operation.carried)
        elif isinstance(operation, ir.Reduce):
            values.append(operation.operand)
        total += sum(_bytes_of(value.type) for value in values)
    return total


def _bytes_of(type_: ir.Type) -> int:
    if type_.lanes == 1:
        return _WORD
    # Halves are computed as float32.
    return type_.lanes * (4 if type_.dtype == "float16" else np.dtype(type_.dtype).itemsize)
