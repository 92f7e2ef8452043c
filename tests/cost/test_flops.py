# SPDX-License-Identifier: Apache-2.0
"""Operations and bytes, against counts by hand and against the published sums of networks."""

import onnx
import pytest

from intarsia import zoo
from intarsia.cost.work import region_work
from intarsia.graph.graph import Graph
from intarsia.graph.load import load
from intarsia.graph.ops import least_flop, node_flop
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot


@pytest.fixture
def make(parse_model):
    """A function from the text of a model to its graph."""

    def from_text(text, opset=20) -> Graph:
        return snapshot(load(parse_model(text, opset)))

    return from_text


_HEADS = "float[1,3,8,8] x, float[16,3,3,3] w, float[16] b"

COUNTS = {
    "Conv": (f"m ({_HEADS}) => (float[1,16,6,6] y) {{ y = Conv(x, w, b) }}", 576 * (2 * 27 + 1)),
    "Conv, grouped": (
        "m (float[1,4,8,8] x, float[4,1,3,3] w) => (float[1,4,4,4] y) "
        "{ y = Conv<group = 4, strides = [2, 2], pads = [1, 1, 1, 1]>(x, w) }",
        2 * 64 * 9,
    ),
    "Conv, one axis": (
        "m (float[2,8,10] x, float[4,8,3] w) => (float[2,4,8] y) { y = Conv(x, w) }",
        2 * 64 * 24,
    ),
    "ConvTranspose": (
        "m (float[1,8,5,5] x, float[8,2,3,3] w, float[4] b) => (float[1,4,11,11] y) "
        "{ y = ConvTranspose<group = 2, strides = [2, 2]>(x, w, b) }",
        2 * 200 * 18 + 484,
    ),
    "ConvInteger": (
        "m (uint8[1,3,8,8] x, uint8[16,3,3,3] w) => (int32[1,16,6,6] y) { y = ConvInteger(x, w) }",
        576 * 54,
    ),
    "QLinearConv": (
        "m (uint8[1,3,8,8] x, uint8[16,3,3,3] w) => (uint8[1,16,6,6] y) "
        "<float s = {1}, uint8 z = {0}> { y = QLinearConv(x, s, z, w, s, z, s, z) }",
        576 * 54,
    ),
    "Gemm": (
        "m (float[5,7] a, float[5,3] b, float[3] c) => (float[7,3] y) "
        "{ y = Gemm<transA = 1>(a, b, c) }",
        21 * (2 * 5 + 1),
    ),
    "MatMul": (
        "m (float[2,1,4,6] a, float[3,6,5] b) => (float[2,3,4,5] y) { y = MatMul(a, b) }",
        2 * 120 * 6,
    ),
    "MatMul of vectors": ("m (float[6] a, float[6] b) => (float y) { y = MatMul(a, b) }", 12),
    "MatMulInteger": (
        "m (uint8[4,6] a, uint8[6,5] b) => (int32[4,5] y) { y = MatMulInteger(a, b) }",
        240,
    ),
    "QLinearMatMul": (
        "m (uint8[4,6] a, uint8[6,5] b) => (uint8[4,5] y) "
        "<float s = {1}, uint8 z = {0}> { y = QLinearMatMul(a, s, z, b, s, z, s, z) }",
        240,
    ),
    "Einsum, scores": (
        "m (float[2,4,8,16] q, float[2,4,9,16] k) => (float[2,4,8,9] y) "
        '{ y = Einsum<equation = "bhqd, bhkd -> bhqk">(q, k) }',
        2 * 2 * 4 * 8 * 9 * 16,
    ),
    "Einsum, dots": (
        'm (float[2,3,4,6] a, float[6,5] b) => (float[2,3,4,5] y) '
        '{ y = Einsum<equation = "...ij,jk->...ik">(a, b) }',
        2 * 6 * 4 * 6 * 5,
    ),
    "Einsum, outer": (
        'm (float[4] a, float[5] b) => (float[4,5] y) { y = Einsum<equation = "i,j->ij">(a, b) }',
        20,
    ),
    "Einsum, transposed": (
        'm (float[4,5] a) => (float[5,4] y) { y = Einsum<equation = "ij->ji">(a) }',
        0,
    ),
    "MaxPool": (
        "m (float[1,2,8,8] x) => (float[1,2,4,4] y) "
        "{ y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) }",
        32 * 4,
    ),
    "GlobalAveragePool": (
        "m (float[1,2,8,8] x) => (float[1,2,1,1] y) { y = GlobalAveragePool(x) }",
        128,
    ),
    "BatchNormalization": (
        "m (float[1,2,8,8] x, float[2] s) => (float[1,2,8,8] y) "
        "{ y = BatchNormalization(x, s, s, s, s) }",
        256,
    ),
    "LayerNormalization": (
        "m (float[4,8] x, float[8] s) => (float[4,8] y) { y = LayerNormalization(x, s, s) }",
        7 * 32,
    ),
    "Softmax": ("m (float[4,8] x) => (float[4,8] y) { y = Softmax(x) }", 5 * 32),
    "LSTM": (
        "m (float[3,2,8] x, float[1,16,8] w, float[1,16,4] r) => (float[3,1,2,4] y) "
        "{ y = LSTM<hidden_size = 4>(x, w, r) }",
        2 * 3 * 2 * (128 + 64),
    ),
    "ReduceMean": (
        "m (float[4,8] x) => (float[4,1] y) <int64[1] a = {1}> { y = ReduceMean(x, a) }",
        32,
    ),
    "Add, broadcast": ("m (float[4,8] a, float[8] b) => (float[4,8] y) { y = Add(a, b) }", 32),
    "Sum of three": ("m (float[4] a) => (float[4] y) { y = Sum(a, a, a) }", 8),
    "Relu": ("m (float[4,8] a) => (float[4,8] y) { y = Relu(a) }", 32),
    "Clip": ("m (float[8] a, float l, float h) => (float[8] y) { y = Clip(a, l, h) }", 8),
    "Resize, linear": (
        "m (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1., 1., 2., 2.}> "
        '{ y = Resize<mode = "linear">(x, , s) }',
        64 * 2 * 3,
    ),
    "Resize, nearest": (
        "m (float[1,1,4,4] x) => (float[1,1,8,8] y) <float[4] s = {1., 1., 2., 2.}> "
        '{ y = Resize<mode = "nearest">(x, , s) }',
        0,
    ),
    "Transpose": ("m (float[4,8] a) => (float[8,4] y) { y = Transpose(a) }", 0),
    "Gather": (
        "m (float[100,8] a, int64[3] i) => (float[3,8] y) { y = Gather(a, i) }",
        0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_the_count_is_that_by_hand(make, name):
    text, expected = COUNTS[name]
    assert node_flop(make(text), 0) == expected


def test_attention_counts_both_products(make):
    text = (
        "m (float[2,4,8,16] q, float[2,2,9,16] k, float[2,2,9,5] v) => (float[2,4,8,5] y) "
        "{ y = Attention(q, k, v) }"
    )
    assert node_flop(make(text, 23), 0) == 2 * 4 * 8 * 9 * (2 * 16 + 5 + 2 * 5)
    text = (
        "m (float[2,8,64] q, float[2,9,32] k, float[2,9,32] v) => (float[2,8,64] y) "
        "{ y = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v) }"
    )
    assert node_flop(make(text, 23), 0) == 2 * 4 * 8 * 9 * (2 * 16 + 5 + 2 * 16)


def test_winograd_needs_fewer(make):
    graph = make(COUNTS["Conv"][0])
    assert least_flop(graph, 0) == node_flop(graph, 0) // 4
    graph = make(COUNTS["Conv, grouped"][0])
    assert least_flop(graph, 0) == node_flop(graph, 0)


def test_operators_of_others_count_nothing(make_graph):
    graph = make_graph(2, [(0, 1)])
    assert node_flop(graph, 1) == 1  # one element
    work = region_work(graph.whole)
    assert (work.flop, work.nbytes, work.dtype) == (2, 4, "float32")


@pytest.mark.parametrize(
    ("body", "nbytes"),
    [
        ("y = Gather(t, i)", 3 * 8 * 4 + 3 * 8 + 3 * 8 * 4),
        ("a = Gather(t, i) z = Relu(t) s = ReduceSum<keepdims = 0>(z) y = Add(a, s)",
         100 * 8 * 4 + 3 * 8 + 3 * 8 * 4),
    ],
)  # fmt: skip
def test_a_table_is_read_where_it_is_looked_up(make, body, nbytes):
    graph = make(f"m (float[100,8] t, int64[3] i) => (float[3,8] y) {{ {body} }}")
    assert region_work(graph.whole).nbytes == nbytes


def test_views_move_nothing(make):
    graph = make("m (float[4,8] x) => (float[32] y) <int64[1] s = {32}> { y = Reshape(x, s) }")
    assert region_work(graph.whole).nbytes == 8  # the shape


def test_what_stays_inside_is_not_moved(make):
    graph = make("m (float[4,8] x) => (float[4,8] y) { a = Relu(x) b = Exp(a) y = Add(a, b) }")
    work = region_work(graph.whole)
    assert (work.flop, work.nbytes) == (96, 2 * 128)
    first = region_work(Region.of(graph, [0]))
    assert (first.flop, first.nbytes) == (32, 256)


@pytest.mark.parametrize(
    ("name", "gmac"),
    # torchvision's documentation lists these multiply-adds (in its words, GFLOPS) of its models.
    [("resnet50", 4.09), ("mobilenet_v2", 0.30), ("squeezenet", 0.35)],
)
def test_networks_have_the_sums_that_are_published(name, gmac):
    graph = snapshot(load(zoo.build(name)))
    heavy = sum(
        node_flop(graph, node.id) for node in graph.nodes if node.op_type in ("Conv", "Gemm")
    )
    assert heavy / 2e9 == pytest.approx(gmac, rel=0.06)
    assert region_work(graph.whole).flop == pytest.approx(heavy, rel=0.12)


def test_a_transformer_has_the_products_that_its_sizes_say():
    """MiniLM: 6 layers of width 384 on 128 tokens, four projections, two of the inner width."""
    graph = snapshot(load(zoo.build("minilm")))
    products = sum(
        node_flop(graph, node.id) for node in graph.nodes if node.op_type in ("MatMul", "Gemm")
    )
    width, tokens, layers = 384, 128, 6
    projections = 2 * tokens * (4 * width**2 + 2 * width * 4 * width)
    attention = 2 * 2 * tokens**2 * width
    pooler = 2 * width**2 + width  # of one token, with a bias
    assert products == layers * (projections + attention) + pooler


MICROSOFT = {
    "y = com.microsoft.FusedMatMul(a, b)": 2 * 5 * 6 * 7 * 3,
    "y = com.microsoft.FusedMatMul<transA = 1>(c, b)": 2 * 5 * 6 * 7 * 3,
    "y = com.microsoft.FusedMatMul<transBatchA = 1, transA = 1>(d, b)": 2 * 5 * 6 * 7 * 3,
    "y = com.microsoft.FusedGemm<transA = 1>(e, e)": 2 * 7 * 7 * 6,
    "y = com.microsoft.Gelu(a)": 5 * 7 * 6,
    "y = com.microsoft.SkipLayerNormalization(a, a, f)": 7 * 5 * 7 * 6,
    "y = com.microsoft.MultiHeadAttention<num_heads = 2>(a, a, a)": 5 * 2 * 7 * 7 * (4 * 3 + 5),
    "y = com.microsoft.Unknown(a)": 0,
}


@pytest.mark.parametrize("text", MICROSOFT)
def test_operators_of_onnx_runtime(text):
    inputs = "float[5,7,6] a, float[5,6,3] b, float[5,6,7] c, float[6,5,7] d, float[6,7] e"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
        f" g ({inputs}, float[6] f) => (float y) {{ {text} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert node_flop(snapshot(load(model)), 0) == MICROSOFT[text]
