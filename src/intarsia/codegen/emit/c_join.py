# SPDX-License-Identifier: Apache-2.0
"""Makes one program of those of several regions, so that one arena serves them all.

Each region is a program of its own: of our kernels, or of calls into a library (`c_function`).
What passes between regions becomes scratch memory, whose life ends with its last reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from intarsia.codegen.ir import Function
from intarsia.codegen.lower.program import (
    Argument,
    Array,
    Call,
    IndexCheck,
    MemoryBlock,
    Program,
    place_scratch,
)
from intarsia.codegen.storage import StorageKind
from intarsia.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """The program of a region, and which tensors of the whole its inputs and outputs are.

    Attributes:
        program: Of sizes that are known.
        inputs: The number of the value of each input.
        outputs: The number of the value of each output.
    """

    program: Program
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def join(parts: Sequence[ProgramPart], inputs: Sequence[int], outputs: Sequence[int]) -> Program:
    """Return one program of parts that run one after the other.

    Args:
        parts: In an order in which each reads what is there.
        inputs: Values that the whole is given, in order.
        outputs: Values that it is to leave, in order; each is written by a part.

    Raises:
        UnsupportedError: The size of an output of a part is found by a run.
    """
    joined = _Joined(list(inputs), list(outputs))
    for part in parts:
        joined.append(part)
    return joined.finish()


class _Joined:
    def __init__(self, inputs: list[int], outputs: list[int]) -> None:
        self._ends = {value: (StorageKind.INPUT, number) for number, value in enumerate(inputs)}
        self._ends |= {value: (StorageKind.OUTPUT, number) for number, value in enumerate(outputs)}
        self._values: dict[int, int] = {}  # number of the storage of a value
        self._kernels: list[Function] = []
        self._numbers: dict[str, int] = {}
        self._calls: list[Call] = []
        self._storages: list[MemoryBlock] = []
        self._constants: dict[str, Array] = {}
        self._same: dict[int, int] = {}  # by identity of an array: its number
        self._packed: set[str] = set()
        self._checks: list[IndexCheck] = []
        self._fault_bytes = 0

    def append(self, part: ProgramPart) -> None:
        """Append the calls of a part."""
        program = part.program
        if program.found or program.is_free:
            raise UnsupportedError(
                "a program in C has memory for sizes that are known when it is written",
                hint="fix the sizes of inputs (--shape)",
            )
        kernels = [self._kernel(kernel) for kernel in program.kernels]
        names = list(program.constants)
        storages, faults = [], 0
        for block in program.storages:
            if block.kind is StorageKind.INPUT:
                storages.append(self._value(part.inputs[int(block.index)], block))
            elif block.kind is StorageKind.OUTPUT:
                storages.append(self._value(part.outputs[int(block.index)], block))
            elif block.kind is StorageKind.CONSTANT:
                name = names[int(block.index)]
                number = self._constant(name, program.constants[name], name in program.packed)
                storages.append(self._storage(replace(block, index=number)))
            elif block.kind is StorageKind.FAULT:
                faults += int(block.nbytes)
                moved = replace(block, index=block.index + self._fault_bytes)
                storages.append(self._storage(moved))
            else:
                storages.append(self._storage(block))
        self._fault_bytes += faults
        for call in program.calls:
            arguments = tuple(
                Argument(storages[item.storage], item.offset) for item in call.arguments
            )
            self._calls.append(replace(call, kernel=kernels[call.kernel], arguments=arguments))
        self._checks += [
            replace(check, storage=storages[check.storage]) for check in program.checks
        ]

    def finish(self) -> Program:
        """Return the whole."""
        calls = tuple(self._calls)
        storages, size = place_scratch(self._storages, calls)
        return Program(
            tuple(self._kernels),
            calls,
            storages,
            self._constants,
            frozenset(self._packed),
            size,
            tuple(self._checks),
        )

    def _storage(self, block: MemoryBlock) -> int:
        self._storages.append(block)
        return len(self._storages) - 1

    def _kernel(self, kernel: Function) -> int:
        """Return the number of a kernel; those of one name are one, as names are digests."""
        if kernel.name not in self._numbers:
            self._numbers[kernel.name] = len(self._kernels)
            self._kernels.append(kernel)
        return self._numbers[kernel.name]

    def _value(self, value: int, block: MemoryBlock) -> int:
        """Return the storage of a tensor that regions pass on, or of an end of the whole."""
        if value not in self._values:
            kind, index = self._ends.get(value, (StorageKind.SCRATCH, 0))
            self._values[value] = self._storage(MemoryBlock(kind, index, block.nbytes))
        return self._values[value]

    def _constant(self, name: str, array: Array, is_packed: bool) -> int:
        """Return the number of a constant; arrays that parts share are kept once."""
        if id(array) not in self._same:
            unique, count = name, 1
            while unique in self._constants:
                unique, count = f"{name}/{count}", count + 1
            self._same[id(array)] = len(self._constants)
            self._constants[unique] = array
            if is_packed:
                self._packed.add(unique)
        return self._same[id(array)]
