# SPDX-License-Identifier: Apache-2.0
"""From a program to primitives with layouts: each tensor in the forms in which it is needed.

Every primitive chooses its layouts; a tensor that is not in the layout that its reader wants is
reordered once, a constant when the region is loaded. Nothing runs here, and no code is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

import msgspec

from intarsia.backends.dnnl.handles import Attributes, Descriptor, Layout
from intarsia.backends.dnnl.library import Library, StatusError
from intarsia.backends.dnnl.primitives import MAKERS, argument, make_reorder
from intarsia.backends.dnnl.program import Call, Origin, Post, Program, Tensor
from intarsia.backends.dnnl.words import Arg, Binary, DataType, FpMath, Query, Status

PRECISIONS = {"f32": DataType.F32, "bf16": DataType.BF16, "f16": DataType.F16}
FPMATH = {"strict": FpMath.STRICT, "bf16": FpMath.BF16, "f16": FpMath.F16, "any": FpMath.ANY}

_CHOOSERS = frozenset(("convolution", "deconvolution", "inner_product"))
_IN_PLACE = frozenset(("eltwise", "binary", "batch_normalization"))


class Room(StrEnum):
    """Where a buffer lies."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    PACKED = "packed"
    INNER = "inner"


@dataclass(frozen=True, slots=True)
class Buffer:
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
    """A tensor as it lies in a buffer."""

    layout: Layout
    buffer: int


@dataclass(frozen=True, slots=True)
class Argument:
    """A form that a primitive reads or writes, as what."""

    position: int
    form: Form


@dataclass(frozen=True, slots=True)
class Step:
    """A primitive with its buffers.

    Attributes:
        descriptor: The primitive.
        arguments: What it reads and writes, the scratchpad excepted.
        writes: The buffer that it writes.
        nodes: Names of the nodes that it computes; empty for a reorder.
    """

    descriptor: Descriptor
    arguments: tuple[Argument, ...]
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

    steps: list[Step] = field(default_factory=list)
    packings: list[Step] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)

    def add_buffer(self, room: Room, nbytes: int, index: int | None = None) -> int:
        """Return a new buffer."""
        if index is None:
            index = sum(buffer.room is room for buffer in self.buffers)
        self.buffers.append(Buffer(room, index, nbytes))
        return len(self.buffers) - 1


_View = tuple[int, tuple[int, ...], tuple[int, ...]]
"""A tensor seen with other dimensions and strides; both are empty for the tensor itself."""


