# SPDX-License-Identifier: Apache-2.0
"""Which operators are products, and what may follow them before a result is written, as patterns.

Libraries differ in what they refuse of these: `product_patterns`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import msgspec

from intarsia.backends.cuda.cublas.products import LtProduct
from intarsia.codegen.lower.operation import Operation
from intarsia.extents import is_free
from intarsia.graph.graph import Value
from intarsia.graph.pattern import ANY, SOURCE, Match, Op, Pattern, Predicate

DTYPES = ("float32", "float16", "bfloat16", "float64")
_MATRIX = 2


@dataclass(frozen=True, slots=True)
class DraftedProduct:
    """The meaning of a match.

    Attributes:
        product: Whose tensors are ids of values.
    """

    product: LtProduct


def _matmul(match: Match) -> DraftedProduct | str:
    """Return what `MatMul` or ONNX Runtime's `FusedMatMul` computes, or why it is not taken."""
    operation = Operation(match.graph, match.nodes[0])
    problem = _refuse(operation, operation.inputs[:2])
    if problem:
        return problem
    (*left, m, k), (*right, _, n) = operation.shape(), operation.shape(1)
    is_left_turned = bool(operation.attribute("transA", 0))
    is_right_turned = bool(operation.attribute("transB", 0))
    if is_left_turned:
        m, k = k, m
    if is_right_turned:
        n = operation.shape(1)[-2]
    if operation.attribute("transBatchA", 0) or operation.attribute("transBatchB", 0):
        return "its batch lies inside of its matrices"
    batch, ways = prod(left), (prod(left), prod(right))
    if ways[1] == 1 and not is_left_turned:  # one matrix for all: rows of all items are rows
        batch, m, ways = 1, batch * m, (1, 1)
    elif ways[0] == 1:
        batch = ways[1]
    elif ways[1] != 1 and left != right:
        return "its batches are repeated in more than one dimension"
    return _draft(
        operation,
        (batch, m, n, k),
        is_left_turned=is_left_turned,
        is_right_turned=is_right_turned,
        is_left_repeated=ways[0] == 1 < batch,
        is_right_repeated=ways[1] == 1 < batch,
        alpha=float(operation.attribute("alpha", 1.0)),
    )


def _gemm(match: Match) -> DraftedProduct | str:
    """Return what `Gemm` computes, or why it is not taken."""
    operation = Operation(match.graph, match.nodes[0])
    problem = _refuse(operation, operation.inputs[:2])
    if problem:
        return problem
    m, n = operation.output_shape
    turned = [bool(operation.attribute(f"trans{side}", 0)) for side in "AB"]
    k = operation.shape()[0 if turned[0] else 1]
    alpha, beta = (float(operation.attribute(name, 1.0)) for name in ("alpha", "beta"))
    found = _draft(
        operation,
        (1, m, n, k),
        is_left_turned=turned[0],
        is_right_turned=turned[1],
        alpha=alpha,
    )
    addend = operation.value(2)
    if addend is None or beta == 0:
        return found
    if beta != 1:
        return "what it adds is multiplied by a factor"
    return _with_bias(found, addend)


def _bias(match: Match) -> DraftedProduct | str:
    """Return a product to which a row is added."""
    assert match.follows is not None
    before = _before(match)
    operation = Operation(match.graph, match.nodes[0])
    others = [value for value in operation.inputs if value.id != match.source]
    if len(others) != 1 or operation.output_shape != match.graph.values[match.source].shape:
        return "what is added has more dimensions than the product"
    return _with_bias(before, others[0])


def _activation(match: Match, gelu: str) -> DraftedProduct | str:
    """Return a product to whose results a function is applied; `gelu` is its approximation."""
    before = _before(match)
    operation = Operation(match.graph, match.nodes[0])
    if before.product.activation:
        return "it follows another activation"
    if before.product.dtype == "float64":
        return "no function is applied to float64"
    if operation.op_type == "Gelu" and operation.attribute("approximate", "none") != gelu:
        return f"the Gelu behind a product is the one with {'tanh' if gelu == 'tanh' else 'erf'}"
    return DraftedProduct(_changed(before.product, activation=operation.op_type))


