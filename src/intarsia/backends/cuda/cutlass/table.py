# SPDX-License-Identifier: Apache-2.0
"""Which operators are products of CUTLASS's, and what may follow them there, as patterns."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import msgspec

from intarsia.backends.cuda.cutlass.kernels import ProductSort, item_bytes, least_items
from intarsia.backends.cuda.cutlass.products import DenseProduct
from intarsia.codegen.lower.operation import Operation
from intarsia.extents import is_free
from intarsia.graph.pattern import ANY, SOURCE, Match, Op, Pattern

if TYPE_CHECKING:
    from intarsia.graph.graph import Value

DTYPES = ("float32", "float16", "bfloat16")
_MATRIX = 2
_VECTOR_BYTES = 16
_MOST_ITEMS = 1 << 31
_MOST_BLOCKS = 65535
"""Of a grid's second and third dimension."""
_LEAST_COLUMNS = 64
"""Of a tile."""


@dataclass(frozen=True, slots=True)
class DraftedKernel:
    """The meaning of a match.

    Attributes:
        product: Whose tensors are ids of values.
    """

    product: DenseProduct


def _matmul(match: Match) -> DraftedKernel | str:
    """Return what `MatMul` computes, or why it is not taken."""
    operation = Operation(match.graph, match.nodes[0])
    problem = _refuse(operation)
    if problem:
        return problem
    (*left, m, k), (*right, _, n) = operation.shape(), operation.shape(1)
    batch, ways = prod(left), (prod(left), prod(right))
    if ways[1] == 1:  # one matrix for all: rows of all items are rows
        batch, m, ways = 1, batch * m, (1, 1)
    elif ways[0] == 1:
        batch = ways[1]
    elif left != right:
        return "its batches are repeated in more than one dimension"
    is_left_repeated = ways[0] == 1 < batch
    return _draft(operation, (batch, m, n, k), is_left_repeated=is_left_repeated)


def _gemm(match: Match) -> DraftedKernel | str:
    """Return what `Gemm` computes, or why it is not taken."""
    operation = Operation(match.graph, match.nodes[0])
    problem = _refuse(operation)
    if problem:
        return problem
    m, n = operation.output_shape
    turned = [bool(operation.attribute(f"trans{side}", 0)) for side in "AB"]
    alpha, beta = (float(operation.attribute(name, 1.0)) for name in ("alpha", "beta"))
    found = _draft(
        operation,
        (1, m, n, operation.shape()[0 if turned[0] else 1]),
        is_left_turned=turned[0],
        is_right_turned=turned[1],
        alpha=alpha,
    )
    addend = operation.value(2)
    if isinstance(found, str) or addend is None or beta == 0:
        return found
    if beta != 1:
        return "what it adds is multiplied by a factor"
    return _with_row(found, addend)


def _row(match: Match) -> DraftedKernel | str:
    """Return a product to which a row is added."""
    before = _before(match)
    operation = Operation(match.graph, match.nodes[0])
    others = [value for value in operation.inputs if value.id != match.source]
    if len(others) != 1 or operation.output_shape != match.graph.values[match.source].shape:
        return "what is added has more dimensions than the product"
    return _with_row(before, others[0])


def _activation(match: Match) -> DraftedKernel | str:
    """Return a product to whose results a function is applied."""
    before = _before(match)
    operation = Operation(match.graph, match.nodes[0])
    if before.product.activation:
        return "it follows another activation"
    if operation.op_type == "Gelu" and operation.attribute("approximate", "none") != "none":
        return "CUTLASS's Gelu with tanh takes an approximate tanh"
    return DraftedKernel(_changed(before.product, activation=operation.op_type))


def _with_row(before: DraftedKernel, addend: Value) -> DraftedKernel | str:
    product = before.product
    if product.row >= 0 or product.activation:
        return "it follows another sum or an activation"
    shape = tuple(addend.shape or ())
    if addend.dtype != product.dtype or shape[-1:] != (product.n,) or prod(shape) != product.n:
        return "what it adds is not one row"
    return DraftedKernel(_changed(product, row=addend.id))


def _before(match: Match) -> DraftedKernel:
    assert match.follows is not None
    last = match.follows.followers[-1] if match.follows.followers else match.follows
    assert isinstance(last.meaning, DraftedKernel)
    return last.meaning


def _changed(product: DenseProduct, **fields: object) -> DenseProduct:
    changed: DenseProduct = msgspec.structs.replace(product, **fields)
    return changed


def _refuse(operation: Operation) -> str:
    for value in (*operation.inputs[:2], operation.output):
        if value.dtype not in DTYPES:
            return f"no kernel of CUTLASS multiplies {value.dtype} here"
        if value.shape is None or is_free(value.shape):
            return "a size is not known"
        if len(value.shape) < _MATRIX:
            return "an operand is a vector"
        if 0 in value.shape:
            return "an operand is empty"
        if prod(value.shape) >= _MOST_ITEMS:
            return "an operand has 2^31 elements or more"
    return ""


def _draft(
    operation: Operation, sizes: tuple[int, int, int, int], **fields: object
) -> DraftedKernel | str:
    batch, m, n, k = sizes
    left, right = (value.id for value in operation.inputs[:2])
    name, dtype = operation.node.name, operation.output.dtype
    drafted = DenseProduct(name, dtype, m, n, k, batch, left, right, operation.output.id)
    product = _changed(drafted, **fields)
    items = _row_items(product)
    if batch > _MOST_BLOCKS or n > _MOST_BLOCKS * _LEAST_COLUMNS:
        return "it has more matrices or columns than a grid has blocks"
    if any(one % least_items(dtype) for one in items):
        return f"rows of {min(items)} elements of {dtype} do not begin at multiples of 4 bytes"
    return DraftedKernel(product)


def _row_items(product: DenseProduct) -> tuple[int, int, int]:
    """Return how many elements rows have, of the left operand, the right one and the result."""
    return (
        product.m if product.is_left_turned else product.k,
        product.k if product.is_right_turned else product.n,
        product.n,
    )


def sort_of(product: DenseProduct, *, is_exact: bool) -> ProductSort:
    """Return the sort of a product.

    Args:
        product: The product.
        is_exact: Whether float32 is multiplied as such.
    """
    most = _VECTOR_BYTES // item_bytes(product.dtype)
    counts = [
        next(items for items in (8, 4, 2, 1) if items <= most and not row % items)
        for row in _row_items(product)
    ]
    is_exact = is_exact and product.dtype == "float32"
    turned = (product.is_left_turned, product.is_right_turned)
    if is_exact:
        counts = [1, 1, 1]
    has_row, activation = product.row >= 0, product.activation
    left, right, result = counts
    return ProductSort(product.dtype, *turned, left, right, result, has_row, activation, is_exact)


_FOLLOWERS = (
    Pattern("row", Op("Add", SOURCE, ANY), _row),
    Pattern("activation", Op(("Relu", "Gelu"), SOURCE), _activation),
)
TABLE = (
    Pattern("Gemm", Op("Gemm", ANY, ANY), _gemm, _FOLLOWERS),
    Pattern("MatMul", Op("MatMul", ANY, ANY), _matmul, _FOLLOWERS),
)
"""The order is their priority."""


def drafted_product(match: Match) -> DenseProduct:
    """Return what a match with its followers computes; its tensors are ids of values."""
    last = match.followers[-1] if match.followers else match
    assert isinstance(last.meaning, DraftedKernel)
    return _changed(last.meaning.product, result=match.result)
