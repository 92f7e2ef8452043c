# SPDX-License-Identifier: Apache-2.0
"""The table of operators: what each is to lowering, why it may be refused, how it is lowered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from intarsia.codegen.lower import convolution, movement, pointwise, pooling, products, reductions
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import Group
from intarsia.codegen.lower.layouts import Wish
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import is_elementwise
from intarsia.codegen.unit import VectorUnit


class OpClass(StrEnum):
    """What an operator is to lowering."""

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    WINDOW = "window"
    CONTRACTION = "contraction"
    MOVEMENT = "movement"
    ROW = "row"


def _takes(operation: Operation) -> str | None:
    del operation
    return None


def _plain(operation: Operation, unit: VectorUnit) -> Wish:
    del operation, unit
    return Wish()


@dataclass(frozen=True, slots=True)
class Operator:
    """An entry of the table.

    Attributes:
        kind: Its class.
        lower: Appends the calls of a group that it anchors.
        dtypes: Of its data, by numpy's names.
        refuse: Says why a node is not taken, or nothing; shapes and dtypes are known by then.
        wish: Says which layouts it wants.
        has_epilogue: Whether elementwise operators may join it.
    """

    kind: OpClass
    lower: Callable[[Assembler, Group], None]
    dtypes: frozenset[str]
    refuse: Callable[[Operation], str | None] = _takes
    wish: Callable[[Operation, VectorUnit], Wish] = _plain
    has_epilogue: bool = False


def _follow(operation: Operation, unit: VectorUnit) -> Wish:
    """Keep the layout of the operands that have the shape of the result's rank."""
    del unit
    rank = len(operation.output_shape)
    follows = tuple(value.id for value in operation.inputs if len(value.shape or ()) == rank)
    return Wish("follow", follows)


FLOATS = frozenset(("float32",))
ANY = frozenset(
    (
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64"),
    )
)


def find(operation: Operation) -> Operator | None:
    """Return the entry of an operation's operator, or None if there is none."""
    if operation.node.domain not in ("", "ai.onnx"):
        return None
    found = OPERATORS.get(operation.op_type)
    if found is None and is_elementwise(operation):
        return _ELEMENTWISE
    return found


_ELEMENTWISE = Operator(
    OpClass.ELEMENTWISE,
    pointwise.lower_pointwise,
    ANY,
    pointwise.refuse_pointwise,
    _follow,
    has_epilogue=True,
)
_RENAMING = Operator(OpClass.MOVEMENT, movement.lower_reshape, ANY)
_POOL = Operator(
    OpClass.WINDOW, pooling.lower_pool, FLOATS, pooling.refuse_pool, _follow, has_epilogue=True
)
_GLOBAL_POOL = Operator(
    OpClass.REDUCTION,
    pooling.lower_global_pool,
    FLOATS,
    pooling.refuse_pool,
    _follow,
    has_epilogue=True,
)
_REDUCTION = Operator(
    OpClass.REDUCTION,
    reductions.lower_reduction,
    ANY,
    reductions.refuse_reduction,
    reductions.wish_reduction,
    has_epilogue=True,
)
_PRODUCTS = frozenset(("float32", "float64", "int32", "int64", "uint32", "uint64"))

OPERATORS: dict[str, Operator] = {
    "AveragePool": _POOL,
    "Concat": Operator(OpClass.MOVEMENT, movement.lower_concat, ANY, wish=_follow),
    "Conv": Operator(
        OpClass.CONTRACTION,
        convolution.lower_conv,
        FLOATS,
        convolution.refuse_conv,
        convolution.wish_conv,
        has_epilogue=True,
    ),
    "ConvTranspose": Operator(
        OpClass.CONTRACTION,
        convolution.lower_conv_transpose,
        FLOATS,
        convolution.refuse_conv,
        convolution.wish_conv,
        has_epilogue=True,
    ),
    "DepthToSpace": Operator(OpClass.MOVEMENT, movement.lower_shuffle, ANY),
    "Expand": Operator(OpClass.MOVEMENT, movement.lower_expand, ANY),
    "Flatten": _RENAMING,
    "Gemm": Operator(OpClass.CONTRACTION, products.lower_gemm, _PRODUCTS, has_epilogue=True),
    "GlobalAveragePool": _GLOBAL_POOL,
    "GlobalLpPool": _GLOBAL_POOL,
    "GlobalMaxPool": _GLOBAL_POOL,
    "LpPool": _POOL,
    "MatMul": Operator(OpClass.CONTRACTION, products.lower_matmul, _PRODUCTS, has_epilogue=True),
    "MaxPool": _POOL,
    "Reshape": _RENAMING,
    "Slice": Operator(OpClass.MOVEMENT, movement.lower_slice, ANY, movement.refuse_slice, _follow),
    "SpaceToDepth": Operator(OpClass.MOVEMENT, movement.lower_shuffle, ANY),
    "Split": Operator(OpClass.MOVEMENT, movement.lower_split, ANY, wish=_follow),
    "Squeeze": _RENAMING,
    "Transpose": Operator(OpClass.MOVEMENT, movement.lower_transpose, ANY),
    "Unsqueeze": _RENAMING,
    **dict.fromkeys(reductions.REDUCTIONS, _REDUCTION),
}
