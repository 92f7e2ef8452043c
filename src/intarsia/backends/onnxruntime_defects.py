# SPDX-License-Identifier: Apache-2.0
"""What ONNX Runtime's optimised sessions compute otherwise than its plain ones, as rules.

A target `onnxruntime` is what ONNX Runtime's users have: its errors are followed, and named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.defects import KnownDefect, Values, draws, of_spectrum, of_three_halves
from intarsia.backends.onnxruntime_axes import REDUCTIONS, axes_of
from intarsia.errors import ReasonCode

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node

_TRIED = "ONNX Runtime 1.31, all optimisations against none, and onnx.reference 1.23"


_FATAL_AXES = {
    "Conv": slice(1, 2),
    "GRU": slice(None),
    "InstanceNormalization": slice(2, None),
    "LSTM": slice(1, 2),
    "RoiAlign": slice(2, None),
    "Unique": slice(None),
}
"""By operator, the axes of its first input of which none may be empty. All other operators that
random graphs are drawn of were tried with empty inputs, fed and made by another node."""


_ZERO_POINTS = 3
"""Position of ConvInteger's input `w_zero_point`."""
_SCORES = 3
"""Position of Attention's output `qk_matmul_output`."""
_SCALES = 2
"""Position of Resize's input `scales`."""


def _is_fatally_empty(graph: Graph, node: Node) -> bool:
    """Tell whether an axis is empty for which ONNX Runtime has no code."""
    return 0 in (graph.values[node.inputs[0]].shape or ())[_FATAL_AXES[node.op_type]]


def _is_fed_axes(graph: Graph, node: Node) -> bool:
    """Tell whether an empty tensor is reduced along axes that are fed, and may be negative."""
    is_empty = 0 in (graph.values[node.inputs[0]].shape or ())
    return is_empty and axes_of(graph, node) is None


def _is_of_nothing(graph: Graph, node: Node) -> bool:
    """Tell whether the input is empty, or may be."""
    shape = graph.values[node.inputs[0]].shape
    return shape is None or 0 in shape


def _lacks_reduction(graph: Graph, node: Node) -> bool:
    """Tell whether elements are scattered by a reduction that ONNX Runtime lacks."""
    reduction = node.ir.attributes.get_string("reduction", "none")
    dtype = graph.values[node.inputs[0]].dtype
    if dtype == "bool":
        return reduction in ("max", "min")
    if dtype != "float16" or reduction == "none":
        return False
    return node.op_type == "ScatterND" or reduction in ("add", "mul")


def _pads_by_its_own_rule(graph: Graph, node: Node) -> bool:
    """Tell whether `SAME` pads windows with gaps, or windows that leave out the end of an axis."""
    attributes = node.ir.attributes
    if not attributes.get_string("auto_pad", "").startswith("SAME"):
        return False
    extents = (graph.values[node.inputs[0]].shape or ())[2:]
    kernel = attributes.get_ints("kernel_shape", ())
    strides = attributes.get_ints("strides", None) or (1,) * len(kernel)
    has_gaps = any(gap > 1 for gap in attributes.get_ints("dilations", ()))
    return has_gaps or any(
        (extent - 1) // stride * stride + size < extent
        for extent, size, stride in zip(extents, kernel, strides, strict=False)
    )


def _divides_floats(graph: Graph, node: Node) -> bool:
    """Tell whether floats are divided as Python does, which is new in operator set 28."""
    is_float = graph.values[node.inputs[0]].dtype in ("bfloat16", "float16", "float32", "float64")
    return is_float and not node.ir.attributes.get_int("fmod", 0)


def _has_zero_points(graph: Graph, node: Node) -> bool:
    """Tell whether each output channel has a zero point of its own, or may have."""
    if len(node.inputs) <= _ZERO_POINTS or node.inputs[_ZERO_POINTS] < 0:
        return False
    shape = graph.values[node.inputs[_ZERO_POINTS]].shape
    return shape is None or prod(shape) != 1


def _has_short_mask(graph: Graph, node: Node) -> bool:
    """Tell whether a mask has fewer columns than there are keys, or may have."""
    mask = _input_shape(graph, node, 3)
    keys, past = _input_shape(graph, node, 1), _input_shape(graph, node, 4)
    if mask == () or keys == ():
        return False
    if mask is None or keys is None or past is None:
        return True
    return mask[-1] != keys[-2] + (past[-2] if past else 0)


