# SPDX-License-Identifier: Apache-2.0
"""The table of patterns: what the library computes, why a node is refused, what may follow.

Each entry is the head of a pattern: a primitive. Where `takes` is not empty, elementwise operators
after it become a part of it (`fusion.py`), so that `convolution` stands for Conv with bias,
residual sum, activation and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from intarsia.backends.dnnl import pointwise, products, quantised, rows, windows
from intarsia.backends.dnnl.chains import chains_of
from intarsia.backends.dnnl.lowering import Ids, Problem
from intarsia.backends.dnnl.numbering import Unnumbered
from intarsia.backends.dnnl.program import PrimitiveCall
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import ReasonCode
from intarsia.graph.graph import Graph, Node
from intarsia.graph.ops import ViewKind, names_of, operator_of

Lower: TypeAlias = Callable[[Operation, Ids], PrimitiveCall | Problem]

_MOST_DIMENSIONS = 6


class Follow(StrEnum):
    """What may be fused into a primitive."""

    ELTWISE = "eltwise"
    BINARY = "binary"
    CAST = "cast"
    QUANTIZE = "quantize"


FLOATS = frozenset(("float32", "float16", "bfloat16"))
_BYTES = frozenset(quantised.BYTES)
_INTEGERS = _BYTES | {"int32"}


@dataclass(frozen=True, slots=True)
class PatternHead:
    """The head of a pattern.

    Attributes:
        name: Printed as the reason of a placement.
        types: Operators.
        lower: Makes the primitive, or says why it is not taken.
        takes: What may follow and become a part of it.
        is_heavy: Whether it is worth more than what follows: it is asked first what it takes.
        data: How many of its inputs are tensors of numbers; the others are shapes and axes.
        dtypes: Element types of these and of its results.
        reads_numbers: Whether it is the numbers in constants that decide whether it is taken.
    """

    name: str
    types: tuple[str, ...]
    lower: Lower
    takes: frozenset[Follow] = frozenset()
    is_heavy: bool = False
    data: int | None = None
    dtypes: frozenset[str] = FLOATS
    reads_numbers: bool = False

    def keeps_integers(self, node: Node) -> bool:
        """Whether it does to scaled integers what a node does to the floats they stand for."""
        return self.dtypes >= _BYTES and operator_of(node).keeps_scale


_BOTH = frozenset((Follow.ELTWISE, Follow.BINARY))
_ALL = _BOTH | {Follow.QUANTIZE}

TABLE: tuple[PatternHead, ...] = (
    PatternHead("convolution", ("Conv",), windows.lower_conv, _ALL, is_heavy=True),
    PatternHead(
        "deconvolution", ("ConvTranspose",), windows.lower_conv_transpose, _ALL, is_heavy=True
    ),
    PatternHead("matrix product", ("MatMul",), products.lower_matmul, _ALL, is_heavy=True),
    PatternHead("inner product", ("Gemm",), products.lower_gemm, _ALL, is_heavy=True),
    PatternHead(
        "integer convolution",
        ("ConvInteger", "QLinearConv"),
        quantised.lower_integer_conv,
        frozenset((*_BOTH, Follow.CAST)),
        is_heavy=True,
        dtypes=_INTEGERS | {"float32"},
        reads_numbers=True,
    ),
    PatternHead(
        "integer product",
        ("MatMulInteger", "QLinearMatMul"),
        quantised.lower_integer_matmul,
        frozenset((*_BOTH, Follow.CAST)),
        is_heavy=True,
        dtypes=_INTEGERS | {"float32"},
        reads_numbers=True,
    ),
    PatternHead("average pooling", ("AveragePool",), windows.lower_pool),
    PatternHead("max pooling", ("MaxPool",), windows.lower_pool, dtypes=FLOATS | _BYTES),
    PatternHead(
        "global pooling", ("GlobalAveragePool", "GlobalMaxPool"), windows.lower_global_pool
    ),
    PatternHead("softmax", ("Softmax",), rows.lower_softmax, frozenset((Follow.ELTWISE,))),
    PatternHead("gelu", ("Erf",), rows.refuse_part),
    PatternHead("guarded softmax", ("IsNaN", "Where"), rows.refuse_part, data=0),
    PatternHead("layer normalization", ("LayerNormalization",), rows.lower_layer_normalization),
    PatternHead(
        "batch normalization",
        ("BatchNormalization",),
        pointwise.lower_batch_normalization,
        frozenset((Follow.ELTWISE,)),
    ),
    PatternHead("local response normalization", ("LRN",), windows.lower_lrn),
    PatternHead("eltwise", pointwise.UNARY, pointwise.lower_unary),
    PatternHead("binary", pointwise.BINARY, pointwise.lower_binary, _ALL),
    PatternHead("prelu", ("PRelu",), pointwise.lower_prelu),
    PatternHead("concat", ("Concat",), rows.lower_concat, dtypes=FLOATS | _BYTES),
    PatternHead("reduction", rows.REDUCTIONS, rows.lower_reduction, data=1),
    PatternHead("resampling", ("Resize",), windows.lower_resize, data=1),
    PatternHead(
        "slice",
        ("Slice", "Split"),
        rows.lower_slice,
        data=1,
        dtypes=FLOATS | _BYTES,
        reads_numbers=True,
    ),
    PatternHead(
        "transpose",
        ("Transpose",),
        rows.lower_transpose,
        dtypes=FLOATS | _BYTES,
    ),
    PatternHead(
        "view",
        names_of(lambda operator: operator.view is ViewKind.RESHAPED),
        rows.lower_view,
        data=1,
        dtypes=FLOATS | _BYTES,
    ),
    PatternHead(
        "quantize",
        ("QuantizeLinear",),
        quantised.lower_quantize,
        dtypes=_BYTES | {"float32"},
        reads_numbers=True,
    ),
    PatternHead(
        "dequantize",
        ("DequantizeLinear",),
        quantised.lower_dequantize,
        dtypes=_INTEGERS | {"float32"},
        reads_numbers=True,
    ),
    PatternHead("cast", ("Cast",), rows.lower_cast, dtypes=FLOATS | _INTEGERS),
)

_BY_TYPE = {op_type: entry for entry in TABLE for op_type in entry.types}


def entry_of(node: Node) -> PatternHead | None:
    """Return the entry of a node's operator, or None."""
    return _BY_TYPE.get(node.op_type) if not node.domain else None


def find_problem(graph: Graph, node: Node) -> Problem | None:
    """Say why the table does not take a node, or nothing."""
    chain = chains_of(graph).get(node.id)
    if chain is not None:
        source = graph.values[chain.source]
        if source.is_static and source.nbytes and source.dtype in FLOATS and source.shape:
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
    lowered = entry.lower(operation, Unnumbered())
    return None if isinstance(lowered, PrimitiveCall) else lowered


def _find_bad_value(operation: Operation, entry: PatternHead) -> Problem | None:
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
