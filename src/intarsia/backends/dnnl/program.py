# SPDX-License-Identifier: Apache-2.0
"""A region as primitives to be: what an artifact holds.

Nothing here depends on a version of the library or on a CPU: layouts and implementations are
chosen when it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf, prod
from typing import TypeAlias

import msgspec

from intarsia.backends.dnnl.words import DATA_TYPES, Arg
from intarsia.backends.values import Artifact
from intarsia.decoding import decode_msgpack
from intarsia.errors import PackageError

_BLOCKS = (8, 16)
_Numbers: TypeAlias = tuple[int, ...]


class Origin(StrEnum):
    """Where a tensor comes from."""

    INPUT = "input"
    CONSTANT = "constant"
    INNER = "inner"


class ProgramTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a program.

    Attributes:
        shape: Its dimensions.
        origin: Where it comes from.
        index: Its position among the inputs or the constants.
        dtype: Its element type in the model; inside a region float32 is the program's precision.
    """

    shape: tuple[int, ...]
    origin: Origin = Origin.INNER
    index: int = 0
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        """Its size in the model, in bytes."""
        return prod(self.shape) * DATA_TYPES[self.dtype].itemsize


class Scaling(msgspec.Struct, frozen=True, array_like=True):
    """A scale or zero point of one of a primitive's tensors.

    Attributes:
        argument: Which of its tensors (`words.Arg`).
        tensor: The numbers: float32 scales, or integer zero points.
        mask: Bit n is set if there is a number for each index of dimension n; 0 means one number.
        is_zero_point: Whether it is a zero point.
    """

    argument: int
    tensor: int
    mask: int = 0
    is_zero_point: bool = False

    @property
    def position(self) -> int:
        """What the tensor of numbers is to the primitive."""
        kind = Arg.ATTR_ZERO_POINTS if self.is_zero_point else Arg.ATTR_SCALES
        return kind | self.argument


class Post(msgspec.Struct, frozen=True):
    """A post-op: what is done to a primitive's result before it is stored.

    Attributes:
        algorithm: An elementwise algorithm, or one of two operands.
        alpha: Parameter of an elementwise algorithm.
        beta: Likewise.
        operand: The second operand; -1 for elementwise algorithms.
        shape: The operand's dimensions as the result's rank has them; 1 is broadcast.
    """

    algorithm: int
    alpha: float = 0.0
    beta: float = 0.0
    operand: int = -1
    shape: tuple[int, ...] = ()

    def of_tensors(self, tensors: Mapping[int, int]) -> Post:
        """Return it with another number of its operand."""
        if self.operand < 0:
            return self
        return msgspec.structs.replace(self, operand=tensors[self.operand])


class PrimitiveCall(msgspec.Struct, frozen=True):
    """One primitive.

    Attributes:
        kind: Key of the table `primitives.KINDS`, or `view`, `slice`, `transpose`, `reorder`.
        inputs: Tensors that it reads, in the order that its maker states.
        output: The tensor that it makes.
        algorithm: The algorithm, where the kind has several.
        lists: Numbers by name: strides, pads...
        numbers: Parameters by name: epsilon...
        posts: What is done to the result.
        nodes: Names of the nodes that it computes.
        scalings: Scales and zero points of integers that it reads or writes.
    """

    kind: str
    inputs: tuple[int, ...]
    output: int
    algorithm: int = 0
    lists: dict[str, tuple[int, ...]] = {}
    numbers: dict[str, float] = {}
    posts: tuple[Post, ...] = ()
    nodes: tuple[str, ...] = ()
    scalings: tuple[Scaling, ...] = ()

    @property
    def reads(self) -> tuple[int, ...]:
        """All tensors that it reads."""
        return (
            *self.inputs,
            *(post.operand for post in self.posts if post.operand >= 0),
            *(scaling.tensor for scaling in self.scalings),
        )

    def of_tensors(self, tensors: Mapping[int, int]) -> PrimitiveCall:
        """Return it with other numbers of its tensors."""
        scalings = (
            msgspec.structs.replace(scaling, tensor=tensors[scaling.tensor])
            for scaling in self.scalings
        )
        return msgspec.structs.replace(
            self,
            inputs=tuple(tensors[tensor_id] for tensor_id in self.inputs),
            output=tensors[self.output],
            posts=tuple(post.of_tensors(tensors) for post in self.posts),
            scalings=tuple(scalings),
        )


