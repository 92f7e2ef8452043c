# SPDX-License-Identifier: Apache-2.0
"""Products around which a model has Q and DQ nodes: a product of the codes, in integers.

`MatMul` and `Gemm` of two dequantised operands, the right one constant, are that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from intarsia.codegen.lower.integer_products import BYTES, DEQUANTIZED_PRODUCT
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.patterns.dequantised import (
    OnCodes,
    dequantisers,
    has_one_scale,
    is_by_axis,
    is_known,
    operands_of,
    put_on_codes,
)
from intarsia.graph.region import Region

_MATRIX = 2


def read_quantised(region: Region, operations: Sequence[Operation]) -> list[Operation]:
    """Return what a region's nodes compute, products of codes in the place of dequantised ones.

    Args:
        region: Nodes that are all taken.
        operations: What they compute as they are, in order.
    """
    makers = dequantisers(operations)
    read = (read_product(operation, makers) for operation in operations if not operation.spelling)
    return put_on_codes(region, operations, {one.node.id: one for one in read if one is not None})


def read_product(operation: Operation, makers: Mapping[int, Operation]) -> OnCodes | None:
    """Return the product of codes that a `MatMul` or `Gemm` is, or None.

    Args:
        operation: Any.
        makers: What dequantises, by the values that it makes.
    """
    node = operation.node
    if operation.op_type not in ("MatMul", "Gemm"):
        return None
    is_gemm = operation.op_type == "Gemm"
    factors = [operation.attribute(name, 1.0) for name in ("alpha", "beta")]
    if is_gemm and (factors != [1.0, 1.0] or operation.attribute("transA", 0)):
        return None
    left, right = (makers.get(value) for value in node.inputs[:2])
    if left is None or right is None:
        return None
    if any(maker.inputs[0].dtype not in BYTES for maker in (left, right)):
        return None
    if not has_one_scale(left) or not is_known(right) or len(right.shape()) < _MATRIX:
        return None
    columns = 0 if is_gemm and operation.attribute("transB", 0) else len(right.shape()) - 1
    if not is_by_axis(right, columns):
        return None
    inputs = (*operands_of(left), *operands_of(right), *node.inputs[2:])
    meant = {"transB": operation.attribute("transB", 0)} if is_gemm else {}
    product = replace(node, op_type=DEQUANTIZED_PRODUCT, inputs=inputs)
    return OnCodes(product, (left.node, right.node), (node,), meant)
