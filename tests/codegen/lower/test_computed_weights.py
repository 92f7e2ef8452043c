# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose weights or bias are not constant, against onnxruntime; all run natively."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.lower.small_models import feeds_of, small_model

from intarsia.codegen.lower.region import refuse_node
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

SAME = "<pads = [1, 1, 1, 1]>"
WIDE = {"x": (2, 20, 5, 6), "w": (24, 20, 3, 3), "b": (24,)}
CASES = {
    "weights": (f"y = Conv{SAME}(x, w)", WIDE, {}),
    "weights and bias": (f"y = Conv{SAME}(x, w, b)", WIDE, {}),
    "bias of blocks": ("y = Conv(x, w, b)", {"x": WIDE["x"], "b": (24,)}, {"w": (24, 20, 3, 3)}),
    "bias of blocks that are not full": (
        "c = Conv(x, w, b) d = Conv(c, v) y = Relu(d)",
        {"x": WIDE["x"], "b": (21,)},
        {"w": (21, 20, 3, 3), "v": (24, 21, 1, 1)},
    ),
    "bias of a depthwise one": (
        "y = Conv<group = 20, pads = [1, 1, 1, 1]>(x, w, b)",
        {"x": WIDE["x"], "b": (20,)},
        {"w": (20, 1, 3, 3)},
    ),
    "bias that is computed": (
        "r = Softmax(b) y = Conv(x, w, r)",
        {"x": (1, 3, 5, 6), "b": (2,)},
        {"w": (2, 3, 3, 3)},
    ),
    "bias that is a part": (
        "p, q = Split<axis = 1>(b, s) r = Reshape(q, t) y = Conv(x, w, r)",
        {"x": (1, 3, 5, 6), "b": (1, 9)},
        {"w": (4, 3, 3, 3), "s": [5, 4], "t": [4]},
    ),
    "weights that are computed": ("v = Tanh(w) y = Conv(x, v, b)", WIDE, {}),
    "weights that are turned": (
        "v = Transpose<perm = [3, 0, 2, 1]>(w) y = Conv(x, v)",
        {"x": (1, 4, 5, 6), "w": (4, 2, 3, 7)},
        {},
    ),
    "weights that are a part": (
        "p, v = Split<axis = 1, num_outputs = 2>(w) y = Conv(x, v)",
        {"x": (1, 4, 5, 6), "w": (5, 8, 3, 2)},
        {},
    ),
    "weights that are repeated": (
        "v = Expand(w, s) y = Conv(x, v)",
        {"x": (1, 4, 5, 6), "w": (5, 1, 3, 1)},
        {"s": [5, 4, 3, 2]},
    ),
    "weights backwards": (
        "v = Slice(w, b, e, a, s) y = Conv(x, v)",
        {"x": (1, 4, 5, 6), "w": (5, 4, 3, 2)},
        {"b": [-1, -1], "e": [-99, -99], "a": [2, 3], "s": [-1, -1]},
    ),
    "weights out of a convolution": (
        f"v = Conv{SAME}(w, u) c = Conv{SAME}(x, p) d = Conv(c, v) y = Relu(d)",
        {"x": WIDE["x"], "w": (24, 20, 3, 3)},
        {"u": (20, 20, 3, 3), "p": (20, 20, 3, 3)},
    ),
    "a constant image": ("y = Conv(k, w)", {"w": (3, 4, 2, 2)}, {"k": (1, 4, 5, 6)}),
    "itself": (f"y = Conv{SAME}(x, x)", {"x": (5, 5, 3, 3)}, {}),
    "between blocks": (
        f"c = Conv{SAME}(x, p) d = Conv{SAME}(c, w, b) e = Add(d, z) f = Sigmoid(e)"
        " g = Mul(f, e) y = Conv(g, q)",
        {**WIDE, "z": (2, 24, 5, 6)},
        {"p": (20, 20, 3, 3), "q": (16, 24, 1, 1)},
    ),
    "a part of a concat": (
        f"c = Conv{SAME}(x, w) d = Conv{SAME}(x, p) y = Concat<axis = 1>(d, c, x)",
        WIDE,
        {"p": (16, 20, 3, 3)},
    ),
    "groups": (
        "y = Conv<group = 3>(x, w, b)",
        {"x": (2, 6, 5, 6), "w": (9, 2, 2, 3), "b": (9,)},
        {},
    ),
    "no image": ("y = Conv(x, w, b)", {"x": (0, 2, 5, 6), "w": (3, 2, 2, 3), "b": (3,)}, {}),
    "transposed": (
        "y = ConvTranspose<strides = [2, 3], pads = [1, 0, 0, 1], dilations = [2, 1]>(x, w, b)",
        {"x": (2, 20, 5, 6), "w": (20, 24, 3, 4), "b": (24,)},
        {},
    ),
    "transposed with a bias": (
        "c = ConvTranspose<strides = [2, 2]>(x, w, b) y = Relu(c)",
        {"x": (2, 20, 5, 6), "b": (24,)},
        {"w": (20, 24, 3, 3)},
    ),
    "transposed with groups": (
        "c = ConvTranspose<strides = [2, 2], group = 2, output_padding = [1, 0]>(x, v)"
        " y = Add(c, z)",
        {"x": (1, 4, 3, 3), "v": (4, 3, 3, 2), "z": (1, 6, 8, 6)},
        {},
    ),
    "transposed by turned weights": (
        "v = Transpose<perm = [3, 0, 2, 1]>(w)"
        ' y = ConvTranspose<strides = [2, 1], auto_pad = "SAME_LOWER">(x, v)',
        {"x": (1, 7, 5, 6), "w": (4, 2, 3, 7)},
        {},
    ),
    "transposed twice": (
        "c = ConvTranspose<strides = [3]>(x, w) d = Neg(c) y = ConvTranspose(d, v, b)",
        {"x": (1, 3, 4), "w": (3, 2, 2), "v": (2, 5, 3), "b": (5,)},
        {},
    ),
}


