# SPDX-License-Identifier: Apache-2.0
"""From a program to primitives with layouts: each tensor in the forms in which it is needed.

Every primitive chooses its layouts; a tensor that is not in the layout that its reader wants is
reordered once, a constant when the region is loaded. Nothing runs here, and no code is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import msgspec

from intarsia.backends.dnnl.forms import (
    Assembly,
    Form,
    Forms,
    PrimitiveArgument,
    PrimitiveStep,
    Room,
    join_in_place,
)
from intarsia.backends.dnnl.handles import Attributes, Descriptor, MemoryLayout
from intarsia.backends.dnnl.library import OneDnn, StatusError
from intarsia.backends.dnnl.offers import CHOOSERS, LayoutChoices, Offers
from intarsia.backends.dnnl.primitives import argument, make_primitive
from intarsia.backends.dnnl.program import (
    Origin,
    Post,
    PrimitiveCall,
    PrimitiveProgram,
    ProgramTensor,
    Scaling,
    TensorReads,
)
from intarsia.backends.dnnl.words import (
    DATA_TYPES,
    Arg,
    BinaryAlgorithm,
    DataType,
    LibraryStatus,
    Query,
)
from intarsia.errors import BackendError

PRECISIONS = {"f32": DataType.F32, "bf16": DataType.BF16, "f16": DataType.F16}

_PRODUCTS = frozenset(("convolution", "deconvolution", "matmul"))
_CHOSEN: dict[int, tuple[Query, int]] = {
    Arg.SRC: (Query.SOURCE, 0),
    Arg.SRC_1: (Query.SOURCE, 1),
    Arg.WEIGHTS: (Query.WEIGHTS, 0),
}
"""Where to ask for the layout of an argument that a primitive may choose."""
_INTEGERS = frozenset((DataType.S8, DataType.U8, DataType.S32))
_IMAGE_RANKS = (4, 5)
_IN_PLACE = frozenset(("eltwise", "binary", "batch_normalization"))


class PrimitiveAssembler:
    """Assembles one program.

    Args:
        library: oneDNN.
        program: What is assembled.
    """

    def __init__(self, library: OneDnn, program: PrimitiveProgram) -> None:
        self.library = library
        self.program = program
        self.forms = Forms(library, PRECISIONS[program.precision], list(program.tensors))
        self._offers = Offers(library, self.forms)
        self._reads = TensorReads(program)
        self._position = 0
        self._choices = LayoutChoices(library, program, self.forms)

    def run(self) -> Assembly:
        """Return the assembly.

        Raises:
            StatusError: The library has no implementation of a primitive.
        """
        rooms = {Origin.INPUT: Room.INPUT, Origin.CONSTANT: Room.CONSTANT}
        for tensor_id, tensor in enumerate(self.forms.tensors):
            if tensor.origin is not Origin.INNER:
                is_input = tensor.origin is Origin.INPUT
                block = self.program.block_of_input(tensor.index) if is_input else 0
                layout = self._border(tensor_id, block)
                room = rooms[tensor.origin]
                buffer = self.forms.assembly.add_buffer(room, layout.nbytes, tensor.index)
                self.forms.of[tensor_id, (), ()] = [Form(layout, buffer)]
        for position, call in enumerate(self.program.calls):
            self._position = position
            try:
                self._emit(call)
            except StatusError as error:
                if not call.nodes:
                    raise
                raise BackendError(
                    f"{error.message} ({call.kind} of {', '.join(call.nodes)})",
                    backend="dnnl",
                    node=call.nodes[0],
                ) from error
        for index, tensor_id in enumerate(self.program.outputs):
            self._finish(index, tensor_id)
        join_in_place(self.forms.assembly)
        return self.forms.assembly

    def _border(self, tensor_id: int, block: int = 0) -> MemoryLayout:
        """Return how a tensor lies at the region's border.

        Raises:
            BackendError: The library does not have that layout.
        """
        dtype = self.forms.border_dtype(tensor_id)
        if block:
            shape = self.forms.tensors[tensor_id].shape
            blocked = MemoryLayout.blocked(self.library, shape, block, dtype)
            if blocked is None:
                raise BackendError(f"oneDNN has no layout in blocks of {block}", backend="dnnl")
            return blocked
        return MemoryLayout.strided(self.library, self.forms.tensors[tensor_id].shape, None, dtype)

    def _finish(self, index: int, tensor_id: int) -> None:
        """Put an output where the caller wants it."""
        form = self.forms.of[tensor_id, (), ()][0]
        layout = self._border(tensor_id, self.program.block_of_output(index))
        buffer = self.forms.assembly.buffers[form.buffer]
        is_there = buffer.room is Room.OUTPUT and buffer.index == index and not form.offset
        if not is_there:
            output = self.forms.assembly.add_buffer(Room.OUTPUT, layout.nbytes, index)
            self.forms.reorder(form, Form(layout, output))

    def _emit(self, call: PrimitiveCall) -> None:
        if call.kind == "view":
            dtype = self.forms.dtype(call.output)
            form = self.forms.dense(call.inputs[0], dtype)
            shape = self.forms.tensors[call.output].shape
            layout = MemoryLayout.strided(self.library, shape, None, dtype)
            self.forms.of[call.output, (), ()] = [Form(layout, form.buffer, form.offset)]
        elif call.kind == "slice":
            shape = self.forms.tensors[call.output].shape
            part = self.forms.part(call.inputs[0], shape, call.lists["begin"])
            self.forms.of[call.output, (), ()] = [part]
        elif call.kind == "transpose":
            self._emit_transpose(call)
        elif call.kind == "reorder":
            self._emit_reorder(call)
        else:
            self._emit_primitive(call)

    def _emit_transpose(self, call: PrimitiveCall) -> None:
        source = self.forms.current(call.inputs[0])
        layout = source.layout.permuted(call.lists["order"])
        permuted = Form(layout, source.buffer, source.offset)
        # A permutation of strides is enough:
        if self.forms.is_constant(call.inputs[0]):  # its reader packs it
            self.forms.of[call.output, (), ()] = [permuted]
            return
        shape = self.forms.tensors[call.output].shape
        layout = MemoryLayout.strided(self.library, shape, None, self.forms.dtype(call.output))
        transposed = Form(layout, self._destination(call, layout))
        self.forms.reorder(permuted, transposed, nodes=call.nodes)
        self.forms.of[call.output, (), ()] = [transposed]

    def _emit_reorder(self, call: PrimitiveCall) -> None:
        """Emit a change of the element type: a cast, or with scales and zero points."""
        source = self.forms.of[call.inputs[0], (), ()][0]
        dtype = self.forms.dtype(call.output)
        layout = source.layout.of_dtype(dtype)
        is_image = len(layout.shape) in _IMAGE_RANKS and dtype in (DataType.S8, DataType.U8)
        if is_image and call.output not in self.program.outputs:  # as integer primitives want it
            layout = MemoryLayout.channels_last(self.library, layout.shape, dtype)
        room = self.forms.assembly.buffers[source.buffer].room
        if room in (Room.CONSTANT, Room.PACKED):
            reordered = Form(layout, self.forms.assembly.add_buffer(Room.PACKED, layout.nbytes))
        else:
            reordered = Form(layout, self._destination(call, layout))
        self.forms.reorder(source, reordered, self._numbers(call), call.nodes)
        self.forms.of[call.output, (), ()] = [reordered]

    def _numbers(self, call: PrimitiveCall) -> list[tuple[Scaling, Form]]:
        """Return scales and zero points as the library reads them."""
        numbers = []
        for scaling in call.scalings:
            dtype = DataType.S32 if scaling.is_zero_point else DataType.F32
            shape = (prod(self.forms.tensors[scaling.tensor].shape),)
            view = self.forms.seen(scaling.tensor, shape, ())
            numbers.append(
                (
                    scaling,
                    self.forms.fetch(view, MemoryLayout.strided(self.library, shape, None, dtype)),
                )
            )
        return numbers

    def _destination(self, call: PrimitiveCall, layout: MemoryLayout) -> int:
        """Return a new buffer for a result: the region's output, if it can be written at once."""
        if self._is_final(call, layout):
            index = self.program.outputs.index(call.output)
            return self.forms.assembly.add_buffer(Room.OUTPUT, layout.nbytes, index)
        return self.forms.assembly.add_buffer(Room.INNER, layout.nbytes)

    def _is_final(self, call: PrimitiveCall, layout: MemoryLayout) -> bool:
        """Tell whether a result is already in the caller's layout and buffer."""
        if call.output not in self.program.outputs:
            return False
        index = self.program.outputs.index(call.output)
        border = self._border(call.output, self.program.block_of_output(index))
        is_alike = layout.dtype == border.dtype and layout.shape == border.shape
        return layout.is_same(border) or (is_alike and layout.is_dense and border.is_dense)

    def _emit_primitive(self, call: PrimitiveCall) -> None:
        layouts = self._offers.wanted(call)
        shape = self.forms.result_shape(call)
        # products are read by other products, and by views: row-major is what all of them take
        dtype = self.forms.dtype(call.output)
        anything = MemoryLayout.any(self.library, shape, dtype)
        if call.kind == "matmul" or call.lists.get("shape"):
            anything = MemoryLayout.strided(self.library, shape, None, dtype)
        plain = self._choices.attributes(call)
        alone = self._describe(call, layouts, anything, plain)
        if alone is None:
            self._emit_in_floats(call)
            return
        if call.kind in CHOOSERS:
            layouts, alone = self._choices.instead(call, layouts, plain, alone)
        if not call.posts:
            self._add(call, alone, layouts)
            return
        result = alone.layout(Query.DESTINATION)
        attributes = self._choices.attributes(call)
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
            fused = make_primitive(self.library, call, layouts, result, attributes.finish())
        except StatusError as error:
            if error.status != LibraryStatus.UNIMPLEMENTED:
                raise
            self._emit_apart(call)
            return
        # Plain loops over a whole convolution cost more than a second pass over its result.
        if fused.is_reference and not alone.is_reference:
            self._emit_apart(call)
        else:
            self._add(call, fused, layouts, operands, sum_at)

    def _describe(
        self,
        call: PrimitiveCall,
        layouts: Sequence[MemoryLayout],
        result: MemoryLayout,
        attributes: Attributes,
    ) -> Descriptor | None:
        """Return an implementation; None for integers that are better computed as floats.

        Raises:
            StatusError: There is none.
        """
        is_integer = self.forms.dtype(call.inputs[0]) in _INTEGERS
        # 2^24 / (255 * 127): from 519 products of bytes on, a sum may need more digits than float32
        # has.
        is_exact = self.forms.dtype(call.output) is DataType.S32  # floats would round
        if is_integer and call.kind in _PRODUCTS and not self.library.has_integer_products:
            if is_exact:
                raise StatusError(f"exact {call.kind} of integers", LibraryStatus.UNIMPLEMENTED)
            return None
        try:
            descriptor = make_primitive(self.library, call, layouts, result, attributes.finish())
        except StatusError as error:
            if error.status != LibraryStatus.UNIMPLEMENTED or not is_integer or is_exact:
                raise
            return None
        # Floats in specialised code are faster than integers in plain loops.
        return None if descriptor.is_reference and call.scalings and not is_exact else descriptor

    def _emit_in_floats(self, call: PrimitiveCall) -> None:
        """Emit a primitive of integers that has no implementation with its operands as floats."""
        inputs = list(call.inputs)
        lists = dict(call.lists)
        for position, tensor_id in enumerate(call.inputs):
            what = argument(call.kind, position)
            if self.forms.dtype(tensor_id) not in (DataType.S8, DataType.U8):
                continue
            shape = lists.pop(f"shape{position}", ()) or self.forms.tensors[tensor_id].shape
            strides = lists.pop(f"strides{position}", ())
            source = tensor_id
            if strides or shape != self.forms.tensors[tensor_id].shape:
                source = self._new_tensor(shape, self.forms.tensors[tensor_id].dtype)
                self.forms.of[source, (), ()] = self.forms.of[
                    self.forms.seen(tensor_id, shape, strides)
                ]
            inputs[position] = self._new_tensor(shape, "float32")
            own = tuple(
                msgspec.structs.replace(scaling, argument=Arg.SRC)
                for scaling in call.scalings
                if scaling.argument == what
            )
            self._emit(PrimitiveCall("reorder", (source,), inputs[position], scalings=own))
        replaced = msgspec.structs.replace(call, inputs=tuple(inputs), lists=lists, scalings=())
        if self.forms.dtype(call.output) in _INTEGERS:
            result = self._new_tensor(self.forms.tensors[call.output].shape, "float32")
            self._emit(msgspec.structs.replace(replaced, output=result))
            self._emit(PrimitiveCall("reorder", (result,), call.output))
        else:
            self._emit(replaced)

    def _operand(self, post: Post, result: MemoryLayout) -> Form:
        view = self.forms.seen(post.operand, post.shape, ())
        dtype = self.forms.dtype(post.operand)
        if post.shape == result.shape:
            return self.forms.fetch(view, result.of_dtype(dtype))
        return self.forms.fetch(view, MemoryLayout.strided(self.library, post.shape, None, dtype))

    def _can_sum(self, call: PrimitiveCall, post: Post, form: Form, result: MemoryLayout) -> bool:
        """Tell whether a result can be added to an operand where that lies."""
        if post.algorithm != BinaryAlgorithm.ADD or not form.layout.is_same(result) or form.offset:
            return False
        if call.kind not in _PRODUCTS:
            return False
        if self.forms.assembly.buffers[form.buffer].room is not Room.INNER:
            return False
        # A result of the region belongs into the caller's memory, not where the operand lies.
        if self._is_final(call, result):
            return False
        return self._reads.is_last(post.operand, call, self._position)

    def _emit_apart(self, call: PrimitiveCall) -> None:
        """Emit a primitive, and its post-ops as separate primitives."""
        parts = [msgspec.structs.replace(call, posts=(), output=self._temporary(call))]
        is_integer = self.forms.dtype(call.output) in _INTEGERS
        for position, post in enumerate(call.posts):
            source = parts[-1].output
            is_last = position == len(call.posts) - 1
            output = call.output if is_last and not is_integer else self._temporary(call)
            lists = {"shape": call.lists["shape"]} if is_last and "shape" in call.lists else {}
            if post.operand < 0:
                numbers = {"alpha": post.alpha, "beta": post.beta}
                parts.append(
                    PrimitiveCall("eltwise", (source,), output, post.algorithm, lists, numbers)
                )
            else:
                operands = (source, post.operand)
                lists["shape1"] = post.shape
                parts.append(PrimitiveCall("binary", operands, output, post.algorithm, lists))
        if is_integer:
            parts.append(PrimitiveCall("reorder", (parts[-1].output,), call.output))
        for number, part in enumerate(parts):
            for later in parts[number + 1 :]:  # what they read is not to be overwritten
                self._reads.add(later, self._position + 0.5)
            self._emit(part)

    def _temporary(self, call: PrimitiveCall) -> int:
        dtype = self.forms.tensors[call.output].dtype
        is_integer = DATA_TYPES[dtype] in _INTEGERS
        return self._new_tensor(self.forms.result_shape(call), "float32" if is_integer else dtype)

    def _new_tensor(self, shape: tuple[int, ...], dtype: str) -> int:
        self.forms.tensors.append(ProgramTensor(shape, dtype=dtype))
        return len(self.forms.tensors) - 1

    def _add(
        self,
        call: PrimitiveCall,
        descriptor: Descriptor,
        layouts: Sequence[MemoryLayout],
        operands: Sequence[Form | None] = (),
        sum_at: int = -1,
    ) -> None:
        """Append a primitive whose implementation is chosen."""
        arguments = []
        for position in range(len(call.inputs)):
            what = argument(call.kind, position)
            layout = layouts[position]
            if what in _CHOSEN:  # it may have had the choice
                layout = descriptor.layout(*_CHOSEN[what])
            form = self.forms.fetch(self._offers.view(call, position), layout)
            arguments.append(PrimitiveArgument(what, form))
        arguments += [PrimitiveArgument(one.position, form) for one, form in self._numbers(call)]
        result = descriptor.layout(Query.DESTINATION)
        buffer = -1
        for position, operand in enumerate(operands):
            if operand is not None and position == sum_at:
                buffer = operand.buffer
            elif operand is not None:
                # `DNNL_ARG_ATTR_MULTIPLE_POST_OP(position)` of dnnl_types.h.
                what = Arg.POST_OP_BASE * (position + 1) | Arg.SRC_1
                arguments.append(PrimitiveArgument(what, operand))
        if buffer < 0:
            buffer = self._result_buffer(call, arguments, result)
        output_form = Form(result, buffer)
        arguments.append(PrimitiveArgument(Arg.DST, output_form))
        self.forms.assembly.steps.append(
            PrimitiveStep(descriptor, tuple(arguments), buffer, call.nodes)
        )
        shape = self.forms.tensors[call.output].shape
        if result.shape != shape:  # seen with other dimensions, in row-major order
            output_form = Form(
                MemoryLayout.strided(self.library, shape, None, result.dtype), buffer
            )
        self.forms.of[call.output, (), ()] = [output_form]

    def _result_buffer(
        self, call: PrimitiveCall, arguments: Sequence[PrimitiveArgument], result: MemoryLayout
    ) -> int:
        source = arguments[0].form
        is_inner = self.forms.assembly.buffers[source.buffer].room is Room.INNER
        if (
            call.kind in _IN_PLACE
            and is_inner
            and not source.offset
            and source.layout.is_same(result)
            and self._reads.is_last(call.inputs[0], call, self._position)
            and not self._is_final(call, result)
        ):
            return source.buffer
        return self._destination(call, result)
