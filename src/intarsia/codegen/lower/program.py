# SPDX-License-Identifier: Apache-2.0
"""A region as a list of kernel calls over storages: what the native backend compiles and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from intarsia.codegen.ir import Function
from intarsia.codegen.storage import StorageKind
from intarsia.extents import Size, is_free
from intarsia.graph.arena import assign_offsets, pack_offsets

Array = np.ndarray[Any, np.dtype[Any]]


_INEXACT = ("Winograd", "float16")
"""Words of the notes that say what was traded for speed."""


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """A block of memory that kernels get pointers into.

    Attributes:
        kind: Whose it is.
        index: Which input, output or constant; of scratch, faults and counts, the offset in bytes.
        nbytes: Its size.
        life: Of scratch in a program of free sizes, the first and the last call that use it: its
            offset is found when the sizes are known.
    """

    kind: StorageKind
    index: Size
    nbytes: Size
    life: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """A pointer that a kernel gets: a storage, and bytes from its start."""

    storage: int
    offset: Size


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a kernel.

    Attributes:
        kernel: Number of the kernel in its program.
        arguments: For each buffer of the kernel.
        extent: Turns of its parallel loop.
        nodes: Names of the ONNX nodes that it computes; none for a conversion of a layout.
        note: What it does, for people.
        moved_bytes: Of a copy, what it writes.
        shape: What it reads first and what it writes, for people.
        flop: Operations of its nodes, by the definitions of their operators.
        nbytes: What it reads and writes, each byte once.
        is_tuned: Whether its schedule was found by measuring, not picked by a heuristic.
        sizes: What the kernel's free extents are in this call.
        is_kept: Whether it has nothing to do where its first and its last argument are the same
            memory: what it would copy is there.
    """

    kernel: int
    arguments: tuple[Argument, ...]
    extent: Size
    nodes: tuple[str, ...] = ()
    note: str = ""
    moved_bytes: int = 0
    shape: str = ""
    flop: int = 0
    nbytes: int = 0
    is_tuned: bool = False
    sizes: tuple[Size, ...] = ()
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """Numbers that a call has looked at: its storage of faults holds zeros unless one is wrong.

    Attributes:
        storage: Number of the storage, int64: zeros, or indices that are outside.
        node: Name of the node that reads them.
        indices: Their name.
        extent: They are in `[-extent, extent)`; 0 for parameters that have to fit the shapes.
    """

    storage: int
    node: str
    indices: str
    extent: Size


@dataclass(frozen=True, slots=True)
class FoundOutput:
    """An output whose size a call finds; its storage has room for as much as there may be.

    Attributes:
        output: Which output of the region.
        count: Number of the storage of the size, int64[1].
        shape: Its extents; that of `axis` does not count.
        axis: Which of them the size is.
    """

    output: int
    count: int
    shape: tuple[Size, ...]
    axis: int


@dataclass(frozen=True, slots=True)
class Program:
    """Kernel calls in order.

    Attributes:
        kernels: Each distinct one.
        calls: In the order in which they run.
        storages: All memory.
        constants: Weights as the kernels want them, by a name that says of what and how.
        packed: Names of those that lowering made, and that nothing else holds.
        scratch_bytes: Size of the arena, planned by liveness.
        checks: Of indices, in the order of their calls.
        found: The outputs whose sizes are found, in the order of their calls.
        sums: Of free sizes: which order sums have that may have another one at some sizes.
        in_floats: The layers between Q and DQ nodes that are computed in float32, and how many
            times as fast as in integers that was measured to be.
    """

    kernels: tuple[Function, ...]
    calls: tuple[Call, ...]
    storages: tuple[MemoryBlock, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    packed: frozenset[str] = frozenset()
    scratch_bytes: int = 0
    checks: tuple[IndexCheck, ...] = ()
    found: tuple[FoundOutput, ...] = ()
    sums: Mapping[str, str] = field(default_factory=dict)
    in_floats: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_free(self) -> bool:
        """Whether it runs at sizes that are known only then."""
        return any(storage.life for storage in self.storages) or is_free(
            [
                *(storage.nbytes for storage in self.storages),
                *(call.extent for call in self.calls),
                *(size for call in self.calls for size in call.sizes),
            ]
        )

    @property
    def in_place(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs that may be the same memory: nothing else reads that input."""
        uses = Counter(argument.storage for call in self.calls for argument in call.arguments)
        ends = [
            (call.arguments[0].storage, call.arguments[-1].storage)
            for call in self.calls
            if call.is_kept
        ]
        return tuple(
            (self.storages[first].index, self.storages[last].index)
            for first, last in ends
            if self.storages[first].kind is StorageKind.INPUT
            and self.storages[last].kind is StorageKind.OUTPUT
            and uses[first] == 1
        )

    def summary(self) -> str:
        """Say in one line how much there is, and what layouts cost."""
        moves = [call for call in self.calls if not call.nodes]
        moved = sum(call.moved_bytes for call in moves)
        inexact = Counter(
            call.note
            for call in self.calls
            if call.nodes and any(word in call.note for word in _INEXACT)
        )
        notes = "".join(f"; {count} x {note}" for note, count in sorted(inexact.items()))
        tuned = sum(call.is_tuned for call in self.calls)
        notes += f"; {tuned} calls of tuned kernels" if tuned else ""
        if self.in_floats:
            layers = ", ".join(f"{name} ({gain:.2f})" for name, gain in self.in_floats.items())
            notes += f"; between Q and DQ in float32, measured to be faster than integers: {layers}"
        scratch = f"{self.scratch_bytes} bytes of scratch"
        if any(storage.life for storage in self.storages):
            scratch = "scratch as large as the sizes need"
        return (
            f"{len(self.calls)} calls of {len(self.kernels)} kernels, {scratch}; "
            f"{len(moves)} conversions and borders write {moved} bytes{notes}"
        )

    def __str__(self) -> str:
        """Say which operators became which kernel, a line for each call."""
        lines = [self.summary()]
        for call in self.calls:
            name = self.kernels[call.kernel].name
            nodes = " + ".join(call.nodes) or "(layout)"
            lines.append(f"  {name}: {nodes}{f'  # {call.note}' if call.note else ''}")
        return "\n".join(lines)


def place_scratch(
    storages: list[MemoryBlock], calls: tuple[Call, ...], alignment: int | None = None
) -> tuple[tuple[MemoryBlock, ...], int]:
    """Give every scratch storage its offset, and return the storages and the arena's bytes.

    Args:
        storages: All memory.
        calls: What uses it, in order.
        alignment: Bytes to which blocks are aligned in an arena that is as small as we can make it;
            None for one of whole cache lines that is planned quickly.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for when, call in enumerate(calls):
        for argument in call.arguments:
            if storages[argument.storage].kind is StorageKind.SCRATCH:
                first.setdefault(argument.storage, when)
                last[argument.storage] = when
    if is_free([storages[i].nbytes for i in first]):
        lived = [
            replace(item, life=(first[i], last[i])) if i in first else item
            for i, item in enumerate(storages)
        ]
        return tuple(lived), 0
    lives = [(first[i], last[i], storages[i].nbytes) for i in first]
    # From the first call that uses it to the last, both included: a kernel may not write where it
    # reads.
    offsets, size = pack_offsets(lives, alignment) if alignment else assign_offsets(lives)
    placed = [  # what no call uses takes no memory
        replace(item, nbytes=0) if item.kind is StorageKind.SCRATCH else item for item in storages
    ]
    for i, offset in zip(first, offsets, strict=True):
        placed[i] = MemoryBlock(StorageKind.SCRATCH, offset, storages[i].nbytes)
    return tuple(placed), size