def _arrays(weights):
    return {
        name: np.array(given, np.int64) if isinstance(given, list) else given
        for name, given in weights.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_numbers(run_both, case):
    body, inputs, weights = CASES[case]
    model = small_model("y", body, inputs, _arrays(weights), opset=18)
    run_both(model, feeds_of(model))


@pytest.mark.parametrize("cpu", ["haswell", "x86-64"])
@pytest.mark.parametrize(
    "case", ["between blocks", "bias of blocks that are not full", "transposed"]
)
def test_numbers_with_narrower_vectors(run_both, case, cpu):
    body, inputs, weights = CASES[case]
    model = small_model("y", body, inputs, _arrays(weights), opset=18)
    run_both(model, feeds_of(model), f"llvm -mcpu={cpu}")


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_a_bias_of_other_channels_is_refused(op_type):
    model = small_model("y", f"y = {op_type}(x, w, b)", {"x": (1, 5, 4), "w": (5, 5, 2), "b": (1,)})
    graph = snapshot(load(model))
    refused = ("op", "its bias does not have the channels of its output")
    assert refuse_node(graph, graph.nodes[0]) == refused


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_shapes(run_both, data):
    small = st.integers(1, 3)
    is_transposed = data.draw(st.booleans())
    rank, groups = data.draw(small), data.draw(small)
    inputs, outputs = (data.draw(st.integers(1, 9)) for _ in range(2))
    kernel, strides, dilations = ([data.draw(small) for _ in range(rank)] for _ in range(3))
    size = [
        (k - 1) * d + data.draw(st.integers(1, 9)) for k, d in zip(kernel, dilations, strict=True)
    ]
    batch, has_bias = data.draw(st.integers(1, 2)), data.draw(st.booleans())
    shapes = {"x": (batch, groups * inputs, *size), "w": (groups * outputs, inputs, *kernel)}
    if is_transposed:
        shapes["w"] = (groups * inputs, outputs, *kernel)
    if has_bias:
        shapes["b"] = (groups * outputs,)
    attributes = f"group = {groups}, strides = {strides}, dilations = {dilations}"
    auto = data.draw(st.sampled_from(["", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if auto and max(dilations) == 1:  # onnxruntime has no other dilations there
        attributes += f', auto_pad = "{auto}"'
    else:
        pads = [min(data.draw(st.integers(0, 2)), k - 1) for k in kernel * 2]
        attributes += f", pads = {pads}"
    weights = {
        name: shapes.pop(name) for name in ("w", "b")[: has_bias + 1] if data.draw(st.booleans())
    }
    names = ", ".join(("x", "w", "b")[: 2 + has_bias])
    op_type = "ConvTranspose" if is_transposed else "Conv"
    body = f"c = {op_type}<{attributes}>({names}) y = Relu(c)"
    model = small_model("y", body, shapes, weights)
    cpu = data.draw(st.sampled_from(["", " -mcpu=haswell", " -mcpu=x86-64"]))
    run_both(model, feeds_of(model), f"llvm{cpu}")
