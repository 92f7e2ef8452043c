# SPDX-License-Identifier: Apache-2.0
"""Products around which a model has Q and DQ nodes: a product of the codes, in integers.

`MatMul` and `Gemm` of two dequantised operands are that: the right one is constant, or computed
where a CPU multiplies bytes, which pays for packing it when it runs. Elsewhere two computed
operands are multiplied as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from intarsia.extents import is_free
from intarsia.graph.region import Region

_MATRIX = 2
_LEAST_ROWS = 8
"""Of a product of two computed operands: fewer do not pay for packing the right one."""
_MOST_TERMS = (2**31 - 1) // 255**2
"""Of a sum of products of two bytes less zero points, that it surely fits into int32."""


def read_quantised(
    region: Region, operations: Sequence[Operation], takes_computed: Callable[[Operation], bool]
) -> list[Operation]:
    """Return what a region's nodes compute, products of codes in the place of dequantised ones.

    Args:
        region: Nodes that are all taken.
        operations: What they compute as they are, in order.
        takes_computed: Tells of a product whether it may be one of codes that are both computed.
    """
    makers = dequantisers(operations)
    read = (
        read_product(operation, makers, takes_computed)
        for operation in operations
        if not operation.spelling
    )
    return put_on_codes(region, operations, {one.node.id: one for one in read if one is not None})


def read_product(
    operation: Operation,
    makers: Mapping[int, Operation],
    takes_computed: Callable[[Operation], bool] = lambda _: False,
) -> OnCodes | None:
    """Return the product of codes that a `MatMul` or `Gemm` is, or None.

    Args:
        operation: Any.
        makers: What dequantises, by the values that it makes.
        takes_computed: See `read_quantised`.
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
    is_computed = not right.is_constant(0)
    if is_computed and not takes_computed(operation):
        return None
    takes = _is_static_pair if is_computed else _has_known_right
    if not has_one_scale(left) or len(right.shape()) < _MATRIX or not takes(left, right):
        return None
    columns = 0 if is_gemm and operation.attribute("transB", 0) else len(right.shape()) - 1
    if not is_by_axis(right, columns):
        return None
    inputs = (*operands_of(left), *operands_of(right), *node.inputs[2:])
    meant = {"transB": operation.attribute("transB", 0)} if is_gemm else {}
    product = replace(node, op_type=DEQUANTIZED_PRODUCT, inputs=inputs)
    return OnCodes(product, (left.node, right.node), (node,), meant)


def _has_known_right(_left: Operation, right: Operation) -> bool:
    """Tell whether the right operand is known when compiling, with all that dequantises it."""
    return is_known(right)


def _is_static_pair(left: Operation, right: Operation) -> bool:
    """Tell whether two computed operands have known shapes, and what dequantises the right one.

    The left one must have enough rows to pay for packing the right one, and no sum of codes less
    their zero points may leave the 32 bits that it is computed in.
    """
    is_read = all(right.value(place) is None or right.is_constant(place) for place in (1, 2))
    shape = left.shape()
    is_static = is_read and has_one_scale(right) and not is_free((*shape, *right.shape()))
    is_worth = is_static and len(shape) >= _MATRIX and shape[-_MATRIX] >= _LEAST_ROWS
    return is_worth and shape[-1] <= _MOST_TERMS
