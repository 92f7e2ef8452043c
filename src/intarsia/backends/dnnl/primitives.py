# SPDX-License-Identifier: Apache-2.0
"""One maker per kind of primitive: from a call and layouts to a primitive descriptor.

A maker is given the layout of every input, the layout of the output (that may be "any") and the
attributes. `ARGUMENTS` says what each input is to the primitive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from typing import TypeAlias

from intarsia.backends.dnnl.handles import Descriptor, MemoryLayout, dims_of
from intarsia.backends.dnnl.library import OneDnn
from intarsia.backends.dnnl.program import PrimitiveCall
from intarsia.backends.dnnl.words import (
    CONVOLUTION_DIRECT,
    DECONVOLUTION_DIRECT,
    FORWARD_INFERENCE,
    LRN_ACROSS_CHANNELS,
    USE_GLOBAL_STATS,
    USE_SCALE,
    USE_SHIFT,
    Arg,
)

Maker: TypeAlias = Callable[
    [OneDnn, PrimitiveCall, Sequence[MemoryLayout], MemoryLayout, int], Descriptor
]

_AFFINE = (Arg.SRC, Arg.SCALE, Arg.SHIFT)

ARGUMENTS: dict[str, tuple[Arg, ...]] = {
    "convolution": (Arg.SRC, Arg.WEIGHTS, Arg.BIAS),
    "deconvolution": (Arg.SRC, Arg.WEIGHTS, Arg.BIAS),
    "matmul": (Arg.SRC, Arg.WEIGHTS, Arg.BIAS),
    "batch_normalization": (*_AFFINE, Arg.MEAN, Arg.VARIANCE),
    "layer_normalization": _AFFINE,
    "prelu": (Arg.SRC, Arg.WEIGHTS),
    "binary": (Arg.SRC, Arg.SRC_1),
}
"""By kind, what each input is; a kind that is missing reads one source."""


def argument(kind: str, position: int) -> int:
    """Return what an input of a kind is to the primitive."""
    if kind == "concat":
        return Arg.MULTIPLE_SRC + position
    return ARGUMENTS.get(kind, (Arg.SRC,))[position]


def _pointer(layouts: Sequence[MemoryLayout], position: int) -> int | None:
    return layouts[position].pointer if position < len(layouts) else None


def _windowed(function: str, algorithm: int) -> Maker:
    def make(
        library: OneDnn,
        call: PrimitiveCall,
        layouts: Sequence[MemoryLayout],
        output: MemoryLayout,
        attributes: int,
    ) -> Descriptor:
        made = library.make(
            function,
            *(library.engine, FORWARD_INFERENCE, algorithm),
            *(layouts[0].pointer, layouts[1].pointer, _pointer(layouts, 2), output.pointer),
            *(dims_of(call.lists[name]) for name in ("strides", "dilations", "begin", "end")),
            attributes,
        )
        return Descriptor(library, made)

    return make


def _pooling(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    names = ("strides", "kernel", "dilations", "begin", "end")
    made = library.make(
        "dnnl_pooling_forward_primitive_desc_create",
        *(library.engine, FORWARD_INFERENCE, call.algorithm, layouts[0].pointer, output.pointer),
        *(dims_of(call.lists[name]) for name in names),
        attributes,
    )
    return Descriptor(library, made)


def _matmul(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    del call
    made = library.make(
        "dnnl_matmul_primitive_desc_create",
        *(library.engine, layouts[0].pointer, layouts[1].pointer, _pointer(layouts, 2)),
        *(output.pointer, attributes),
    )
    return Descriptor(library, made)


def _eltwise(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    made = library.make(
        "dnnl_eltwise_forward_primitive_desc_create",
        *(library.engine, FORWARD_INFERENCE, call.algorithm, layouts[0].pointer, output.pointer),
        *(call.numbers["alpha"], call.numbers["beta"], attributes),
    )
    return Descriptor(library, made)


def _binary(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    made = library.make(
        "dnnl_binary_primitive_desc_create",
        *(library.engine, call.algorithm, layouts[0].pointer, layouts[1].pointer),
        *(output.pointer, attributes),
    )
    return Descriptor(library, made)


def _softmax(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    made = library.make(
        "dnnl_softmax_forward_primitive_desc_create",
        *(library.engine, FORWARD_INFERENCE, call.algorithm, layouts[0].pointer, output.pointer),
        *(call.lists["axis"][0], attributes),
    )
    return Descriptor(library, made)


def _lrn(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    made = library.make(
        "dnnl_lrn_forward_primitive_desc_create",
        *(library.engine, FORWARD_INFERENCE, LRN_ACROSS_CHANNELS),
        *(layouts[0].pointer, output.pointer, call.lists["size"][0]),
        *(call.numbers[name] for name in ("alpha", "beta", "bias")),
        attributes,
    )
    return Descriptor(library, made)


def _batch_normalization(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    made = library.make(
        "dnnl_batch_normalization_forward_primitive_desc_create",
        *(library.engine, FORWARD_INFERENCE, layouts[0].pointer, output.pointer),
        *(call.numbers["epsilon"], USE_GLOBAL_STATS | USE_SCALE | USE_SHIFT, attributes),
    )
    return Descriptor(library, made)


def _layer_normalization(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    flags = sum((USE_SCALE, USE_SHIFT)[: len(layouts) - 1])
    made = library.make(
        "dnnl_layer_normalization_forward_primitive_desc_create",
        *(library.engine, FORWARD_INFERENCE, layouts[0].pointer, output.pointer),
        *(None, call.numbers["epsilon"], flags, attributes),
    )
    return Descriptor(library, made)


def _prelu(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    del call
    made = library.make(
        "dnnl_prelu_forward_primitive_desc_create",
        *(library.engine, FORWARD_INFERENCE, layouts[0].pointer, layouts[1].pointer),
        *(output.pointer, attributes),
    )
    return Descriptor(library, made)


def _reduction(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    made = library.make(
        "dnnl_reduction_primitive_desc_create",
        *(library.engine, call.algorithm, layouts[0].pointer, output.pointer, 0.0, 0.0),
        attributes,
    )
    return Descriptor(library, made)


def _resampling(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    made = library.make(
        "dnnl_resampling_forward_primitive_desc_create",
        *(library.engine, FORWARD_INFERENCE, call.algorithm, None),
        *(layouts[0].pointer, output.pointer, attributes),
    )
    return Descriptor(library, made)


def _shuffle(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    made = library.make(
        "dnnl_shuffle_forward_primitive_desc_create",
        *(library.engine, FORWARD_INFERENCE, layouts[0].pointer, output.pointer),
        *(1, call.lists["group_size"][0], attributes),
    )
    return Descriptor(library, made)


def _concat(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    sources = (c_void_p * len(layouts))(*(layout.pointer for layout in layouts))
    made = library.make(
        "dnnl_concat_primitive_desc_create",
        *(library.engine, output.pointer, len(layouts), call.lists["axis"][0]),
        *(ctypes.cast(sources, ctypes.POINTER(c_void_p)), attributes),
    )
    return Descriptor(library, made)


def make_reorder(
    library: OneDnn, source: MemoryLayout, destination: MemoryLayout, attributes: int
) -> Descriptor:
    """Return what copies from one layout to another."""
    made = library.make(
        "dnnl_reorder_primitive_desc_create",
        *(source.pointer, library.engine, destination.pointer, library.engine, attributes),
    )
    return Descriptor(library, made)


MAKERS: dict[str, Maker] = {
    "batch_normalization": _batch_normalization,
    "binary": _binary,
    "concat": _concat,
    "convolution": _windowed("dnnl_convolution_forward_primitive_desc_create", CONVOLUTION_DIRECT),
    "deconvolution": _windowed(
        "dnnl_deconvolution_forward_primitive_desc_create", DECONVOLUTION_DIRECT
    ),
    "eltwise": _eltwise,
    "layer_normalization": _layer_normalization,
    "lrn": _lrn,
    "matmul": _matmul,
    "pooling": _pooling,
    "prelu": _prelu,
    "reduction": _reduction,
    "resampling": _resampling,
    "shuffle": _shuffle,
    "softmax": _softmax,
}
"""By kind of a call."""
