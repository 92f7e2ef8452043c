# SPDX-License-Identifier: Apache-2.0
"""Operators that ONNX defines by a function run on any target that has that function's nodes."""

import json

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import intarsia
from intarsia.graph.load import load
from intarsia.graph.metadata import ORIGIN_KEY

LOSS = """<ir_version: 10, opset_import: ["": 21]>
loss (float[N,5,3] scores, int64[N,3] labels) => (float mean, float[N,5,3] logarithms)
<float[5] weights = {1, 2, 0.5, 1, 3}>
{
  doubled = Add (scores, scores)
  [the_loss] mean, logarithms = SoftmaxCrossEntropyLoss
    <reduction: string = "mean", ignore_index = -1> (doubled, labels, weights)
}"""


def test_a_loss_with_a_free_batch_is_native_and_right() -> None:
    model = onnx.parser.parse_model(LOSS)
    program = intarsia.compile(model, "llvm")
    rng = np.random.default_rng(0)
    for batch in (1, 4):
        labels = rng.integers(0, 5, (batch, 3))
        labels[0, 1] = -1
        feeds = {"scores": rng.standard_normal((batch, 5, 3), np.float32), "labels": labels}
        results = program.run(feeds)
        for name, wanted in zip(results, ReferenceEvaluator(model).run(None, feeds), strict=True):
            np.testing.assert_allclose(results[name], wanted, rtol=1e-5, atol=1e-6)


def test_its_nodes_stand_for_the_operator_and_a_pin_reaches_them() -> None:
    loaded = load(onnx.parser.parse_model(LOSS), {"N": 2})
    names = [node.name for node in loaded.graph if node.op_type != "Add"]
    assert len(names) > 5
    assert all(name.startswith("the_loss/") for name in names)
    program = intarsia.compile(
        onnx.parser.parse_model(LOSS),
        "llvm, onnxruntime",
        shapes={"N": 2},
        pins={"the_loss": "onnxruntime"},
    )
    kinds = {
        node.name: str(r.target).split()[0] for r in program.placement.regions for node in r.nodes
    }
    assert kinds.pop("doubled") == "llvm"
    assert set(kinds.values()) == {"onnxruntime"}


def test_only_what_no_runtime_has_whole_is_taken_apart() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 20]> g (float[4] x) => (float[4] y) { y = Gelu (x) }'
    )
    (node,) = load(onnx.parser.parse_model(text)).graph
    assert (node.op_type, json.loads(node.metadata_props.get(ORIGIN_KEY, "[]"))) == ("Gelu", [])


def test_a_loss_in_a_branch_is_taken_apart_there() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (bool flag, float[2,5] scores, int64[2] labels) => (float y)
    {
      y = If (flag) <
        then_branch = a () => (float loss) { loss = SoftmaxCrossEntropyLoss (scores, labels) },
        else_branch = b () => (float zero) { zero = Constant <value_float = 0.5> () }
      >
    }"""
    model = onnx.parser.parse_model(text)
    program = intarsia.compile(model, "llvm")
    feeds = {"scores": np.eye(2, 5, dtype=np.float32), "labels": np.array([0, 3])}
    for flag in (True, False):
        feeds["flag"] = np.array(flag)
        (wanted,) = ReferenceEvaluator(model).run(None, feeds)
        np.testing.assert_allclose(program.run(feeds)["y"], wanted, rtol=1e-6)


@pytest.mark.parametrize("op_type", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("element", ["DOUBLE", "FLOAT"])
def test_a_window_is_as_exact_as_its_type(op_type: str, element: str) -> None:
    """ONNX's function computes in float32, also where float64 is wanted."""
    dtype = onnx.TensorProto.DataType.Value(element)
    body = f"{{ y = {op_type} <periodic = 1, output_datatype = {dtype}> (size) }}"
    text = f"g (int64 size) => ({element.lower()}[n] y) {body}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    feeds = {"size": np.array(24)}
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    result = intarsia.compile(model, "reference", num_threads=1).run(feeds)["y"]
    atol = 1e-15 if element == "DOUBLE" else 3e-7
    assert result.dtype == wanted.dtype
    np.testing.assert_allclose(result, wanted, rtol=0, atol=atol)
