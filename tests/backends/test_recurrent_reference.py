# SPDX-License-Identifier: Apache-2.0
"""Recurrent operators of the reference, against ONNX Runtime's."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from intarsia.backends.evaluator import make_evaluator

STEPS, BATCH, INPUT, HIDDEN = 5, 3, 4, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
CASES = {
    "plain": {},
    "clip": {"clip": 0.1},
    "reverse": {"direction": "reverse"},
    "functions": {"activations": {"RNN": ["Relu"], "GRU": ["HardSigmoid", "Softsign"],
                                  "LSTM": ["Sigmoid", "LeakyRelu", "Softsign"]}},
    "numbers": {"activations": {"RNN": ["Affine"], "GRU": ["HardSigmoid", "Affine"],
                                "LSTM": ["HardSigmoid", "Affine", "ScaledTanh"]},
                "activation_alpha": [0.3, 0.7, 1.5], "activation_beta": [0.4, 0.1, 0.8]},
    "own": {"RNN": {}, "GRU": {"linear_before_reset": 1}, "LSTM": {"input_forget": 1}},
}  # fmt: skip


def make_model(operator, attributes, direction):
    """Return a model with every input that ends sequences at their own lengths, and its feeds."""
    rng = np.random.default_rng(0)
    directions, gates = (2 if direction == "bidirectional" else 1), GATES[operator] * HIDDEN
    feeds = {"x": rng.standard_normal((STEPS, BATCH, INPUT)).astype(np.float32)}
    shapes = {"w": (gates, INPUT), "r": (gates, HIDDEN), "b": (2 * gates,), "h": (BATCH, HIDDEN)}
    shapes |= {"c": (BATCH, HIDDEN), "p": (3 * HIDDEN,)} if operator == "LSTM" else {}
    constants = {
        name: rng.standard_normal((directions, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    constants["lengths"] = np.array([2, STEPS, 0], np.int32)
    inputs = ["x", "w", "r", "b", "lengths", *list(shapes)[3:]]
    outputs = ["y", "last", "state"][: 3 if operator == "LSTM" else 2]
    node = helper.make_node(
        operator, inputs, outputs, **{"hidden_size": HIDDEN, "direction": direction, **attributes}
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (STEPS, BATCH, INPUT))],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    versions = [helper.make_opsetid("", 17)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=versions, ir_version=8)
    ), feeds


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("operator", GATES)
def test_it_computes_what_onnxruntime_does(operator, case):
    attributes = {
        name: value[operator] if name == "activations" else value
        for name, value in (CASES[case].get(operator, CASES[case])).items()
    }
    direction = attributes.pop(
        "direction", "forward" if "activations" in attributes else "bidirectional"
    )
    model, feeds = make_model(operator, attributes, direction)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    computed = make_evaluator(model).run(None, feeds)
    for one, other in zip(computed, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)
