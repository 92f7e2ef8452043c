# SPDX-License-Identifier: Apache-2.0
"""Matrix products: MatMul and Gemm."""

from __future__ import annotations

from math import prod

from intarsia.backends.dnnl.lowering import Ids, Problem, aligned, node_call, unsupported
from intarsia.backends.dnnl.program import Post, PrimitiveCall
from intarsia.backends.dnnl.words import BinaryAlgorithm, Eltwise
from intarsia.codegen.lower.operation import Operation

_MATRIX = 2


def lower_matmul(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return a matrix product; a matrix on the right sees all rows of the left as one matrix."""
    left, right = operation.shape(0), operation.shape(1)
    # oneDNN's matmul takes no operand of one dimension.
    if min(len(left), len(right)) < _MATRIX:
        return unsupported("a product of vectors")
    result = operation.output_shape
    lists: dict[str, tuple[int, ...]] = {}
    if len(right) == _MATRIX and len(left) > _MATRIX:
        # One product with many rows in place of a batch of small ones, each with the same right
        # side.
        rows = prod(left[:-1])
        lists = {"shape0": (rows, left[-1]), "shape": (rows, right[1])}
    else:
        rank = len(result)
        lists = {"shape0": aligned(left, rank), "shape1": aligned(right, rank)}
    return node_call("matmul", operation, ids, lists=lists)


def lower_gemm(operation: Operation, ids: Ids) -> PrimitiveCall | Problem:
    """Return `alpha * A' @ B' + beta * C`; transposed operands are seen through strides."""
    left, right = operation.shape(0), operation.shape(1)
    alpha, beta = operation.attribute("alpha", 1.0), operation.attribute("beta", 1.0)
    addend = operation.value(2)
    if addend is not None and beta != 1:
        return unsupported("beta other than 1")
    lists: dict[str, tuple[int, ...]] = {}
    if operation.attribute("transA", 0):
        lists["shape0"], lists["strides0"] = left[::-1], (1, left[1])
    if operation.attribute("transB", 0):
        lists["shape1"], lists["strides1"] = right[::-1], (1, right[1])
    inputs = [ids(value.id) for value in operation.inputs[:2]]
    posts = [Post(Eltwise.LINEAR, alpha, 0.0)] if alpha != 1 else []
    if addend is not None and addend.shape is not None:
        columns = operation.output_shape[1]
        # A bias is added before post-ops: with alpha behind the product, it would be scaled too.
        if prod(addend.shape) == columns and aligned(addend.shape, 2)[1] == columns and not posts:
            inputs.append(ids(addend.id))
            lists["shape2"] = (1, columns)
        else:
            shape = aligned(addend.shape, 2)
            posts.append(Post(BinaryAlgorithm.ADD, operand=ids(addend.id), shape=shape))
    return node_call("matmul", operation, ids, inputs=inputs, lists=lists, posts=tuple(posts))
