# SPDX-License-Identifier: Apache-2.0
"""Cases: what moves elements and computes nothing."""

from __future__ import annotations

from intarsia.testing.case import ANY, OperatorCase, case, constant, fed

_SOME = ("float32", "int64", "bool")
_HALF = ("float32", "float16")

JOINING: tuple[OperatorCase, ...] = (
    case("Concat", "two", fed(2, 3), fed(2, 2), axis=1, dtypes=ANY),
    case("Concat", "three_negative_axis", fed(2, 3, 1), fed(2, 3, 2), fed(2, 3, 3), axis=-1),
    case("Concat", "with_an_empty", fed(2, 3), fed(0, 3), axis=0),
    case("Concat", "one", fed(2, 3), axis=0),
    case("Split", "halves", fed(2, 6), outputs=2, axis=1, num_outputs=2, dtypes=_SOME),
    case("Split", "uneven", fed(7, 2), constant([2, 1, 4]), outputs=3, axis=0),
    case("Split", "last_is_smaller", fed(7), outputs=2, num_outputs=2),
    case("Tile", "plain", fed(2, 3), constant([2, 1]), dtypes=_SOME),
    case("Expand", "plain", fed(3, 1), constant([2, 3, 4]), dtypes=_SOME),
    case("Expand", "keeps_larger", fed(2, 3), constant([1, 1])),
    case(
        "Pad",
        "constant",
        fed(2, 3),
        constant([1, 0, 0, 2]),
        constant(0.5, ""),
        mode="constant",
        dtypes=_HALF,
    ),
    case("Pad", "default_value", fed(2, 3), constant([0, 1, 1, 1]), dtypes=("float32", "int32")),
    case("Pad", "fed_value", fed(2, 3), constant([0, 1, 1, 1]), fed()),
    case("Pad", "reflect", fed(3, 4), constant([1, 2, 1, 2]), mode="reflect"),
    case("Pad", "edge", fed(3, 4), constant([1, 2, 1, 2]), mode="edge"),
    case("Pad", "crop", fed(3, 4), constant([0, -1, -1, 0])),
    case("Pad", "opset_10", fed(2, 3), pads=(1, 0, 0, 2), value=0.5, opset=10),
)

PICKING: tuple[OperatorCase, ...] = (
    case("Slice", "plain", fed(4, 6), constant([1, 0]), constant([3, 5]), dtypes=ANY),
    case(
        "Slice", "axes_steps", fed(4, 9), constant([1]), constant([8]), constant([1]), constant([3])
    ),
    case(
        "Slice", "backwards", fed(5), constant([-1]), constant([-9]), constant([0]), constant([-1])
    ),
    case("Slice", "negative_ends", fed(4, 6), constant([-3]), constant([-1]), constant([-1])),
    case("Slice", "to_the_end", fed(4, 6), constant([2]), constant([2**63 - 1]), constant([1])),
    case("Slice", "to_nothing", fed(4, 6), constant([2]), constant([2]), constant([0])),
    case("Slice", "opset_9", fed(4, 6), starts=(1,), ends=(3,), axes=(1,), opset=9),
    case("Gather", "axis_0", fed(5, 3), constant([[0, 4], [2, 2]]), dtypes=ANY),
    case("Gather", "axis_1", fed(2, 5, 3), constant([4, 0]), axis=1),
    case("Gather", "negative_index", fed(5), constant([-1, -5])),
    case("Gather", "scalar_index", fed(5, 3), constant(2), axis=0),
    case("Gather", "fed_indices", fed(5, 3), fed(4, low=0, high=4, dtype="int64")),
    case("Gather", "int32_indices", fed(5, 3), fed(4, low=0, high=4, dtype="int32")),
    case("GatherElements", "axis_1", fed(2, 3), constant([[0, 2], [1, -1]]), axis=1),
    case("GatherND", "pairs", fed(3, 4, 2), constant([[0, 1], [2, 3]])),
    case("ScatterND", "rows", fed(4, 2), constant([[1], [3]]), fed(2, 2)),
    case("ScatterElements", "axis_1", fed(2, 4), constant([[1, 3], [0, 2]]), fed(2, 2), axis=1),
    case(
        "OneHot",
        "plain",
        fed(3, low=0, high=3, dtype="int64"),
        constant(4),
        constant([0.0, 1.0], "float32"),
    ),
    case("Trilu", "upper", fed(4, 4)),
    case("Trilu", "lower_shifted", fed(2, 3, 4), constant(1), upper=0),
)

RESHAPING: tuple[OperatorCase, ...] = (
    case("Transpose", "default", fed(2, 3), dtypes=ANY),
    case("Transpose", "nchw_to_nhwc", fed(2, 3, 4, 5), perm=(0, 2, 3, 1), dtypes=_HALF),
    case("Transpose", "heads", fed(1, 4, 2, 3), perm=(0, 2, 1, 3)),
    case("Transpose", "rank_5", fed(2, 1, 3, 2, 2), perm=(4, 2, 0, 3, 1)),
    case("Reshape", "plain", fed(2, 6), constant([3, 4]), dtypes=ANY),
    case("Reshape", "deduced", fed(2, 3, 4), constant([0, -1])),
    case("Reshape", "to_scalar", fed(1, 1), constant([], "int64")),
    case("Reshape", "empty_allowzero", fed(0, 3), constant([3, 0]), allowzero=1),
    case("Flatten", "axis_1", fed(2, 3, 4)),
    case("Flatten", "axis_0", fed(2, 3), axis=0),
    case("Squeeze", "axes", fed(1, 3, 1), constant([0, 2]), dtypes=_SOME),
    case("Squeeze", "all", fed(1, 3, 1)),
    case("Squeeze", "opset_11", fed(1, 3), axes=(0,), opset=11),
    case("Unsqueeze", "axes", fed(3), constant([0, 2]), dtypes=_SOME),
    case("Unsqueeze", "negative", fed(3, 2), constant([-1])),
    case("Unsqueeze", "scalar", fed(), constant([0])),
    case("Shape", "plain", fed(2, 3, 4)),
    case("Size", "plain", fed(2, 3, 4)),
    case("EyeLike", "plain", fed(3, 4)),
)

MOVEMENT: tuple[OperatorCase, ...] = (*JOINING, *PICKING, *RESHAPING)
