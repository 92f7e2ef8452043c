# SPDX-License-Identifier: Apache-2.0
"""Cases: matrix products, normalisations, softmax and reductions."""

from __future__ import annotations

from intarsia.testing.case import FLOATS, OperatorCase, case, constant, fed, given, weight

_HALF = ("float32", "float16")

PRODUCTS: tuple[OperatorCase, ...] = (
    case("MatMul", "2d", fed(3, 5), fed(5, 4), dtypes=(*FLOATS, "int32")),
    case("MatMul", "constant", fed(3, 20), weight(20, 10), dtypes=_HALF),
    case("MatMul", "constant_first", weight(10, 20), fed(20, 3)),
    case("MatMul", "batched", fed(2, 3, 4, 5), fed(2, 3, 5, 6), dtypes=_HALF),
    case("MatMul", "broadcast_batch", fed(2, 1, 4, 5), fed(3, 5, 6)),
    case("MatMul", "matrix_by_vector", fed(3, 5), fed(5)),
    case("MatMul", "vector_by_matrix", fed(5), fed(2, 5, 4)),
    case("MatMul", "vectors", fed(5), fed(5)),
    case("MatMul", "one_row", fed(1, 64), weight(64, 33)),
    case("MatMul", "empty_rows", fed(0, 5), fed(5, 4)),
    case("MatMul", "empty_sum", fed(3, 0), fed(0, 4)),
    case("Gemm", "plain", fed(3, 5), weight(5, 4), weight(4), dtypes=FLOATS),
    case("Gemm", "no_bias", fed(3, 5), weight(5, 4)),
    case("Gemm", "trans_a", fed(5, 3), weight(5, 4), weight(3, 1), transA=1),
    case("Gemm", "trans_b", fed(3, 5), weight(4, 5), weight(4), transB=1, dtypes=_HALF),
    case("Gemm", "trans_both", fed(5, 3), fed(4, 5), fed(3, 4), transA=1, transB=1),
    case("Gemm", "alpha_beta", fed(3, 5), fed(5, 4), fed(4), alpha=0.5, beta=2.0),
    case("Gemm", "scalar_bias", fed(3, 5), fed(5, 4), fed()),
    case("Einsum", "batched", fed(2, 3, 4), fed(2, 4, 5), equation="bij,bjk->bik"),
    case("Einsum", "attention", fed(1, 3, 2, 4), fed(1, 5, 2, 4), equation="bqhd,bkhd->bhqk"),
)

NORMS: tuple[OperatorCase, ...] = (
    case(
        "BatchNormalization",
        "2d",
        fed(2, 3, 4, 4),
        weight(3),
        weight(3),
        weight(3),
        weight(3, low=0.5, high=2),
        dtypes=("float32", "float64"),
    ),
    case(
        "BatchNormalization",
        "rank_2",
        fed(4, 3),
        weight(3),
        weight(3),
        weight(3),
        weight(3, low=0.5, high=2),
        epsilon=0.01,
    ),
    case(
        "BatchNormalization",
        "opset_9",
        fed(2, 3, 4, 4),
        weight(3),
        weight(3),
        weight(3),
        weight(3, low=0.5, high=2),
        opset=9,
    ),
    case("LayerNormalization", "last_axis", fed(2, 3, 8), weight(8), weight(8), dtypes=_HALF),
    case("LayerNormalization", "no_bias", fed(2, 3, 8), weight(8), epsilon=0.01),
    case("LayerNormalization", "axis_1", fed(2, 3, 8), weight(3, 8), weight(3, 8), axis=1),
    case("InstanceNormalization", "2d", fed(2, 3, 4, 5), weight(3), weight(3), dtypes=_HALF),
    case("InstanceNormalization", "1d", fed(2, 3, 9), weight(3), weight(3), epsilon=0.01),
    case("LpNormalization", "l2_of_small", fed(3, 5, low=-1e-4, high=1e-4), axis=-1, p=2),
    case("LpNormalization", "l2", fed(3, 5), axis=-1, p=2),
    case("LpNormalization", "l1", fed(3, 5), axis=0, p=1),
    case("Softmax", "last_axis", fed(2, 3, 7), axis=-1, dtypes=FLOATS),
    case("Softmax", "axis_1", fed(2, 3, 4, 4), axis=1),
    case("Softmax", "large_values", given([[800.0, 801.0, 799.0], [-900.0, -901.0, -902.0]])),
    case("Softmax", "opset_11", fed(2, 3, 4), axis=1, opset=11),
    case("LogSoftmax", "last_axis", fed(2, 3, 7), axis=-1, dtypes=_HALF),
    case("LogSoftmax", "axis_0", fed(4, 3), axis=0),
    case("Hardmax", "last_axis", fed(3, 5), axis=-1),
)

_REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
)
_EXACT = ("ReduceSum", "ReduceMax", "ReduceMin")

REDUCTIONS: tuple[OperatorCase, ...] = (
    *(
        case(
            op,
            "last_axis",
            fed(2, 3, 5),
            constant([-1]),
            dtypes=(*FLOATS, "int32", "int64") if op in _EXACT else _HALF,
        )
        for op in _REDUCTIONS
    ),
    *(case(op, "all", fed(2, 3, 5), keepdims=0) for op in _REDUCTIONS),
    case("ReduceLogSum", "axis_0", fed(4, 3, low=0.5, high=2), constant([0])),
    case("ReduceMean", "two_axes", fed(2, 3, 4, 5), constant([2, 3]), keepdims=0),
    case("ReduceMean", "opset_13", fed(2, 3, 4), axes=(1,), keepdims=1, opset=13),
    case(
        "ReduceSum", "no_axes_is_identity", fed(2, 3), constant([], "int64"), noop_with_empty_axes=1
    ),
    case("ReduceSum", "opset_11", fed(2, 3, 4), axes=(0, 2), keepdims=0, opset=11),
    case("ReduceSum", "of_nothing", fed(2, 0), constant([1])),
    case("ReduceMax", "uint8", fed(3, 5, high=200), constant([1]), dtypes=("uint8",)),
    case("ArgMax", "last_axis", fed(3, 7), axis=-1, keepdims=0, dtypes=("float32", "int32")),
    case("ArgMax", "first_of_equals", given([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]]), axis=1),
    case(
        "ArgMax",
        "last_of_equals",
        given([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]]),
        axis=1,
        select_last_index=1,
    ),
    case("ArgMin", "axis_0", fed(3, 7), axis=0),
    case("TopK", "largest", fed(3, 7), constant([3]), outputs=2, dtypes=("float32", "int64")),
    case("TopK", "smallest_axis_0", fed(5, 2), constant([2]), outputs=2, axis=0, largest=0),
    case("CumSum", "plain", fed(3, 5), constant(1, "int64")),
    case("CumSum", "exclusive_reverse", fed(3, 5), constant(0, "int64"), exclusive=1, reverse=1),
)

LINEAR: tuple[OperatorCase, ...] = (*PRODUCTS, *NORMS, *REDUCTIONS)
