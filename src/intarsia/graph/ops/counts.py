# SPDX-License-Identifier: Apache-2.0
"""How many floating-point (or integer) operations a node does, by the definition of its operator.

A multiply-add is two. A function of one element (Relu, Exp, Erf) counts as one, however many
instructions it takes: the counts feed a lower bound. Moving data counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node, Value

Count = Callable[["NodeShapes"], int]

WINOGRAD = 4
"""How many times fewer multiplications F(4x4, 3x3) needs than the definition.

Source:
    Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016, section 4.1.
"""


class NodeShapes:
    """A node with the shapes around it; asking for one that is unknown ends the count."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph = graph
        self.node = node

    @property
    def attrs(self) -> Any:
        """Its attributes."""
        return self.node.ir.attributes

    def has(self, slot: int) -> bool:
        """Whether an input is there."""
        return 0 <= slot < len(self.node.inputs) and self.node.inputs[slot] >= 0

    def shape(self, slot: int) -> tuple[int, ...]:
        """Return the shape of an input."""
        if not self.has(slot):
            raise UnknownShapeError
        return _shape(self.graph.values[self.node.inputs[slot]])

    def size(self, slot: int = 0) -> int:
        """Return the elements of an input."""
        return prod(self.shape(slot))

    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the first output that is there."""
        for value in self.node.outputs:
            if value >= 0:
                return _shape(self.graph.values[value])
        raise UnknownShapeError

    def output_size(self) -> int:
        """Return the elements of that output."""
        return prod(self.output_shape())


class UnknownShapeError(Exception):
    """A shape that a count needs is only known while running."""


def _shape(value: Value) -> tuple[int, ...]:
    if value.shape is None:
        raise UnknownShapeError
    return value.shape


def elementwise(call: NodeShapes) -> int:
    """One per element and operand beyond the first."""
    operands = sum(1 for value in call.node.inputs if value >= 0)
    return call.output_size() * max(1, operands - 1)


def once(call: NodeShapes) -> int:
    """One per element, whatever else is given: bounds, slopes, scales."""
    return call.output_size()


def each(times: int) -> Count:
    """Counts a fixed number of operations per element of the input."""
    return lambda call: times * call.size()


def each_output(times: int) -> Count:
    """Counts a fixed number of operations per element of the result."""
    return lambda call: times * call.output_size()


def convolution(weights: int, bias: int) -> Count:
    """Each element of the result is a sum over a window; the bias is added once."""

    def count(call: NodeShapes) -> int:
        shape = call.shape(weights)
        total = 2 * call.output_size() * prod(shape[1:])
        return total + (call.output_size() if call.has(bias) else 0)

    return count


def winograd(weights: int, bias: int) -> Count:
    """Count a convolution; by F(4x4, 3x3) where its windows are 3x3 and next to one another."""
    definition = convolution(weights, bias)

    def count(call: NodeShapes) -> int:
        steps = [*call.attrs.get_ints("strides", ()), *call.attrs.get_ints("dilations", ())]
        fits = call.shape(weights)[2:] == (3, 3) and all(step == 1 for step in steps)
        return definition(call) // WINOGRAD if fits else definition(call)

    return count


def transposed(call: NodeShapes) -> int:
    """Each element of the input meets each weight of its channel."""
    total = 2 * call.size() * prod(call.shape(1)[1:])
    return total + (call.output_size() if call.has(2) else 0)


def deformed(call: NodeShapes) -> int:
    """A convolution whose operands are interpolated from four points each."""
    shape = call.shape(1)
    return (2 + 7) * call.output_size() * prod(shape[1:])


def gemm(call: NodeShapes) -> int:
    """Sums over the depth, and the addend."""
    first = call.shape(0)
    depth = first[0 if call.attrs.get_int("transA", 0) else 1]
    return call.output_size() * (2 * depth + (1 if call.has(2) else 0))


def matmul(call: NodeShapes) -> int:
    """Sums over the last dimension of the first operand."""
    return 2 * call.output_size() * call.shape(0)[-1]


def fused_matmul(call: NodeShapes) -> int:
    """Sums over the dimension that the first operand has last, if it is not turned first."""
    is_turned, is_split = (call.attrs.get_int(name, 0) for name in ("transA", "transBatchA"))
    place = (0 if is_split else -2) if is_turned else -1
    return 2 * call.output_size() * call.shape(0)[place]


def einsum(call: NodeShapes) -> int:
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


def attention(call: NodeShapes) -> int:
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
    return scores * (2 * query[3] + SOFTMAX + 2 * value[3])


def attention_of_heads(call: NodeShapes) -> int:
    """The same of ONNX Runtime's operators, whose heads lie side by side."""
    batch, queries, width = call.output_shape()
    heads: int = call.attrs.get_int("num_heads", 1)
    is_present = len(call.node.outputs) > 1 and call.node.outputs[1] >= 0
    keys = queries
    if call.has(1):  # (batch, heads, length, size) or with the length second
        keys = call.shape(1)[2 if len(call.shape(1)) == len(("b", "h", "l", "s")) else 1]
    if is_present:
        keys = _shape(call.graph.values[call.node.outputs[1]])[2]
    return batch * heads * queries * keys * (4 * (width // heads) + SOFTMAX)


def packed_attention(call: NodeShapes) -> int:
    """Attention behind the product that makes queries, keys and values."""
    batch, length, width = call.output_shape()
    heads: int = call.attrs.get_int("num_heads", 1)
    keys = length + (call.shape(4)[3] if call.has(4) else 0)
    scores = batch * heads * length * keys * (4 * (width // heads) + SOFTMAX)
    return 2 * batch * length * prod(call.shape(1)) + scores


def recurrent(call: NodeShapes) -> int:
    """Each step multiplies the input by W and the state by R, for each element of the batch."""
    steps, batch = call.shape(0)[:2]
    return 2 * steps * batch * (call.size(1) + call.size(2))


def pooling(call: NodeShapes) -> int:
    """Each element of the result looks at a window."""
    kernel: tuple[int, ...] = tuple(call.attrs.get_ints("kernel_shape", ()))
    return call.output_size() * prod(kernel)


def resize(call: NodeShapes) -> int:
    """Along each axis that changes, so many per element as the mode interpolates between."""
    mode = call.attrs.get_string("mode", "nearest")
    axes = sum(a != b for a, b in zip(call.shape(0), call.output_shape(), strict=True))
    return call.output_size() * axes * _TAPS.get(mode, 0)


_TAPS = {"linear": 3, "cubic": 7}  # of one axis, weights known: multiplies and adds

SOFTMAX = 5  # maximum, difference, exponential, sum, quotient
NORMALISE = 7  # sum; difference, square, sum; product by the deviation, scale, bias
