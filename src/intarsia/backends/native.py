# SPDX-License-Identifier: Apache-2.0
"""Shared by the backends that generate code from the loop-level IR: refusals and the payload.

A payload is MessagePack behind its own SHA-256. It holds kernels as text, memory (`storages`) and
calls; before anything of it is used, every reference in it is checked.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.backends.artifact import damaged, pack_payload, refuse, unpack_payload
from intarsia.backends.borders import border_specs, read_blocks
from intarsia.backends.index_checks import misfit, outside
from intarsia.backends.native_calls import CallWords
from intarsia.backends.values import Artifact, ArtifactConstant, FusedGroup, Refusal
from intarsia.codegen.storage import StorageKind
from intarsia.errors import BackendError, ReasonCode
from intarsia.extents import Expression, to_data, typical
from intarsia.graph.arena import align_array
from intarsia.graph.late_sizes import touched

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.codegen.lower.layouts import Borders
    from intarsia.codegen.lower.program import Program
    from intarsia.codegen.unit import CpuModel
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region

_ADDRESSED_BYTES = 1 << 63
_FAULT = np.dtype(np.int64)  # the type of subscripts in kernels

# Texts, as payloads have them: members of enumerations take long to look up and to compare.
_SCRATCH, _FAULTS, _COUNT = map(str, (StorageKind.SCRATCH, StorageKind.FAULT, StorageKind.COUNT))

_CODES = {
    "op": ReasonCode.UNSUPPORTED_OP,
    "dtype": ReasonCode.UNSUPPORTED_DTYPE,
    "shape": ReasonCode.DYNAMIC_SHAPE,
}


class CallRecord(msgspec.Struct, frozen=True, array_like=True):
    """One call of a kernel.

    Attributes:
        kernel: Its number.
        arguments: For each of its buffers a storage, and bytes from its start.
        extent: Turns of its parallel loop.
        nodes: Names of the ONNX nodes that it computes.
        note: What it does, for people.
        shape: What it reads first and what it writes, for people.
        flop: Operations of its nodes.
        nbytes: What it reads and writes, each byte once.
        is_tuned: Whether its schedule was found by measuring.
        sizes: The kernel's free extents in this call.
        kept: Which argument is what it writes, where it has nothing to do if that is the same
            memory as its first argument; else 0.
    """

    kernel: int
    arguments: list[tuple[int, int]]
    extent: int
    nodes: list[str]
    note: str
    shape: str = ""
    flop: int = 0
    nbytes: int = 0
    is_tuned: bool = False
    sizes: list[int] = []
    kept: int = 0


class CheckRecord(msgspec.Struct, frozen=True, array_like=True):
    """Indices or other parameters that a call looks at.

    Attributes:
        storage: Where it leaves those that are wrong.
        node: Name of the ONNX node that reads them.
        indices: Their name.
        extent: They are in `[-extent, extent)`; 0 for parameters that have to fit the shapes.
    """

    storage: int
    node: str
    indices: str
    extent: int


class FoundRecord(msgspec.Struct, frozen=True, array_like=True):
    """An output whose size a call finds.

    Attributes:
        output: Which output.
        count: The storage of its size.
        shape: Its extents, free ones as `intarsia.extents.to_data` writes them.
        axis: Which of them is found.
    """

    output: int
    count: int
    shape: list[Any]
    axis: int


class FreeCall(msgspec.Struct, frozen=True, array_like=True):
    """What is free of a call: numbers in the table of extents, -1 for what is not.

    Attributes:
        extent: Turns of its parallel loop.
        offsets: Of its arguments.
        sizes: Its sizes.
    """

    extent: int
    offsets: list[int]
    sizes: list[int]


class FreeRecord(msgspec.Struct, frozen=True, array_like=True):
    """What depends on sizes that are known when a program runs.

    Attributes:
        extents: Expressions of the sizes, see `intarsia.extents.to_data`.
        nbytes: For each storage its bytes, as the number of an expression; -1 if they are known.
        lives: For each storage the first and the last call that use it, if it is scratch.
        calls: Of each call.
        checks: For each check the extent, as the number of an expression; -1 if it is known.
    """

    extents: list[Any]
    nbytes: list[int]
    lives: list[tuple[int, int] | None]
    calls: list[FreeCall]
    checks: list[int]


class Calls(Protocol):
    """What the payloads of these backends have in common."""

    @property
    def storages(self) -> list[tuple[str, int, int]]:
        """Kind, index (for scratch: offset in bytes) and size in bytes of each block of memory."""

    @property
    def calls(self) -> list[CallRecord]:
        """The calls of kernels, in the order in which they run."""

    @property
    def scratch_bytes(self) -> int:
        """Size of the scratch memory."""

    @property
    def counts(self) -> list[int]:
        """For each kernel, the number of its arguments."""

    @property
    def checks(self) -> list[CheckRecord]:
        """The checks of indices, in the order of their calls."""

    @property
    def found(self) -> list[FoundRecord]:
        """The outputs whose sizes are found, in the order of their calls."""

    @property
    def free(self) -> FreeRecord | None:
        """What depends on sizes that are known when it runs; None if nothing does."""


Payload = TypeVar("Payload", bound=Calls)


def storage_records(program: Program) -> list[tuple[str, int, int]]:
    """Return a program's memory for a payload.

    Raises:
        BackendError: It is more than native code addresses.
    """
    largest = max((typical(storage.nbytes) for storage in program.storages), default=0)
    if largest >= _ADDRESSED_BYTES:
        raise BackendError(
            f"a tensor of {largest} bytes is more than native code addresses",
            hint="check the shapes of the model",
        )
    return [
        (str(storage.kind), typical(storage.index), typical(storage.nbytes))
        for storage in program.storages
    ]


def call_records(program: Program) -> list[CallRecord]:
    """Return a program's calls for a payload."""
    return [
        CallRecord(
            call.kernel,
            [(argument.storage, typical(argument.offset)) for argument in call.arguments],
            typical(call.extent),
            list(call.nodes),
            call.note,
            call.shape,
            call.flop,
            call.nbytes,
            is_tuned=call.is_tuned,
            sizes=[typical(size) for size in call.sizes],
            kept=len(call.arguments) - 1 if call.is_kept else 0,
        )
        for call in program.calls
    ]


