# SPDX-License-Identifier: Apache-2.0
"""The table of operators: what the library computes, why a node is refused, what may follow.

Each row is a primitive. What follows it may become a part of it, so that `convolution` stands for
Conv with bias, residual sum, activation and so on: `patterns.py` makes the patterns of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from intarsia.backends import scaled_integers
from intarsia.backends.dnnl import pointwise, products, quantised, rows, windows
from intarsia.backends.dnnl.chains import chains_of
from intarsia.backends.dnnl.lowering import Ids, Problem
from intarsia.backends.dnnl.numbering import OpenNumbering
from intarsia.backends.dnnl.program import PrimitiveCall
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import ReasonCode
from intarsia.graph.graph import Graph, Node
from intarsia.graph.ops import ViewKind, names_of
from intarsia.graph.region import Region

Lower: TypeAlias = Callable[[Operation, Ids], PrimitiveCall | Problem]

_MOST_DIMENSIONS = 6


class Follow(StrEnum):
    """What may be fused into a primitive."""

    ELTWISE = "eltwise"
    BINARY = "binary"
    CAST = "cast"
    QUANTIZE = "quantize"


FLOATS = frozenset(("float32", "float16", "bfloat16"))
BYTES = frozenset(scaled_integers.BYTES)
_INTEGERS = BYTES | {"int32"}


@dataclass(frozen=True, slots=True)
class PrimitiveRow:
    """What is computed by one kind of primitive.

    Attributes:
        name: Printed as the reason of a placement.
        types: Operators.
        lower: Makes the primitive, or says why it is not taken.
        takes: What may follow and become a part of it.
        is_heavy: Whether it is worth more than what follows: it is asked first what it takes.
        lower_integers: Makes the primitive where its operands are dequantised, or returns None.
        data: How many of its inputs are tensors of numbers; the others are shapes and axes.
        dtypes: Element types of these and of its results.
        reads_numbers: Whether it is the numbers in constants that decide whether it is taken.
    """

    name: str
    types: tuple[str, ...]
    lower: Lower
    takes: frozenset[Follow] = frozenset()
    is_heavy: bool = False
    lower_integers: Callable[[Operation, Region, Ids], PrimitiveCall | None] | None = None
    data: int | None = None
    dtypes: frozenset[str] = FLOATS
    reads_numbers: bool = False

    def call(self, head: Operation, region: Region, ids: Ids) -> PrimitiveCall | Problem:
        """Return the primitive of an operation in a region, or why it is not taken."""
        integers = self.lower_integers and self.lower_integers(head, region, ids)
        return integers or self.lower(head, ids)


_FLOAT_TAKES = frozenset((Follow.ELTWISE, Follow.BINARY, Follow.QUANTIZE))
_INTEGER_TAKES = _FLOAT_TAKES | {Follow.CAST}


def _product(name: str, op_type: str, lower: Lower) -> PrimitiveRow:
    integers = quantised.integer_product
    return PrimitiveRow(
        name, (op_type,), lower, _FLOAT_TAKES, is_heavy=True, lower_integers=integers
    )


def _integer_product(name: str, types: tuple[str, ...], lower: Lower) -> PrimitiveRow:
    dtypes = _INTEGERS | {"float32"}
    return PrimitiveRow(
        name, types, lower, _INTEGER_TAKES, is_heavy=True, dtypes=dtypes, reads_numbers=True
    )


TABLE: tuple[PrimitiveRow, ...] = (
    _product("convolution", "Conv", windows.lower_conv),
    PrimitiveRow(  # of floats alone: nothing lowers one of integers
        "deconvolution",
        ("ConvTranspose",),
        windows.lower_conv_transpose,
        _FLOAT_TAKES,
        is_heavy=True,
    ),
    _product("matrix product", "MatMul", products.lower_matmul),
    _product("inner product", "Gemm", products.lower_gemm),
    _integer_product(
        "integer convolution", ("ConvInteger", "QLinearConv"), quantised.lower_integer_conv
    ),
    _integer_product(
        "integer product", ("MatMulInteger", "QLinearMatMul"), quantised.lower_integer_matmul
    ),
    PrimitiveRow("average pooling", ("AveragePool",), windows.lower_pool),
    PrimitiveRow("max pooling", ("MaxPool",), windows.lower_pool, dtypes=FLOATS | BYTES),
    PrimitiveRow(
        "global pooling", ("GlobalAveragePool", "GlobalMaxPool"), windows.lower_global_pool
    ),
    PrimitiveRow("softmax", ("Softmax",), rows.lower_softmax, frozenset((Follow.ELTWISE,))),
    PrimitiveRow("gelu", ("Erf",), rows.refuse_part),
    PrimitiveRow("guarded softmax", ("IsNaN", "Where"), rows.refuse_part, data=0),
    PrimitiveRow("layer normalization", ("LayerNormalization",), rows.lower_layer_normalization),
    PrimitiveRow(
        "batch normalization",
        ("BatchNormalization",),
        pointwise.lower_batch_normalization,
        frozenset((Follow.ELTWISE,)),
    ),
    PrimitiveRow("local response normalization", ("LRN",), windows.lower_lrn),
    PrimitiveRow("eltwise", pointwise.UNARY, pointwise.lower_unary),
    PrimitiveRow(
        "binary",
        pointwise.BINARY,
        pointwise.lower_binary,
        _FLOAT_TAKES,
        lower_integers=quantised.integer_sum,
    ),
    PrimitiveRow("prelu", ("PRelu",), pointwise.lower_prelu),
    PrimitiveRow("concat", ("Concat",), rows.lower_concat, dtypes=FLOATS | BYTES),
    PrimitiveRow("reduction", rows.REDUCTIONS, rows.lower_reduction, data=1),
    PrimitiveRow("resampling", ("Resize",), windows.lower_resize, data=1),
    PrimitiveRow(
        "slice",
        ("Slice", "Split"),
        rows.lower_slice,
        data=1,
        dtypes=FLOATS | BYTES,
        reads_numbers=True,
    ),
    PrimitiveRow(
        "transpose",
        ("Transpose",),
        rows.lower_transpose,
        dtypes=FLOATS | BYTES,
    ),
    PrimitiveRow(
        "view",
        names_of(lambda operator: operator.view is ViewKind.RESHAPED),
        rows.lower_view,
        data=1,
        dtypes=FLOATS | BYTES,
    ),
    PrimitiveRow(
        "quantize",
        ("QuantizeLinear",),
        quantised.lower_quantize,
        dtypes=BYTES | {"float32"},
        reads_numbers=True,
    ),
    PrimitiveRow(
        "dequantize",
        ("DequantizeLinear",),
        quantised.lower_dequantize,
        dtypes=_INTEGERS | {"float32"},
        reads_numbers=True,
    ),
    PrimitiveRow("cast", ("Cast",), rows.lower_cast, dtypes=FLOATS | _INTEGERS),
)

_BY_TYPE = {op_type: entry for entry in TABLE for op_type in entry.types}


def entry_of(node: Node) -> PrimitiveRow | None:
    """Return the row of a node's operator, or None."""
    return _BY_TYPE.get(node.op_type) if not node.domain else None


