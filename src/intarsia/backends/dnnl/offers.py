# SPDX-License-Identifier: Apache-2.0
"""The layouts in which a primitive is offered its inputs."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.backends.dnnl.forms import Form, Forms, View
from intarsia.backends.dnnl.handles import MemoryLayout
from intarsia.backends.dnnl.library import OneDnn
from intarsia.backends.dnnl.program import PrimitiveCall

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
