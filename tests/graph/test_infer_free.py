# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from intarsia.extents import evaluate_all, late_symbols
from intarsia.graph.infer_free import infer_free_shapes
from intarsia.graph.load import load
from intarsia.passes.free_shapes import prepare_free
from intarsia.zoo import free
from intarsia.zoo.transformers import Encoder

SIZES = ({"batch": 1, "seq": 1}, {"batch": 3, "seq": 17}, {"batch": 2, "seq": 64})


def _inferred(model: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Return what the inference of a static model says, by the values' names."""
    shapes = {
        value.name: [
            sizes[dim.dim_param] if dim.dim_param else dim.dim_value
            for dim in value.type.tensor_type.shape.dim
        ]
        for value in model.graph.input
    }
    static = load(model, shapes)
    return {
        value.name: tuple(value.shape)
        for node in static.graph
        for value in node.outputs
        if value.shape is not None and value.shape.is_static()
    }


def _check(model: onnx.ModelProto, sizes: dict[str, int]) -> int:
    shapes = infer_free_shapes(load(model, stays_free=True))
    static, compared = _inferred(model, sizes), 0
    for value, extents in shapes.extents.items():
        is_late = late_symbols(extents)  # constants are not folded here
        if value.name in static and value.producer() is not None and not is_late:
            assert evaluate_all(extents, sizes) == static[value.name], value.name
            compared += 1
    return compared


def test_an_encoder_has_an_answer_for_every_value():
    model = free.bert(Encoder("tiny", 2, 64, 4, 100), np.random.default_rng(0))
    for sizes in SIZES:
        prepared, shapes = prepare_free(load(model, stays_free=True), sizes)
        assert not shapes.problems
        static = _inferred(model, sizes)
        for value in prepared.graph.values:
            if value.producer >= 0 and value.name in static:
                assert value.shape == static[value.name]
    assert shapes.symbols["seq"].high == 512  # the table of positions has no more rows
    assert shapes.symbols["batch"].high is None
    counts = [node.op_type for node in prepared.graph.nodes]
    assert counts.count("Shape") == 1  # of the positions' Slice; the Reshapes' are constants


_BODIES = {
    "concat": "y = Concat<axis=1>(x, x)",
    "slice": """
        a = Constant<value_ints=[1]>() b = Constant<value_ints=[-1]>()
        y = Slice(x, a, b, a)""",
    "reversed": """
        a = Constant<value_ints=[-1]>() b = Constant<value_ints=[-9223372036854775807]>()
        i = Constant<value_ints=[1]>()
        y = Slice(x, a, b, i, a)""",
    "flatten": "y = Flatten<axis=2>(x)",
    "range": """
        s = Shape<start=1, end=2>(x)
        n = Squeeze(s)
        a = Constant<value_int=0>() b = Constant<value_int=2>()
        y = Range(a, n, b)""",
    "expand": """
        s = Shape(x) one = Constant<value_ints=[1]>() t = Concat<axis=0>(one, s)
        y = Expand(x, t)""",
    "split": "y, z = Split<axis=2, num_outputs=2>(x)",
    "pad": """
        p = Constant<value_ints=[0, 1, 0, 0, 2, 0]>()
        y = Pad(x, p)""",
    "convolution": """
        w = ConstantOfShape<value=float[1] {0.5}>(k)
        u = Transpose<perm=[0, 2, 1]>(x)
        y = Conv<kernel_shape=[3], strides=[2], pads=[1, 1]>(u, w)""",
    "tile": """
        r = Constant<value_ints=[1, 3, 1]>()
        y = Tile(x, r)""",
    "matmul": """
        t = Transpose<perm=[0, 2, 1]>(x)
        z = MatMul(x, t) y = Softmax(z)""",
    "mean": """
        a = Constant<value_ints=[1]>()
        y = ReduceMean<keepdims=0>(x, a)""",
}


@pytest.mark.parametrize("name", _BODIES)
def test_rules_say_what_static_inference_says(name):
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[batch, seq, 8] x) => (y) <int64[3] k = {{4, 8, 3}}> {{ {_BODIES[name]} }}"""
    )
    kind = TensorProto.INT64 if name == "range" else TensorProto.FLOAT
    model.graph.output[0].type.tensor_type.elem_type = kind
    if name == "concat":
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "seq"
    for sizes in ({"batch": 1, "seq": 4}, {"batch": 3, "seq": 17}, {"batch": 2, "seq": 64}):
        assert _check(model, sizes) >= 1


def test_nameless_dimensions_get_names_of_their_own():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3, None])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["x.0", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x, z], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    loaded = load(model, stays_free=True)
    assert [str(dim) for dim in loaded.graph.inputs[0].shape] == ["x.0_", "3", "x.2"]
    shapes = infer_free_shapes(loaded)
    assert set(shapes.symbols) == {"x.0_", "x.2", "x.0"}


def test_operators_of_onnx_runtime_hand_symbols_on():
    header = '<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]>'
    model = parser.parse_model(
        f"{header} g (float[N,S,4] x, float[7,4] w) => (float[N,S,7] y)"
        " { a = com.microsoft.Gelu(x) y = com.microsoft.FusedMatMul<transB = 1>(a, w) }"
    )
    shapes = infer_free_shapes(load(model, stays_free=True))
    assert not shapes.problems
    texts = {value.name: [str(extent) for extent in it] for value, it in shapes.extents.items()}
    assert (texts["a"], texts["y"]) == (["N", "S", "4"], ["N", "S", "7"])


def test_what_an_operator_makes_that_nobody_knows_is_found_when_it_has_run():
    header = '<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]>'
    model = parser.parse_model(
        f"{header} g (float[N,4] x) => (float[N,4] y) {{ y = com.microsoft.Unknown(x) }}"
    )
    shapes = infer_free_shapes(load(model, stays_free=True))
    assert not shapes.problems
    assert [symbol.name for symbol in shapes.late] == ["y.0"]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    shapes = infer_free_shapes(load(model, stays_free=True))
    assert list(shapes.problems.values()) == ["onnx does not know com.microsoft.Unknown"]


def _windows(node: str, rank: int = 4, **initializers: np.ndarray) -> onnx.ModelProto:
    dims = ",".join(["2", "8", "H", "W"][:rank])
    text = f'<ir_version: 9, opset_import: ["" : 18]> g (float[{dims}] x) => (float[a,b,c,d] y)'
    model = parser.parse_model(f"{text} {{ y = {node} }}")
    for name, array in initializers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize(
    ("node", "initializers"),
    [
        ("ConvTranspose<strides=[2,3], pads=[1,0,1,1], output_padding=[1,0]>(x, w)", (8, 3, 3, 3)),
        ("ConvTranspose<dilations=[2,1], group=2>(x, w)", (8, 3, 3, 2)),
        ('ConvTranspose<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)', (8, 3, 3, 3)),
        ('Resize<mode="linear">(x, , w)', np.array([1, 1, 2, 1.5], np.float32)),
        ("Resize<axes=[3,2]>(x, , w)", np.array([0.5, 0.25], np.float32)),
        ("Resize(x, , , w)", np.array([2, 8, 5, 7])),
        ("MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x)", None),
        ("MaxPool<kernel_shape=[3,2], strides=[2,2], pads=[1,1,0,0], ceil_mode=1>(x)", None),
        ("AveragePool<kernel_shape=[3,3], strides=[2,1], pads=[1,0,1,0], ceil_mode=1>(x)", None),
        ("DepthToSpace<blocksize=2>(x)", None),
    ],
)
def test_windows_and_resizes_of_free_sizes(node, initializers):
    if isinstance(initializers, tuple):
        initializers = np.ones(initializers, np.float32)
    model = _windows(node, **({} if initializers is None else {"w": initializers}))
    for sizes in ({"H": 9, "W": 12}, {"H": 16, "W": 7}, {"H": 11, "W": 13}):
        assert _check(model, sizes) == 1


def test_space_to_depth_of_free_sizes():
    assert _check(_windows("SpaceToDepth<blocksize=4>(x)"), {"H": 8, "W": 12}) == 1


@pytest.mark.parametrize(
    "node",
    [
        "MaxPool<kernel_shape=[2,2], strides=[3,3], ceil_mode=1>(x)",
        "Resize(x, , w)",
        'Resize<keep_aspect_ratio_policy="not_larger">(x, , , s)',
    ],
)
def test_what_depends_on_sizes_otherwise_is_found_when_it_has_run(node):
    scales, sizes = np.array([1, 1, 1.1, 1.1], np.float32), np.array([2, 8, 5, 7])
    model = _windows(node, w=scales, s=sizes)
    shapes = infer_free_shapes(load(model, stays_free=True))
    assert shapes.late


JOINED = """<ir_version: 9, opset_import: ["" : 17]>
unet (float[1,4,H,W] x) => (float[1,d,h,w] y) {
  a = MaxPool<kernel_shape = [2,2], strides = [2,2]>(x)
  b = AveragePool<kernel_shape = [2,1], strides = [4,1]>(a)
  c = Resize(b, , scales)
  d = Add(c, a)
  e = ConvTranspose<strides = [2,2]>(d, k)
  y = Concat<axis = 1>(x, e) }"""


def test_what_is_pooled_and_resized_back_is_joined_at_multiples():
    model = parser.parse_model(JOINED)
    for name, array in (("scales", [1, 1, 4, 1]), ("k", np.ones((4, 4, 2, 2)))):
        tensor = onnx.numpy_helper.from_array(np.array(array, np.float32), name)
        model.graph.initializer.append(tensor)
    shapes = infer_free_shapes(load(model, stays_free=True))
    assert not shapes.problems
    found = {name: (one.multiple, one.low) for name, one in shapes.symbols.items()}
    assert found == {"H": (8, 8), "W": (2, 2)}
    for sizes in ({"H": 8, "W": 2}, {"H": 64, "W": 30}):
        assert _check(model, sizes) == 6


COUNTED = {
    "NonZero": ("y = NonZero(x)", "(2, y.1)", 24),
    "Compress": ("y = Compress<axis=0>(x, c)", "(y.0, 4)", 6),
    "Compress of all": ("y = Compress(x, c)", "(y.0,)", 24),
    "Unique": ("y, i, v, n = Unique(x)", "(y.0,)", 24),
    "Unique along": ("y, i, v, n = Unique<axis=1>(x)", "(6, y.1)", 4),
    "NonMaxSuppression": ("y = NonMaxSuppression(b, p, most)", "(y.0, 3)", 2 * 3 * 5),
    "Slice": ("y = Slice(x, k, k)", "(y.0, y.1)", None),
    "Range": ("y = Range(s, s, s)", "(y.0,)", None),
    "doubled": ("z = NonZero(x) y = Concat<axis=1>(z, z)", "(2, 2*z.1)", 24),
}


@pytest.mark.parametrize("name", COUNTED)
def test_extents_that_the_data_decides_get_symbols(name):
    text, wanted, most = COUNTED[name]
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[6,4] x, bool[6] c, float[2,9,4] b, float[2,3,9] p, int64[2] k, int64 s)
          => (y) <int64[1] most = {{5}}> {{ {text} }}"""
    )
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    kind = {"NonZero", "NonMaxSuppression", "Range", "doubled"}
    if name in kind:
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    shapes = infer_free_shapes(load(model), is_fixed=True)
    extents = {value.name: extents for value, extents in shapes.extents.items()}
    assert str(extents["y"]) == wanted
    assert shapes.late[0].high == most
    assert shapes.late[0].is_late
    if name == "Unique":
        assert [str(extents[one]) for one in ("i", "v", "n")] == ["(y.0,)", "(24,)", "(y.0,)"]
