# SPDX-License-Identifier: Apache-2.0
"""The table of operators: what each is to lowering, why it may be refused, how it is lowered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from intarsia.codegen.lower import (
    constants,
    convolution,
    indices,
    movement,
    pointwise,
    pooling,
    products,
    reductions,
    rows,
    tables,
)
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import Group
from intarsia.codegen.lower.layouts import Wish
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import is_elementwise
from intarsia.codegen.unit import VectorUnit
from intarsia.graph.ops import ViewKind, names_of


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
    if operation.node.domain:
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
_CONSTANT = Operator(OpClass.MOVEMENT, constants.lower_constant, ANY)
_REAL = frozenset(("float32", "float64"))
_SOFTMAX = Operator(OpClass.ROW, rows.lower_softmax, _REAL, rows.refuse_softmax, has_epilogue=True)
_RESIZE = Operator(
    OpClass.MOVEMENT,
    tables.lower_resize,
    ANY,
    tables.refuse_resize,
    tables.wish_resize,
    has_epilogue=True,
)
_SCATTER = Operator(OpClass.MOVEMENT, indices.lower_scatter_elements, ANY, indices.refuse_scatter)
_PRODUCTS = frozenset(("float32", "float64", "int32", "int64", "uint32", "uint64"))


def _normalization(
    lower: Callable[[Assembler, Group], None],
    wish: Callable[[Operation, VectorUnit], Wish] = _plain,
) -> Operator:
    return Operator(OpClass.ROW, lower, _REAL, rows.refuse_normalization, wish, has_epilogue=True)


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
    "CumSum": Operator(OpClass.ROW, indices.lower_cumsum, ANY, indices.refuse_cumsum),
    "DepthToSpace": Operator(OpClass.MOVEMENT, movement.lower_shuffle, ANY),
    "Expand": Operator(OpClass.MOVEMENT, movement.lower_expand, ANY),
    "Gather": Operator(OpClass.MOVEMENT, indices.lower_gather, ANY, indices.refuse_gather),
    "GatherElements": Operator(
        OpClass.MOVEMENT,
        indices.lower_gather_elements,
        ANY,
        indices.refuse_gather,
        has_epilogue=True,
    ),
    "GatherND": Operator(OpClass.MOVEMENT, indices.lower_gather_nd, ANY, indices.refuse_gather),
    "Gemm": Operator(OpClass.CONTRACTION, products.lower_gemm, _PRODUCTS, has_epilogue=True),
    "GlobalAveragePool": _GLOBAL_POOL,
    "GlobalLpPool": _GLOBAL_POOL,
    "GlobalMaxPool": _GLOBAL_POOL,
    "GroupNormalization": _normalization(rows.lower_group_normalization),
    "Hardmax": _SOFTMAX,
    "InstanceNormalization": _normalization(rows.lower_instance, rows.wish_instance),
    "LRN": Operator(
        OpClass.WINDOW, rows.lower_lrn, _REAL, rows.refuse_lrn, rows.wish_lrn, has_epilogue=True
    ),
    "LayerNormalization": _normalization(rows.lower_normalization),
    "LogSoftmax": _SOFTMAX,
    "LpNormalization": Operator(OpClass.ROW, rows.lower_lp_normalization, _REAL),
    "LpPool": _POOL,
    "MatMul": Operator(OpClass.CONTRACTION, products.lower_matmul, _PRODUCTS, has_epilogue=True),
    "MaxPool": _POOL,
    "MeanVarianceNormalization": _normalization(rows.lower_mean_variance),
    "OneHot": Operator(OpClass.MOVEMENT, indices.lower_one_hot, ANY, indices.refuse_one_hot),
    "Pad": Operator(OpClass.MOVEMENT, tables.lower_pad, ANY, tables.refuse_pad, tables.wish_pad),
    "RMSNormalization": _normalization(rows.lower_normalization),
    "Resize": _RESIZE,
    "Scatter": _SCATTER,
    "ScatterElements": _SCATTER,
    "ScatterND": Operator(OpClass.MOVEMENT, indices.lower_scatter_nd, ANY, indices.refuse_scatter),
    "Slice": Operator(OpClass.MOVEMENT, movement.lower_slice, ANY, movement.refuse_slice, _follow),
    "Softmax": _SOFTMAX,
    "SpaceToDepth": Operator(OpClass.MOVEMENT, movement.lower_shuffle, ANY),
    "Split": Operator(OpClass.MOVEMENT, movement.lower_split, ANY, wish=_follow),
    "Tile": Operator(OpClass.MOVEMENT, tables.lower_tile, ANY, tables.refuse_tile),
    "Transpose": Operator(OpClass.MOVEMENT, movement.lower_transpose, ANY),
    "Trilu": Operator(OpClass.MOVEMENT, indices.lower_trilu, ANY, indices.refuse_trilu),
    **dict.fromkeys(names_of(lambda operator: operator.view is ViewKind.RESHAPED), _RENAMING),
    "Upsample": _RESIZE,
    **dict.fromkeys(constants.CONSTANTS, _CONSTANT),
    **dict.fromkeys(reductions.REDUCTIONS, _REDUCTION),
}
