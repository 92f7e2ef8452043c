# SPDX-License-Identifier: Apache-2.0
"""Cases: element by element, with broadcasting, and what moves elements."""

from __future__ import annotations

from intarsia.testing.case import (
    ANY,
    FLOATS,
    NUMBERS,
    OperatorCase,
    case,
    constant,
    fed,
    given,
    weight,
)

_DOMAINS: dict[str, tuple[float, float]] = {
    "Abs": (-2, 2),
    "Acos": (-0.9, 0.9),
    "Acosh": (1.1, 3),
    "Asin": (-0.9, 0.9),
    "Asinh": (-2, 2),
    "Atan": (-2, 2),
    "Atanh": (-0.9, 0.9),
    "Ceil": (-2, 2),
    "Celu": (-2, 2),
    "Cos": (-3, 3),
    "Cosh": (-2, 2),
    "Elu": (-2, 2),
    "Erf": (-2, 2),
    "Exp": (-2, 2),
    "Floor": (-2, 2),
    "Gelu": (-2, 2),
    "HardSigmoid": (-4, 4),
    "HardSwish": (-4, 4),
    "Identity": (-2, 2),
    "LeakyRelu": (-2, 2),
    "Log": (0.1, 3),
    "Mish": (-2, 2),
    "Neg": (-2, 2),
    "Reciprocal": (0.5, 2),
    "Relu": (-2, 2),
    "Selu": (-2, 2),
    "Sigmoid": (-4, 4),
    "Sign": (-2, 2),
    "Sin": (-3, 3),
    "Sinh": (-2, 2),
    "Softplus": (-2, 2),
    "Softsign": (-2, 2),
    "Sqrt": (0.1, 4),
    "Tan": (-1, 1),
    "Tanh": (-2, 2),
    "ThresholdedRelu": (-2, 2),
}
"""Operators of one input, with the values for which they are tame."""

_COMMON = ("Exp", "Relu", "Sigmoid", "Sqrt", "Tanh")
_UNARY_DTYPES = {
    "Abs": (*NUMBERS, "uint8"),
    "Identity": ANY,
    "Neg": NUMBERS,
    "Sign": NUMBERS,
    "Celu": ("float32",),
    **dict.fromkeys(_COMMON, FLOATS),
}

UNARY: tuple[OperatorCase, ...] = (
    *(
        case(
            op_type,
            "plain",
            fed(2, 3, 5, low=low, high=high),
            dtypes=_UNARY_DTYPES.get(op_type, ("float32", "float16")),
        )
        for op_type, (low, high) in _DOMAINS.items()
    ),
    case("Gelu", "tanh", fed(2, 9), approximate="tanh"),
    case("Elu", "alpha", fed(2, 9), alpha=0.5),
    case("LeakyRelu", "alpha", fed(2, 9), alpha=0.2),
    case("HardSigmoid", "alpha_beta", fed(2, 9, low=-4, high=4), alpha=0.3, beta=0.4),
    case("HardSigmoid", "alpha_of_0", fed(2, 9), alpha=0.0),
    case("HardSigmoid", "beta_of_0", fed(2, 9), beta=0.0),
    case("Selu", "alpha_of_0", fed(2, 9), alpha=0.0),
    case("Selu", "gamma_of_0", fed(2, 9), gamma=0.0),
    case("Selu", "alpha_gamma", fed(2, 9), alpha=1.2, gamma=0.9),
    case("Round", "halves", given([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.4, -0.6])),
    case("IsNaN", "plain", given([float("nan"), 1.0, float("inf")])),
    case("IsInf", "plain", given([float("nan"), 1.0, float("inf"), float("-inf")])),
    case("Not", "plain", fed(2, 7), dtypes=("bool",)),
    case("Identity", "large_integers", given([2**40 + 1, -(2**35), 7]), dtypes=("int64",)),
    case("Relu", "scalar", fed(), dtypes=("float32", "float16")),
    case("Relu", "empty", fed(0, 3)),
    case("Sigmoid", "one_element", fed(1)),
    case("Tanh", "rank_6", fed(1, 2, 1, 3, 1, 2)),
    case("Exp", "odd_length", fed(37)),
    case("Clip", "both", fed(2, 5), constant(-0.5, ""), constant(0.75, ""), dtypes=FLOATS),
    case(
        "Clip",
        "integers",
        fed(9, low=-9, high=9),
        constant(-3, ""),
        constant(4, ""),
        dtypes=("int32", "int64"),
    ),
    case("Clip", "no_lower_end", fed(2, 5), None, constant(0.5, "")),
    case("Clip", "no_upper_end", fed(2, 5), constant(-0.5, "")),
    case("Clip", "fed_ends", fed(2, 5), fed(low=-1, high=-0.5), fed(low=0.5, high=1)),
    case("Clip", "opset_6", fed(2, 5), min=0.0, max=1.5, opset=6),
    case("Dropout", "inference", fed(2, 5)),
)

_ARITHMETIC = ("Add", "Sub", "Mul", "Max", "Min")

