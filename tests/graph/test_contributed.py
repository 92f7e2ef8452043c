# SPDX-License-Identifier: Apache-2.0
"""Types of ONNX Runtime's operators, without ONNX Runtime."""

import onnx
import pytest

from intarsia.graph.contributed import CONTRIBUTED
from intarsia.graph.load import load

HEADER = '<ir_version: 7, opset_import: ["": 17, "com.microsoft": 1]>'
SHAPES = {
    "y = com.microsoft.BiasGelu(x, b)": "float[2,3,8]",
    "y = com.microsoft.BiasAdd(x, b, x)": "float[2,3,8]",
    "y = com.microsoft.GroupNorm<groups = 2, activation = 1>(x, b, b)": "float[2,3,8]",
    "y = com.microsoft.FastGelu(x)": "float[2,3,8]",
    "y = com.microsoft.FastGelu(x, b)": "float[2,3,8]",
    "y = com.microsoft.Gelu(x)": "float[2,3,8]",
    "y = com.microsoft.QuickGelu<alpha = 2.0>(x)": "float[2,3,8]",
    "y = com.microsoft.BiasSoftmax(x, b)": "float[2,3,8]",
    "y = com.microsoft.SkipLayerNormalization<epsilon = 0.1>(x, x, b, b, b)": "float[2,3,8]",
    "o, , , y = com.microsoft.SkipLayerNormalization(x, x, b)": "float[2,3,8]",
    "o, , , y = com.microsoft.SkipSimplifiedLayerNormalization(x, x, b)": "float[2,3,8]",
    "y = com.microsoft.EmbedLayerNormalization(i, , t, t, , b, b)": "float[2,3,8]",
    "o, m, y = com.microsoft.EmbedLayerNormalization(i, i, t, t, t, b, b)": "float[2,3,8]",
    "y = com.microsoft.FusedMatMul(x, t)": None,
    "y = com.microsoft.FusedMatMul<transB = 1>(x, t)": "float[2,3,11]",
    "y = com.microsoft.FusedMatMul<transA = 1, alpha = 0.5>(x, x)": "float[2,8,8]",
    "y = com.microsoft.FusedMatMul<transBatchA = 1, transB = 1>(x, z)": "float[3,2,7]",
    "y = com.microsoft.MatMulNBits<K = 8, N = 6, bits = 4, block_size = 16>(x, c, b)": "float[2,3,6]",  # noqa: E501
    "y = com.microsoft.Trilu<upper = 0>(x)": "float[2,3,8]",
    "y = com.microsoft.TransposeMatMul<transA = 1>(t, t)": "float[8,8]",
    'y = com.microsoft.FusedGemm<transB = 1, activation = "Relu">(t, t)': "float[11,11]",
    "y = com.microsoft.FusedConv<strides = [2], kernel_shape = [3], pads = [1, 1],"
    ' activation = "Relu">(x, k)': "float[2,5,4]",
    "y = com.microsoft.GatherND(x, g)": "float[4,8]",
    "y = com.microsoft.RotaryEmbedding(x, i, t, t)": "float[2,3,8]",
    "y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, kv, kv)": "float[2,3,8]",
    "o, y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, kv, kv, , , , old, old)": "float[2,2,9,4]",  # noqa: E501
    "o, y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, kv, kv)": "float[2,2,7,4]",
    "y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, old, old)": "float[2,3,8]",
    "y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, pair)": "float[2,3,8]",
    "y = com.microsoft.MultiHeadAttention<num_heads = 2>(triple)": "float[2,3,8]",
    "y = com.microsoft.DecoderMaskedMultiHeadAttention<num_heads = 2>(q, q, q)": "float[2,1,8]",
    "y = com.microsoft.DecoderMaskedMultiHeadAttention<num_heads = 2>(q, old, old)": "float[2,1,8]",
    "o, y = com.microsoft.DecoderMaskedMultiHeadAttention<num_heads = 2>(q, q, q, , , old, old)": "float[2,2,2,4]",  # noqa: E501
    "y = com.microsoft.Attention<num_heads = 2>(x, w3)": "float[2,3,8]",
    "y = com.microsoft.Attention<num_heads = 2, qkv_hidden_sizes = [8, 8, 4]>(x, w3)": "float[2,3,4]",  # noqa: E501
    "o, y = com.microsoft.Attention<num_heads = 2>(x, w3, , , both)": "float[2,2,2,8,4]",
    "y = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(x, h, h, , , n, n)": "float[2,3,8]",  # noqa: E501
    "o, y = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(x, h, h, , , n, n)": "float[2,1,3,4]",  # noqa: E501
    "y = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(w, , , , , n, n)": "float[2,3,4]",  # noqa: E501
    "o, p, y = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(w, , , , , n, n)": "float[2,1,3,2]",  # noqa: E501
    "o, y = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(x, h, h, old, old, n, n)": "float[2,2,unk__0,4]",  # noqa: E501
    **{
        f"codes = com.microsoft.{text} y = DequantizeLinear(codes, e)": shape
        for text, shape in {
            "QLinearAdd(u, e, d, u, e, d, e, d)": "float[2,3,8]",
            "QLinearMul(u, e, d, u, e, d, e, d)": "float[2,3,8]",
            "QLinearWhere(f, u, e, d, u, e, d, e, d)": "float[2,3,8]",
            "QLinearSigmoid(u, e, d, e, d)": "float[2,3,8]",
            "QLinearLeakyRelu(u, e, d, e, d)": "float[2,3,8]",
            "QLinearSoftmax(u, e, d, e, d)": "float[2,3,8]",
            "QLinearConcat<axis = 1>(e, d, u, e, d, u, e, d)": "float[2,6,8]",
            "QLinearAveragePool<kernel_shape = [3]>(u, e, d, e, d)": "float[2,3,6]",
            "QLinearGlobalAveragePool(u, e, d, e, d)": "float[2,3,1]",
        }.items()
    },
}
INPUTS = "float[2,3,8] x, float[8] b, int64[2,3] i, float[11,8] t, float[3,7,8] z"
INPUTS += ", float[5,3,3] k, int64[4,2] g, float[2,7,8] kv, float[2,2,2,4] old"
INPUTS += ", float[2,3,4] h, float[2,3,8] w, int32[1] n"
INPUTS += ", float[2,7,2,2,4] pair, float[2,3,2,3,4] triple, float[2,1,8] q"
INPUTS += ", float[8,24] w3, float[2,2,2,5,4] both, uint8[6,1,8] c"
INPUTS += ", uint8[2,3,8] u, float e, uint8 d, bool[2,3,8] f"


