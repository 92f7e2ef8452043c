# SPDX-License-Identifier: Apache-2.0
"""How many floating-point (or integer) operations a node does, by the definition of its operator.

A multiply-add is two. A function of one element (Relu, Exp, Erf) counts as one, however many
instructions it takes: the counts feed a lower bound. Moving data counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from intarsia.graph.per_graph import per_graph

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node, Value

_Count = Callable[["_Call"], int]

WINOGRAD = 4
"""How many times fewer multiplications F(4x4, 3x3) needs than the definition.

Source:
    Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016, section 4.1.
"""

# fmt: off
MOVEMENT = frozenset((
    "BitCast", "Cast", "CastLike", "CenterCropPad", "Compress", "Concat", "ConcatFromSequence",
    "Constant", "ConstantOfShape", "DepthToSpace", "Dropout", "Expand", "EyeLike", "Flatten",
    "Gather", "GatherElements", "GatherND", "Identity", "If", "Loop", "Optional",
    "OptionalGetElement", "OptionalHasElement", "Pad", "Reshape", "ReverseSequence", "Scan",
    "Scatter", "ScatterElements", "ScatterND", "SequenceAt", "SequenceConstruct", "SequenceEmpty",
    "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap", "Shape", "Size", "Slice",
    "SpaceToDepth", "Split", "SplitToSequence", "Squeeze", "TensorScatter", "Tile", "Transpose",
    "Trilu", "Unsqueeze", "Where",
))
# fmt: on
"""Operators that compute nothing, and those of which only their bodies know what they compute."""


@per_graph
def node_flop(graph: Graph, position: int) -> int:
    """Return the operations of a node; 0 where shapes are unknown or the operator is a stranger's.

    Args:
        graph: Where the node is.
        position: Its id.
    """
    return _count(graph, graph.nodes[position])


def least_flop(graph: Graph, position: int) -> int:
    """Return the operations of a node by the cheapest algorithm that is in use."""
    flop = node_flop(graph, position)
    node = graph.nodes[position]
    if node.op_type != "Conv" or not flop:
        return flop
    weights = graph.values[node.inputs[1]].shape
    attrs = node.ir.attributes
    steps = [*attrs.get_ints("strides", ()), *attrs.get_ints("dilations", ())]
    is_winograd = weights is not None and weights[2:] == (3, 3) and all(s == 1 for s in steps)
    return flop // WINOGRAD if is_winograd else flop


class _Call:
    """A node with the shapes around it; asking for one that is unknown ends the count."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph = graph
        self.node = node

    @property
    def attrs(self) -> Any:
        return self.node.ir.attributes

    def has(self, slot: int) -> bool:
        return 0 <= slot < len(self.node.inputs) and self.node.inputs[slot] >= 0

    def shape(self, slot: int) -> tuple[int, ...]:
        if not self.has(slot):
            raise _UnknownShapeError
        return _shape(self.graph.values[self.node.inputs[slot]])

    def size(self, slot: int = 0) -> int:
        return prod(self.shape(slot))

    def output_shape(self) -> tuple[int, ...]:
        """Of the first output that is there."""
        for value in self.node.outputs:
            if value >= 0:
                return _shape(self.graph.values[value])
        raise _UnknownShapeError

    def output_size(self) -> int:
        return prod(self.output_shape())


class _UnknownShapeError(Exception):
    """A shape that a count needs is only known while running."""


def _shape(value: Value) -> tuple[int, ...]:
    if value.shape is None:
        raise _UnknownShapeError
    return value.shape


def _count(graph: Graph, node: Node) -> int:
    if node.domain not in ("", "ai.onnx") or node.op_type in MOVEMENT:
        return 0
    call = _Call(graph, node)
    try:
        return _COUNTS.get(node.op_type, _elementwise)(call)
    except _UnknownShapeError:
        return 0


def _elementwise(call: _Call) -> int:
    """One per element and operand beyond the first."""
    operands = sum(1 for value in call.node.inputs if value >= 0)
    return call.output_size() * max(1, operands - 1)


def _once(call: _Call) -> int:
    """One per element, whatever else is given: bounds, slopes, scales."""
    return call.output_size()


def _each(times: int) -> _Count:
    """So many per element of the input."""
    return lambda call: times * call.size()


def _each_output(times: int) -> _Count:
    return lambda call: times * call.output_size()


def _convolution(weights: int, bias: int) -> _Count:
    def count(call: _Call) -> int:
        shape = call.shape(weights)
        total = 2 * call.output_size() * prod(shape[1:])
        return total + (call.output_size() if call.has(bias) else 0)

    return count


def _transposed(call: _Call) -> int:
    """Each element of the input meets each weight of its channel."""
    total = 2 * call.size() * prod(call.shape(1)[1:])
    return total + (call.output_size() if call.has(2) else 0)


def _deformed(call: _Call) -> int:
    """A convolution whose operands are interpolated from four points each."""
    shape = call.shape(1)
    return (2 + 7) * call.output_size() * prod(shape[1:])


