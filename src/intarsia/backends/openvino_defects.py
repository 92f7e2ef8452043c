# SPDX-License-Identifier: Apache-2.0
"""What OpenVINO's CPU plug-in is known to get wrong, as rules: part of the `openvino` leaf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.defects import (
    Flushed,
    KnownDefect,
    Values,
    draws,
    of_spectrum,
    of_three_halves,
    off_by_zero_point,
)
from intarsia.backends.onednn_defects import onednn_defects
from intarsia.errors import ReasonCode
from intarsia.graph.per_graph import per_graph

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node, Value

_TRIED = "OpenVINO 2026.4 against ONNX Runtime 1.31 without optimisations and onnx.reference 1.23"
_UNSUPPORTED = ReasonCode.UNSUPPORTED_OP

_PEEPHOLES = 7
"""Position of LSTM's input `P`."""
_DFT_OF_INPUTS = 20
"""The operator set from which on DFT reads its axis."""
_MASK_AND_PAST = (3, 4)
"""Positions of Attention's inputs `attn_mask` and `past_key`."""
_TELLS_INFINITY = frozenset(("Equal", "IsInf"))
"""Operators after which an infinity differs from the largest finite number."""
_TELLS_ZERO = frozenset(("Div", "Equal", "IsInf", "Log", "Mod", "Pow", "Reciprocal", "Sign"))
"""Operators for which a number next to zero is another one than zero."""
_FOLDED = frozenset(
    (
        *("Cast", "Concat", "DequantizeLinear", "Expand", "Flatten", "Gather", "Identity"),
        *("QuantizeLinear", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
    )
)
"""Operators whose results OpenVINO keeps, where they follow from constants alone."""
_SOFTMAX_OF_AXIS = 13
"""The operator set from which on Softmax works on one axis rather than on all from it on."""


_rule = partial(KnownDefect.of, "openvino", _TRIED)


def _input(graph: Graph, node: Node, position: int) -> Value | None:
    """Return an input of a node, or None if it has no such input."""
    if position >= len(node.inputs) or node.inputs[position] < 0:
        return None
    return graph.values[node.inputs[position]]


def _shape(graph: Graph, node: Node, position: int = 0) -> tuple[int, ...]:
    value = _input(graph, node, position)
    return () if value is None or value.shape is None else value.shape


def _readers(graph: Graph, node: Node) -> set[str]:
    return {graph.nodes[reader].op_type for reader in graph.values[node.outputs[0]].consumers}


def _is_rooted(graph: Graph, value: Value) -> bool:
    """Tell whether a value follows from constants alone, so that OpenVINO folds it."""
    return value.id in _rooted_values(graph)


@per_graph
def _rooted_values(graph: Graph) -> frozenset[int]:
    rooted = {value.id for value in graph.values if value.constant is not None}
    for node in graph.nodes:
        if rooted.issuperset(node.reads):
            rooted.update(output for output in node.outputs if output >= 0)
    return frozenset(rooted)


def _has_old_axis(graph: Graph, node: Node) -> bool:
    rank = len(_shape(graph, node))
    is_old = (graph.model.opset_imports.get("") or 0) < _SOFTMAX_OF_AXIS
    return is_old and node.ir.attributes.get_int("axis", 1) not in (-1, rank - 1)


def _has_zero(*names: str) -> Callable[[Graph, Node], bool]:
    """Return a test whether one of these attributes is given as zero."""
    return lambda graph, node: any(node.ir.attributes.get_float(name, 1.0) == 0 for name in names)


def _has_flag(*names: str) -> Callable[[Graph, Node], bool]:
    """Return a test whether one of these attributes is given, and is not zero."""
    return lambda graph, node: any(node.ir.attributes.get_int(name, 0) for name in names)


def _counts_pads(graph: Graph, node: Node) -> bool:
    attributes = node.ir.attributes
    flags = (attributes.get_int("ceil_mode", 0), attributes.get_int("count_include_pad", 0))
    return all(flags) and bool({"pads", "auto_pad"} & attributes.keys())


def _has_fed(position: int) -> Callable[[Graph, Node], bool]:
    """Return a test whether an input is there and is not known when compiling."""

    def is_fed(graph: Graph, node: Node) -> bool:
        value = _input(graph, node, position)
        return value is not None and not _is_rooted(graph, value)

    return is_fed


def _has_slope_of_last_axis(graph: Graph, node: Node) -> bool:
    slope = _shape(graph, node, 1)
    return len(slope) == 1 and slope[0] > 1 and len(_shape(graph, node)) > 2  # noqa: PLR2004


def _is_changed_in_place(graph: Graph, node: Node) -> bool:
    """Tell whether a node, or a part of it, follows from constants alone and is not kept as one.

    A part is a convolution before its bias is added, or a loss before it is weighed.
    """
    inputs = [graph.values[value] for value in node.inputs if value >= 0]
    # The first two: the bias or the weights of a loss come after the part that is folded.
    is_rooted = all(_is_rooted(graph, value) for value in inputs[:2])
    return is_rooted and node.op_type not in _FOLDED


def _has_window(graph: Graph, node: Node) -> bool:
    attributes = node.ir.attributes
    return any(
        attributes.get_int(name, -1) >= 0 for name in ("left_window_size", "right_window_size")
    )


def _is_causal_after_past(graph: Graph, node: Node) -> bool:
    inputs = [_input(graph, node, position) for position in _MASK_AND_PAST]
    return None not in inputs and bool(node.ir.attributes.get_int("is_causal", 0))


def _has_read_axis(graph: Graph, node: Node) -> bool:
    """Tell whether a transform reads its axis, as from operator set 20 on, and it is not 1."""
    if (graph.model.opset_imports.get("") or 0) < _DFT_OF_INPUTS:
        return False
    axis, rank = _input(graph, node, 2), len(_shape(graph, node))
    if axis is None:
        return rank != 3  # noqa: PLR2004 - the default is the last but one
    return axis.constant is None or int(axis.constant.numpy()) % rank != 1


def _aligns_by_scales(graph: Graph, node: Node) -> bool:
    """Tell whether corners are aligned of a size that a scale does not make a whole number of."""
    mode = node.ir.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    scales = _input(graph, node, 2)
    if mode != "align_corners" or scales is None:
        return False
    if scales.constant is None:
        return True
    extents = np.array(_shape(graph, node), np.float64)[-scales.constant.numpy().size :]
    sizes = scales.constant.numpy().astype(np.float64) * extents
    return bool(scales.constant.numpy().size) and bool(np.any(sizes != np.floor(sizes)))


def _has_indices(graph: Graph, node: Node) -> bool:
    return len(node.outputs) > 1 and node.outputs[1] >= 0


def _has_padded_stride_of_points(graph: Graph, node: Node) -> bool:
    attributes = node.ir.attributes
    is_point = prod(_shape(graph, node, 1)[2:]) == 1
    strides = attributes.get_ints("strides", ())
    pads = any(attributes.get_ints("pads", ())) or attributes.get_string("auto_pad", "").startswith(
        "SAME"
    )
    return is_point and any(stride > 1 for stride in strides) and pads


def _is_narrow(graph: Graph, node: Node) -> bool:
    """Tell whether one channel is convolved to one column with strides (1, more)."""
    shape = graph.values[node.outputs[0]].shape or ()
    strides = node.ir.attributes.get_ints("strides", ())
    return (
        _shape(graph, node)[1:2] == (1,)
        and shape[-1:] == (1,)
        and len(strides) > 1
        and strides[-1] > 1
        and set(strides[:-1]) == {1}
    )


def _reinserts_axis(graph: Graph, node: Node) -> bool:
    """Tell whether a view has a dimension of 1 where a reduction left one out, and is not it."""
    source = graph.values[node.inputs[0]]
    if source.producer < 0:
        return False
    reduction = graph.nodes[source.producer]
    keeps = reduction.ir.attributes.get_int("keepdims", 1) != 0
    if not reduction.op_type.startswith("Reduce") or keeps:
        return False
    before = _shape(graph, reduction)
    shape = graph.values[node.outputs[0]].shape or ()
    axes = _reduced_axes(graph, reduction, len(before))
    reduced_shape = tuple(1 if axis in axes else size for axis, size in enumerate(before))
    is_alike = all(axis < len(shape) and shape[axis] == 1 for axis in axes)
    return is_alike and shape != reduced_shape


def _reduced_axes(graph: Graph, reduction: Node, rank: int) -> set[int]:
    # Axes are an attribute up to opset 12 (ReduceSum) or 17 (the others), an input from then on.
    axes = reduction.ir.attributes.get_ints("axes", ())
    axes_input = _input(graph, reduction, 1)
    if axes_input is not None and axes_input.constant is not None:
        axes = tuple(int(axis) for axis in axes_input.constant.numpy().reshape(-1))
    return {axis % rank for axis in axes or range(rank)} if rank else set()


def _reduces_nothing(graph: Graph, node: Node) -> bool:
    """Tell whether each element is reduced alone, or may be."""
    if not node.ir.attributes.get_int("noop_with_empty_axes", 0):
        return False
    axes_input = _input(graph, node, 1)
    return axes_input is None or axes_input.constant is None or not axes_input.constant.numpy().size


def _touches_root(graph: Graph, node: Node) -> bool:
    """Tell whether a node reads or makes float32 numbers that are known when compiling."""
    touched = (
        graph.values[value_id] for value_id in (*node.inputs, *node.outputs) if value_id >= 0
    )
    return any(value.dtype == "float32" and _is_rooted(graph, value) for value in touched)


def _has_offset(graph: Graph, node: Node) -> bool:
    zero_point = _input(graph, node, 2)
    if zero_point is None:
        return False
    return zero_point.constant is None or bool(np.any(zero_point.constant.numpy()))


def _is_scaled_by_fed(graph: Graph, node: Node) -> bool:
    """Tell whether a quantised constant has a scale or a zero point that is fed."""
    quantised = _input(graph, node, 0)
    is_known = quantised is not None and _is_rooted(graph, quantised)
    return is_known and (_has_fed(1)(graph, node) or _has_fed(2)(graph, node))


def _has_offset_before_division(graph: Graph, node: Node) -> bool:
    return not _TELLS_ZERO.isdisjoint(_readers(graph, node)) and _has_offset(graph, node)


def _of_error_function(inputs: Sequence[Any], result: Array) -> Array:
    return np.asarray(3e-7 * np.maximum(1, np.abs(inputs[0].astype(np.float64))))


def _of_half_attributes(inputs: Sequence[Any], result: Array) -> float:
    """Return half a unit of `beta`, up to one, and of the product, up to two where it counts."""
    return 1.5 * float(np.finfo(result.dtype).eps)


_NAN = (Values.NAN,)
_NONFINITE = (Values.NAN, Values.INFINITE)
_BEYOND = (*_NONFINITE, Values.HUGE)
_ZERO = (Values.NEGATIVE_ZERO,)

_rewritten = partial(_rule, is_rewritten=True)

OLD_SOFTMAX = _rewritten(
    "Softmax",
    "its old form flattens axes, which is not done",
    where=_has_old_axis,
    code=_UNSUPPORTED,
)
COUNTED_PADS = _rewritten(
    "AveragePool",
    "it counts the pads that ceil_mode adds",
    where=_counts_pads,
    code=_UNSUPPORTED,
)
SCALED_NORMS = _rewritten(
    "LpPool",
    "it scales a mean as if what ceil_mode adds were whole windows",
    where=_has_flag("ceil_mode"),
    code=_UNSUPPORTED,
)
SLOPE_OF_LAST_AXIS = _rewritten(
    "PRelu",
    "it takes one slope for each element of the last axis for one for each channel",
    where=_has_slope_of_last_axis,
)
GREATER_THAN_NAN = _rewritten("Greater GreaterOrEqual", "it is true of NaN")
MULTIPLIED_BY_ZERO = _rewritten(
    "ThresholdedRelu Shrink", "it multiplies by 0 and 1, so that an infinity becomes NaN"
)

NO_WINDOWS = _rewritten("Attention", "it leaves windows out", where=_has_window, code=_UNSUPPORTED)
CAUSAL_AFTER_PAST = _rewritten(
    "Attention",
    "with a mask and a past, is_causal counts from the first key",
    where=_is_causal_after_past,
)

DEFECTS: tuple[KnownDefect, ...] = (
    # The graph decides: these are refused.
    OLD_SOFTMAX,
    _rule(
        "LSTM",
        "it leaves peepholes out",
        where=lambda graph, node: _input(graph, node, _PEEPHOLES) is not None,
        code=_UNSUPPORTED,
    ),
    _rule(
        "ReduceMax ReduceMin",
        "of infinities alone it gives the largest finite number",
        where=lambda graph, node: not _TELLS_INFINITY.isdisjoint(_readers(graph, node)),
    ),
    COUNTED_PADS,
    SCALED_NORMS,
    _rule("Pad", "it pads with 0, whatever value is fed", where=_has_fed(2)),
    SLOPE_OF_LAST_AXIS,
    _rule(
        "Resize",
        "it leaves antialias and exclude_outside out",
        where=_has_flag("antialias", "exclude_outside"),
    ),
    _rule(
        "HardSigmoid",
        "it takes an attribute that is 0 to be absent",
        where=_has_zero("alpha", "beta"),
    ),
    _rule(
        "Selu", "it takes an attribute that is 0 to be absent", where=_has_zero("alpha", "gamma")
    ),
    _rule(
        "Celu", "with alpha of 0 it gives numbers where ONNX divides by 0", where=_has_zero("alpha")
    ),
    _rule("LpNormalization", "it adds an epsilon to the norm"),
    _rule("Mod", "it divides and multiplies, which leaves no digit of a large quotient"),
    _rule("Hardmax", "of halves it takes another one than the first largest", dtypes="float16"),
    _rule("LayerNormalization", "of halves it rounds in between", dtypes="float16"),
    GREATER_THAN_NAN,
    MULTIPLIED_BY_ZERO,
    _rule(
        "",
        "of constants alone it computes once, and what reads that in each run may write into it",
        where=_is_changed_in_place,
    ),
    NO_WINDOWS,
    CAUSAL_AFTER_PAST,
    _rule(
        "Resize",
        "with align_corners and scales it aligns the last whole element",
        where=_aligns_by_scales,
    ),
    _rule(
        "DequantizeLinear",
        "it is loaded, and has no tensor of such a type",
        dtypes="float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu "
        "float4_e2m1fn int2 uint2 int4 uint4",
        code=ReasonCode.UNSUPPORTED_DTYPE,
    ),
    _rule("Attention", "of halves it rounds in between", bound=of_three_halves, dtypes="float16"),
    _rule(
        "DFT",
        "it takes the axis to be 1, whatever is read",
        where=_has_read_axis,
        code=_UNSUPPORTED,
    ),
    _rule("DFT STFT", "its rounding is that of the largest frequency", bound=of_spectrum),
    _rule(
        "DFT STFT",
        "of infinities it makes NaN and infinities at other frequencies than ONNX's sum",
        Values.INFINITE,
    ),
    draws("openvino", _TRIED),
    _rule("TopK", "it numbers equal elements in any order", where=_has_indices),
    _rule(
        "ConvTranspose",
        "it puts the odd pad of SAME_UPPER and output_shape on the other side",
        where=lambda graph, node: (
            node.ir.attributes.get_string("auto_pad", "") == "SAME_UPPER"
            and "output_shape" in node.ir.attributes
        ),
    ),
    _rule(
        "RoiAlign",
        "the largest of interpolated values, where ONNX takes the largest weighted element",
        where=lambda graph, node: node.ir.attributes.get_string("mode", "avg") == "max",
    ),
    _rule(
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare",
        "with noop_with_empty_axes and no axes it computes nothing",
        where=_reduces_nothing,
    ),
    _rule(
        "Conv", "one channel to one column with strides (1, s) comes out wrong", where=_is_narrow
    ),
    _rule(
        "Conv",
        "1x1 with strides and pads takes the wrong elements of quantised tensors",
        where=_has_padded_stride_of_points,
    ),
    _rule(
        "DequantizeLinear",
        "it subtracts the zero point after scaling, so that 0 becomes nearly 0",
        where=_has_offset_before_division,
    ),
    _rule(
        "DequantizeLinear",
        "of constants with a fed scale or zero point it leaves the scale out of products",
        where=_is_scaled_by_fed,
    ),
    _rule(
        "Flatten Reshape",
        "it makes one reduction that keeps its axes of a reduction and a view, in another shape",
        where=_reinserts_axis,
        code=_UNSUPPORTED,
    ),
    # The numbers decide: these are stated, and refused with -special_values=exact.
    _rule("Relu Clip Max Min HardSigmoid Celu", "NaN becomes a number", *_NAN),
    _rule(
        "LeakyRelu",
        "behind a reduction, with alpha of 0, NaN becomes 0",
        *_NAN,
        where=_has_zero("alpha"),
    ),
    _rule("Clip", "a bound that is left out is the largest finite number", Values.INFINITE),
    _rule("Exp", "NaN becomes infinity", *_NAN),
    _rule("MaxPool GlobalMaxPool ReduceMax ReduceMin", "NaN is passed over", *_NAN),
    _rule("ArgMax ArgMin TopK Hardmax", "NaN is in an order of its own", *_NAN),
    _rule(
        "Softmax LogSoftmax ReduceLogSumExp",
        "NaN stays in its place of the row, where ONNX spreads it",
        *_NONFINITE,
    ),
    _rule("Gelu Erf", "infinity becomes NaN, and the largest numbers infinity", *_BEYOND),
    _rule("Erf Gelu", "it is as exact as 3e-7, also next to 0", bound=_of_error_function),
    _rule(
        "GridSample Resize",
        "a neighbour of weight 0 that is not finite makes NaN",
        *_NONFINITE,
    ),
    _rule(
        "DequantizeLinear",
        "it subtracts the zero point after scaling, which rounds at the size of the zero point",
        where=_has_offset,
        bound=off_by_zero_point,
    ),
    _rule("ReduceMax ReduceMin MaxPool", "infinities become the largest number", *_NONFINITE),
    _rule(
        "Conv ConvTranspose Gemm MatMul",
        "which sums overflow depends on the order of summing",
        Values.HUGE,
    ),
    _rule(
        "Conv",
        "padding is left out, of which infinite weights would make NaN",
        Values.INFINITE,
    ),
    _rule("ConvTranspose", "it multiplies infinities by zeros between", *_NONFINITE),
    _rule(
        "Pow",
        "a power of 0.5 is a square root, also of -0.0 and -infinity",
        *_NONFINITE,
        *_ZERO,
    ),
    _rule(
        "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization LRN "
        "MeanVarianceNormalization Resize",
        "what overflows on the way depends on the order of computing",
        Values.HUGE,
    ),
    _rule("Add Clip Elu Max Min Neg Relu", "-0.0 may become 0.0", *_ZERO),
    _rule(
        "",
        "subnormal numbers of float32 that are known when compiling become 0",
        Values.SUBNORMAL,
        where=_touches_root,
        flushes=Flushed.CONSTANTS,
    ),
    _rule("Div", "the reciprocal of a subnormal number is infinite", Values.SUBNORMAL),
    _rule(
        "HardSigmoid",
        "of halves it rounds its attributes to halves",
        where=lambda graph, node: abs(node.ir.attributes.get_float("beta", 0.5)) <= 1,
        bound=_of_half_attributes,
        dtypes="float16",
    ),
    *onednn_defects("openvino"),
)
"""All that is known of releases from 2025.4 to 2026.4; see `docs/numbers.md`."""
