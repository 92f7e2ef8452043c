# SPDX-License-Identifier: Apache-2.0
"""One row per kind of primitive: from a call and layouts to a primitive descriptor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

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

Describe: TypeAlias = Callable[[PrimitiveCall, Sequence[int], int], Sequence[Any]]
"""From a call, and the layouts of what it reads and of what it makes (which may be "any"), to what
the library is told between the engine and the attributes."""


@dataclass(frozen=True, slots=True)
class PrimitiveKind:
    """How a kind of primitive is made.

    Attributes:
        function: Makes its descriptor; the middle of the function's name.
        describe: What the function is told.
        inputs: What each input is to the primitive.
    """

    function: str
    describe: Describe
    inputs: tuple[Arg, ...] = (Arg.SRC,)


def _forward(name: str, describe: Describe, *inputs: Arg) -> PrimitiveKind:
    """Return a kind that could also be told to learn."""

    def describe_inference(
        call: PrimitiveCall, sources: Sequence[int], result: int
    ) -> Sequence[Any]:
        return (FORWARD_INFERENCE, *describe(call, sources, result))

    return PrimitiveKind(f"{name}_forward", describe_inference, inputs or (Arg.SRC,))


def _convolution(
    algorithm: int, call: PrimitiveCall, sources: Sequence[int], result: int
) -> Sequence[Any]:
    return (algorithm, *_with_bias(call, sources, result), *_window(call, "strides", "dilations"))


def _with_bias(_call: PrimitiveCall, sources: Sequence[int], result: int) -> Sequence[Any]:
    source, weights, *bias = sources
    return (source, weights, bias[0] if bias else None, result)


def _window(call: PrimitiveCall, *names: str) -> list[Any]:
    return [dims_of(call.lists[name]) for name in (*names, "begin", "end")]


def _pooling(call: PrimitiveCall, sources: Sequence[int], result: int) -> Sequence[Any]:
    return (call.algorithm, sources[0], result, *_window(call, "strides", "kernel", "dilations"))


def _normalised(call: PrimitiveCall, sources: Sequence[int], result: int) -> Sequence[Any]:
    flags = USE_GLOBAL_STATS | USE_SCALE | USE_SHIFT
    return (sources[0], result, call.numbers["epsilon"], flags)


def _normalised_rows(call: PrimitiveCall, sources: Sequence[int], result: int) -> Sequence[Any]:
    flags = sum((USE_SCALE, USE_SHIFT)[: len(sources) - 1])
    return (sources[0], result, None, call.numbers["epsilon"], flags)


def _lrn(call: PrimitiveCall, sources: Sequence[int], result: int) -> Sequence[Any]:
    numbers = (call.numbers[name] for name in ("alpha", "beta", "bias"))
    return (LRN_ACROSS_CHANNELS, sources[0], result, call.lists["size"][0], *numbers)


def _concatenated(call: PrimitiveCall, sources: Sequence[int], result: int) -> Sequence[Any]:
    array = ctypes.cast((c_void_p * len(sources))(*sources), ctypes.POINTER(c_void_p))
    return (result, len(sources), call.lists["axis"][0], array)


_AFFINE = (Arg.SRC, Arg.SCALE, Arg.SHIFT)
_WEIGHED = (Arg.SRC, Arg.WEIGHTS, Arg.BIAS)

KINDS: dict[str, PrimitiveKind] = {
    "batch_normalization": _forward(
        "batch_normalization", _normalised, *_AFFINE, Arg.MEAN, Arg.VARIANCE
    ),
    "binary": PrimitiveKind(
        "binary",
        lambda call, sources, result: (call.algorithm, *sources, result),
        (Arg.SRC, Arg.SRC_1),
    ),
    "concat": PrimitiveKind("concat", _concatenated),
    "convolution": _forward("convolution", partial(_convolution, CONVOLUTION_DIRECT), *_WEIGHED),
    "deconvolution": _forward(
        "deconvolution", partial(_convolution, DECONVOLUTION_DIRECT), *_WEIGHED
    ),
    "eltwise": _forward(
        "eltwise",
        lambda call, sources, result: (
            call.algorithm,
            sources[0],
            result,
            call.numbers["alpha"],
            call.numbers["beta"],
        ),
    ),
    "layer_normalization": _forward("layer_normalization", _normalised_rows, *_AFFINE),
    "lrn": _forward("lrn", _lrn),
    "matmul": PrimitiveKind("matmul", _with_bias, _WEIGHED),
    "pooling": _forward("pooling", _pooling),
    "prelu": _forward(
        "prelu", lambda _call, sources, result: (*sources, result), Arg.SRC, Arg.WEIGHTS
    ),
    "reduction": PrimitiveKind(
        "reduction", lambda call, sources, result: (call.algorithm, sources[0], result, 0.0, 0.0)
    ),
    "resampling": _forward(
        "resampling", lambda call, sources, result: (call.algorithm, None, sources[0], result)
    ),
    "shuffle": _forward(
        "shuffle",
        lambda call, sources, result: (sources[0], result, 1, call.lists["group_size"][0]),
    ),
    "softmax": _forward(
        "softmax",
        lambda call, sources, result: (call.algorithm, sources[0], result, call.lists["axis"][0]),
    ),
}
"""The row of each kind of call."""


def argument(kind: str, position: int) -> int:
    """Return what an input of a kind is to the primitive."""
    if kind == "concat":
        return Arg.MULTIPLE_SRC + position
    return KINDS[kind].inputs[position]


def make_primitive(
    library: OneDnn,
    call: PrimitiveCall,
    layouts: Sequence[MemoryLayout],
    output: MemoryLayout,
    attributes: int,
) -> Descriptor:
    """Return the descriptor of a primitive.

    Args:
        library: oneDNN.
        call: What it computes.
        layouts: Of every input.
        output: Of the result; may be "any".
        attributes: Of the primitive.

    Raises:
        StatusError: The library has no implementation of it.
    """
    kind = KINDS[call.kind]
    told = kind.describe(call, [layout.pointer for layout in layouts], output.pointer)
    function = f"dnnl_{kind.function}_primitive_desc_create"
    return Descriptor(library, library.make(function, library.engine, *told, attributes))


def make_reorder(
    library: OneDnn, source: MemoryLayout, destination: MemoryLayout, attributes: int
) -> Descriptor:
    """Return what copies from one layout to another."""
    descriptor = library.make(
        "dnnl_reorder_primitive_desc_create",
        source.pointer,
        library.engine,
        destination.pointer,
        library.engine,
        attributes,
    )
    return Descriptor(library, descriptor)
