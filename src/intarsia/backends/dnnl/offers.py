# SPDX-License-Identifier: Apache-2.0
"""The layouts in which a primitive is offered its inputs, and where others than its choice win."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from intarsia.backends.dnnl.forms import Form, Forms, View
from intarsia.backends.dnnl.handles import Attributes, Descriptor, MemoryLayout
from intarsia.backends.dnnl.library import OneDnn, StatusError
from intarsia.backends.dnnl.primitives import make_primitive
from intarsia.backends.dnnl.program import Origin, PrimitiveCall, PrimitiveProgram
from intarsia.backends.dnnl.words import DataType, FpMath, Query

CHOOSERS = frozenset(("convolution", "deconvolution"))
"""Kinds that choose the layouts of what they read."""


@dataclass(frozen=True, slots=True)
class Offers:
    """Offers layouts of tensors as they are so far.

    Attributes:
        library: oneDNN.
        forms: The forms of every tensor.
    """

    library: OneDnn
    forms: Forms

    def view(self, call: PrimitiveCall, position: int) -> View:
        """Return how a call sees an input, and make sure that there is a form of that."""
        tensor_id = call.inputs[position]
        shape = call.lists.get(f"shape{position}", ())
        strides = call.lists.get(f"strides{position}", ())
        return self.forms.seen(tensor_id, shape, strides)

    def wanted(self, call: PrimitiveCall) -> list[MemoryLayout]:
        """Return the layouts in which a primitive is offered its inputs."""
        if call.kind in CHOOSERS:
            offered = [self._any(call, position) for position in range(2)]
            return offered + [self.parameter(call, i).layout for i in range(2, len(call.inputs))]
        if call.kind == "matmul":
            return self._matrices(call)
        if call.kind in ("batch_normalization", "layer_normalization"):
            rest = range(1, len(call.inputs))
            # It takes any layout and keeps it: a region's blocks or channels last pass through.
            first = self.forms.current(call.inputs[0]).layout
            return [first, *(self.parameter(call, i).layout for i in rest)]
        if call.kind == "binary":
            return self._operands(call)
        if call.kind == "concat":
            return self._parts(call)
        if call.kind == "prelu":
            source = self.forms.current(call.inputs[0]).layout
            return [source, self.parameter(call, 1).layout]
        return [self.forms.current(tensor_id).layout for tensor_id in call.inputs]

    def _any(self, call: PrimitiveCall, position: int) -> MemoryLayout:
        tensor_id, shape, _ = self.view(call, position)
        shape = shape or self.forms.tensors[tensor_id].shape
        return MemoryLayout.any(self.library, shape, self.forms.dtype(tensor_id))

    def parameter(self, call: PrimitiveCall, position: int) -> Form:
        """Return a bias, scale or the like, which is always float32 and row-major."""
        tensor_id, shape, strides = self.view(call, position)
        layout = MemoryLayout.strided(self.library, shape or self.forms.tensors[tensor_id].shape)
        return self.forms.fetch((tensor_id, shape, strides), layout)

    def _matrices(self, call: PrimitiveCall) -> list[MemoryLayout]:
        offered = []
        for position in range(2):
            view = self.view(call, position)
            # Its reorder is paid once, when loading; an operand that changes would be reordered in
            # each run.
            if self.forms.is_constant(view[0]):
                offered.append(self._any(call, position))
            elif view[1:] == ((), ()):
                offered.append(self.forms.dense(view[0], self.forms.dtype(view[0])).layout)
            else:
                offered.append(self.forms.of[view][0].layout)
        return offered + [self.parameter(call, i).layout for i in range(2, len(call.inputs))]

    def _operands(self, call: PrimitiveCall) -> list[MemoryLayout]:
        left = self.forms.current(call.inputs[0]).layout
        view = self.view(call, 1)
        shape = view[1] or self.forms.tensors[view[0]].shape
        if shape != left.shape:  # broadcast; beside a blocked operand it has to be blocked too
            make = MemoryLayout.strided if left.is_dense else MemoryLayout.any
            return [left, make(self.library, shape, dtype=self.forms.dtype(view[0]))]
        right = self.forms.current(call.inputs[1]).layout
        if left.dtype != right.dtype:
            return [left, left.of_dtype(right.dtype)]
        if left.is_dense and not right.is_dense:
            left = right
        return [left, left]

    def _parts(self, call: PrimitiveCall) -> list[MemoryLayout]:
        """Return one layout for all parts of a concatenation: a mixture has no fast code."""
        parts = [self.forms.current(tensor_id).layout for tensor_id in call.inputs]
        last = next((part for part in parts if part.is_channels_last), None)
        if last is None or all(part.is_channels_last for part in parts):
            return parts
        return [MemoryLayout.channels_last(self.library, part.shape, part.dtype) for part in parts]


FPMATH = {"strict": FpMath.STRICT, "bf16": FpMath.BF16, "f16": FpMath.F16, "any": FpMath.ANY}


class LayoutChoices:
    """Chooses layouts of convolutions.

    Args:
        library: oneDNN.
        program: What is assembled.
        forms: The forms of every tensor.
    """

    def __init__(self, library: OneDnn, program: PrimitiveProgram, forms: Forms) -> None:
        self.library = library
        self.program = program
        self.forms = forms
        self._block = max((*program.input_blocks, *program.output_blocks), default=0)

    def attributes(self, call: PrimitiveCall) -> Attributes:
        """Return the attributes of a primitive without its post-ops."""
        attributes = Attributes(self.library, FPMATH[self.program.fpmath])
        for scaling in call.scalings:
            attributes.scale(scaling)
        return attributes

    def instead(
        self,
        call: PrimitiveCall,
        layouts: list[MemoryLayout],
        attributes: Attributes,
        choice: Descriptor,
    ) -> tuple[list[MemoryLayout], Descriptor]:
        """Return a convolution in other layouts than its own choice, if that is better.

        It is better in the blocks of the region's border, and with channels last where it would be
        a general product of matrices.
        """
        for kind in self._kinds(call, choice):
            shapes = (self.forms.tensors[call.inputs[0]].shape, self.forms.result_shape(call))
            dtypes = (self.forms.dtype(call.inputs[0]), self.forms.dtype(call.output))
            source, result = (
                self._image(kind, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)
            )
            offered = [source, *layouts[1:]]
            try:
                other = make_primitive(self.library, call, offered, result, attributes.finish())
            except StatusError:  # oneDNN has none for these layouts
                continue
            if not other.is_general:
                return offered, other
        return layouts, choice

    def _kinds(self, call: PrimitiveCall, choice: Descriptor) -> Iterator[int]:
        """Yield the layouts to try instead of a choice: blocks of channels, 0 for channels last.

        A first convolution of few channels chooses blocks, where all others may want channels last:
        a reorder of its small input at the border is cheaper than one of its result.
        """
        if self._block:
            yield self._block
        is_first = self.forms.tensors[call.inputs[0]].origin is Origin.INPUT and not self._block
        if choice.is_general or (
            is_first and choice.layout(Query.DESTINATION).block and self._wants_channels_last
        ):
            yield 0

    @cached_property
    def _wants_channels_last(self) -> bool:
        """Whether the first convolution inside the region would choose channels last."""
        for call in self.program.calls:
            source = self.forms.tensors[call.inputs[0]]
            # Grouped convolutions, and first ones of few channels, may choose otherwise than most
            # of the network.
            is_inner = source.origin is Origin.INNER and "shape1" not in call.lists
            if call.kind != "convolution" or not is_inner or call.scalings:
                continue
            weights = self.forms.tensors[call.inputs[1]].shape
            shapes = (source.shape, weights, self.forms.result_shape(call))
            left, right, result = (
                MemoryLayout.any(self.library, shape, self.forms.precision) for shape in shapes
            )
            attributes = self.attributes(call)
            choice = make_primitive(self.library, call, [left, right], result, attributes.finish())
            return choice.layout(Query.SOURCE).is_channels_last
        return False

    def _image(self, block: int, shape: tuple[int, ...], dtype: DataType) -> MemoryLayout:
        """Return a layout of images; any, where channels do not fill the blocks."""
        if not block:
            return MemoryLayout.channels_last(self.library, shape, dtype)
        blocked = None
        if shape[1] % block == 0:
            blocked = MemoryLayout.blocked(self.library, shape, block, dtype)
        return blocked or MemoryLayout.any(self.library, shape, dtype)
