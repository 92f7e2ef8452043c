# SPDX-License-Identifier: Apache-2.0
"""Which products kernels of CUTLASS compute, and what may follow them there, as patterns."""

from __future__ import annotations

from intarsia.backends.cuda.cublas.products import LtProduct
from intarsia.backends.cuda.cublas.table import product_patterns
from intarsia.backends.cuda.cutlass.kernels import ProductSort, item_bytes, least_items

DTYPES = ("float32", "float16", "bfloat16")
_VECTOR_BYTES = 16
_MOST_ITEMS = 1 << 31
_MOST_BLOCKS = 65535
"""Of a grid's second and third dimension."""
_LEAST_COLUMNS = 64
"""Of a tile."""


def _refuse(product: LtProduct) -> str:
    """Return why kernels of CUTLASS do not compute a product."""
    if product.dtype not in DTYPES:
        return f"no kernel of CUTLASS multiplies {product.dtype} here"
    m, n, k, batch = product.m, product.n, product.k, product.batch
    left = m * k * (1 if product.is_left_repeated else batch)
    right = k * n * (1 if product.is_right_repeated else batch)
    if max(left, right, batch * m * n) >= _MOST_ITEMS:
        return "an operand has 2^31 elements or more"
    if batch > _MOST_BLOCKS or n > _MOST_BLOCKS * _LEAST_COLUMNS:
        return "it has more matrices or columns than a grid has blocks"
    items = _row_items(product)
    if any(one % least_items(product.dtype) for one in items):
        return (
            f"rows of {min(items)} elements of {product.dtype} do not begin at multiples of 4 bytes"
        )
    return ""


def _row_items(product: LtProduct) -> tuple[int, int, int]:
    """Return how many elements rows have, of the left operand, the right one and the result."""
    return (
        product.m if product.is_left_turned else product.k,
        product.k if product.is_right_turned else product.n,
        product.n,
    )


def sort_of(product: LtProduct, *, is_exact: bool) -> ProductSort:
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
    has_row, activation = product.bias >= 0, product.activation
    left, right, result = counts
    return ProductSort(product.dtype, *turned, left, right, result, has_row, activation, is_exact)


# CUTLASS's Gelu with tanh takes an approximate tanh.
TABLE = tuple(
    pattern
    for pattern in product_patterns(_refuse, gelu="none")
    if pattern.name in ("Gemm", "MatMul")
)
"""The order is their priority."""
