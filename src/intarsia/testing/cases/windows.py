# SPDX-License-Identifier: Apache-2.0
"""Cases: convolutions, pooling and resizing; products, norms and reductions."""

from __future__ import annotations

from intarsia.testing.case import FLOATS, OperatorCase, case, constant, fed, given, weight

_BYTES = ("int8", "uint8")
_HALF = ("float32", "float16")
_IMAGE = fed(1, 4, 9, 7)

CONVOLUTION: tuple[OperatorCase, ...] = (
    case("Conv", "1x1", _IMAGE, weight(6, 4, 1, 1), dtypes=FLOATS),
    case("Conv", "3x3", _IMAGE, weight(6, 4, 3, 3), weight(6), dtypes=_HALF),
    case("Conv", "fed_weights", _IMAGE, fed(6, 4, 3, 3), fed(6)),
    case("Conv", "grouped_fed_weights", _IMAGE, fed(6, 2, 3, 2), pads=(1, 0, 2, 1), group=2),
    case("Conv", "1d_fed_weights", fed(2, 3, 11), fed(5, 3, 3), fed(5), dilations=(2,)),
    case("Conv", "3d_fed_weights", fed(1, 2, 5, 6, 5), fed(3, 2, 3, 2, 3), strides=(2, 1, 1)),
    case("Conv", "padded", _IMAGE, weight(6, 4, 3, 3), pads=(1, 1, 1, 1), dtypes=_HALF),
    case("Conv", "uneven_pads", _IMAGE, weight(6, 4, 3, 3), weight(6), pads=(0, 1, 2, 0)),
    case("Conv", "strided", _IMAGE, weight(6, 4, 3, 3), pads=(1, 1, 1, 1), strides=(2, 2)),
    case("Conv", "strides_differ", _IMAGE, weight(6, 4, 3, 3), strides=(1, 2)),
    case("Conv", "dilated", _IMAGE, weight(6, 4, 3, 3), pads=(2, 2, 2, 2), dilations=(2, 2)),
    case("Conv", "grouped", _IMAGE, weight(6, 2, 3, 3), weight(6), group=2),
    case("Conv", "depthwise", _IMAGE, weight(4, 1, 3, 3), pads=(1, 1, 1, 1), group=4, dtypes=_HALF),
    case("Conv", "depthwise_multiplied", _IMAGE, weight(8, 1, 3, 3), group=4),
    case("Conv", "kernel_differs", _IMAGE, weight(5, 4, 1, 5), pads=(0, 2, 0, 2)),
    case("Conv", "same_upper", _IMAGE, weight(6, 4, 3, 3), auto_pad="SAME_UPPER", strides=(2, 2)),
    case("Conv", "batch_of_3", fed(3, 3, 8, 8), weight(16, 3, 3, 3), pads=(1, 1, 1, 1)),
    case("Conv", "wide", fed(1, 32, 6, 6), weight(48, 32, 3, 3), weight(48), pads=(1,) * 4),
    case("Conv", "1d", fed(2, 3, 11), weight(5, 3, 3), weight(5), pads=(1, 1), dtypes=_HALF),
    case("Conv", "1d_strided", fed(1, 3, 11), weight(5, 3, 3), strides=(2,), dilations=(2,)),
    case("Conv", "one_channel_to_one_column", fed(3, 1, 7, 4), weight(6, 1, 3, 3), strides=(1, 2)),
    case(
        "Conv", "points_strided_padded", _IMAGE, weight(6, 4, 1, 1), strides=(2, 2), pads=(1,) * 4
    ),
    case("Conv", "constant_but_its_bias", weight(1, 2, 3, 3), weight(2, 2, 1, 1), fed(2)),
    case("Conv", "3d", fed(1, 2, 5, 6, 5), weight(3, 2, 3, 3, 3), pads=(1,) * 6),
    case("ConvTranspose", "plain", fed(1, 3, 4, 5), weight(3, 2, 3, 3), weight(2)),
    case("ConvTranspose", "strided", fed(1, 3, 4, 5), weight(3, 2, 2, 2), strides=(2, 2)),
    case(
        "ConvTranspose",
        "padded",
        fed(1, 3, 4, 5),
        weight(3, 2, 3, 3),
        strides=(2, 2),
        pads=(1, 1, 1, 1),
        output_padding=(1, 1),
    ),
    case("ConvTranspose", "grouped", fed(1, 4, 4, 5), weight(4, 1, 3, 3), group=2),
    case("ConvTranspose", "constant_but_its_bias", weight(1, 2, 3, 3), weight(2, 2, 1, 1), fed(2)),
    case("ConvTranspose", "fed_weights", fed(1, 3, 4, 5), fed(3, 2, 3, 3), fed(2), strides=(2, 2)),
    case("ConvTranspose", "grouped_fed_weights", fed(1, 4, 4, 5), fed(4, 3, 2, 3), group=2),
    case("ConvTranspose", "1d", fed(1, 3, 6), weight(3, 2, 4), strides=(2,), pads=(1, 1)),
)

