# SPDX-License-Identifier: Apache-2.0
"""Operators that ONNX Runtime's optimiser writes for GPUs, against ONNX's that they stand for."""

import numpy as np
import onnx.parser
import pytest
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import feeds_of, small_model

import intarsia
from intarsia.codegen.lower.region import refuse_node
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

NORM = "com.microsoft.GroupNorm<groups = 4, epsilon = 0.001, {}>(x, g, b)"
PLAIN = "GroupNormalization<num_groups = 4, epsilon = 0.001>({}, g, b)"
SHAPES = {(2, 24, 5, 7): 0, (1, 8, 3, 3): 0, (2, 5, 7, 24): 1, (3, 1, 9, 8): 1}


def compare(backends, model, plain, rtol=1e-5):
    feeds = feeds_of(model)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    np.testing.assert_allclose(
        exe.run(feeds)["y"], evaluate(plain, feeds)["y"], rtol=rtol, atol=rtol
    )


@pytest.mark.parametrize("then", ["", "Neg"])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_groups_with_channels_anywhere(backends, shape, activation, then):
    is_last = SHAPES[shape]
    channels = dict.fromkeys("gb", (shape[-1 if is_last else 1],))
    norm = NORM.format(f"channels_last = {is_last}, activation = {activation}")
    steps = [f"m = {PLAIN.format('c' if is_last else 'x')}", "n = Identity(m)"]
    if activation:
        steps[1] = "s = Sigmoid(m) n = Mul(m, s)"
    if is_last:
        steps = ["c = Transpose<perm = [0,3,1,2]>(x)", *steps]
    steps.append(f"z = {'Transpose<perm = [0,2,3,1]>' if is_last else 'Identity'}(n)")
    last = f"y = {then or 'Identity'}(z)"
    model = small_model("y", f"z = {norm} {last}", {"x": shape}, channels)
    plain = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 21]> g (float{[*shape]} x) => (float{[*shape]} y)'
        f" {{ {' '.join(steps)} {last} }}"
    )
    plain.graph.initializer.extend(model.graph.initializer)
    compare(backends, model, plain)


def test_a_bias_and_what_is_added(backends):
    text = "y = com.microsoft.BiasAdd(x, b, s)"
    shapes = {"x": (2, 9, 8), "s": (2, 9, 8)}
    model = small_model("y", text, shapes, {"b": (8,)})
    compare(backends, model, small_model("y", "t = Add(x, b) y = Add(t, s)", shapes, {"b": (8,)}))


@pytest.mark.parametrize(
    ("shape", "weights", "attributes", "why"),
    [
        ((2, 8, 24), 24, "activation = 0, channels_last = 0", "scale or shift"),
        ((2, 24), 24, "activation = 0", "spatial"),
        ((2, 5, 7, 22), 22, "activation = 0", "multiple of its groups"),
        ((2, 5, 7, 24), 24, "activation = 2", "not SiLU"),
    ],
)
def test_what_is_refused_has_a_reason(shape, weights, attributes, why):
    text = f"y = {NORM.format(attributes)}"
    graph = snapshot(load(small_model("y", text, {"x": shape}, dict.fromkeys("gb", (weights,)))))
    found = refuse_node(graph, graph.nodes[0])
    assert found is not None
    assert why in found[1]
