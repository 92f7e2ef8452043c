# SPDX-License-Identifier: Apache-2.0
"""Convolutions around which a model has Q and DQ nodes: a convolution of the codes, in integers.

A `Conv` of a dequantised input and constant dequantised weights is that. A QuantizeLinear that
alone reads its result belongs to it, and so does a Relu or Clip in between: that is then in the
limits of the codes. What is dequantised may be read by others too, which keep the DequantizeLinear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from intarsia.codegen.lower.integer_convolution import DEQUANTIZED_CONV, REQUANTIZED_CONV
from intarsia.codegen.lower.integer_products import BYTES
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.quantization import refuse_quantization
from intarsia.graph.graph import ABSENT, Graph, Node
from intarsia.graph.region import Region


@dataclass(frozen=True, slots=True)
class _QuantisedConv:
    """A convolution of dequantised operands.

    Attributes:
        conv: Its node.
        before: The nodes that dequantise its input, weights and, if that is dequantised, bias.
        after: An activation and the QuantizeLinear, if its result is quantised and nothing else.
        low: The least number that the activation leaves.
        high: The largest.
    """

    conv: Node
    before: tuple[Node, ...]
    after: tuple[Node, ...] = ()
    low: float = -math.inf
    high: float = math.inf

    @property
    def last(self) -> Node:
        """The node whose result it makes."""
        return self.after[-1] if self.after else self.conv


def read_quantised_convolutions(region: Region, operations: Sequence[Operation]) -> list[Operation]:
    """Return what a region's nodes compute, convolutions of codes in the place of dequantised ones.

    Args:
        region: Nodes that are all taken.
        operations: What they compute otherwise, in order.
    """
    found = {}
    inner = set()
    by_node = {operation.node.id: operation for operation in operations if not operation.spelling}
    for operation in by_node.values():
        conv = _read(region, operation, by_node)
        if conv is not None:
            found[conv.last.id] = conv
            inner |= {node.id for node in (conv.conv, *conv.after)} - {conv.last.id}
    if not found:
        return list(operations)
    kept = [operation for operation in operations if operation.node.id not in inner]
    made = {number: _operation(region.graph, conv, (conv.conv,)) for number, conv in found.items()}
    read = set(region.outputs)
    for operation in kept:
        read.update(made.get(operation.node.id, operation).node.inputs)
    claimed: set[int] = set()
    out = []
    unread = {
        node.id for conv in found.values() for node in conv.before if node.outputs[0] not in read
    }
    for operation in kept:
        conv = found.get(operation.node.id)
        if conv is not None:
            nodes = {node.id: node for node in conv.before if node.id in unread - claimed}
            claimed |= nodes.keys()
            nodes |= {node.id: node for node in (conv.conv, *conv.after)}
            out.append(_operation(region.graph, conv, [nodes[number] for number in sorted(nodes)]))
        elif operation.spelling or operation.node.id not in unread:
            out.append(operation)
    return out


def _read(
    region: Region, operation: Operation, by_node: Mapping[int, Operation]
) -> _QuantisedConv | None:
    if operation.op_type != "Conv":
        return None
    x, weights, *bias = (
        _maker(region, value, by_node) for value in operation.node.inputs if value != ABSENT
    )
    if x is None or weights is None or weights.attribute("block_size", 0):
        return None
    channels = len(operation.shape(1)) and operation.shape(1)[0]
    is_byte = all(item.inputs[0].dtype in BYTES for item in (x, weights))
    if not is_byte or not _is_known(weights) or not _has_one_scale(x) or not x.is_constant(1):
        return None
    if not _is_by_channels(weights, channels):
        return None
    before = [x, weights]
    if operation.value(2) is not None and not operation.is_constant(2):
        (dequantised,) = bias
        if dequantised is None or not _is_known(dequantised):
            return None
        if not _is_by_channels(dequantised, channels):
            return None
        before.append(dequantised)
    conv = _QuantisedConv(operation.node, tuple(item.node for item in before))
    return _with_quantisation(region, conv, by_node)


def _maker(region: Region, value: int, by_node: Mapping[int, Operation]) -> Operation | None:
    """Return what dequantises a value in a region, if that is how it is made."""
    producer = region.graph.values[value].producer
    operation = by_node.get(producer)
    if operation is None or operation.op_type != "DequantizeLinear":
        return None
    return None if refuse_quantization(operation) else operation


def _is_known(operation: Operation) -> bool:
    return all(operation.value(i) is None or operation.is_constant(i) for i in range(3))


def _has_one_scale(operation: Operation) -> bool:
    return all(value is None or value.shape in ((), (1,)) for value in map(operation.value, (1, 2)))


def _is_by_channels(operation: Operation, channels: int) -> bool:
    """Tell whether something constant has one scale, or one for each output channel."""
    if _has_one_scale(operation):
        return True
    sizes = {value.shape for value in map(operation.value, (1, 2)) if value is not None}
    axis = operation.attribute("axis", 1) % len(operation.shape())
    return axis == 0 and sizes <= {(), (1,), (channels,)}


def _with_quantisation(
    region: Region, conv: _QuantisedConv, by_node: Mapping[int, Operation]
) -> _QuantisedConv:
    """Return a convolution with what quantises its result, if that is all that reads it."""
    reader = _only_reader(region, conv.conv, by_node)
    low, high, after = -math.inf, math.inf, []
    limits = None if reader is None else _limits(reader)
    if reader is not None and limits is not None:
        after.append(reader.node)
        low, high = limits
        reader = _only_reader(region, reader.node, by_node)
    if reader is None or reader.op_type != "QuantizeLinear" or refuse_quantization(reader):
        return conv
    is_known = all(reader.value(i) is None or reader.is_constant(i) for i in (1, 2))
    if not is_known or not _has_one_scale(reader) or reader.output.dtype not in BYTES:
        return conv
    return replace(conv, after=(*after, reader.node), low=low, high=high)


def _only_reader(region: Region, node: Node, by_node: Mapping[int, Operation]) -> Operation | None:
    value = region.graph.values[node.outputs[0]]
    if value.id in region.outputs or len(set(value.consumers)) != 1:
        return None
    return by_node.get(value.consumers[0])


def _limits(operation: Operation) -> tuple[float, float] | None:
    """Return what an activation limits numbers to, if that is what it does."""
    if operation.op_type == "Relu":
        return 0.0, math.inf
    if operation.op_type != "Clip":
        return None
    if any(operation.value(i) is not None and not operation.is_constant(i) for i in (1, 2)):
        return None
    low, high = (
        float(operation.array(i).reshape(()))
        if operation.value(i) is not None
        else float(operation.attribute(name, default))
        for i, name, default in ((1, "min", -math.inf), (2, "max", math.inf))
    )
    return None if math.isnan(low) or math.isnan(high) or low > high else (low, high)


def _operation(graph: Graph, conv: _QuantisedConv, spelling: Sequence[Node]) -> Operation:
    inputs: list[int] = []
    for node in conv.before:
        inputs += [*node.inputs, ABSENT][:3]
    if len(conv.before) == 2:  # noqa: PLR2004 - a bias of floats, or none
        inputs += [*conv.conv.inputs[2:], ABSENT][:1] + [ABSENT] * 2
    meant = dict(Operation(graph, conv.conv).attributes)
    if conv.after:
        inputs += [*conv.last.inputs, ABSENT][1:3]
        meant |= {"low": conv.low, "high": conv.high}
    op_type = REQUANTIZED_CONV if conv.after else DEQUANTIZED_CONV
    node = replace(conv.last, op_type=op_type, domain="", inputs=tuple(inputs))
    return Operation(graph, node, tuple(spelling), meant)
