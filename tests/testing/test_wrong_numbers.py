# SPDX-License-Identifier: Apache-2.0
"""Each class of wrong numbers that was ever found, on every target: right, or as a rule states.

Right is what ONNX Runtime without optimisations says, or the ONNX reference evaluator, up to
rounding. Where numbers decide, a difference has to fall under a rule of the class that is named
here; everywhere else there may be none.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest

from intarsia.backends.defects import Values
from intarsia.testing.differential.judging import GraphVerdict, Judged
from intarsia.testing.differential.mended import REPRODUCERS, UNSEEN
from intarsia.testing.differential.sight import switches

NAN, INF = float("nan"), float("inf")
BOUND = "bound"
TARGETS = ("llvm", "dnnl, llvm", "openvino, onnxruntime", "onnxruntime")


@dataclass(frozen=True)
class Case:
    """A small model, its inputs, and the class of numbers with which backends may differ."""

    name: str
    text: str
    feeds: dict
    stated: dict = field(default_factory=dict)
    opset: int = 17


def floats(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)


def draw(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


ODD = floats(NAN, 1.0, -2.0, 0.5)
TINY = floats(1e-40, -3e-39, 1.0, 2.0)
LARGE = floats(3e38, -3e38, 2e38, 1.0, -2e38, 3e38)
FAR = floats(1e30, -3e25, 2.0**60, 1.0, -INF)
BOTH_NAN = {"dnnl": Values.NAN, "openvino": Values.NAN}
ALL_HUGE = dict.fromkeys(("llvm", "dnnl", "openvino", "onnxruntime"), Values.HUGE)
NORMAL = dict.fromkeys(("llvm", "openvino", "onnxruntime"), Values.HUGE)

SPECIAL = [
    Case(
        "clip_nan",
        "g (float[4] x) => (float[4] y) <float a = {0.0}, float b = {2.0}> { y = Clip(x, a, b) }",
        {"x": ODD},
        BOTH_NAN,
    ),
    Case(
        "clip_half_nan",
        "g (float16[4] x, float16 a) => (float16[4] y) { y = Clip(x, a) }",
        {"x": ODD.astype(np.float16), "a": np.array(-1, np.float16)},
        BOTH_NAN,
    ),
    Case("relu_nan", "g (float[4] x) => (float[4] y) { y = Relu(x) }", {"x": ODD}, BOTH_NAN),
    Case(
        "hard_sigmoid_nan",
        "g (float[4] x) => (float[4] y) { y = HardSigmoid(x) }",
        {"x": ODD},
        BOTH_NAN,
    ),
    Case(
        "max_nan",
        "g (float[4] x, float[4] z) => (float[4] y) { y = Max(x, z) }",
        {"x": ODD, "z": ODD[::-1].copy()},
        BOTH_NAN,
    ),
    Case("exp_nan", "g (float[4] x) => (float[4] y) { y = Exp(x) }", {"x": ODD}, BOTH_NAN),
    Case(
        "sigmoid_nan_behind_conv",
        """g (float[1,1,3,4] x) => (float[1,2,2,3] y) <float[2,1,2,2] w = {1,2,3,4,5,6,7,8}>
        { c = Conv(x, w) y = Sigmoid(c) }""",
        {"x": np.where(np.arange(12) == 1, NAN, draw(12)).reshape(1, 1, 3, 4).astype("f")},
        {**BOTH_NAN, "llvm": Values.NAN},
    ),
    Case(
        "max_pool_nan",
        "g (float[1,1,2,3] x) => (float[1,1,2,2] y) { y = MaxPool <kernel_shape = [1, 2]> (x) }",
        {"x": floats(NAN, 1, 2, -1, NAN, 5).reshape(1, 1, 2, 3)},
        {**BOTH_NAN, "llvm": Values.NAN, "onnxruntime": Values.NAN},
    ),
    Case(
        "max_pool_infinite",
        "g (float[1,1,1,3] x) => (float[1,1,1,2] y) { y = MaxPool <kernel_shape = [1, 2]> (x) }",
        {"x": floats(-INF, -INF, INF).reshape(1, 1, 1, 3)},
        {"openvino": Values.INFINITE, "dnnl": Values.INFINITE},
    ),
    Case(
        "conv_transpose_nan",
        """g (float[1,1,2,2] x) => (float[1,1,4,4] y) <float[1,1,2,2] w = {1,2,3,4}>
        { y = ConvTranspose <strides = [2, 2]> (x, w) }""",
        {"x": floats(NAN, 1, -INF, 2).reshape(1, 1, 2, 2)},
        {"openvino": Values.NAN},
    ),
    Case(
        "top_k_nan",
        """g (float[4] x) => (float[2] y, int64[2] i) <int64[1] k = {2}>
        { y, i = TopK(x, k) }""",
        {"x": ODD},
        {"openvino": Values.NAN},
    ),
    Case(
        "softmax_nan",
        "g (float[2,3] x) => (float[2,3] y) { y = Softmax <axis = -1> (x) }",
        {"x": floats(NAN, 1, 2, 0.5, 1, 2).reshape(2, 3)},
        BOTH_NAN,
    ),
    Case(
        "log_softmax_infinite",
        "g (float16[2,3] x) => (float16[2,3] y) { y = LogSoftmax <axis = -1> (x) }",
        {"x": floats(INF, 1, 2, -INF, 1, 2, dtype=np.float16).reshape(2, 3)},
        {"openvino": Values.INFINITE, "dnnl": Values.INFINITE},
    ),
    Case(
        "quantize_nan",
        """g (float[4] x) => (int8[4] y) <float s = {0.5}, int8 z = {0}>
        { y = QuantizeLinear(x, s, z) }""",
        {"x": floats(NAN, NAN, 1, -3)},
        {"dnnl": Values.NAN},
    ),
    Case(
        "cos_far", "g (float[5] x) => (float[5] y) { y = Cos(x) }", {"x": FAR}, {"llvm": Values.FAR}
    ),
    Case(
        "sin_far", "g (float[5] x) => (float[5] y) { y = Sin(x) }", {"x": FAR}, {"llvm": Values.FAR}
    ),
    Case(
        "log_subnormal",
        "g (float[2] x) => (float[2] y) { y = Log(x) }",
        {"x": floats(1e-40, 2.0)},
        {"dnnl": Values.SUBNORMAL},
    ),
    Case(
        "div_subnormal",
        "g (float[4] x, float[4] z) => (float[4] y) { y = Div(x, z) }",
        {"x": TINY, "z": TINY},
        {"openvino": Values.SUBNORMAL},
    ),
    Case(
        "less_subnormal",
        "g (float[4] x) => (bool[4] y) <float c = {0.0}> { y = Less(x, c) }",
        {"x": TINY},
        {"openvino": Values.SUBNORMAL},
    ),
    Case(
        "mul_subnormal_infinite",
        "g (float[2] x, float[2] z) => (float[2] y) { y = Mul(x, z) }",
        {"x": floats(1e-40, 1), "z": floats(INF, 1)},
        {"openvino": Values.SUBNORMAL},
    ),
    Case(
        "gemm_overflows",
        """g (float[1,6] x) => (float[1,2] y) <float[2] b = {1.0, -1.0}>
        { w = Constant <value = float[6,2] {2,-2,2,2,-2,2,1,1,2,-2,2,2}> () y = Gemm(x, w, b) }""",
        {"x": LARGE[None]},
        ALL_HUGE,
    ),
    Case(
        "mat_mul_overflows",
        "g (float[2,6] x, float[6,3] w) => (float[2,3] y) { y = MatMul(x, w) }",
        {"x": np.stack([LARGE, LARGE[::-1]]), "w": draw(6, 3) * np.float32(3)},
        ALL_HUGE,
    ),
    Case(
        "conv_transpose_overflows",
        """g (float[1,6,2,2] x, float[6,1,2,2] w) => (float[1,1,3,3] y)
        { y = ConvTranspose(x, w) }""",
        {"x": np.repeat(LARGE, 4).reshape(1, 6, 2, 2), "w": draw(6, 1, 2, 2) * np.float32(3)},
        ALL_HUGE,
    ),
    Case(
        "group_normalization_huge",
        """g (float[1,2,3] x) => (float[1,2,3] y) <float[2] s = {1.0, 2.0}, float[2] b = {0.0, 1.0}>
        { y = GroupNormalization <num_groups = 1> (x, s, b) }""",
        {"x": LARGE.reshape(1, 2, 3)},
        NORMAL,
        21,
    ),
    Case(
        "group_normalization_double",
        """g (double[1,2,3] x) => (double[1,2,3] y)
        <double[2] s = {1.0, 2.0}, double[2] b = {0.0, 1.0}>
        { y = GroupNormalization <num_groups = 1> (x, s, b) }""",
        {"x": draw(1, 2, 3, dtype=np.float64)},
        {"llvm": BOUND},
        21,
    ),
    Case(
        "quantised_convolution",
        """g (uint8[1,2,4,4] q) => (uint8[1,3,4,4] y)
        <float s = {0.02}, uint8 z = {128}, float ws = {0.01}, int8 wz = {0},
        int8[3,2,1,1] wq = {90, -70, 50, 33, -120, 127}, float[3] b = {0.123, -0.456, 0.789}>
        { d = DequantizeLinear(q, s, z) w = DequantizeLinear(wq, ws, wz)
        c = Conv(d, w, b) y = QuantizeLinear(c, s, z) }""",
        {"q": (np.arange(32) * 8 % 256).astype(np.uint8).reshape(1, 2, 4, 4)},
        {"onnxruntime": BOUND, "dnnl": BOUND},
    ),
]

RIGHT = [
    Case(
        "greater_nan",
        "g (float[4] x) => (bool[4] y) <float c = {0.0}> { y = Greater(x, c) }",
        {"x": ODD},
    ),
    Case(
        "shrink_infinite",
        "g (float[3] x) => (float[3] y) { y = Shrink <bias = 0.3, lambd = 1.0> (x) }",
        {"x": floats(-INF, INF, 0.5)},
    ),
    Case(
        "thresholded_relu_infinite",
        "g (float[3] x) => (float[3] y) { y = ThresholdedRelu <alpha = 0.5> (x) }",
        {"x": floats(-INF, INF, 1)},
    ),
    Case(
        "celu_of_alpha_zero",
        "g (float[4] x) => (float[4] y) { y = Celu <alpha = 0.0> (x) }",
        {"x": floats(1, -1, 2, -3)},
    ),
    Case(
        "hard_sigmoid_beta_zero",
        "g (float[2] x) => (float[2] y) { y = HardSigmoid <alpha = 0.5, beta = 0.0> (x) }",
        {"x": floats(0.5, 1)},
    ),
    Case(
        "mod_behind_convolution",
        """g (float[2,7,9] x, float[4,7,3] w, float[2,4,7] z) => (float[2,4,7] y)
        { c = Conv(x, w) y = Mod <fmod = 1> (c, z) }""",
        {"x": draw(2, 7, 9), "w": draw(4, 7, 3), "z": draw(2, 4, 7, seed=1)},
    ),
    Case(
        "mod_of_large_quotients",
        "g (float[2] x, float[2] z) => (float[2] y) { y = Mod <fmod = 1> (x, z) }",
        {"x": floats(1072356.6, -1e6), "z": floats(-0.28788877, 0.3)},
    ),
    Case(
        "second_quantisation",
        """g (float[8] x) => (float[8] y) <float s = {0.5}, uint8 z = {3}, float t = {0.125},
        uint8 u = {200}> { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        r = QuantizeLinear(d, t, u) y = DequantizeLinear(r, t, u) }""",
        {"x": draw(8) * np.float32(3)},
    ),
    Case(
        "hardmax_half_ties",
        "g (float16[1,36] x) => (float16[1,36] y) { y = Hardmax <axis = 1> (x) }",
        {"x": np.tile(floats(0, 0.5, 0.25, 0.5, dtype=np.float16), 9)[None]},
    ),
    Case(
        "layer_normalization_half",
        """g (float16[4,32] x, float16[32] s) => (float16[4,32] y)
        { y = LayerNormalization <axis = -1> (x, s) }""",
        {
            "x": draw(4, 32, dtype=np.float16) * np.float16(8) + np.float16(30),
            "s": draw(32, dtype=np.float16),
        },
    ),
    Case(
        "pad_of_fed_value",
        "g (float[1,2] x, float v) => (float[1,4] y) <int64[4] p = {0,1,0,1}> { y = Pad(x, p, v) }",
        {"x": np.ones((1, 2), np.float32), "v": np.array(7, np.float32)},
    ),
    Case(
        "prelu_slope_of_last_axis",
        "g (float[1,4,2,4] x) => (float[1,4,2,4] y) <float[4] s = {1,2,3,4}> { y = PRelu(x, s) }",
        {"x": -np.ones((1, 4, 2, 4), np.float32)},
    ),
    *(
        Case(
            f"resize_{mode}_antialias_{antialias}",
            f"""g (float[1,1,8] x) => (float[1,1,N] y) <float[3] k = {{1.0, 1.0, 0.4}}>
            {{ y = Resize <mode = "linear", coordinate_transformation_mode = "{mode}",
            antialias = {antialias}> (x, , k) }}""",
            {"x": draw(1, 1, 8)},
            opset=18,
        )
        for mode in ("half_pixel", "align_corners", "asymmetric")
        for antialias in (0, 1)
    ),
    Case(
        "lp_normalization_small",
        "g (float[2,1] x) => (float[2,1] y) { y = LpNormalization <axis = -1, p = 2> (x) }",
        {"x": floats(1e-5, 1).reshape(2, 1)},
    ),
    Case(
        "log_sum_exp_near_zero",
        "g (float[3] x) => (float[1] y) { y = ReduceLogSumExp(x) }",
        {"x": np.full(3, -np.log(3.0), np.float32)},
    ),
    Case(
        "log_sum_exp_of_equal_values",
        "g (float[2,5] x) => (float[2,1] y) { y = ReduceLogSumExp <axes = [1]> (x) }",
        {"x": np.full((2, 5), 1000, np.float32)},
        opset=13,
    ),
    Case(
        "fed_bias_of_constant_convolution",
        """g (float[2] b) => (float[1,2,2,2] y)
        <float[1,2,2,2] x = {1,1,1,1,1,1,1,1}, float[2,2,1,1] w = {1,1,1,1}>
        { y = Conv(x, w, b) }""",
        {"b": floats(1, 10)},
    ),
    *(
        Case(
            f"convolution_of_one_channel_to_one_column_{weights}",
            f"""g (float[1,1,7,4] x{fed}) => (float[1,5,5,1] y) {given}
            {{ y = Conv <strides = [1, 2]> (x, w) }}""",
            {"x": draw(1, 1, 7, 4), **feeds},
        )
        for weights, fed, given, feeds in (
            ("fed", ", float[5,1,3,3] w", "", {"w": draw(5, 1, 3, 3)}),
            ("constant", "", f"<float[5,1,3,3] w = {{{', '.join(map(str, range(45)))}}}>", {}),
        )
    ),
    Case(
        "convolution_of_nothing",
        """g (float[1,1,0,2] x) => (float[1,2,1,3] y) <float[2,1,2,2] w = {1,1,1,1,1,1,1,1},
        float[2] b = {5, 6}> { y = Conv <pads = [1,1,1,1]> (x, w, b) }""",
        {"x": np.zeros((1, 1, 0, 2), np.float32)},
    ),
    Case(
        "minimum_of_nothing",
        "g (float[0,2] x) => (float[1,2] y) { y = ReduceMin <axes = [0]> (x) }",
        {"x": np.zeros((0, 2), np.float32)},
        opset=13,
    ),
    Case(
        "transpose_of_nothing",
        "g (float16[0,1] x) => (float16[1,0] y) { y = Transpose <perm = [1, 0]> (x) }",
        {"x": np.zeros((0, 1), np.float16)},
    ),
    Case(
        "view_of_a_reduction",
        """g (float[2,3,4] x) => (float[1,12] y)
        { m = ReduceMean <axes = [0], keepdims = 0> (x) y = Flatten <axis = -2> (m) }""",
        {"x": draw(2, 3, 4)},
    ),
    Case(
        "quotient_of_dequantised_zeros",
        """g (uint8[3] q) => (float[3] y) <float s = {0.0869721}, uint8 z = {85}, float o = {1.0}>
        { d = DequantizeLinear(q, s, z) y = Div(o, d) }""",
        {"q": np.array([85, 86, 84], np.uint8)},
    ),
    *(
        Case(
            f"dequantised_points_pads_{pads}",
            f"""g (int8[1,1,4,4] q) => (float[1,1,N,M] y)
            <float s = {{1.0}}, int8 z = {{0}}, float[1,1,1,1] w = {{1.0}}>
            {{ d = DequantizeLinear(q, s, z)
            y = Conv <strides = [2, 2], pads = {list(map(int, pads))}> (d, w) }}""",
            {"q": np.arange(16, dtype=np.int8).reshape(1, 1, 4, 4)},
        )
        for pads in ("0000", "1000", "1100", "1111")
    ),
    *(
        Case(
            f"{op}_with_a_window_in_the_padding_{opset}",
            f"""g (float[1,1,3,3] x) => (float[1,1,2,2] y) {{ y = {op} <kernel_shape = [2, 2],
            strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1> (x) }}""",
            {"x": draw(1, 1, 3, 3)},
            opset=opset,
        )
        for op in ("MaxPool", "AveragePool")
        for opset in (10, 19, 22)
    ),
    Case(
        "size_of_an_old_operator_set",
        "g (float[2,3] x) => (int64[2] y, int64 z) { y = Shape(x) z = Size(x) }",
        {"x": draw(2, 3)},
        opset=9,
    ),
]


def judged(case):
    """Return the model with its inputs, twice so that what leaks from run to run shows."""
    ir_version = 5 if case.opset < 15 else 8
    head = f'<ir_version: {ir_version}, opset_import: ["": {case.opset}]>'
    model = onnx.parser.parse_model(f"{head} {case.text}")
    for output in model.graph.output:  # poolings of old operator sets: onnx infers one too many
        if "Pool" in case.text:
            output.type.tensor_type.ClearField("shape")
    return Judged(model, (case.feeds, case.feeds))


def rules_of(finding, backends):
    """Return the rules that a finding names."""
    return [
        rule
        for words in finding.rule.split("; ")
        for rule in backends.named(words.split(" ", 1)[0]).defects
        if words.endswith(rule.says)
        and words.split(" ")[1].rstrip(":") in (rule.operators or {words.split(" ")[1].rstrip(":")})
    ]


@pytest.mark.parametrize("case", [*SPECIAL, *RIGHT], ids=lambda case: case.name)
def test_a_class_of_wrong_numbers_is_right_or_as_a_rule_states(case, backends):
    model = judged(case)
    for target in TARGETS:
        finding = model.judge(target, 1)
        assert finding.verdict in (GraphVerdict.AGREES, GraphVerdict.EXPLAINED), (
            target,
            finding,
        )
        if finding.verdict == GraphVerdict.EXPLAINED:
            for rule in rules_of(finding, backends):
                allowed = case.stated.get(rule.backend)
                assert allowed in rule.values or (allowed == BOUND and rule.bound), finding.rule
            assert rules_of(finding, backends)
            assert case.stated, finding


def test_every_reproducer_is_put_back_by_some_defect():
    """The tables of reproducers name defects that there are, and each reproducer once."""
    names = [name for switch in switches() for name in switch.reproducers]
    assert sorted(names) == sorted(name for shown in REPRODUCERS.values() for name in shown)
    assert len({*names, *UNSEEN}) == len(names) + len(UNSEEN)