def _with_bias(before: DraftedProduct, addend: Value) -> DraftedProduct | str:
    product = before.product
    if product.bias >= 0 or product.activation:
        return "it follows another sum or an activation"
    if product.dtype == "float64":
        return "no row is added to float64"
    shape = tuple(addend.shape or ())
    if addend.dtype != product.dtype or shape[-1:] != (product.n,) or prod(shape) != product.n:
        return "what it adds is not one row"
    return DraftedProduct(_changed(product, bias=addend.id))


def _before(match: Match) -> DraftedProduct:
    assert match.follows is not None
    last = match.follows.followers[-1] if match.follows.followers else match.follows
    assert isinstance(last.meaning, DraftedProduct)
    return last.meaning


def _changed(product: LtProduct, **fields: object) -> LtProduct:
    changed: LtProduct = msgspec.structs.replace(product, **fields)
    return changed


def _refuse(operation: Operation, operands: tuple[Value, ...]) -> str:
    for value in (*operands, operation.output):
        if value.dtype not in DTYPES:
            return f"products have no {value.dtype}"
        if value.shape is None or is_free(value.shape):
            return "a size is not known"
        if len(value.shape) < _MATRIX:
            return "an operand is a vector"
        if 0 in value.shape:
            return "an operand is empty"
    return ""


def _draft(
    operation: Operation, sizes: tuple[int, int, int, int], **fields: object
) -> DraftedProduct:
    batch, m, n, k = sizes
    left, right = (value.id for value in operation.inputs[:2])
    name, dtype = operation.node.name, operation.output.dtype
    product = LtProduct(name, dtype, m, n, k, batch, left, right, operation.output.id)
    return DraftedProduct(_changed(product, **fields))


def _followers(gelu: str) -> tuple[Pattern, ...]:
    return (
        Pattern("bias", Op("Add", SOURCE, ANY), _bias),
        Pattern("activation", Op(("Relu", "Gelu"), SOURCE), partial(_activation, gelu=gelu)),
    )


_FOLLOWERS = _followers("tanh")
TABLE = (
    Pattern("Gemm", Op("Gemm", ANY, ANY), _gemm, _FOLLOWERS),
    Pattern("MatMul", Op("MatMul", ANY, ANY), _matmul, _FOLLOWERS),
    Pattern(
        "FusedMatMul",
        Op("FusedMatMul", ANY, ANY, domain="com.microsoft"),
        _matmul,
        _FOLLOWERS,
    ),
)
"""The order is their priority."""


def product_patterns(refuse: Callable[[LtProduct], str], gelu: str = "tanh") -> tuple[Pattern, ...]:
    """Return the table for a library that does not compute all products that cuBLASLt does.

    Args:
        refuse: Returns why it does not compute one; nothing if it does.
        gelu: The approximation of its Gelu, by ONNX's name: `tanh`, or `none` for erf.
    """

    def narrowed(predicate: Callable[[Match], DraftedProduct | str]) -> Predicate:
        def meaning(match: Match) -> DraftedProduct | str:
            found = predicate(match)
            return found if isinstance(found, str) else refuse(found.product) or found

        return meaning

    def changed(pattern: Pattern) -> Pattern:
        assert pattern.predicate is not None
        return replace(pattern, predicate=narrowed(pattern.predicate))

    followers = tuple(map(changed, _followers(gelu)))
    return tuple(replace(changed(pattern), followers=followers) for pattern in TABLE)


def drafted(match: Match) -> LtProduct:
    """Return what a match with its followers computes; its tensors are ids of values."""
    last = match.followers[-1] if match.followers else match
    assert isinstance(last.meaning, DraftedProduct)
    return _changed(last.meaning.product, result=match.result)