def _gemm(call: _Call) -> int:
    first = call.shape(0)
    depth = first[0 if call.attrs.get_int("transA", 0) else 1]
    return call.output_size() * (2 * depth + (1 if call.has(2) else 0))


def _matmul(call: _Call) -> int:
    return 2 * call.output_size() * call.shape(0)[-1]


def _einsum(call: _Call) -> int:
    """A multiply and an add per combination of all indices for two operands; for more, so each."""
    equation = call.attrs.get_string("equation", "").replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for slot, term in enumerate(terms):
        shape = call.shape(slot)
        hidden = len(shape) - len(term.replace("...", ""))
        before, dots, after = term.partition("...")
        names = [*before, *(f".{hidden - i}" for i in range(hidden if dots else 0)), *after]
        for name, size in zip(names, shape, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))
    combinations = prod(sizes.values())
    if len(terms) == 1:
        return combinations if combinations > call.output_size() else 0
    is_summed = combinations > call.output_size()
    return combinations * (len(terms) - 1 + is_summed)


def _attention(call: _Call) -> int:
    """Scores, their softmax, and the weighted sum of the values."""
    query, key, value = call.shape(0), call.shape(1), call.shape(2)
    if len(query) == len(("batch", "sequence", "hidden")):
        heads = call.attrs.get_int("q_num_heads", 1)
        key_heads = call.attrs.get_int("kv_num_heads", heads)
        query = (query[0], heads, query[1], query[2] // heads)
        key = (key[0], key_heads, key[1], key[2] // key_heads)
        value = (value[0], key_heads, value[1], value[2] // key_heads)
    past = call.shape(4)[2] if call.has(4) else 0
    scores = query[0] * query[1] * query[2] * (key[2] + past)
    return scores * (2 * query[3] + _SOFTMAX + 2 * value[3])


def _recurrent(call: _Call) -> int:
    """Each step multiplies the input by W and the state by R, for each element of the batch."""
    steps, batch = call.shape(0)[:2]
    return 2 * steps * batch * (call.size(1) + call.size(2))


def _pooling(call: _Call) -> int:
    kernel: tuple[int, ...] = tuple(call.attrs.get_ints("kernel_shape", ()))
    return call.output_size() * prod(kernel)


def _resize(call: _Call) -> int:
    mode = call.attrs.get_string("mode", "nearest")
    axes = sum(a != b for a, b in zip(call.shape(0), call.output_shape(), strict=True))
    return call.output_size() * axes * _TAPS.get(mode, 0)


_TAPS = {"linear": 3, "cubic": 7}  # of one axis, weights known: multiplies and adds

_SOFTMAX = 5  # maximum, difference, exponential, sum, quotient
_NORMALISE = 7  # sum; difference, square, sum; product by the deviation, scale, bias

_COUNTS: Mapping[str, _Count] = {
    "Conv": _convolution(1, 2),
    "ConvInteger": _convolution(1, -1),
    "QLinearConv": _convolution(3, 8),
    "CausalConvWithState": _convolution(1, 2),
    "ConvTranspose": _transposed,
    "DeformConv": _deformed,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Einsum": _einsum,
    "Attention": _attention,
    "RNN": _recurrent,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "AveragePool": _pooling,
    "MaxPool": _pooling,
    "LpPool": _pooling,
    "GlobalAveragePool": _each(1),
    "GlobalMaxPool": _each(1),
    "GlobalLpPool": _each(2),
    "Resize": _resize,
    "Upsample": _resize,
    "GridSample": _each_output(7),
    "RoiAlign": _each_output(7),
    "BatchNormalization": _each(2),
    "InstanceNormalization": _each(_NORMALISE),
    "LayerNormalization": _each(_NORMALISE),
    "GroupNormalization": _each(_NORMALISE),
    "MeanVarianceNormalization": _each(5),
    "RMSNormalization": _each(4),
    "LpNormalization": _each(3),
    "LRN": _each(4),
    "Softmax": _each(_SOFTMAX),
    "LogSoftmax": _each(_SOFTMAX),
    "Hardmax": _each(1),
    "RotaryEmbedding": _each(3),
    "QuantizeLinear": _each_output(2),
    "DequantizeLinear": _each_output(2),
    "DynamicQuantizeLinear": _each_output(4),
    "ReduceL2": _each(2),
    "ReduceSumSquare": _each(2),
    "ReduceLogSumExp": _each(4),
    **dict.fromkeys(
        ("ReduceL1", "ReduceLogSum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"), _each(1)
    ),
    **dict.fromkeys(("ReduceSum", "ArgMax", "ArgMin", "CumSum", "CumProd", "TopK"), _each(1)),
    **dict.fromkeys(("DFT", "STFT", "NonZero", "Unique", "Det", "NonMaxSuppression"), _each(1)),
    **dict.fromkeys(
        ("Clip", "PRelu", "Shrink", "OneHot", "Range", "Bernoulli", "RandomNormalLike"), _once
    ),
}