def _input_shape(graph: Graph, node: Node, position: int) -> tuple[int, ...] | None:
    """Return the shape of an input: None if it is not known, empty if there is no such input."""
    if position >= len(node.inputs) or node.inputs[position] < 0:
        return ()
    return graph.values[node.inputs[position]].shape


def _shows_causal_scores(graph: Graph, node: Node) -> bool:
    has_scores = len(node.outputs) > _SCORES and node.outputs[_SCORES] >= 0
    return has_scores and bool(node.ir.attributes.get_int("is_causal", 0))


def _aligns_by_scales(graph: Graph, node: Node) -> bool:
    mode = node.ir.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    has_scales = len(node.inputs) > _SCALES and node.inputs[_SCALES] >= 0
    return mode == "align_corners" and has_scales


def _is_bias_of_another_scale(graph: Graph, node: Node) -> bool:
    """Tell whether a bias of int32 has not the scale of the product that it is added to.

    It has where both are constants and equal; what is not known may differ.
    """
    if graph.values[node.inputs[0]].dtype != "int32":
        return False
    return any(
        _product_of(graph, graph.nodes[consumer], node.outputs[0], _scale_of(graph, node))
        for consumer in graph.values[node.outputs[0]].consumers
    )


def _product_of(graph: Graph, consumer: Node, bias: int, scale: Array | None) -> bool:
    """Tell whether a node adds a bias to a product of quantised operands with another scale."""
    product = consumer
    if consumer.op_type == "Add":
        other = next((value for value in consumer.inputs if value != bias), -1)
        producer = graph.values[other].producer if other >= 0 else -1
        if producer < 0 or graph.nodes[producer].op_type != "MatMul":
            return False
        product = graph.nodes[producer]
    elif consumer.op_type not in ("Conv", "Gemm") or bias not in consumer.inputs[_BIAS:]:
        return False
    makers = [graph.values[value].producer for value in product.inputs[:2]]
    nodes = [graph.nodes[maker] for maker in makers if maker >= 0]
    if [one.op_type for one in nodes] != ["DequantizeLinear"] * 2:
        return False
    scales = [scale, *(_scale_of(graph, one) for one in nodes)]
    if any(one is None for one in scales):
        return True
    own, first, second = (np.asarray(one, np.float64) for one in scales)
    return not np.allclose(own, first * second, rtol=_ROUNDED, atol=0)


def _scale_of(graph: Graph, node: Node) -> Array | None:
    """Return the scales of a DequantizeLinear, one or in a row; None if they are fed."""
    constant = graph.values[node.inputs[1]].constant
    return None if constant is None else np.asarray(constant.numpy()).reshape(-1)


_BIAS = 2
"""Position of the bias of Conv and Gemm."""
_ROUNDED = 1e-4
"""How far a scale that exporters wrote as the product of two may be from it."""


def _of_range(inputs: Sequence[Any], result: Array) -> float:
    numbers = inputs[0].astype(np.float64)
    return float(np.ptp(numbers)) if numbers.size else 0.0


_rule = partial(KnownDefect.of, "onnxruntime", _TRIED)

