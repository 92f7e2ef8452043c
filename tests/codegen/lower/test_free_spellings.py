# SPDX-License-Identifier: Apache-2.0
"""Norms, activations and rotary embeddings of free sizes: one program for all of them."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.codegen.lower.conftest import evaluate

import intarsia

TOKENS = "float[B,S,40] x"
HEADS = "float[B,3,S,16] x, float[1,1,S,16] c, float[1,1,S,16] s"
CASES = {
    "sum and norm": (
        f"{TOKENS}, float[B,S,40] s",
        "n, , , t = com.microsoft.SkipLayerNormalization(x, s, g, b) y = Add(n, t)",
        {"g": (40,), "b": (40,)},
    ),
    "spelled norm": (
        TOKENS,
        "m = ReduceMean(x, a) d = Sub(x, m) p = Mul(d, d) v = ReduceMean(p, a) e = Add(v, eps)"
        " q = Sqrt(e) r = Div(d, q) y = Mul(r, g)",
        {"g": (40,), "a": np.array([-1]), "eps": np.float32(1e-5)},
    ),
    "product and activation": (
        TOKENS,
        "p = com.microsoft.FusedMatMul<transB = 1, alpha = 0.5>(x, w)"
        " y = com.microsoft.BiasGelu(p, b)",
        {"w": (24, 40), "b": (24,)},
    ),
    "rotary embedding": (
        "float[B,S,48] x, int64[B,S] p",
        "y = com.microsoft.RotaryEmbedding(x, p, c, s)",
        {"c": (32, 8), "s": (32, 8)},
    ),
    "rotary embedding from a position on": (
        "float[B,S,48] x, int64[1] p",
        "y = com.microsoft.RotaryEmbedding(x, p, c, s)",
        {"c": (32, 8), "s": (32, 8)},
    ),
    "spelled rotary embedding": (
        HEADS,
        "a, b = Split<axis = -1, num_outputs = 2>(x) n = Neg(b) r = Concat<axis = -1>(n, a)"
        " u = Mul(x, c) v = Mul(r, s) y = Add(u, v)",
        {},
    ),
    "scores of scaled keys": (  # scratch memory of the product lies before that of its operand
        f"{TOKENS}, float[B,S,40] k",
        "t = Transpose<perm = [0, 2, 1]>(k) h = Div(t, c) s = MatMul(x, h) y = Softmax(s)",
        {"c": np.float32(7)},
    ),
    "sizes compared with one another": (  # all scratch memory is of known sizes
        TOKENS,
        "h = Shape(x) r = Unsqueeze(h, zero) c = Unsqueeze(h, one) e = Sub(r, c)"
        " y = Cast<to = 1>(e)",
        {"zero": np.array([0]), "one": np.array([1])},
    ),
    "one number everywhere": (
        TOKENS,
        "h = Shape(x) c = ConstantOfShape<value = float[1] {2.5}>(h) y = Concat<axis = 1>(c, x)",
        {},
    ),
    "rotary embedding whose halves are computed": (  # torch.onnx.export(dynamo=False)
        HEADS,
        "h = Shape(x) n = Gather(h, three) k = Div(n, two) i = Cast<to = 7>(k)"
        " m = Unsqueeze(i, zero) a = Slice(x, zero, m, last) b = Slice(x, m, far, last)"
        " n2 = Neg(b) r = Concat<axis = -1>(n2, a) u = Mul(x, c) v = Mul(r, s) y = Add(u, v)",
        {
            "two": np.array(2),
            "three": np.array(3),
            "zero": np.array([0]),
            "last": np.array([3]),
            "far": np.array([2**63 - 1]),
        },
    ),
    "paddings that are computed": (  # likewise: pairs from the last dimension on, turned round
        TOKENS,
        "h = Shape(x) n = Gather(h, two) m = Mod(n, seven) k = Sub(seven, m)"
        " l = Unsqueeze(k, zero) z = ConstantOfShape<value = int64[1] {0}>(four)"
        " q = Concat<axis = 0>(zero, l, z) r = Reshape(q, pairs) e = Slice(r, end, far, zero, end)"
        " t = Transpose<perm = [1, 0]>(e) f = Reshape(t, end) p = Pad(x, f)"
        " y = Softmax<axis = -1>(p)",
        {
            "two": np.array(2),
            "seven": np.array(7),
            "four": np.array([4]),
            "zero": np.array([0]),
            "pairs": np.array([-1, 2]),
            "end": np.array([-1]),
            "far": np.array([-(2**63) + 1]),
        },
    ),
    "heads that share keys": (  # the shape of the Expand is compared with -1
        HEADS,
        "u = Unsqueeze(x, two) h = Shape(x) b = Gather(h, zero) l = Gather(h, two)"
        " e = Concat<axis = 0>(b, three, four, l, size) n = Shape(e)"
        " o = ConstantOfShape<value = int64[1] {1}>(n) q = Mul(o, minus) w = Equal(e, q)"
        " s2 = Where(w, o, e) r = Expand(u, s2) t = Concat<axis = 0>(b, many, l, size)"
        " y = Reshape(r, t)",
        {
            "zero": np.array([0]),
            "two": np.array([2]),
            "three": np.array([3]),
            "four": np.array([4]),
            "size": np.array([16]),
            "many": np.array([12]),
            "minus": np.array(-1),
        },
    ),
    "first of each row": (  # the lanes of a vector would lie S entries apart
        "float[B,S] x",
        "a = Slice(x, zero, one, one) c = Sub(a, b) y = Concat<axis = 1>(c, x)",
        {"zero": np.array([0]), "one": np.array([1]), "b": np.float32(1)},
    ),
    "a row for each": (
        "float[B,S] x",
        "a = Slice(x, zero, one, zero) h = Shape<end = 1>(x) r = Concat<axis = 0>(h, two)"
        " y = Tile(a, r)",
        {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])},
    ),
    "positions": (
        TOKENS,
        "h = Shape<start = 1, end = 2>(x) l = Squeeze(h) r = Range(one, l, two)"
        " f = Cast<to = 1>(r) g = ReduceSum(f) y = Add(x, g)",
        {"one": np.array(1), "two": np.array(2)},
    ),
    "groups": (
        "float[B,12,5,6] x",
        "r = Reshape(x, to) i = InstanceNormalization(r, one, zero) h = Shape(x) y = Reshape(i, h)",
        {"to": np.array([0, 4, -1]), "one": np.ones(4, "f"), "zero": np.zeros(4, "f")},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_free_sizes(case, backends):
    inputs, text, weights = CASES[case]
    header = '<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]>'
    model = onnx.parser.parse_model(f"{header} g ({inputs}) => (float y) {{ {text} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    for name, given in weights.items():
        is_shape = isinstance(given, tuple)
        array = rng.standard_normal(given, np.float32) if is_shape else np.asarray(given)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    assert {region.backend for region in exe.placement.regions} == {"llvm"}
    for batch, length in ((2, 5), (1, 17), (3, 1)):
        feeds = {}
        for value in model.graph.input:
            sizes = {"B": batch, "S": length}
            tensor = value.type.tensor_type
            shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in tensor.shape.dim]
            is_index = tensor.elem_type == onnx.TensorProto.INT64
            feeds[value.name] = (
                rng.integers(0, 8, shape) if is_index else rng.standard_normal(shape, np.float32)
            )
        wanted = evaluate(model, feeds)["y"]
        np.testing.assert_allclose(exe.run(feeds)["y"], wanted, rtol=1e-5, atol=1e-5)