def find_problem(graph: Graph, node: Node) -> Problem | None:
    """Say why the table does not take a node, or nothing."""
    nodes = chains_of(graph).get(node.id)
    if nodes is not None:
        result = graph.values[graph.nodes[nodes[-1]].outputs[0]]
        if result.is_static and result.nbytes and result.dtype in FLOATS and result.shape:
            return None
    return find_alone(graph, node)


def find_alone(graph: Graph, node: Node) -> Problem | None:
    """Say why the table does not take a node by itself, or nothing."""
    entry = entry_of(node)
    if entry is None:
        name = f"{node.domain or 'ai.onnx'}.{node.op_type}"
        return ReasonCode.UNSUPPORTED_OP, f"oneDNN has no primitive for {name}"
    operation = Operation(graph, node)
    if not operation.inputs or node.captured:
        return ReasonCode.UNSUPPORTED_OP, "it has no inputs"
    # Heads of chains read truth values and the like; `find_problem` has looked at the chain's
    # operand.
    problem = _find_bad_value(operation, entry) if entry.data != 0 else None
    if problem is not None:
        return problem
    lowered = entry.lower(operation, OpenNumbering())
    return None if isinstance(lowered, PrimitiveCall) else lowered


def _find_bad_value(operation: Operation, entry: PrimitiveRow) -> Problem | None:
    """Say which operand or result has a type or shape that the entry does not take."""
    for value in (*operation.inputs, *operation.outputs):
        if not value.is_static:
            return ReasonCode.DYNAMIC_SHAPE, f"the shape of {value.name!r} is not known"
    for value in (*operation.inputs[: entry.data], *operation.outputs):
        assert value.shape is not None
        if value.dtype not in entry.dtypes:
            reason = f"{value.name!r} is of {value.dtype}, not {_listed(entry.dtypes)}"
            return ReasonCode.UNSUPPORTED_DTYPE, reason
        if not value.nbytes:
            return ReasonCode.UNSUPPORTED_OP, f"{value.name!r} has no elements"
        if len(value.shape) > _MOST_DIMENSIONS:
            return ReasonCode.UNSUPPORTED_OP, f"{value.name!r} has {len(value.shape)} dimensions"
    if not operation.shape() and entry.name not in (Follow.ELTWISE, Follow.BINARY):
        return ReasonCode.UNSUPPORTED_OP, "its operand has no dimensions"
    return None


def _listed(dtypes: frozenset[str]) -> str:
    return " or ".join(sorted(dtypes))
