# SPDX-License-Identifier: Apache-2.0
"""Cases: convolutions, pooling and resizing."""

from __future__ import annotations

from intarsia.testing.case import FLOATS, OperatorCase, case, constant, fed, weight

_HALF = ("float32", "float16")
_IMAGE = fed(1, 4, 9, 7)

CONVOLUTION: tuple[OperatorCase, ...] = (
    case("Conv", "1x1", _IMAGE, weight(6, 4, 1, 1), dtypes=FLOATS),
    case("Conv", "3x3", _IMAGE, weight(6, 4, 3, 3), weight(6), dtypes=_HALF),
    case("Conv", "fed_weights", _IMAGE, fed(6, 4, 3, 3), fed(6)),
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
            *(op_type, f"window_in_the_padding_opset_{opset}", fed(1, 1, 3, 3)),
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
    case("Upsample", "opset_9", _SMALL, _DOUBLE, mode="nearest", opset=9),
    case("DepthToSpace", "dcr", fed(1, 8, 2, 3), blocksize=2, mode="DCR"),
    case("DepthToSpace", "crd", fed(1, 8, 2, 3), blocksize=2, mode="CRD"),
    case("SpaceToDepth", "plain", fed(1, 2, 4, 6), blocksize=2),
)

WINDOWS: tuple[OperatorCase, ...] = (*CONVOLUTION, *POOLING, *RESIZING)