DEFECTS: tuple[KnownDefect, ...] = (
    _rule(
        "QuantizeLinear",
        "behind quantised tensors it is one operator, which rounds the bias too: two quanta",
        bound=lambda inputs, result: 2.0,
    ),
    _rule(
        "DequantizeLinear",
        "a bias of int32 is taken to have the product of the operands' scales, whatever it says",
        where=_is_bias_of_another_scale,
    ),
    KnownDefect(
        "onnxruntime",
        REDUCTIONS,
        "of an empty tensor it passes over axes that are counted from the end",
        _TRIED,
        where=_is_fed_axes,
    ),
    KnownDefect(
        "onnxruntime",
        frozenset(_FATAL_AXES),
        "where elements, channels or sequences are none, the process dies or never comes back",
        _TRIED,
        where=_is_fatally_empty,
        is_fatal=True,
    ),
    KnownDefect(
        "onnxruntime",
        frozenset(("ScatterElements", "ScatterND")),
        "it is loaded and fails when run: there is no such reduction of this type",
        _TRIED,
        dtypes=frozenset(("bool", "float16")),
        where=_lacks_reduction,
        code=ReasonCode.UNSUPPORTED_DTYPE,
    ),
    KnownDefect(
        "onnxruntime",
        frozenset(("AveragePool", "LpPool", "MaxPool")),
        "with auto_pad it counts windows as if they had no gaps, and pads may be negative",
        _TRIED,
        where=_pads_by_its_own_rule,
    ),
    _rule(
        "Mod",
        "it is loaded and fails when run: of floats it has fmod alone",
        where=_divides_floats,
        code=ReasonCode.UNSUPPORTED_DTYPE,
    ),
    _rule(
        "ConvInteger",
        "it is loaded and fails when run: it has one zero point for all weights",
        where=_has_zero_points,
        code=ReasonCode.UNSUPPORTED_OP,
    ),
    _rule(
        "ReduceMax ReduceMin",
        "it is loaded and fails when run: of no truth values it makes none",
        where=_is_of_nothing,
        dtypes="bool",
    ),
    _rule(
        "Attention",
        "it is loaded and fails when run: a mask has to have a column for each key",
        where=_has_short_mask,
        code=ReasonCode.UNSUPPORTED_OP,
    ),
    _rule(
        "Attention",
        "of scores that it shows, what is_causal leaves out is not -infinity",
        where=_shows_causal_scores,
    ),
    _rule("Attention", "of halves it rounds in between", bound=of_three_halves, dtypes="float16"),
    _rule(
        "Resize",
        "with align_corners and scales it aligns the last whole element",
        where=_aligns_by_scales,
        bound=_of_range,
    ),
    _rule(
        "Resize",
        "a neighbour of weight 0 that is not finite makes NaN, along axes of scale 1 too",
        Values.NAN,
        Values.INFINITE,
    ),
    _rule(
        "MaxUnpool",
        "with output_shape its indices count in that shape, as torch exports them",
        where=lambda graph, node: len(node.inputs) > 2,  # noqa: PLR2004
        bound=lambda inputs, result: inf,
    ),
    _rule("DFT STFT", "its rounding is that of the largest frequency", bound=of_spectrum),
    draws("onnxruntime", _TRIED),
    _rule("MaxPool GlobalMaxPool", "of NaN and numbers it depends on their order", Values.NAN),
    _rule(
        "ReduceProd",
        "of int32 it computes in floats and saturates",
        bound=lambda inputs, result: 2.0**31,
        dtypes="int32",
    ),
    KnownDefect(
        "onnxruntime",
        frozenset(("ReduceMean",)),
        "the mean of nothing is 0 and not NaN",
        _TRIED,
        frozenset((Values.NAN,)),
        where=_is_of_nothing,
    ),
    _rule("Clip", "a bound that is left out is the largest finite number", Values.INFINITE),
    _rule("ReduceLogSumExp", "of infinities alone it is -infinity or NaN", Values.INFINITE),
    _rule(
        "PRelu",
        "of halves it multiplies and adds, so that an infinity becomes NaN",
        Values.NAN,
        Values.INFINITE,
        Values.HUGE,
        dtypes="float16",
    ),
    _rule(
        "Add Sub Mul Div Exp Pow Sqrt Reciprocal Softmax Sum Mean ReduceSum ReduceMean Cast",
        "halves stay float32 from node to node, so that nothing overflows in between",
        Values.INFINITE,
        Values.HUGE,
        dtypes="float16",
    ),
    _rule("Selu Elu Celu LeakyRelu PRelu Pow", "-0.0 may become 0.0", Values.NEGATIVE_ZERO),
    _rule(
        "Conv ConvTranspose Gemm MatMul",
        "which sums overflow depends on the order of summing",
        Values.HUGE,
    ),
    _rule(
        "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization LRN Gelu "
        "Erf",
        "what overflows on the way depends on the order of computing",
        Values.INFINITE,
        Values.HUGE,
    ),
)
"""All that is known of releases up to 1.31; see `docs/numbers.md`."""