@dataclass(slots=True)
class Assembler:
    """Assembles one program.

    Attributes:
        library: oneDNN.
        program: What is assembled.
        assembly: What is done so far.
    """

    library: Library
    program: Program
    assembly: Assembly = field(default_factory=Assembly)
    _tensors: list[Tensor] = field(default_factory=list)
    _forms: dict[_View, list[Form]] = field(default_factory=dict)
    _root: dict[int, int] = field(default_factory=dict)
    _last_read: dict[int, float] = field(default_factory=dict)
    _dtype: DataType = DataType.F32
    _position: float = 0

    def run(self) -> Assembly:
        """Return the assembly.

        Raises:
            StatusError: The library has no implementation of a primitive.
        """
        self._tensors = list(self.program.tensors)
        self._dtype = PRECISIONS[self.program.precision]
        self._find_last_reads()
        rooms = {Origin.INPUT: Room.INPUT, Origin.CONSTANT: Room.CONSTANT}
        for tensor_id, tensor in enumerate(self._tensors):
            if tensor.origin is not Origin.INNER:
                layout = Layout.strided(self.library, tensor.shape)
                room = rooms[tensor.origin]
                buffer = self.assembly.add_buffer(room, layout.nbytes, tensor.index)
                self._forms[tensor_id, (), ()] = [Form(layout, buffer)]
        for position, call in enumerate(self.program.calls):
            self._position = position
            self._emit(call)
        for index, tensor_id in enumerate(self.program.outputs):
            self._finish(index, tensor_id)
        return self.assembly

    def _find_last_reads(self) -> None:
        for position, call in enumerate(self.program.calls):
            if call.kind == "view":
                self._root[call.output] = self._root_of(call.inputs[0])
            for tensor_id in call.reads:
                self._last_read[self._root_of(tensor_id)] = position
        for tensor_id in self.program.outputs:
            self._last_read[self._root_of(tensor_id)] = inf

    def _root_of(self, tensor_id: int) -> int:
        return self._root.get(tensor_id, tensor_id)

    def _is_dying(self, tensor_id: int, call: Call) -> bool:
        """Tell whether a call is the last that reads a tensor, and reads it once."""
        root = self._root_of(tensor_id)
        reads = [self._root_of(other) for other in call.reads]
        return self._last_read.get(root, -1) <= self._position and reads.count(root) == 1

    def _finish(self, index: int, tensor_id: int) -> None:
        """Put an output where the caller wants it."""
        tensor = self._tensors[tensor_id]
        form = self._forms[tensor_id, (), ()][0]
        layout = Layout.strided(self.library, tensor.shape)
        buffer = self.assembly.buffers[form.buffer]
        is_there = buffer.room is Room.OUTPUT and buffer.index == index
        if not is_there:
            output = self.assembly.add_buffer(Room.OUTPUT, layout.nbytes, index)
            self._reorder(form, Form(layout, output))

    def _reorder(self, source: Form, destination: Form) -> None:
        attributes = Attributes(self.library)
        descriptor = make_reorder(
            self.library, source.layout, destination.layout, attributes.finish()
        )
        arguments = (Argument(Arg.SRC, source), Argument(Arg.DST, destination))
        step = Step(descriptor, arguments, destination.buffer, ())
        room = self.assembly.buffers[destination.buffer].room
        (self.assembly.packings if room is Room.PACKED else self.assembly.steps).append(step)

    def _fetch(self, view: _View, layout: Layout) -> Form:
        """Return a tensor in a layout; it is reordered if it does not have it yet."""
        forms = self._forms[view]
        for form in forms:
            if form.layout.is_same(layout):
                return form
            is_alike = form.layout.dtype == layout.dtype and form.layout.shape == layout.shape
            if is_alike and form.layout.is_dense and layout.is_dense:
                return Form(layout, form.buffer)
        source = forms[0]
        room = self.assembly.buffers[source.buffer].room
        is_constant = room in (Room.CONSTANT, Room.PACKED)
        made = self.assembly.add_buffer(Room.PACKED if is_constant else Room.INNER, layout.nbytes)
        form = Form(layout, made)
        self._reorder(source, form)
        forms.append(form)
        return form

    def _dense(self, tensor_id: int, dtype: DataType) -> Form:
        """Return a tensor in row-major order."""
        layout = Layout.strided(self.library, self._tensors[tensor_id].shape, None, dtype)
        return self._fetch((tensor_id, (), ()), layout)

    def _current(self, tensor_id: int) -> Form:
        """Return a tensor as it lies, in the precision of computing."""
        form = self._forms[tensor_id, (), ()][0]
        return form if form.layout.dtype == self._dtype else self._dense(tensor_id, self._dtype)

    def _view(self, call: Call, position: int) -> _View:
        """Return how a call sees an input, and make sure that there is a form of that."""
        tensor_id = call.inputs[position]
        shape = call.lists.get(f"shape{position}", ())
        strides = call.lists.get(f"strides{position}", ())
        return self._seen(tensor_id, shape, strides)

    def _seen(self, tensor_id: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> _View:
        if not strides and shape in ((), self._tensors[tensor_id].shape):
            return tensor_id, (), ()
        view = (tensor_id, shape, strides)
        if view not in self._forms:
            is_constant = self._tensors[tensor_id].origin is Origin.CONSTANT
            dtype = DataType.F32 if is_constant else self._dtype
            base = self._dense(tensor_id, dtype)
            layout = Layout.strided(self.library, shape, strides or None, dtype)
            self._forms[view] = [Form(layout, base.buffer)]
        return view

    def _shape(self, call: Call) -> tuple[int, ...]:
        """Return the dimensions of a call's result as the primitive sees it."""
        return call.lists.get("shape") or self._tensors[call.output].shape

    def _emit(self, call: Call) -> None:
        if call.kind == "view":
            form = self._dense(call.inputs[0], self._dtype)
            shape = self._tensors[call.output].shape
            layout = Layout.strided(self.library, shape, None, self._dtype)
            self._forms[call.output, (), ()] = [Form(layout, form.buffer)]
        elif call.kind == "transpose":
            self._emit_transpose(call)
        else:
            self._emit_primitive(call)

    def _emit_transpose(self, call: Call) -> None:
        source = self._current(call.inputs[0])
        permuted = Form(source.layout.permuted(call.lists["order"]), source.buffer)
        shape = self._tensors[call.output].shape
        layout = Layout.strided(self.library, shape, None, self._dtype)
        made = Form(layout, self._destination(call, layout))
        self._reorder(permuted, made)
        self._forms[call.output, (), ()] = [made]

    def _destination(self, call: Call, layout: Layout) -> int:
        """Return a new buffer for a result: the region's output, if it can be written at once."""
        is_plain = layout.dtype == DataType.F32 and layout.is_dense
        if is_plain and call.output in self.program.outputs:
            index = self.program.outputs.index(call.output)
            return self.assembly.add_buffer(Room.OUTPUT, layout.nbytes, index)
        return self.assembly.add_buffer(Room.INNER, layout.nbytes)

    def _wanted(self, call: Call) -> list[Layout]:
        """Return the layouts in which a primitive is offered its inputs."""
        if call.kind in _CHOOSERS:
            offered = [self._any(call, position) for position in range(2)]
            return offered + [self._parameter(call, i).layout for i in range(2, len(call.inputs))]
        if call.kind == "matmul":
            return self._matrices(call)
        if call.kind in ("batch_normalization", "layer_normalization"):
            rest = range(1, len(call.inputs))
            first = self._current(call.inputs[0]).layout
            return [first, *(self._parameter(call, i).layout for i in rest)]
        if call.kind == "binary":
            return self._operands(call)
        if call.kind == "prelu":
            source = self._current(call.inputs[0]).layout
            return [source, self._parameter(call, 1).layout]
        return [self._current(tensor_id).layout for tensor_id in call.inputs]

    def _any(self, call: Call, position: int) -> Layout:
        tensor_id, shape, _ = self._view(call, position)
        return Layout.any(self.library, shape or self._tensors[tensor_id].shape, self._dtype)

    def _parameter(self, call: Call, position: int) -> Form:
        """Return a bias, scale or the like, which is always float32 and row-major."""
        tensor_id, shape, strides = self._view(call, position)
        layout = Layout.strided(self.library, shape or self._tensors[tensor_id].shape)
        return self._fetch((tensor_id, shape, strides), layout)

    def _matrices(self, call: Call) -> list[Layout]:
        offered = []
        for position in range(2):
            view = self._view(call, position)
            if self._tensors[view[0]].origin is Origin.CONSTANT:
                offered.append(self._any(call, position))
            elif view[1:] == ((), ()):
                offered.append(self._dense(view[0], self._dtype).layout)
            else:
                offered.append(self._forms[view][0].layout)
        return offered + [self._parameter(call, i).layout for i in range(2, len(call.inputs))]

    def _operands(self, call: Call) -> list[Layout]:
        left = self._current(call.inputs[0]).layout
        view = self._view(call, 1)
        if view[1:] != ((), ()):
            shape = view[1]
            return [left, Layout.strided(self.library, shape, None, self._dtype)]
        right = self._current(call.inputs[1]).layout
        if left.is_dense and not right.is_dense:
            left = right
        return [left, left]

    def _emit_primitive(self, call: Call) -> None:
        layouts = self._wanted(call)
        make = MAKERS[call.kind]
        shape = self._shape(call)
        # products are read by other products, and by views: row-major is what all of them take
        anything = Layout.any(self.library, shape, self._dtype)
        if call.kind == "matmul" or call.lists.get("shape"):
            anything = Layout.strided(self.library, shape, None, self._dtype)
        plain = Attributes(self.library, FPMATH[self.program.fpmath])
        alone = make(self.library, call, layouts, anything, plain.finish())
        if not call.posts:
            self._add(call, alone, layouts)
            return
        result = alone.layout(Query.DESTINATION)
        attributes = Attributes(self.library, FPMATH[self.program.fpmath])
        operands: list[Form | None] = []
        sum_at = -1
        for position, post in enumerate(call.posts):
            if post.operand < 0:
                attributes.append_eltwise(post.algorithm, post.alpha, post.beta)
                operands.append(None)
                continue
            form = self._operand(post, result)
            if sum_at < 0 and self._can_sum(call, post, form, result):
                sum_at = position
                attributes.append_sum()
            else:
                attributes.append_binary(post.algorithm, form.layout)
            operands.append(form)
        try:
            fused = make(self.library, call, layouts, result, attributes.finish())
        except StatusError as error:
            if error.status != Status.UNIMPLEMENTED:
                raise
            self._emit_apart(call)
            return
        if fused.is_reference and not alone.is_reference:
            self._emit_apart(call)
        else:
            self._add(call, fused, layouts, operands, sum_at)

    def _operand(self, post: Post, result: Layout) -> Form:
        view = self._seen(post.operand, post.shape, ())
        if post.shape == result.shape:
            return self._fetch(view, result)
        return self._fetch(view, Layout.strided(self.library, post.shape, None, self._dtype))

    def _can_sum(self, call: Call, post: Post, form: Form, result: Layout) -> bool:
        """Tell whether a result can be added to an operand where that lies."""
        if post.algorithm != Binary.ADD or not form.layout.is_same(result):
            return False
        if call.kind not in ("convolution", "deconvolution", "matmul", "inner_product"):
            return False
        if self.assembly.buffers[form.buffer].room is not Room.INNER:
            return False
        if call.output in self.program.outputs and result.is_dense:
            return False
        return self._is_dying(post.operand, call)

    def _emit_apart(self, call: Call) -> None:
        """Emit a primitive, and what follows it as primitives of their own."""
        parts = [msgspec.structs.replace(call, posts=(), output=self._temporary(call))]
        for position, post in enumerate(call.posts):
            source = parts[-1].output
            is_last = position == len(call.posts) - 1
            output = call.output if is_last else self._temporary(call)
            lists = {"shape": call.lists["shape"]} if is_last and "shape" in call.lists else {}
            if post.operand < 0:
                numbers = {"alpha": post.alpha, "beta": post.beta}
                parts.append(Call("eltwise", (source,), output, post.algorithm, lists, numbers))
            else:
                operands = (source, post.operand)
                lists["shape1"] = post.shape
                parts.append(Call("binary", operands, output, post.algorithm, lists))
        for number, part in enumerate(parts):
            for later in parts[number + 1 :]:  # what they read is not to be overwritten
                for tensor_id in later.reads:
                    root = self._root_of(tensor_id)
                    self._last_read[root] = max(self._last_read.get(root, 0), self._position + 0.5)
            self._emit(part)

    def _temporary(self, call: Call) -> int:
        self._tensors.append(Tensor(self._shape(call)))
        return len(self._tensors) - 1

    def _add(
        self,
        call: Call,
        descriptor: Descriptor,
        layouts: Sequence[Layout],
        operands: Sequence[Form | None] = (),
        sum_at: int = -1,
    ) -> None:
        """Append a primitive whose implementation is chosen."""
        arguments = []
        for position in range(len(call.inputs)):
            what = argument(call.kind, position)
            layout = layouts[position]
            if what in (Arg.SRC, Arg.WEIGHTS):
                layout = descriptor.layout(Query.SOURCE if what == Arg.SRC else Query.WEIGHTS)
            form = self._fetch(self._view(call, position), layout)
            arguments.append(Argument(what, form))
        result = descriptor.layout(Query.DESTINATION)
        buffer = -1
        for position, form in enumerate(operands):
            if form is not None and position == sum_at:
                buffer = form.buffer
            elif form is not None:
                what = Arg.POST_OP_BASE * (position + 1) | Arg.SRC_1
                arguments.append(Argument(what, form))
        if buffer < 0:
            buffer = self._result_buffer(call, arguments, result)
        made = Form(result, buffer)
        arguments.append(Argument(Arg.DST, made))
        self.assembly.steps.append(Step(descriptor, tuple(arguments), buffer, call.nodes))
        shape = self._tensors[call.output].shape
        if result.shape != shape:  # seen with other dimensions, in row-major order
            made = Form(Layout.strided(self.library, shape, None, self._dtype), buffer)
        self._forms[call.output, (), ()] = [made]

    def _result_buffer(self, call: Call, arguments: Sequence[Argument], result: Layout) -> int:
        source = arguments[0].form
        is_inner = self.assembly.buffers[source.buffer].room is Room.INNER
        if (
            call.kind in _IN_PLACE
            and is_inner
            and source.layout.is_same(result)
            and self._is_dying(call.inputs[0], call)
            and not (call.output in self.program.outputs and result.is_dense)
        ):
            return source.buffer
        return self._destination(call, result)