class PrimitiveProgram(msgspec.Struct, frozen=True):
    """A region.

    Attributes:
        tensors: All tensors.
        calls: In the order in which they run.
        outputs: The tensors that are the region's outputs, in its order.
        precision: Of computing: `f32`, `bf16` or `f16`.
        fpmath: Which precisions float32 primitives may use.
        num_threads: Threads; 0 means the session's.
        input_blocks: Channels of a block of each input, 0 for a row-major one; empty if all are.
        output_blocks: Likewise of each output.
    """

    tensors: tuple[ProgramTensor, ...]
    calls: tuple[PrimitiveCall, ...]
    outputs: tuple[int, ...]
    precision: str = "f32"
    fpmath: str = "strict"
    num_threads: int = 0
    input_blocks: tuple[int, ...] = ()
    output_blocks: tuple[int, ...] = ()

    def block_of_input(self, index: int) -> int:
        """Return the channels of a block of an input."""
        return self.input_blocks[index] if self.input_blocks else 0

    def block_of_output(self, index: int) -> int:
        """Return the channels of a block of an output."""
        return self.output_blocks[index] if self.output_blocks else 0


def encode(program: PrimitiveProgram) -> bytes:
    """Return a program as the payload of an artifact."""
    return msgspec.msgpack.encode(program)


def decode(artifact: Artifact) -> PrimitiveProgram:
    """Return the program of an artifact.

    Raises:
        PackageError: It is damaged: no program, or one that reads a tensor that does not exist.
    """
    try:
        program = decode_msgpack(artifact.payload, PrimitiveProgram)
    except (msgspec.DecodeError, ValueError) as error:
        raise PackageError(f"the program of {artifact.target} is damaged: {error}") from error
    problem = _find_problem(program, artifact)
    if problem:
        raise PackageError(f"the program of {artifact.target} is damaged: {problem}")
    return program


def _find_problem(program: PrimitiveProgram, artifact: Artifact) -> str:
    """Return what is wrong with a program: each tensor that it reads must exist at that size."""
    sizes = {
        Origin.INPUT: [spec.nbytes for spec in artifact.inputs],
        Origin.CONSTANT: [constant.data.nbytes for constant in artifact.constants],
    }
    present: set[int] = set()
    for position, tensor in enumerate(program.tensors):
        if any(extent < 1 for extent in tensor.shape) or tensor.dtype not in DATA_TYPES:
            return f"the type of tensor {position}"
        if tensor.origin is not Origin.INNER:
            present.add(position)
            size_of = dict(enumerate(sizes[tensor.origin]))
            if size_of.get(tensor.index) != tensor.nbytes:
                return f"the origin of tensor {position}"
    for call in program.calls:
        problem = _find_problem_of_call(call, program.tensors, present)
        if problem:
            return f"{call.kind} {problem}"
        present.add(call.output)
    if len(program.input_blocks) not in (0, len(artifact.inputs)):
        return "the layouts of inputs"
    if len(program.output_blocks) not in (0, len(program.outputs)):
        return "the layouts of outputs"
    if not all(_has_blocks(program, position) for position in range(len(program.tensors))):
        return "a layout in blocks"
    wanted = [spec.nbytes for spec in artifact.outputs]
    if not present.issuperset(program.outputs) or wanted != [
        program.tensors[tensor_id].nbytes for tensor_id in program.outputs
    ]:
        return "the outputs"
    return ""


def _has_blocks(program: PrimitiveProgram, position: int) -> bool:
    """Tell whether a tensor can be in the blocks that the border states."""
    tensor = program.tensors[position]
    blocks = [
        program.block_of_output(index)
        for index, tensor_id in enumerate(program.outputs)
        if tensor_id == position
    ]
    if tensor.origin is Origin.INPUT:
        blocks.append(program.block_of_input(tensor.index))
    return all(
        block == 0 or (block in _BLOCKS and len(tensor.shape) == 4 and not tensor.shape[1] % block)  # noqa: PLR2004
        for block in blocks
    )