def check_records(program: Program) -> list[CheckRecord]:
    """Return a program's checks for a payload."""
    return [
        CheckRecord(check.storage, check.node, check.indices, typical(check.extent))
        for check in program.checks
    ]


def found_records(program: Program) -> list[FoundRecord]:
    """Return the outputs of a program whose sizes are found, for a payload."""
    return [
        FoundRecord(
            one.output,
            one.count,
            [
                0 if axis == one.axis else to_data(item) if isinstance(item, Expression) else item
                for axis, item in enumerate(one.shape)
            ],
            one.axis,
        )
        for one in program.found
    ]


def make_faults(payload: Calls) -> Array:
    """Return memory for what the checks of a run find: an int64 for each turn of each check."""
    nbytes = sum(payload.storages[check.storage][2] for check in payload.checks)
    return np.zeros(nbytes // _FAULT.itemsize, _FAULT)


def raise_fault(payload: Calls, faults: Array, target: str) -> None:
    """Raise the first thing that checks found in a run.

    Raises:
        InputError: An index is out of bounds, or a parameter does not fit the shapes.
    """
    for check in payload.checks:
        _, start, nbytes = payload.storages[check.storage]
        reported = faults[start // _FAULT.itemsize : (start + nbytes) // _FAULT.itemsize]
        for index in reported[reported != 0][:1]:
            if not check.extent:
                raise misfit(check.indices, check.node, target)
            raise outside(int(index), check.indices, check.node, check.extent, target)


def argument_counts(program: Program) -> list[int]:
    """Return how many arguments each kernel of a program has."""
    return [len(kernel.buffers) + len(kernel.sizes) for kernel in program.kernels]


def native_artifact(
    backend: str,
    version: str,
    candidate: Candidate,
    program: Program,
    payload: msgspec.Struct,
    metadata: Mapping[str, str],
    blocks: Collection[int] = (0,),
) -> Artifact:
    """Return a region's program as an artifact; its weights lie as the kernels want them.

    Args:
        backend: Name of the backend.
        version: Its version.
        candidate: What was lowered.
        program: What it became.
        payload: The program with the text of its kernels.
        metadata: Small facts in text.
        blocks: Channels of a block of border tensors that the backend can be given.

    Raises:
        BackendError: A state of the border is not one that the backend can be given.
    """
    read_borders(candidate, backend, blocks)
    inputs, outputs = border_specs(candidate)
    return Artifact(
        backend=backend,
        version=version,
        target=str(candidate.target),
        payload=pack_payload(payload),
        inputs=inputs,
        outputs=outputs,
        constants=tuple(
            ArtifactConstant(name, align_array(array), name in program.packed)
            for name, array in program.constants.items()
        ),
        metadata=metadata,
    )


def read_borders(candidate: Candidate, backend: str, blocks: Collection[int]) -> Borders:
    """Return which tensors of a candidate's border are in blocks of channels.

    Args:
        candidate: What is to be compiled.
        backend: Name of the backend, for the error.
        blocks: Channels of a block that the backend can be given; 0 is plain.

    Raises:
        BackendError: A state is not one that the backend can be given.
    """
    from intarsia.codegen.lower.layouts import Borders

    region = candidate.region
    borders = [
        dict(zip(values, read_blocks(region, values, states, backend, blocks), strict=True))
        for values, states in (
            (region.inputs, candidate.inputs),
            (region.outputs, candidate.outputs),
        )
    ]
    inputs, outputs = ({value: size for value, size in side.items() if size} for side in borders)
    return Borders(inputs, outputs)


def read_payload(artifact: Artifact, form: type[Payload]) -> Payload:
    """Read a payload and check that every pointer that it makes lies inside its storage.

    Raises:
        PackageError: It is damaged.
    """
    payload = unpack_payload(artifact, form)
    if payload.scratch_bytes < 0:
        raise damaged(artifact, "its scratch memory")
    if payload.free is None:  # else when sizes are known
        problem = _problem_with(payload, artifact)
        if problem:
            raise damaged(artifact, problem)
    return payload


def _problem_with(payload: Calls, artifact: Artifact) -> str:
    """Return what is wrong with a payload's pointers; empty if nothing is."""
    counts = {
        StorageKind.INPUT: [spec.nbytes for spec in artifact.inputs],
        StorageKind.OUTPUT: [spec.nbytes for spec in artifact.outputs],
        StorageKind.CONSTANT: [constant.data.nbytes for constant in artifact.constants],
    }
    sizes_by_kind = {str(kind): sizes for kind, sizes in counts.items()}
    problem = problem_of_calls(payload) or problem_of(payload, sizes_by_kind)
    if problem:
        return problem
    nbytes = np.array([nbytes for _, _, nbytes in payload.storages], np.int64)
    return "" if CallWords.of(payload.calls).are_inside(nbytes) else "an offset"


def problem_of(payload: Calls, sizes_by_kind: Mapping[str, Sequence[int]] | None) -> str:
    """Return what is wrong with a payload's memory and turns; empty if nothing is.

    Args:
        payload: Of fixed sizes.
        sizes_by_kind: The bytes of inputs, outputs and constants; None if they are not known yet.
    """
    faults = counts = 0
    found = {one.output for one in payload.found}
    for kind, index, nbytes in payload.storages:
        if kind == _SCRATCH:
            is_sound = 0 <= index <= index + nbytes <= payload.scratch_bytes
        elif kind == _FAULTS:
            is_sound = index == faults and nbytes >= 0 and not nbytes % _FAULT.itemsize
            faults += nbytes
        elif kind == _COUNT:
            is_sound = index == counts and nbytes == _FAULT.itemsize
            counts += nbytes
        elif sizes_by_kind is None or (kind == StorageKind.OUTPUT and index in found):
            is_sound = index >= 0 <= nbytes
        else:
            sizes = sizes_by_kind.get(kind, [])
            is_sound = 0 <= index < len(sizes) and sizes[index] == nbytes
        if not is_sound:
            return "a storage"
    if not _is_found(payload):
        return "an output whose size is found"
    held = [i for i, (kind, _, _) in enumerate(payload.storages) if kind == _FAULTS]
    if held != [check.storage for check in payload.checks]:
        return "its checks"
    return "a call" if any(call.extent < 0 for call in payload.calls) else ""


def _is_found(payload: Calls) -> bool:
    """Tell whether each output whose size is found has a size of its own and one storage."""
    counts = [i for i, (kind, _, _) in enumerate(payload.storages) if kind == _COUNT]
    if not counts and not payload.found:
        return True
    kinds = [(kind, index) for kind, index, _ in payload.storages]
    return counts == [one.count for one in payload.found] and all(
        kinds.count((str(StorageKind.OUTPUT), one.output)) == 1 and 0 <= one.axis < len(one.shape)
        for one in payload.found
    )


def problem_of_calls(payload: Calls) -> str:
    """Return what is wrong with a payload's calls, whatever the sizes are; empty if nothing is."""
    for call in payload.calls:
        if not 0 <= call.kernel < len(payload.counts):
            return "a call"
        if len(call.arguments) + len(call.sizes) != payload.counts[call.kernel]:
            return "the arguments of a call"
        if not all(0 <= storage < len(payload.storages) for storage, _ in call.arguments):
            return "a pointer"
    return ""


def pack_text(text: str) -> bytes:
    """Return a kernel's text for a payload."""
    # Level 1: six kernels (170 kB) become 26 kB in 0.9 ms, with level 6 21 kB in 2.6 ms.
    return zlib.compress(text.encode(), 1)


def unpack_text(artifact: Artifact, code: bytes) -> str:
    """Return the text of a kernel of an artifact.

    Raises:
        PackageError: It is damaged.
    """
    try:
        return zlib.decompress(code).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise damaged(artifact, str(error)) from error


def refuse_unknown(
    graph: Graph, context: BuildContext, *, takes_late: bool = False
) -> Mapping[int, Refusal]:
    """Refuse nodes that lowering does not take.

    Args:
        graph: Its nodes are asked for.
        context: Names the target.
        takes_late: Whether sizes that the data decides are given before code runs.
    """
    from intarsia.codegen.lower.region import refuse_node

    refusals = {}
    for node in graph.nodes:
        problem = refuse_node(graph, node)
        if problem is None and not takes_late and (sizes := touched(graph, node)):
            names = ", ".join(sorted(symbol.name for symbol in sizes))
            problem = "shape", f"the data decides sizes of {node.op_type}: {names}"
        if problem is not None:
            refusals[node.id] = refuse(node, context, _CODES[problem[0]], problem[1])
    return refusals


def native_groups(
    region: Region, unit: CpuModel, most_buffers: int | None = None
) -> tuple[FusedGroup, ...]:
    """Return which nodes of a region one kernel computes, or kernels that share a band of rows.

    Args:
        region: Nodes that lowering takes.
        unit: The vector unit of the target.
        most_buffers: Arrays that a kernel can be given; None for any number.
    """
    from intarsia.codegen.lower.fusion import fuse_region
    from intarsia.codegen.patterns.codes import read_codes

    fused = fuse_region(read_codes(region), unit, most_buffers=most_buffers)
    in_chains = {group.result for chain in fused.chains.values() for group in chain.groups}
    named = [
        (group.anchor.op_type, group.names)
        for group in fused.groups
        if group.result not in in_chains
    ]
    for chain in fused.chains.values():
        kind = "+".join(group.anchor.op_type for group in chain.groups)
        named.append((kind, tuple(name for group in chain.groups for name in group.names)))
    # What several kernels do, each for itself, belongs to none of them.
    uses = Counter(name for _, names in named for name in set(names))
    numbers = {region.graph.nodes[number].name: number for number in region.nodes}
    groups = []
    for kind, names in named:
        nodes = sorted(numbers[name] for name in set(names) if uses[name] == 1)
        groups += [FusedGroup(tuple(nodes), kind)] if len(nodes) > 1 else []
    return tuple(groups)
