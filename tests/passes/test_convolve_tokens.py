# SPDX-License-Identifier: Apache-2.0
"""Linear layers of tokens around a depthwise convolution become convolutions of its image."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from tests.codegen.lower.small_models import feeds_of, small_model

import intarsia
from intarsia.graph.annotate import on_device
from intarsia.graph.load import load
from intarsia.passes.prepare import prepare

SHAPE = (2, 20, 8)
WEIGHTS = {
    "w": (8, 24),
    "b": (24,),
    "s": np.array([2, 24, 4, 5], np.int64),
    "v": (24, 1, 3, 3),
    "vb": (24,),
    "half": np.array(0.5, np.float32),
    "f": np.array([2, 24, -1], np.int64),
    "p": (24, 8),
    "q": (1, 1, 8),
    "rows": (20, 1),
    "square": (20, 20),
    "odd": (24, 30),
}
DEPTHWISE = "d = Conv<group = 24, kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r, v, vb)"
BEFORE = "m = MatMul(x, w) a = Add(m, b) t = Transpose<perm = [0, 2, 1]>(a) r = Reshape(t, s) "
AFTER = " e = Reshape(d, f) u = Transpose<perm = [0, 2, 1]>(e) n = MatMul(u, p) "
TWICE = "h = Erf(u) i = Add(h, half) j = Mul(u, i) n = MatMul(j, p) "


def make(body, outputs="y", shape=SHAPE):
    """Return a model whose nodes are called as their results."""
    read = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    weights = {name: array for name, array in WEIGHTS.items() if name in read}
    model = small_model(outputs, body, {"x": shape}, weights)
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def check(body, outputs="y", devices=None):
    """Prepare a model, compare its numbers, and return its operators in order."""
    model = make(body, outputs)
    prepared = prepare(load(on_device(model, devices or {})))
    after = ir.to_proto(prepared.model)
    onnx.checker.check_model(after, full_check=True)

    def run(proto):
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return session.run(None, feeds_of(model))

    for got, want in zip(run(after), run(model), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return [node.op_type for node in prepared.graph.nodes], prepared


VIEWS = ["Transpose", "Reshape"]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            BEFORE + DEPTHWISE + AFTER + "y = Add(n, q)",
            [*VIEWS, "Conv", "Conv", "Conv", *reversed(VIEWS)],
        ),
        (
            BEFORE + DEPTHWISE + AFTER + "y = Neg(n)",
            [*VIEWS, "Conv", "Conv", "Conv", *reversed(VIEWS), "Neg"],
        ),
        (
            BEFORE + DEPTHWISE + AFTER.replace("n = MatMul(u, p)", TWICE) + "y = Add(q, n)",
            [*VIEWS, "Conv", "Conv", "Erf", "Add", "Mul", "Conv", *reversed(VIEWS)],
        ),
        (
            BEFORE + DEPTHWISE + AFTER + "o = Add(n, q) y = Add(x, o)",
            [*VIEWS, "Reshape", "Conv", "Conv", "Conv", "Add", *reversed(VIEWS)],
        ),
        (
            BEFORE + DEPTHWISE + AFTER + "y = Add(n, x)",
            [*VIEWS, "Reshape", "Conv", "Conv", "Conv", "Add", *reversed(VIEWS)],
        ),
        (
            BEFORE.replace("a = Add(m, b)", "a = Relu(m)") + DEPTHWISE + AFTER + "y = Neg(n)",
            None,
        ),
    ],
    ids=["sum", "no sum", "activation", "residual", "residual alone", "activation before"],
)
def test_layers_become_convolutions(body, found):
    operators, prepared = check(body)
    assert ("MatMul" in operators) == (found is None)
    if found is not None:
        assert sorted(operators) == sorted(found)
        origins = {name for node in prepared.graph.nodes for name in node.origins}
        assert {"m", "a", "t", "r", "d", "e", "u", "n", "y"} <= origins


LAYERS = BEFORE + DEPTHWISE + AFTER


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (LAYERS + "y = Add(n, q)", "y, d"),
        (LAYERS + "y = Add(n, q)", "y, a"),
        (LAYERS + "c = ReduceMean<keepdims = 1>(r) o = Add(n, q) y = Add(o, c)", "y"),
        (LAYERS + "c = ReduceMean<keepdims = 1>(u) o = Add(n, q) y = Add(o, c)", "y"),
        (LAYERS + "y = Add(n, rows)", "y"),
        (LAYERS.replace("MatMul(u, p)", "MatMul(square, u)") + "y = Neg(n)", "y"),
        (LAYERS.replace("MatMul(u, p)", "MatMul(u, odd)") + "y = Neg(n)", "y"),
        (
            LAYERS.replace("e = Reshape(d, f)", "z = Add(d, r) e = Reshape(z, f)") + "y = Neg(n)",
            "y",
        ),
        (BEFORE + DEPTHWISE + " e = Reshape(d, f) y = Neg(e)", "y"),
    ],
    ids=[
        *("image seen", "tokens seen", "image read twice", "tokens read twice", "sum of rows"),
        *("matrix on the left", "wider behind", "residual of the image", "one layer alone"),
    ],
)
def test_other_layers_stay(body, outputs):
    assert "MatMul" in check(body, outputs)[0]


@pytest.mark.parametrize("name", ["m", "a", "d", "e", "n"])
def test_nodes_for_different_devices_stay(name):
    assert "MatMul" in check(LAYERS + "y = Add(n, q)", devices={name: "llvm"})[0]


def test_nodes_of_one_device_stay_there():
    names = ("m", "a", "t", "r", "d", "e", "u", "n", "y")
    operators, prepared = check(LAYERS + "y = Add(n, q)", devices=dict.fromkeys(names, "llvm"))
    assert "MatMul" not in operators
    assert {node.device for node in prepared.graph.nodes} == {"llvm"}


def test_names_that_are_taken_are_left_alone():
    model = make(LAYERS + "o = Add(n, q) y = Neg(o)")
    next(node for node in model.graph.node if node.name == "y").name = "d.conv2"
    assert any(node.op_type == "MatMul" for node in prepare(load(model)).graph.nodes)


def test_any_number_of_images_gives_the_bits_of_a_static_program():
    body = LAYERS.replace("n = MatMul(u, p)", TWICE) + "o = Add(n, q) y = Add(x, o)"
    model = make(body)
    for tensor in model.graph.initializer:
        if tensor.name in "sf":
            shape = onnx.numpy_helper.to_array(tensor).copy()
            shape[0] = 0
            tensor.CopyFrom(onnx.numpy_helper.from_array(shape, tensor.name))
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    free = intarsia.compile(model, "llvm", num_threads=1)
    for images in (1, 2, 3):
        x = np.random.default_rng(images).standard_normal((images, *SHAPE[1:]), np.float32)
        static = intarsia.compile(model, "llvm", shapes={"n": images}, num_threads=1)
        operators = {
            node.op_type for region in static.plan.placement.regions for node in region.nodes
        }
        assert "MatMul" not in operators
        np.testing.assert_array_equal(free.run({"x": x})["y"], static.run({"x": x})["y"])
