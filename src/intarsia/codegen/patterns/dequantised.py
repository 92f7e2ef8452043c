# SPDX-License-Identifier: Apache-2.0
"""What patterns of operators on dequantised operands share: they read the codes instead.

A DequantizeLinear that nobody reads any more goes; one that others read as well stays for these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.quantization import refuse_quantization
from intarsia.graph.graph import ABSENT, Node
from intarsia.graph.region import Region


@dataclass(frozen=True, slots=True)
class OnCodes:
    """An operator that several nodes mean.

    Attributes:
        node: The one whose result is theirs, with the operator and the inputs of what they mean.
        before: The nodes that dequantise its operands.
        own: Those that are part of it whoever else reads what is dequantised, `node` among them.
        attributes: Of what they mean.
    """

    node: Node
    before: tuple[Node, ...]
    own: tuple[Node, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def dequantisers(operations: Sequence[Operation]) -> dict[int, Operation]:
    """Return the DequantizeLinear that are taken, by the values that they make."""
    return {
        operation.node.outputs[0]: operation
        for operation in operations
        if operation.op_type == "DequantizeLinear" and not refuse_quantization(operation)
    }


def operands_of(operation: Operation) -> tuple[int, int, int]:
    """Return the codes, the scale and the zero point of a DequantizeLinear; ABSENT for none."""
    codes, scale, zero = [*operation.node.inputs, ABSENT][:3]
    return codes, scale, zero


def is_known(operation: Operation) -> bool:
    """Tell whether what is dequantised is constant, and all that is needed for it."""
    return all(operation.value(i) is None or operation.is_constant(i) for i in range(3))


def has_one_scale(operation: Operation) -> bool:
    """Tell whether a Q or DQ has one scale and one zero point, and no blocks."""
    if operation.attribute("block_size", 0):
        return False
    return all(value is None or value.shape in ((), (1,)) for value in map(operation.value, (1, 2)))


def is_by_axis(operation: Operation, axis: int) -> bool:
    """Tell whether a Q or DQ has one scale, or one for each place of an axis."""
    if operation.attribute("block_size", 0) or has_one_scale(operation):
        return has_one_scale(operation)
    shape = operation.shape()
    sizes = {value.shape for value in map(operation.value, (1, 2)) if value is not None}
    is_of_axis = operation.attribute("axis", 1) % len(shape) == axis
    return is_of_axis and sizes <= {(), (1,), (shape[axis],)}


def put_on_codes(
    region: Region, operations: Sequence[Operation], meant: Mapping[int, OnCodes]
) -> list[Operation]:
    """Return operations, those that nodes mean in the place of these.

    Args:
        region: Of the operations.
        operations: In order.
        meant: By the id of `OnCodes.node`.
    """
    if not meant:
        return list(operations)
    inner = {node.id for one in meant.values() for node in one.own} - meant.keys()
    remaining = [operation for operation in operations if operation.node.id not in inner]
    read = set(region.outputs)
    for operation in remaining:
        one = meant.get(operation.node.id)
        read.update(operation.node.reads if one is None else one.node.inputs)
    unread = {
        node.id for one in meant.values() for node in one.before if node.outputs[0] not in read
    }
    claimed: set[int] = set()
    out = []
    for operation in remaining:
        one = meant.get(operation.node.id)
        if one is not None:
            nodes = {node.id: node for node in one.before if node.id in unread - claimed}
            claimed |= nodes.keys()
            nodes |= {node.id: node for node in one.own}
            spelling = tuple(nodes[number] for number in sorted(nodes))
            node = replace(one.node, domain="")
            out.append(Operation(region.graph, node, spelling, one.attributes))
        elif operation.node.id not in unread:
            out.append(operation)
    return out
