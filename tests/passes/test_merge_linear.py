# SPDX-License-Identifier: Apache-2.0
"""Linear layers of tokens take in the pointwise convolutions of their images."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from tests.codegen.lower.small_models import feeds_of, small_model

from intarsia.graph.annotate import on_device
from intarsia.graph.load import load
from intarsia.passes.prepare import prepare

WEIGHTS = {
    "w": (8, 24),
    "b": (24,),
    "s": np.array([2, 24, 3, 5], np.int64),
    "k": (16, 24, 1, 1),
    "kb": (16,),
    "k2": (6, 16, 1, 1),
    "wide": (8, 2),
    "s2": np.array([2, 2, 3, 5], np.int64),
    "k3": (16, 2, 1, 1),
    "s3": np.array([2, 15, 4, 6], np.int64),
    "k4": (16, 15, 1, 1),
    "row": (15, 1),
}
LAYER = "m = MatMul(x, w) a = Add(m, b) t = Transpose<perm = [0, 2, 1]>(a) r = Reshape(t, s) "


def check(body, outputs="y", devices=None):
    """Prepare a model, compare its numbers, and return its operators in order."""
    read = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    weights = {name: array for name, array in WEIGHTS.items() if name in read}
    model = small_model(outputs, body, {"x": (2, 15, 8)}, weights)
    for node in model.graph.node:
        node.name = node.output[0]
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
    return [node.name for node in prepared.graph.nodes], prepared


@pytest.mark.parametrize("bias", ["", ", kb"], ids=["without a bias", "with a bias"])
@pytest.mark.parametrize("after", ["y = Relu(c)", "y = Neg(c)"])
def test_a_convolution_of_an_image_of_tokens_is_merged(bias, after):
    names, prepared = check(LAYER + f"c = Conv(r, k{bias}) " + after)
    assert "c" not in names
    assert {"m", "a", "t", "r", "y"} == set(names)
    assert prepared.graph.node_named("m").origins == ("m", "c")
    (rewrite,) = (item for item in prepared.rewrites if item.name == "merge-linear")
    assert rewrite.nodes == ("c",)


def test_an_output_is_merged_under_its_name():
    names, _ = check(LAYER + "y = Conv(r, k, kb)")
    assert names == ["m", "a", "t", "r"]


def test_the_bias_may_stand_first_and_be_absent():
    body = "m = MatMul(x, w) a = Add(b, m) t = Transpose<perm = [0, 2, 1]>(a) r = Reshape(t, s) "
    assert check(body + "y = Conv(r, k, kb)")[0] == ["m", "a", "t", "r"]
    body = "m = MatMul(x, w) t = Transpose<perm = [0, 2, 1]>(m) r = Reshape(t, s) "
    assert check(body + "y = Conv(r, k)")[0] == ["m", "t", "r"]
    assert check(body + "y = Conv(r, k, kb)")[0] == ["m", "t", "r", "y"]


def test_two_convolutions_in_a_row_are_merged():
    assert check(LAYER + "c = Conv(r, k, kb) y = Conv(c, k2)")[0] == ["m", "a", "t", "r"]


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (LAYER + "y = Conv(r, k)", "a, y"),
        (LAYER + "c = Conv(r, k) d = ReduceMean<keepdims = 1>(r) y = Add(c, d)", "y"),
        (
            "m = MatMul(x, wide) t = Transpose<perm = [0, 2, 1]>(m) r = Reshape(t, s2)"
            " y = Conv(r, k3)",
            "y",
        ),
        ("m = MatMul(x, w) r = Reshape(m, s3) y = Conv(r, k4)", "y"),
        (
            "m = MatMul(x, w) a = Add(m, row) t = Transpose<perm = [0, 2, 1]>(a) r = Reshape(t, s)"
            " y = Conv(r, k)",
            "y",
        ),
        (LAYER + "y = Conv<strides = [2, 2], kernel_shape = [1, 1]>(r, k)", "y"),
    ],
    ids=["seen", "read twice", "wider than both", "no transpose", "numbers for rows", "strides"],
)
def test_other_convolutions_stay(body, outputs):
    names, prepared = check(body, outputs)
    assert any(node.op_type == "Conv" for node in prepared.graph.nodes), names


def test_nodes_for_different_devices_stay():
    assert "y" in check(LAYER + "y = Conv(r, k)", devices={"y": "llvm"})[0]