def type_of(text, inputs=INPUTS):
    model = onnx.parser.parse_model(f"{HEADER} g ({inputs}) => (float y) {{ {text} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    value = load(model).graph.outputs[0]
    return None if value.shape is None else f"float[{','.join(map(str, value.shape))}]"


@pytest.mark.parametrize("text", SHAPES)
def test_shapes_follow_from_the_operands(text):
    assert type_of(text) == SHAPES[text]


def test_every_listed_operator_is_tested():
    assert {name for name in CONTRIBUTED if any(f".{name}" in text for text in SHAPES)} == set(
        CONTRIBUTED
    )


def test_what_follows_is_known_too():
    assert type_of("a = com.microsoft.Gelu(x) y = Transpose(a)") == "float[8,3,2]"


def test_a_function_of_the_model_is_its_own():
    function = '<domain: "com.microsoft", opset_import: ["": 17]> Gelu (a) => (c) { c = Shape(a) }'
    model = onnx.parser.parse_model(
        f"{HEADER} g ({INPUTS}) => (int64[3] y) {{ y = com.microsoft.Gelu(x) }} {function}"
    )
    assert [node.op_type for node in load(model).graph] == ["Shape"]


def test_operators_stay_what_they_are():
    model = onnx.parser.parse_model(
        f"{HEADER} g ({INPUTS}) => (float[2,3,8] y) {{ y = com.microsoft.Gelu(x) }}"
    )
    loaded = load(model)
    assert [(node.domain, node.op_type) for node in loaded.graph] == [("com.microsoft", "Gelu")]
    assert not loaded.functions
