# SPDX-License-Identifier: Apache-2.0
"""Products around which a model has Q and DQ nodes: a product of the codes, in integers.

`MatMul` and `Gemm` of two dequantised operands, the right one constant, are that. What is
dequantised may be read by several of them, and by others too, which keep the DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from intarsia.codegen.lower.integer_products import BYTES, DEQUANTIZED_PRODUCT
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.quantization import refuse_quantization
from intarsia.graph.graph import ABSENT, Graph, Node
from intarsia.graph.region import Region

_MATRIX = 2


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of dequantised operands: its node, and the nodes that dequantise."""

    node: Node
    left: Node
    right: Node


def read_quantised(region: Region, operations: Sequence[Operation]) -> list[Operation]:
    """Return what a region's nodes compute, products of codes in the place of dequantised ones.

    Args:
        region: Nodes that are all taken.
        operations: What they compute as they are, in order.
    """
    graph = region.graph
    products: dict[int, _Product] = {}
    for operation in operations:
        product = None if operation.spelling else _read(region, operation)
        if product is not None:
            products[operation.node.id] = product
    dropped = {
        node.id
        for product in products.values()
        for node in (product.left, product.right)
        if node.outputs[0] not in region.outputs
        and products.keys() >= set(graph.values[node.outputs[0]].consumers)
    }
    claimed: set[int] = set()
    out: list[Operation] = []
    for operation in operations:
        product = products.get(operation.node.id)
        if product is not None:
            nodes = {
                node.id: node
                for node in (product.left, product.right)
                if node.id in dropped - claimed
            }
            claimed |= nodes.keys()
            spelling = (*(nodes[number] for number in sorted(nodes)), product.node)
            out.append(_product_of_codes(graph, operation, product, spelling))
        elif operation.node.id not in dropped or operation.spelling:
            out.append(operation)
    return out


def _read(region: Region, operation: Operation) -> _Product | None:
    node = operation.node
    if operation.op_type not in ("MatMul", "Gemm"):
        return None
    is_gemm = operation.op_type == "Gemm"
    factors = [operation.attribute(name, 1.0) for name in ("alpha", "beta")]
    if is_gemm and (factors != [1.0, 1.0] or operation.attribute("transA", 0)):
        return None
    left, right = (_maker(region, value) for value in node.inputs[:2])
    if left is None or right is None:
        return None
    codes, weights = (Operation(region.graph, item) for item in (left, right))
    is_one = all(value is None or value.shape in ((), (1,)) for value in map(codes.value, (1, 2)))
    is_known = all(weights.value(i) is None or weights.is_constant(i) for i in range(3))
    if not is_one or not is_known or len(weights.shape()) < _MATRIX:
        return None
    columns = 0 if is_gemm and operation.attribute("transB", 0) else len(weights.shape()) - 1
    return _Product(node, left, right) if _is_by_columns(weights, columns) else None


def _maker(region: Region, value_id: int) -> Node | None:
    """Return what dequantises a value's bytes in a region, if that is how it is made."""
    producer = region.graph.values[value_id].producer
    if producer < 0 or producer not in region:
        return None
    node = region.graph.nodes[producer]
    operation = Operation(region.graph, node)
    if operation.op_type != "DequantizeLinear" or operation.inputs[0].dtype not in BYTES:
        return None
    return None if refuse_quantization(operation) else node


def _is_by_columns(weights: Operation, columns: int) -> bool:
    """Tell whether weights have one scale, or one for each column."""
    if weights.attribute("block_size", 0):
        return False
    sizes = {value.shape for value in map(weights.value, (1, 2)) if value is not None}
    axis = weights.attribute("axis", 1) % len(weights.shape())
    return sizes <= {(), (1,)} or (
        axis == columns and sizes <= {(), (1,), (weights.shape()[axis],)}
    )


def _product_of_codes(
    graph: Graph, operation: Operation, product: _Product, spelling: tuple[Node, ...]
) -> Operation:
    inputs = []
    for node in (product.left, product.right):
        inputs += [*node.inputs, ABSENT][:3]
    node = replace(
        product.node,
        op_type=DEQUANTIZED_PRODUCT,
        domain="",
        inputs=(*inputs, *product.node.inputs[2:]),
    )
    meant = {"transB": operation.attribute("transB", 0)} if operation.op_type == "Gemm" else {}
    return Operation(graph, node, spelling, meant)
