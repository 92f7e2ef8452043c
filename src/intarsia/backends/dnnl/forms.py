# SPDX-License-Identifier: Apache-2.0
"""Tensors in the forms in which they are needed: layouts over buffers, reorders between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from intarsia.backends.dnnl.handles import Attributes, Descriptor, MemoryLayout
from intarsia.backends.dnnl.library import OneDnn
from intarsia.backends.dnnl.primitives import make_reorder
from intarsia.backends.dnnl.program import PrimitiveCall, ProgramTensor, Scaling
from intarsia.backends.dnnl.words import DATA_TYPES, Arg, DataType
from intarsia.graph.arena import ALIGNMENT


class Room(StrEnum):
    """Where a buffer lies."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    PACKED = "packed"
    INNER = "inner"


@dataclass(frozen=True, slots=True)
class AssemblyBuffer:
    """A piece of memory.

    Attributes:
        room: Where it lies.
        index: Its position there.
        nbytes: Its size.
    """

    room: Room
    index: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor as it lies in a buffer.

    Attributes:
        layout: How.
        buffer: In which.
        offset: Where there, in bytes.
    """

    layout: MemoryLayout
    buffer: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class PrimitiveArgument:
    """A form that a primitive reads or writes, as what."""

    position: int
    form: Form


@dataclass(frozen=True, slots=True)
class PrimitiveStep:
    """A primitive with its buffers.

    Attributes:
        descriptor: The primitive.
        arguments: What it reads and writes, the scratchpad excepted.
        writes: The buffer that it writes.
        nodes: Names of the nodes that it computes; empty for a reorder.
    """

    descriptor: Descriptor
    arguments: tuple[PrimitiveArgument, ...]
    writes: int
    nodes: tuple[str, ...]


@dataclass(slots=True)
class Assembly:
    """Primitives in the order in which they run, and their buffers.

    Attributes:
        steps: What runs each time.
        packings: What runs once, when loading: reorders of constants.
        buffers: All buffers.
    """

    steps: list[PrimitiveStep] = field(default_factory=list)
    packings: list[PrimitiveStep] = field(default_factory=list)
    buffers: list[AssemblyBuffer] = field(default_factory=list)

    def add_buffer(self, room: Room, nbytes: int, index: int | None = None) -> int:
        """Return a new buffer."""
        if index is None:
            index = sum(buffer.room is room for buffer in self.buffers)
        self.buffers.append(AssemblyBuffer(room, index, nbytes))
        return len(self.buffers) - 1


View = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A tensor seen with other dimensions and strides; both are empty for the tensor itself."""