def _find_problem_of_call(
    call: PrimitiveCall, tensors: Sequence[ProgramTensor], present: set[int]
) -> str:
    if not call.inputs or not present.issuperset(call.reads):
        return "reads a tensor that does not exist"
    if call.output in present or not 0 <= call.output < len(tensors):
        return "writes a tensor that is not its result"
    for scaling in call.scalings:
        expected = _scaling_size(call, scaling, tensors)
        if prod(tensors[scaling.tensor].shape) != expected:
            return "has scales of another size"
    return "" if _fits(call, tensors) else "views a tensor at another size"


def _scaling_size(call: PrimitiveCall, scaling: Scaling, tensors: Sequence[ProgramTensor]) -> int:
    """Return how many numbers a scale or zero point has to have."""
    if scaling.mask == 0:
        return 1
    places: dict[int, int] = {Arg.SRC: 0, Arg.SRC_1: 1, Arg.WEIGHTS: 1}
    place = places.get(scaling.argument, -1)
    if place >= len(call.inputs):
        return -1
    tensor_id = call.output if place < 0 else call.inputs[place]
    name = "shape" if place < 0 else f"shape{place}"
    shape = call.lists.get(name) or tensors[tensor_id].shape
    return prod(extent for dim, extent in enumerate(shape) if scaling.mask >> dim & 1)


def _fits(call: PrimitiveCall, tensors: Sequence[ProgramTensor]) -> bool:
    """Tell whether what a call sees of its tensors lies inside these."""
    views: list[tuple[_Numbers, _Numbers | None, _Numbers | None]] = []
    views.append((tensors[call.output].shape, call.lists.get("shape"), None))
    for position, tensor_id in enumerate(call.inputs):
        seen = (call.lists.get(f"shape{position}"), call.lists.get(f"strides{position}"))
        views.append((tensors[tensor_id].shape, *seen))
    views += [(tensors[post.operand].shape, post.shape, None) for post in call.posts if post.shape]
    if call.kind == "view":
        views.append((tensors[call.inputs[0]].shape, tensors[call.output].shape, None))
    if call.kind == "slice":
        begin, whole = call.lists.get("begin", ()), tensors[call.inputs[0]].shape
        shape = tensors[call.output].shape
        return len(begin) == len(whole) == len(shape) and all(
            0 <= start <= start + extent <= limit
            for start, extent, limit in zip(begin, shape, whole, strict=True)
        )
    if call.kind == "transpose":
        order, shape = call.lists.get("order", ()), tensors[call.inputs[0]].shape
        if sorted(order) != list(range(len(shape))):
            return False
        views.append((tensors[call.output].shape, tuple(shape[dim] for dim in order), None))
    return all(_is_inside(*view) for view in views)


def _is_inside(shape: _Numbers, seen: _Numbers | None, strides: _Numbers | None) -> bool:
    if seen is None:
        return strides is None
    if prod(seen) != prod(shape) or any(extent < 1 for extent in seen):
        return False
    if strides is None:
        return True
    if len(strides) != len(seen) or any(step < 0 for step in strides):
        return False
    last = sum((extent - 1) * step for extent, step in zip(seen, strides, strict=True))
    return last < prod(shape)


class TensorReads:
    """The last reads of a program's tensors; a view is the tensor that it shows.

    Args:
        program: Whose calls are looked at, by their positions.
    """

    def __init__(self, program: PrimitiveProgram) -> None:
        self._root: dict[int, int] = {}
        self._last: dict[int, float] = {}
        for position, call in enumerate(program.calls):
            if call.kind in ("view", "slice"):
                self._root[call.output] = self._root_of(call.inputs[0])
            for tensor_id in call.reads:
                self._last[self._root_of(tensor_id)] = position
        for tensor_id in program.outputs:
            self._last[self._root_of(tensor_id)] = inf

    def _root_of(self, tensor_id: int) -> int:
        return self._root.get(tensor_id, tensor_id)

    def add(self, call: PrimitiveCall, position: float) -> None:
        """Take into account a call that is put between two positions."""
        for tensor_id in call.reads:
            root = self._root_of(tensor_id)
            self._last[root] = max(self._last.get(root, 0), position)

    def is_last(self, tensor_id: int, call: PrimitiveCall, position: float) -> bool:
        """Tell whether a call at a position is the last to read a tensor, and reads it once."""
        root = self._root_of(tensor_id)
        roots = [self._root_of(other) for other in call.reads]
        return self._last.get(root, -1) <= position and roots.count(root) == 1
