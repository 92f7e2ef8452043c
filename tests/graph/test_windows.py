# SPDX-License-Identifier: Apache-2.0
"""Windows that are larger than what they slide over."""

import numpy as np
import onnx
import pytest
from onnx import parser

import intarsia
from intarsia.errors import IntarsiaError, ModelError


def model(node, shape="1,2,2"):
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{shape}] x, float[4,2,3] k) => (float[a,b,c] y) {{ [slides] y = {node} }}"""
    proto = parser.parse_model(text)
    weights = onnx.numpy_helper.from_array(np.ones((4, 2, 3), np.float32), "k")
    proto.graph.initializer.append(weights)
    del proto.graph.input[1:]
    return proto


X = np.ones((1, 2, 2), np.float32)


@pytest.mark.parametrize("target", ["llvm", "reference", None])
@pytest.mark.parametrize(
    "node",
    [
        "Conv<strides=[2]>(x, k)",
        "MaxPool<kernel_shape=[3], strides=[2]>(x)",
        "AveragePool<kernel_shape=[4], strides=[5], pads=[1,0]>(x)",
    ],
)
def test_a_window_without_room_is_an_error_that_names_the_node(node, target):
    with pytest.raises(ModelError, match=r"'slides' spans [34] elements along axis 2, .* has [23]"):
        intarsia.compile(model(node), target, cache=False)


@pytest.mark.parametrize("target", ["llvm", None])
def test_so_it_is_where_the_size_is_free(target):
    program = intarsia.compile(model("Conv<strides=[2]>(x, k)", "1,2,n"), target, cache=False)
    assert program.run({"x": np.ones((1, 2, 3), np.float32)})["y"].tolist() == [[[6.0]] * 4]
    with pytest.raises(IntarsiaError, match=r"spans 3 elements|does not fit these sizes"):
        program.run({"x": X})


@pytest.mark.parametrize(
    ("node", "wanted"),
    [
        ("Conv<strides=[2], pads=[0,1]>(x, k)", [[[4.0]] * 4]),
        ('Conv<strides=[2], auto_pad="SAME_UPPER">(x, k)', [[[4.0]] * 4]),
        ("MaxPool<kernel_shape=[3], strides=[2], ceil_mode=1>(x)", [[[1.0]] * 2]),
    ],
)
def test_padded_windows_have_room(node, wanted):
    program = intarsia.compile(model(node), "llvm, onnxruntime", cache=False)
    assert program.run({"x": X})["y"].tolist() == wanted
