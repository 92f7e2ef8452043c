# SPDX-License-Identifier: Apache-2.0
"""Convolutions around which a model has Q and DQ nodes: a convolution of the codes, in integers.

A `Conv` of a dequantised input and constant dequantised weights is that. A QuantizeLinear that
alone reads its result belongs to it, and so does a Relu or Clip in between: that is then in the
limits of the codes. What is dequantised may be read by others too, which keep the DequantizeLinear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from intarsia.codegen.lower.integer_convolution import DEQUANTIZED_CONV, REQUANTIZED_CONV
from intarsia.codegen.lower.integer_products import BYTES
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.quantization import refuse_quantization
from intarsia.codegen.patterns.dequantised import (
    OnCodes,
    dequantisers,
    has_one_scale,
    is_by_axis,
    is_known,
    operands_of,
    put_on_codes,
)
from intarsia.graph.graph import ABSENT, Node
from intarsia.graph.region import Region


def read_quantised_convolutions(region: Region, operations: Sequence[Operation]) -> list[Operation]:
    """Return what a region's nodes compute, convolutions of codes in the place of dequantised ones.

    Args:
        region: Nodes that are all taken.
        operations: What they compute otherwise, in order.
    """
    by_node = {operation.node.id: operation for operation in operations if not operation.spelling}
    makers = dequantisers(operations)
    meant = {}
    for operation in by_node.values():
        conv = read_convolution(operation, makers)
        if conv is not None:
            conv = with_quantisation(region, operation, conv, by_node, REQUANTIZED_CONV)
            meant[conv.node.id] = conv
    return put_on_codes(region, operations, meant)


def read_convolution(operation: Operation, makers: Mapping[int, Operation]) -> OnCodes | None:
    """Return the convolution of codes that a `Conv` is, or None.

    Args:
        operation: Any.
        makers: What dequantises, by the values that it makes.
    """
    if operation.op_type != "Conv":
        return None
    node = operation.node
    x, weights, *bias = (makers.get(value) for value in node.inputs if value != ABSENT)
    if x is None or weights is None:
        return None
    is_byte = all(item.inputs[0].dtype in BYTES for item in (x, weights))
    if not is_byte or not has_one_scale(x) or not x.is_constant(1):
        return None
    before = [x, weights]
    added = (*(*node.inputs[2:], ABSENT)[:1], ABSENT, ABSENT)  # a bias of floats, or none
    if operation.value(2) is not None and not operation.is_constant(2):
        (dequantised,) = bias
        if dequantised is None:
            return None
        before.append(dequantised)
        added = operands_of(dequantised)
    if not all(is_known(item) and is_by_axis(item, 0) for item in before[1:]):
        return None
    inputs = (*operands_of(x), *operands_of(weights), *added)
    conv = replace(node, op_type=DEQUANTIZED_CONV, inputs=inputs)
    return OnCodes(conv, tuple(item.node for item in before), (node,), operation.attributes)


def with_quantisation(
    region: Region,
    operation: Operation,
    meant: OnCodes,
    by_node: Mapping[int, Operation],
    op_type: str,
) -> OnCodes:
    """Return what codes are computed by with what quantises its result, if that alone reads it.

    Args:
        region: Of the operations.
        operation: What computes in floats.
        meant: What that is of codes.
        by_node: All operations, by their nodes.
        op_type: What it is with the quantisation: the inputs 1 and 2 of that are behind its own,
            and the attributes `low` and `high` are what an activation in between leaves.
    """
    reader = _only_reader(region, operation.node, by_node)
    low, high, after = -math.inf, math.inf, []
    limits = None if reader is None else _limits(reader)
    if reader is not None and limits is not None:
        after.append(reader.node)
        low, high = limits
        reader = _only_reader(region, reader.node, by_node)
    if reader is None or reader.op_type != "QuantizeLinear" or refuse_quantization(reader):
        return meant
    has_known_scale = all(reader.value(i) is None or reader.is_constant(i) for i in (1, 2))
    if not has_known_scale or not has_one_scale(reader) or reader.output.dtype not in BYTES:
        return meant
    inputs = (*meant.node.inputs, *operands_of(reader)[1:])
    return OnCodes(
        replace(reader.node, op_type=op_type, inputs=inputs),
        meant.before,
        (*meant.own, *after, reader.node),
        {**meant.attributes, "low": low, "high": high},
    )


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