@dataclass(slots=True)
class Forms:
    """The forms of every tensor so far; the first is the one in which it was made.

    Attributes:
        library: oneDNN.
        precision: What float32 is inside the region.
        tensors: Those of the program, and temporary ones.
        of: Forms by view.
        assembly: Where reorders and buffers go.
    """

    library: OneDnn
    precision: DataType
    tensors: list[ProgramTensor]
    of: dict[View, list[Form]] = field(default_factory=dict)
    assembly: Assembly = field(default_factory=Assembly)

    def border_dtype(self, tensor_id: int) -> DataType:
        """Return the element type of a tensor in the model."""
        return DATA_TYPES[self.tensors[tensor_id].dtype]

    def dtype(self, tensor_id: int) -> DataType:
        """Return the element type in which a tensor is computed with."""
        dtype = self.border_dtype(tensor_id)
        return self.precision if dtype is DataType.F32 else dtype

    def result_shape(self, call: PrimitiveCall) -> tuple[int, ...]:
        """Return the dimensions of a call's result as the primitive sees it."""
        return call.lists.get("shape") or self.tensors[call.output].shape

    def reorder(
        self,
        source: Form,
        destination: Form,
        numbers: Sequence[tuple[Scaling, Form]] = (),
        nodes: tuple[str, ...] = (),
    ) -> None:
        """Append a copy from one form to another; from a constant, for the time of loading.

        Args:
            source: What is read.
            destination: What is written.
            numbers: Scales and zero points.
            nodes: Names of the nodes that it computes.
        """
        attributes = Attributes(self.library)
        for scaling, _ in numbers:
            attributes.scale(scaling)
        descriptor = make_reorder(
            self.library, source.layout, destination.layout, attributes.finish()
        )
        arguments = (
            PrimitiveArgument(Arg.SRC, source),
            *(PrimitiveArgument(scaling.position, form) for scaling, form in numbers),
            PrimitiveArgument(Arg.DST, destination),
        )
        step = PrimitiveStep(descriptor, arguments, destination.buffer, nodes)
        room = self.assembly.buffers[destination.buffer].room
        (self.assembly.packings if room is Room.PACKED else self.assembly.steps).append(step)

    def fetch(self, view: View, layout: MemoryLayout) -> Form:
        """Return a tensor in a layout; it is reordered if it does not have it yet."""
        forms = self.of[view]
        for form in forms:
            if form.layout.is_same(layout):
                return form
            is_alike = form.layout.dtype == layout.dtype and form.layout.shape == layout.shape
            if is_alike and form.layout.is_dense and layout.is_dense:
                return Form(layout, form.buffer, form.offset)
        source = forms[0]
        room = self.assembly.buffers[source.buffer].room
        is_constant = room in (Room.CONSTANT, Room.PACKED)
        buffer = self.assembly.add_buffer(Room.PACKED if is_constant else Room.INNER, layout.nbytes)
        form = Form(layout, buffer)
        self.reorder(source, form)
        forms.append(form)
        return form

    def is_constant(self, tensor_id: int) -> bool:
        """Tell whether a tensor is known when the region is loaded."""
        form = self.of[tensor_id, (), ()][0]
        return self.assembly.buffers[form.buffer].room in (Room.CONSTANT, Room.PACKED)

    def part(self, tensor_id: int, shape: tuple[int, ...], begin: tuple[int, ...]) -> Form:
        """Return a part of a tensor: where it lies if that is one piece, else a copy."""
        source = self.current(tensor_id)
        layout = source.layout.like(shape)
        offset = source.layout.offset_of(shape, begin)
        if layout is not None and offset is not None:
            return Form(layout, source.buffer, source.offset + offset)
        seen = source.layout.part(shape, begin)
        if seen is None:
            source = self.dense(tensor_id, source.layout.dtype)
            seen = source.layout.part(shape, begin)
            assert seen is not None
        if layout is None:
            layout = MemoryLayout.strided(self.library, shape, None, source.layout.dtype)
        is_known = self.is_constant(tensor_id)
        room = Room.PACKED if is_known else Room.INNER
        copy = Form(layout, self.assembly.add_buffer(room, layout.nbytes))
        self.reorder(Form(seen, source.buffer, source.offset), copy)
        return copy

    def dense(self, tensor_id: int, dtype: DataType) -> Form:
        """Return a tensor in row-major order."""
        layout = MemoryLayout.strided(self.library, self.tensors[tensor_id].shape, None, dtype)
        return self.fetch((tensor_id, (), ()), layout)

    def current(self, tensor_id: int) -> Form:
        """Return a tensor as it lies, in the precision of computing."""
        form = self.of[tensor_id, (), ()][0]
        dtype = self.dtype(tensor_id)
        return form if form.layout.dtype == dtype else self.dense(tensor_id, dtype)

    def seen(self, tensor_id: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
        """Return a tensor seen with other dimensions, of which there is a form then."""
        if not strides and shape in ((), self.tensors[tensor_id].shape):
            return tensor_id, (), ()
        view = (tensor_id, shape, strides)
        if view not in self.of:
            is_constant = self.is_constant(tensor_id)
            dtype = (self.border_dtype if is_constant else self.dtype)(tensor_id)
            base = self.dense(tensor_id, dtype)
            layout = MemoryLayout.strided(self.library, shape, strides or None, dtype)
            self.of[view] = [Form(layout, base.buffer, base.offset)]
        return view


def join_in_place(assembly: Assembly) -> None:
    """Let parts of concatenations be made in place; a concatenation itself has no work then."""
    reads, writes = _uses(assembly.steps)
    moved: dict[int, tuple[int, int]] = {}  # by buffer, the one that it is a part of, and where
    joined: set[int] = set()
    members: dict[int, set[int]] = {}  # by buffer, all that lies in it
    for time, step in enumerate(assembly.steps):
        parts = _parts(assembly, step)
        if parts is None or any(buffer in moved for buffer in parts):
            continue
        inside = {other for buffer in parts for other in (buffer, *members.get(buffer, ()))}
        later = [moment for moment in writes[step.writes] if moment > time]
        last_read = max(max(reads.get(buffer, [-1])) for buffer in inside)
        is_kept = not any(moment <= last_read for moment in later)
        if is_kept and all(max(writes[buffer]) < time for buffer in inside):
            moved.update((buffer, (step.writes, offset)) for buffer, offset in parts.items())
            members[step.writes] = inside
            joined.add(time)
    assembly.steps[:] = [
        _moved(step, moved) for time, step in enumerate(assembly.steps) if time not in joined
    ]


def _uses(steps: Sequence[PrimitiveStep]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return when each buffer is read and when it is written."""
    reads: dict[int, list[int]] = {}
    writes: dict[int, list[int]] = {}
    for time, step in enumerate(steps):
        writes.setdefault(step.writes, []).append(time)
        for argument in step.arguments:
            if argument.position != Arg.DST:
                reads.setdefault(argument.form.buffer, []).append(time)
    return reads, writes


def _parts(assembly: Assembly, step: PrimitiveStep) -> dict[int, int] | None:
    """Return where the parts of a concatenation belong, or None if it has to copy."""
    *sources, result = step.arguments
    if not all(Arg.MULTIPLE_SRC <= argument.position < Arg.ATTR_SCALES for argument in sources):
        return None
    whole = result.form.layout
    shapes = [argument.form.layout.shape for argument in sources]
    axis = next((d for d in range(len(whole.shape)) if shapes[0][d] != whole.shape[d]), None)
    if axis is None or result.form.offset:
        return None
    offsets: dict[int, int] = {}
    begin = [0] * len(whole.shape)
    for argument in sources:
        form = argument.form
        place = whole.offset_of(form.layout.shape, begin)
        like = whole.like(form.layout.shape)
        buffer = assembly.buffers[form.buffer]
        is_own = buffer.room is Room.INNER and not form.offset and form.buffer not in offsets
        if not is_own or buffer.nbytes != form.layout.nbytes:
            return None
        # A part that begins elsewhere would have its writer's stores cross cache lines.
        if place is None or place % ALIGNMENT or like is None or not like.is_same(form.layout):
            return None
        offsets[form.buffer] = place
        begin[axis] += form.layout.shape[axis]
    return offsets


def _moved(step: PrimitiveStep, moved: Mapping[int, tuple[int, int]]) -> PrimitiveStep:
    """Return a step whose buffers are those that they lie in."""
    arguments = tuple(
        PrimitiveArgument(argument.position, _resolve(argument.form, moved))
        for argument in step.arguments
    )
    written = step.writes
    while written in moved:
        written = moved[written][0]
    return replace(step, arguments=arguments, writes=written)


def _resolve(form: Form, moved: Mapping[int, tuple[int, int]]) -> Form:
    buffer, offset = form.buffer, form.offset
    while buffer in moved:
        buffer, place = moved[buffer]
        offset += place
    return Form(form.layout, buffer, offset)