BINARY: tuple[OperatorCase, ...] = (
    *(case(op, "same", fed(2, 3, 4), fed(2, 3, 4), dtypes=NUMBERS) for op in _ARITHMETIC),
    *(case(op, "row", fed(2, 3, 4), fed(4)) for op in _ARITHMETIC),
    *(case(op, "both_ways", fed(2, 1, 4), fed(3, 1)) for op in _ARITHMETIC),
    case("Add", "scalar", fed(2, 3), fed(), dtypes=("float32", "int64")),
    case("Add", "scalars", fed(), fed()),
    case("Add", "empty", fed(0, 3), fed(1, 3)),
    case("Add", "channels", fed(2, 3, 4, 4), weight(3, 1, 1)),
    case("Add", "constant", fed(2, 130), weight(130)),
    case("Add", "uint8", fed(9, high=99), fed(9, high=99), dtypes=("uint8",)),
    case("Add", "large_integers", given([2**40, -(2**50)]), given([3, 5]), dtypes=("int64",)),
    case("Mul", "constant_first", weight(3, 1), fed(3, 4)),
    case("Div", "same", fed(2, 3, 4), fed(2, 3, 4, low=1, high=3), dtypes=FLOATS),
    case("Div", "row", fed(2, 3, 4), fed(4, low=1, high=3)),
    case(
        "Div",
        "positive_integers",
        fed(12, low=0, high=20),
        fed(12, low=1, high=5),
        dtypes=("int32", "int64", "uint8"),
    ),
    case("Pow", "plain", fed(2, 5, low=0.5, high=2), fed(5), dtypes=FLOATS),
    case("Pow", "square", fed(2, 5), constant(2.0, "")),
    case("Pow", "integer_exponent", fed(2, 5), constant(3)),
    case("PRelu", "channels", fed(2, 3, 4, 4), weight(3, 1, 1), dtypes=("float32", "float16")),
    case("PRelu", "last_axis", fed(1, 4, 2, 4), weight(4)),
    case("PRelu", "one_slope", fed(2, 5), weight(1)),
    case(
        "Mod",
        "integers",
        given([-7, 7, -7, 7, 5]),
        given([3, 3, -3, -3, 5]),
        dtypes=("int32", "int64"),
    ),
    case("Mod", "fmod_of_large", given([1072356.5, -70000.25]), given([-0.28125, 3.5]), fmod=1),
    case(
        *("Mod", "fmod_of_doubles"),
        given([-4.3, 7.2, 5.0, 4.3, -7.2, 8.0], "float64"),
        given([2.1, -3.4, 8.0, -2.1, 3.4, 5.0], "float64"),
        fmod=1,
    ),
    case("Mod", "fmod", given([-7.5, 7.5, 5.25]), given([2.0, -2.0, 3.0]), fmod=1),
    case("Sum", "three", fed(2, 4), fed(4), fed(2, 1)),
    case("Mean", "three", fed(2, 4), fed(4), fed(2, 1)),
    case("Max", "three", fed(2, 4), fed(4), fed(2, 1)),
    case("Min", "one", fed(2, 4)),
    case("And", "row", fed(2, 4), fed(4), dtypes=("bool",)),
    case("Or", "row", fed(2, 4), fed(4), dtypes=("bool",)),
    case("Xor", "row", fed(2, 4), fed(4), dtypes=("bool",)),
    case(
        "BitwiseAnd",
        "plain",
        fed(9, low=0, high=99),
        fed(9, low=0, high=99),
        dtypes=("int32", "uint8"),
    ),
)

_ORDER = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")

LOGIC: tuple[OperatorCase, ...] = (
    *(
        case(
            op,
            "row",
            given([[1, 2, 3], [3, 2, 1]]),
            given([2, 2, 1]),
            dtypes=("float32", "float16", "int32", "int64"),
        )
        for op in ("Equal", *_ORDER)
    ),
    case("Equal", "bool", fed(2, 4), fed(4), dtypes=("bool",)),
    case(
        "Where",
        "both_ways",
        fed(2, 1, dtype="bool"),
        fed(1, 4),
        fed(2, 4),
        dtypes=("float32", "float16", "int64", "uint8"),
    ),
    case("Where", "scalar", fed(2, 4, dtype="bool"), fed(2, 4), constant(-100.0, "")),
)

CASTS: tuple[OperatorCase, ...] = (
    case("Cast", "float_to_int32", fed(9, low=-9, high=9), to=6, dtypes=("float32", "float16")),
    case("Cast", "float_to_int64", fed(9, low=-9, high=9), to=7, dtypes=("float32", "float64")),
    case("Cast", "float_to_uint8", fed(9, low=0, high=200), to=2),
    case("Cast", "to_bool", given([0.0, 0.25, -3.0, 1.0]), to=9),
    case(
        "Cast",
        "to_float32",
        fed(9, low=-9, high=9),
        to=1,
        dtypes=("float16", "float64", "int32", "int64", "uint8", "bool"),
    ),
    case("Cast", "to_float16", fed(9), to=10, dtypes=("float32", "int64")),
    case("Cast", "to_float64", fed(9), to=11),
    case("Cast", "int64_to_int32", fed(9, low=-9, high=9), to=6, dtypes=("int64",)),
    case("Cast", "bool_to_int64", fed(9), to=7, dtypes=("bool",)),
    case("CastLike", "to_int32", fed(9, low=-9, high=9), fed(1, dtype="int32")),
    case("QuantizeLinear", "uint8", fed(2, 9), constant(0.05, "float32"), constant(100, "uint8")),
    case(
        "DequantizeLinear",
        "uint8",
        fed(2, 9, high=255),
        constant(0.05, "float32"),
        constant(100, "uint8"),
        dtypes=("uint8",),
    ),
)

ELEMENTWISE: tuple[OperatorCase, ...] = (*UNARY, *BINARY, *LOGIC, *CASTS)


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
    case("OneHot", "floats", given([0.0, 2.0, -1.0]), constant(4), constant([0.0, 1.0], "float32")),
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
