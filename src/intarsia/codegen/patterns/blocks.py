# SPDX-License-Identifier: Apache-2.0
"""Products of numbers with dequantised weights: the codes stay as they are, and are unpacked there.

`MatMul` and `Gemm` whose right operand is a constant's DequantizeLinear, in blocks along k, by
columns or as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from intarsia.codegen.lower.block_products import BLOCK_PRODUCT, CODES, LEAST_SIZE
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.patterns.dequantised import (
    OnCodes,
    dequantisers,
    is_by_axis,
    is_known,
    operands_of,
    put_on_codes,
)
from intarsia.graph.region import Region

_MATRIX = 2


def read_blocks(region: Region, operations: Sequence[Operation]) -> list[Operation]:
    """Return what a region's nodes compute, products with weights in blocks among it.

    Args:
        region: Nodes that are all taken.
        operations: What they compute as they are, in order.
    """
    makers = dequantisers(operations)
    read = (_read(operation, makers) for operation in operations if not operation.spelling)
    return put_on_codes(region, operations, {one.node.id: one for one in read if one is not None})


def _read(operation: Operation, makers: Mapping[int, Operation]) -> OnCodes | None:
    if operation.op_type not in ("MatMul", "Gemm") or operation.output.dtype != "float32":
        return None
    factors = [operation.attribute(name, 1.0) for name in ("alpha", "beta")]
    if factors != [1.0, 1.0] or operation.attribute("transA", 0):
        return None
    left, right, *added = operation.node.inputs
    weights = makers.get(right)
    if weights is None or not operation.shape() or not is_known(weights):
        return None
    if weights.inputs[0].dtype not in CODES or len(weights.shape()) != _MATRIX:
        return None
    turned = operation.attribute("transB", 0)
    if not _has_blocks(weights, 0 if turned else 1):
        return None
    inputs = (left, *operands_of(weights), *added)
    meant = {"transB": turned, "block_size": weights.attribute("block_size", 0)}
    product = replace(operation.node, op_type=BLOCK_PRODUCT, inputs=inputs)
    return OnCodes(product, (weights.node,), (operation.node,), meant)


def _has_blocks(weights: Operation, columns: int) -> bool:
    """Tell whether weights have scales for blocks along k, for columns, or one."""
    size = weights.attribute("block_size", 0)
    if not size:
        return is_by_axis(weights, columns)
    is_along_k = weights.attribute("axis", 1) % _MATRIX != columns
    return is_along_k and size >= LEAST_SIZE and not size & (size - 1)
