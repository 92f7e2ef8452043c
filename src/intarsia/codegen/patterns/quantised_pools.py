# SPDX-License-Identifier: Apache-2.0
"""Averages of dequantised images: averages of the codes, summed in integers.

`AveragePool`, `GlobalAveragePool` and a `ReduceMean` over all spatial dimensions are that where
their operand has one scale. Sums are exact, and the scale comes last. What quantises the result is
part of the same kernel, as behind every pooling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from intarsia.codegen.lower.integer_products import BYTES
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.reductions import (
    DEQUANTIZED_POOL,
    reduced_axes,
    refuse_pool,
    refuse_reduction,
)
from intarsia.codegen.lower.views import CHANNELS
from intarsia.codegen.patterns.dequantised import (
    OnCodes,
    dequantisers,
    has_one_scale,
    operands_of,
    put_on_codes,
)
from intarsia.extents import is_free
from intarsia.graph.region import Region

_MOST_ENTRIES = (1 << 31) // 256
"""Of codes less a zero point an int32 holds the sum of so many."""


def read_quantised_pools(region: Region, operations: Sequence[Operation]) -> list[Operation]:
    """Return what a region's nodes compute, averages of codes in the place of dequantised ones.

    Args:
        region: Nodes that are all taken.
        operations: What they compute otherwise, in order.
    """
    makers = dequantisers(operations)
    read = (_read_pool(operation, makers) for operation in operations if not operation.spelling)
    return put_on_codes(region, operations, {one.node.id: one for one in read if one is not None})


def _read_pool(operation: Operation, makers: Mapping[int, Operation]) -> OnCodes | None:
    """Return the average of codes that an operator is, or None."""
    if operation.op_type not in ("AveragePool", "GlobalAveragePool", "ReduceMean"):
        return None
    x = makers.get(operation.node.inputs[0])
    if x is None or x.inputs[0].dtype not in BYTES or not has_one_scale(x):
        return None
    if not all(x.value(i) is None or x.is_constant(i) for i in (1, 2)):
        return None
    if operation.op_type == "ReduceMean" and not _is_of_images(operation):
        return None
    spatial = operation.shape()[CHANNELS + 1 :]
    if refuse_pool(operation) or is_free(spatial) or math.prod(spatial) > _MOST_ENTRIES:
        return None
    node = replace(operation.node, op_type=DEQUANTIZED_POOL, inputs=operands_of(x))
    return OnCodes(node, (x.node,), (operation.node,), operation.attributes)


def _is_of_images(operation: Operation) -> bool:
    """Tell whether a reduction is over all spatial dimensions, and keeps them as ones."""
    if refuse_reduction(operation) or not operation.attribute("keepdims", 1):
        return False
    if operation.value(1) is not None and not operation.is_constant(1):
        return False
    rank = len(operation.shape())
    return rank > CHANNELS + 1 and reduced_axes(operation) == tuple(range(CHANNELS + 1, rank))
