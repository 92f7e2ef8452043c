# SPDX-License-Identifier: Apache-2.0
"""Products of numbers with dequantised weights: the codes stay as they are, and are unpacked there.

`MatMul` and `Gemm` whose right operand is a constant's DequantizeLinear, in blocks along k, by
columns or as a whole. Whoever else reads what is dequantised keeps the DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from intarsia.codegen.lower.block_products import BLOCK_PRODUCT, CODES, LEAST_SIZE
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.quantization import refuse_quantization
from intarsia.graph.graph import ABSENT, Node
from intarsia.graph.region import Region

_MATRIX = 2


def read_blocks(region: Region, operations: Sequence[Operation]) -> list[Operation]:
    """Return what a region's nodes compute, products with weights in blocks among it.

    Args:
        region: Nodes that are all taken.
        operations: What they compute as they are, in order.
    """
    graph = region.graph
    makers = {}
    for operation in operations:
        maker = None if operation.spelling else _maker(region, operation)
        if maker is not None:
            makers[operation.node.id] = maker
    dropped = {
        maker.id
        for maker in makers.values()
        if maker.outputs[0] not in region.outputs
        and makers.keys() >= set(graph.values[maker.outputs[0]].consumers)
    }
    claimed: set[int] = set()
    out: list[Operation] = []
    for operation in operations:
        maker = makers.get(operation.node.id)
        if maker is not None:
            is_first = maker.id in dropped - claimed
            claimed |= {maker.id} if is_first else set()
            spelling = (maker, operation.node) if is_first else (operation.node,)
            out.append(_product(operation, maker, spelling))
        elif operation.node.id not in dropped or operation.spelling:
            out.append(operation)
    return out


def _maker(region: Region, operation: Operation) -> Node | None:
    """Return the node that dequantises the right operand of a product, if that is how it is."""
    if operation.op_type not in ("MatMul", "Gemm") or operation.output.dtype != "float32":
        return None
    factors = [operation.attribute(name, 1.0) for name in ("alpha", "beta")]
    if factors != [1.0, 1.0] or operation.attribute("transA", 0):
        return None
    left, right = operation.inputs[:2]
    if right.producer < 0 or right.producer not in region or not left.shape:
        return None
    node = region.graph.nodes[right.producer]
    weights = Operation(region.graph, node)
    if weights.op_type != "DequantizeLinear" or refuse_quantization(weights):
        return None
    is_known = all(weights.value(i) is None or weights.is_constant(i) for i in range(3))
    if not is_known or weights.inputs[0].dtype not in CODES or len(weights.shape()) != _MATRIX:
        return None
    columns = 0 if operation.attribute("transB", 0) else 1
    return node if _has_blocks(weights, columns) else None


def _has_blocks(weights: Operation, columns: int) -> bool:
    """Tell whether weights have scales for blocks along k, for columns, or one."""
    axis, size = weights.attribute("axis", 1) % _MATRIX, weights.attribute("block_size", 0)
    if size:
        return axis != columns and size >= LEAST_SIZE and not size & (size - 1)
    sizes = {value.shape for value in map(weights.value, (1, 2)) if value is not None}
    return sizes <= {(), (1,)} or (
        axis == columns and sizes <= {(), (1,), (weights.shape()[axis],)}
    )


def _product(operation: Operation, maker: Node, spelling: tuple[Node, ...]) -> Operation:
    weights = Operation(operation.graph, maker)
    codes, scale, zero = [*maker.inputs, ABSENT][:3]
    left, _, *added = operation.node.inputs
    node = replace(
        operation.node,
        op_type=BLOCK_PRODUCT,
        domain="",
        inputs=(left, codes, scale, zero, *added),
    )
    meant = {
        "transB": operation.attribute("transB", 0),
        "block_size": weights.attribute("block_size", 0),
    }
    return Operation(operation.graph, node, spelling, meant)
