# SPDX-License-Identifier: Apache-2.0
"""Where a convolution is better in other layouts than those that it chooses by itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from intarsia.backends.dnnl.forms import Forms
from intarsia.backends.dnnl.handles import Attributes, Descriptor, MemoryLayout
from intarsia.backends.dnnl.library import OneDnn, StatusError
from intarsia.backends.dnnl.primitives import MAKERS
from intarsia.backends.dnnl.program import Origin, PrimitiveCall, PrimitiveProgram
from intarsia.backends.dnnl.words import DataType, FpMath, Query

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
        """Return the attributes of a primitive without what follows it."""
        made = Attributes(self.library, FPMATH[self.program.fpmath])
        for scaling in call.scalings:
            made.scale(scaling)
        return made

    def instead(
        self,
        call: PrimitiveCall,
        layouts: list[MemoryLayout],
        attributes: Attributes,
        found: Descriptor,
    ) -> tuple[list[MemoryLayout], Descriptor]:
        """Return a convolution in other layouts than its own choice, if that is better.

        It is better in the blocks of the region's border, and with channels last where it would be
        a general product of matrices.
        """
        for kind in self._kinds(call, found):
            shapes = (self.forms.tensors[call.inputs[0]].shape, self.forms.result_shape(call))
            dtypes = (self.forms.dtype(call.inputs[0]), self.forms.dtype(call.output))
            source, result = (
                self._image(kind, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)
            )
            offered = [source, *layouts[1:]]
            try:
                other = MAKERS[call.kind](self.library, call, offered, result, attributes.finish())
            except StatusError:
                continue
            if not other.is_general:
                return offered, other
        return layouts, found

    def _kinds(self, call: PrimitiveCall, found: Descriptor) -> Iterator[int]:
        """Yield the layouts to try instead of a choice: blocks of channels, 0 for channels last.

        A first convolution of few channels chooses blocks, where all others may want channels last:
        a reorder of its small input at the border is cheaper than one of its result.
        """
        if self._block:
            yield self._block
        is_first = self.forms.tensors[call.inputs[0]].origin is Origin.INPUT and not self._block
        if found.is_general or (
            is_first and found.layout(Query.DESTINATION).block and self._wants_channels_last
        ):
            yield 0

    @cached_property
    def _wants_channels_last(self) -> bool:
        """Whether the first convolution inside the region would choose channels last."""
        for call in self.program.calls:
            source = self.forms.tensors[call.inputs[0]]
            is_inner = source.origin is Origin.INNER and "shape1" not in call.lists
            if call.kind != "convolution" or not is_inner or call.scalings:
                continue
            weights = self.forms.tensors[call.inputs[1]].shape
            shapes = (source.shape, weights, self.forms.result_shape(call))
            left, right, result = (
                MemoryLayout.any(self.library, shape, self.forms.precision) for shape in shapes
            )
            attributes = self.attributes(call)
            make = MAKERS[call.kind]
            found = make(self.library, call, [left, right], result, attributes.finish())
            return found.layout(Query.SOURCE).is_channels_last
        return False

    def _image(self, block: int, shape: tuple[int, ...], dtype: DataType) -> MemoryLayout:
        """Return a layout of images; any, where channels do not fill the blocks."""
        if not block:
            return MemoryLayout.channels_last(self.library, shape, dtype)
        blocked = None
        if shape[1] % block == 0:
            blocked = MemoryLayout.blocked(self.library, shape, block, dtype)
        return blocked or MemoryLayout.any(self.library, shape, dtype)
