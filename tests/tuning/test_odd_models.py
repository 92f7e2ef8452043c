# SPDX-License-Identifier: Apache-2.0
"""Models with values that no buffer holds: what can be probed is, what cannot is refused."""

import numpy as np
import pytest

from intarsia.errors import ReasonCode
from intarsia.tuning.laboratory.values import Probe

MODELS = {
    "text": """
        net (string[3] s, float[3] x) => (string[3] t, float[3] y) {
            t = Identity(s) a = Relu(x) y = Neg(a)
        }""",
    "dynamic": """
        net (float[3] x) => (int64[1,n] where, float[3] y) {
            b = Cast<to = 9>(x) i = NonZero(b) where = Neg(i) a = Relu(x) y = Neg(a)
        }""",
    "bodies": """
        net (bool b, float[2] x) => (float[2] y) {
            a = Relu(x)
            y = If (b) <then_branch = t () => (float[2] p) { p = Neg(a) },
                        else_branch = e () => (float[2] q) { q = Abs(a) }>
        }""",
    "empty": """
        net (float[0,3] x) => (float[0,3] y) { a = Relu(x) y = Neg(a) }""",
    "input is output": """
        net (float[2] x) => (float[2] x, float[2] y) { y = Neg(x) }""",
}


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_model_and_its_parts_are_probed_where_their_values_are_kept(
    name, parse_model, open_laboratory
):
    laboratory = open_laboratory(parse_model(MODELS[name]), "onnxruntime")
    graph = laboratory.setting.graph
    whole = Probe.region(0, range(len(graph.nodes)))
    singles = [Probe.region(0, [node.id]) for node in graph.nodes]
    found = laboratory.prepare([whole, *singles])
    for probe in (whole, *singles):
        ((_, nodes),) = probe.calls
        read = [graph.values[i] for node in nodes for i in graph.nodes[node].reads]
        outside = [v for v in read if v.producer not in nodes and v.constant is None]
        refusal = found[probe].refusal
        if all(value.id in graph.inputs or value.is_static for value in outside):
            assert refusal is None
        else:
            assert refusal[0] is ReasonCode.DYNAMIC_SHAPE
            assert "stored no value" in refusal[1]
    race = laboratory.race([whole, *singles], rounds=2)
    assert race.refusals.keys() == {p for p, one in found.items() if one.refusal is not None}


def test_text_of_the_user_is_used(parse_model, open_laboratory):
    text = np.array(["a", "b", "c"], object)
    laboratory = open_laboratory(parse_model(MODELS["text"]), "onnxruntime", feeds={"s": text})
    nodes = range(len(laboratory.setting.graph.nodes))
    (found,) = laboratory.prepare([Probe.region(0, nodes)]).values()
    assert found.refusal is None
    assert laboratory.reference.texts == {"s": ["a", "b", "c"]}
