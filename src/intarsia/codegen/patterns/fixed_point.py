# SPDX-License-Identifier: Apache-2.0
"""Operators between Q and DQ nodes as TFLite computes them: in integers, by factors in fixed point.

Convolutions, products with constant weights, average pooling, sums, products and softmax of codes
of 8 bits, with what quantises their results. What TFLite has no operator for (a softmax whose step
is not 1/256, pooling to other steps) stays as ONNX defines it. `MaxPool`, and what moves elements,
is of codes as they are (`patterns/codes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from intarsia.codegen.fixed_point import SOFTMAX_SCALE, SUM_BITS
from intarsia.codegen.lower.fixed_point import (
    FIXED_ADD,
    FIXED_AVERAGE_POOL,
    FIXED_CONV,
    FIXED_MUL,
    FIXED_PRODUCT,
    FIXED_SOFTMAX,
)
from intarsia.codegen.lower.integer_products import BYTES
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
from intarsia.codegen.patterns.quantised import read_product
from intarsia.codegen.patterns.quantised_convolutions import read_convolution, with_quantisation
from intarsia.graph.graph import ABSENT
from intarsia.graph.region import Region

_ALONG_ONE = 13
"""The operator set since which Softmax is along one dimension."""
_NO_BIAS = (ABSENT, ABSENT, ABSENT)


def read_fixed_point(region: Region, operations: Sequence[Operation]) -> list[Operation]:
    """Return what a region's nodes compute, TFLite's operators in the place of what means them.

    Args:
        region: Nodes that are all taken.
        operations: What they compute otherwise, in order.
    """
    by_node = {operation.node.id: operation for operation in operations if not operation.spelling}
    makers = dequantisers(operations)
    meant = {}
    for operation in by_node.values():
        reader = _READERS.get(operation.op_type)
        read = reader and reader(operation, makers)
        if not read:
            continue
        if read.node.op_type not in _ENDED:
            name = _NAMES[operation.op_type]
            read = with_quantisation(region, operation, read, by_node, name)
        if read.node.op_type in _ENDED and _is_taken(region, read):
            meant[read.node.id] = read
    return put_on_codes(region, operations, meant)


_ENDED = frozenset(
    (FIXED_ADD, FIXED_AVERAGE_POOL, FIXED_CONV, FIXED_MUL, FIXED_PRODUCT, FIXED_SOFTMAX)
)


def _convolution(operation: Operation, makers: Mapping[int, Operation]) -> OnCodes | None:
    return read_convolution(operation, makers)


def _qlinear_convolution(operation: Operation, _makers: Mapping[int, Operation]) -> OnCodes | None:
    """Return what a QLinearConv means; its bias has the scale of the sums, and so none here."""
    inputs = (*operation.node.inputs, ABSENT)
    order = (*inputs[:6], inputs[8], ABSENT, ABSENT, *inputs[6:8])
    node = replace(operation.node, op_type=FIXED_CONV, inputs=order)
    return OnCodes(node, (), (operation.node,), operation.attributes)


def _product(operation: Operation, makers: Mapping[int, Operation]) -> OnCodes | None:
    """Return a product of codes with what a Gemm adds, constant, as a convolution has its bias."""
    read = read_product(operation, makers)
    if read is None or not is_known(makers[operation.node.inputs[1]]):
        return None
    if len(operation.shape(1)) != 2:  # noqa: PLR2004 - a matrix
        return None
    added, before = _NO_BIAS, read.before
    value = operation.value(2)
    if value is not None:
        columns = operation.output_shape[-1:]
        if (value.shape or ()) not in (columns, (1, *columns)):
            return None
        maker = makers.get(value.id)
        if maker is not None and is_known(maker) and is_by_axis(maker, len(maker.shape()) - 1):
            added, before = operands_of(maker), (*before, maker.node)
        elif value.constant is not None:
            added = (value.id, ABSENT, ABSENT)
        else:
            return None
    node = replace(read.node, inputs=(*read.node.inputs[:6], *added))
    return OnCodes(node, before, read.own, read.attributes)


def _qlinear_product(operation: Operation, _makers: Mapping[int, Operation]) -> OnCodes | None:
    inputs = operation.node.inputs
    if len(operation.shape(3)) != 2:  # noqa: PLR2004 - a matrix
        return None
    order = (*inputs[:6], *_NO_BIAS, *inputs[6:8])
    node = replace(operation.node, op_type=FIXED_PRODUCT, inputs=order)
    return OnCodes(node, (), (operation.node,))


def _of_operands(operation: Operation, makers: Mapping[int, Operation]) -> OnCodes | None:
    """Return an operator all of whose operands are dequantised, by one scale each."""
    found = [makers.get(value) for value in operation.node.inputs]
    taken = [item for item in found if item is not None and _is_dequantised(item)]
    if len(taken) != len(found):
        return None
    inputs = tuple(value for item in taken for value in operands_of(item))
    node = replace(operation.node, inputs=inputs)
    before = tuple(dict.fromkeys(item.node for item in taken))
    return OnCodes(node, before, (operation.node,), operation.attributes)


def _is_dequantised(item: Operation) -> bool:
    is_constant = item.is_constant(1) and (item.value(2) is None or item.is_constant(2))
    return item.inputs[0].dtype in BYTES and has_one_scale(item) and is_constant


def _softmax(operation: Operation, makers: Mapping[int, Operation]) -> OnCodes | None:
    rank = len(operation.shape())
    is_old = operation.opset < _ALONG_ONE
    axis = operation.attribute("axis", 1 if is_old else -1) % max(1, rank)
    if axis != rank - 1 or operation.shape()[-1] >= 1 << SUM_BITS:
        return None
    return _of_operands(operation, makers)


_Reader = Callable[[Operation, Mapping[int, Operation]], OnCodes | None]
_READERS: dict[str, _Reader] = {
    "Add": _of_operands,
    "AveragePool": _of_operands,
    "Conv": _convolution,
    "Gemm": _product,
    "GlobalAveragePool": _of_operands,
    "MatMul": _product,
    "Mul": _of_operands,
    "QLinearConv": _qlinear_convolution,
    "QLinearMatMul": _qlinear_product,
    "Softmax": _softmax,
}
_NAMES = {
    "Add": FIXED_ADD,
    "AveragePool": FIXED_AVERAGE_POOL,
    "Conv": FIXED_CONV,
    "Gemm": FIXED_PRODUCT,
    "GlobalAveragePool": FIXED_AVERAGE_POOL,
    "MatMul": FIXED_PRODUCT,
    "Mul": FIXED_MUL,
    "Softmax": FIXED_SOFTMAX,
}


def _is_taken(region: Region, read: OnCodes) -> bool:
    """Tell whether TFLite has the operator that is meant: with known scales, all positive."""
    operation = Operation(region.graph, read.node, (), read.attributes)
    scales, zeros = _parameters(read.node.op_type)
    if not all(operation.value(i) is None or operation.is_constant(i) for i in (*scales, *zeros)):
        return False
    if not all(bool((operation.array(i) > 0).all()) for i in scales):
        return False
    if read.node.op_type == FIXED_AVERAGE_POOL:
        same = operation.array(1).item() == operation.array(3).item()
        pads = operation.attribute("pads", ())
        counts = operation.attribute("count_include_pad", 0) and any(pads)
        return same and _zero(operation, 2) == _zero(operation, 4) and not counts
    if read.node.op_type == FIXED_SOFTMAX:
        least = int(np.iinfo(operation.output.dtype).min)
        return operation.array(3).item() == SOFTMAX_SCALE and _zero(operation, 4) == least
    return True


def _parameters(op_type: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return at which inputs an operator has scales and zero points of codes."""
    if op_type in (FIXED_CONV, FIXED_PRODUCT):
        return (1, 4, 9), (2, 5, 10)
    if op_type in (FIXED_ADD, FIXED_MUL):
        return (1, 4, 6), (2, 5, 7)
    return (1, 3), (2, 4)


def _zero(operation: Operation, position: int) -> int:
    return 0 if operation.value(position) is None else int(operation.array(position).item())