POOLING: tuple[OperatorCase, ...] = (
    case("MaxPool", "2x2", _IMAGE, kernel_shape=(2, 2), strides=(2, 2), dtypes=FLOATS),
    case("MaxPool", "padded", _IMAGE, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    case("MaxPool", "ceil_mode", _IMAGE, kernel_shape=(2, 2), strides=(2, 2), ceil_mode=1),
    case(
        "MaxPool",
        "negative_values",
        fed(1, 2, 5, 5, low=-9, high=-5),
        kernel_shape=(3, 3),
        pads=(1, 1, 1, 1),
    ),
    case("MaxPool", "bytes", fed(1, 2, 9, 35), kernel_shape=(3, 3), strides=(1, 2), dtypes=_BYTES),
    case("MaxPool", "1d", fed(2, 3, 9), kernel_shape=(3,), strides=(2,)),
    case("MaxPool", "dilated", _IMAGE, kernel_shape=(2, 2), dilations=(2, 2)),
    case("AveragePool", "2x2", _IMAGE, kernel_shape=(2, 2), strides=(2, 2), dtypes=_HALF),
    case("AveragePool", "padded", _IMAGE, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    case(
        "AveragePool",
        "count_include_pad",
        _IMAGE,
        kernel_shape=(3, 3),
        pads=(1, 1, 1, 1),
        strides=(2, 2),
        count_include_pad=1,
    ),
    case(
        "AveragePool",
        "ceil_mode",
        fed(1, 2, 8, 8),
        kernel_shape=(3, 3),
        strides=(2, 2),
        ceil_mode=1,
    ),
    case(
        "AveragePool",
        "ceil_mode_count_include_pad",
        fed(1, 2, 8, 8),
        kernel_shape=(3, 3),
        strides=(2, 2),
        pads=(1, 1, 1, 1),
        ceil_mode=1,
        count_include_pad=1,
    ),
    case("AveragePool", "uneven_pads", fed(1, 2, 8, 8), kernel_shape=(3, 3), pads=(0, 1, 2, 1)),
    case("AveragePool", "1d", fed(2, 3, 9), kernel_shape=(3,), strides=(2,)),
    case("GlobalAveragePool", "plain", _IMAGE, dtypes=FLOATS),
    case("GlobalAveragePool", "1d", fed(2, 3, 7)),
    case("GlobalMaxPool", "plain", _IMAGE, dtypes=_HALF),
    *(
        case(
            op_type,
            f"window_in_the_padding_opset_{opset}",
            fed(1, 1, 3, 3),
            kernel_shape=(2, 2),
            strides=(2, 2),
            pads=(1, 1, 1, 1),
            ceil_mode=1,
            opset=opset,
        )
        for op_type in ("AveragePool", "MaxPool")
        for opset in (11, 22)
    ),
    case("LpPool", "plain", _IMAGE, kernel_shape=(2, 2), p=2),
    case("LRN", "plain", fed(1, 6, 4, 4), size=3, alpha=0.01, beta=0.75, bias=1.0),
)

_SMALL = fed(1, 2, 4, 5)
_DOUBLE = constant([1.0, 1.0, 2.0, 2.0], "float32")
_HALVED = constant([1.0, 1.0, 0.5, 0.4], "float32")
_SIZES = constant([1, 2, 7, 3])

RESIZING: tuple[OperatorCase, ...] = (
    case(
        "Resize",
        "nearest_asymmetric",
        _SMALL,
        None,
        _DOUBLE,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
        dtypes=("float32", "float16", "uint8"),
    ),
    case("Resize", "nearest_half_pixel", _SMALL, None, _DOUBLE, mode="nearest"),
    case(
        "Resize",
        "nearest_sizes",
        _SMALL,
        None,
        None,
        _SIZES,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    case("Resize", "linear_half_pixel", _SMALL, None, _DOUBLE, mode="linear", dtypes=_HALF),
    case(
        "Resize",
        "linear_align_corners",
        _SMALL,
        None,
        _DOUBLE,
        mode="linear",
        coordinate_transformation_mode="align_corners",
    ),
    case(
        "Resize",
        "linear_asymmetric",
        _SMALL,
        None,
        _DOUBLE,
        mode="linear",
        coordinate_transformation_mode="asymmetric",
    ),
    case(
        "Resize",
        "linear_pytorch_sizes",
        _SMALL,
        None,
        None,
        _SIZES,
        mode="linear",
        coordinate_transformation_mode="pytorch_half_pixel",
    ),
    case(
        "Resize",
        "linear_odd_scales",
        fed(1, 1, 6, 6),
        None,
        constant([1.0, 1.0, 0.6, 1.7], "float32"),
        mode="linear",
    ),
    case("Resize", "antialias", _SMALL, None, _HALVED, mode="linear", antialias=1),
    case("Resize", "exclude_outside", _SMALL, None, _DOUBLE, mode="cubic", exclude_outside=1),
    case("Resize", "cubic", _SMALL, None, _DOUBLE, mode="cubic"),
    case("Resize", "cubic_antialias", _SMALL, None, _HALVED, mode="cubic", antialias=1),
    case(
        "Resize",
        "crop",
        _SMALL,
        constant([0.0, 0.0, 0.25, -0.25, 1.0, 1.0, 0.75, 1.25], "float32"),
        _DOUBLE,
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=2.5,
    ),
    case("Upsample", "opset_9", _SMALL, _DOUBLE, mode="nearest", opset=9),
    case("DepthToSpace", "dcr", fed(1, 8, 2, 3), blocksize=2, mode="DCR"),
    case("DepthToSpace", "crd", fed(1, 8, 2, 3), blocksize=2, mode="CRD"),
    case("SpaceToDepth", "plain", fed(1, 2, 4, 6), blocksize=2),
)

WINDOWS: tuple[OperatorCase, ...] = (*CONVOLUTION, *POOLING, *RESIZING)


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
    case("MatMul", "many_rows", fed(2, 24, 20), weight(20, 33), dtypes=_HALF),
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
    case("Einsum", "two_summed", fed(2, 3, 4), weight(3, 4, 5), equation="bhd,hdm->bm"),
    case("Einsum", "diagonal", fed(2, 4, 4), equation="bii->bi"),
    case("Einsum", "three", fed(3, 4), fed(4, 5), fed(5, 2), equation="ij,jk,kl->il"),
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
    case("ReduceMax", "bool", fed(3, 5), constant([1]), dtypes=("bool",)),
    case("ReduceMin", "bool", fed(5, 3, 2), constant([0, 2]), keepdims=0, dtypes=("bool",)),
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
    case("TopK", "of_equals", given([[1.0, 3.0, 3.0, 1.0, 3.0]]), constant([4]), outputs=2),
    case("CumSum", "plain", fed(3, 5), constant(1, "int64")),
    case("CumSum", "exclusive_reverse", fed(3, 5), constant(0, "int64"), exclusive=1, reverse=1),
    case("CumProd", "plain", fed(3, 5), constant(1, "int64"), opset=26),
    case("CumProd", "reverse", fed(3, 5), constant(0, "int64"), exclusive=1, reverse=1, opset=26),
)

_SEQUENCE = fed(4, 3, 5)

RECURRENT: tuple[OperatorCase, ...] = (
    case("LSTM", "plain", _SEQUENCE, weight(1, 28, 5), weight(1, 28, 7), weight(1, 56), outputs=3),
    case(
        "LSTM",
        "both_ways",
        _SEQUENCE,
        weight(2, 12, 5),
        weight(2, 12, 3),
        None,
        None,
        fed(2, 3, 3),
        fed(2, 3, 3),
        outputs=3,
        direction="bidirectional",
    ),
    case("GRU", "plain", _SEQUENCE, weight(1, 12, 5), weight(1, 12, 4), weight(1, 24), outputs=2),
    case(
        "GRU",
        "linear_before_reset",
        _SEQUENCE,
        weight(1, 27, 5),
        weight(1, 27, 9),
        weight(1, 54),
        outputs=2,
        linear_before_reset=1,
        direction="reverse",
    ),
    case("RNN", "plain", _SEQUENCE, weight(1, 3, 5), weight(1, 3, 3), weight(1, 6), outputs=2),
)

LINEAR: tuple[OperatorCase, ...] = (*PRODUCTS, *NORMS, *REDUCTIONS, *RECURRENT)
