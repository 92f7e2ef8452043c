# SPDX-License-Identifier: Apache-2.0
"""Which values each node reads and writes, in explanations, and in packages of strangers."""

import json
from dataclasses import replace

import msgspec
import onnx_ir as ir
import pytest

import intarsia
from intarsia.errors import PackageError
from intarsia.graph.graph import Graph
from intarsia.plan.wiring import ValueSource, WiredNode, Wiring, describe_wiring, read_wiring
from intarsia.runtime.package import read_package


def test_an_explanation_has_every_node_with_its_values(chain_model):
    explanation = intarsia.compile(chain_model, target="onnxruntime").explain()
    wiring = explanation.wiring
    placed = [node.name for region in explanation.placement.regions for node in region.nodes]
    assert sorted(node.name for node in wiring.nodes) == sorted(placed)
    made = {end: node.name for node in wiring.nodes for end in node.outputs}
    reads = {node.name: {made.get(end) for end in node.inputs} for node in wiring.nodes}
    assert reads == {
        "first": {None},
        "second": {"first"},
        "third": {"second"},
        "fourth": {"first"},
        "fifth": {"third", "fourth"},
    }
    x = wiring.values[wiring.nodes[0].inputs[0]]
    assert (x.name, x.dtype, x.shape, x.source) == ("x", "float32", (2, 4), ValueSource.INPUT)
    assert [made[end] for end in wiring.outputs] == ["fifth", "second"]


def test_constants_are_told(parse_model):
    text = """
    m (float[2,3] x) => (float[2,3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }
    """
    program = intarsia.compile(parse_model(text), target="onnxruntime")
    values = {value.name: value for value in program.explain().wiring.values}
    assert values["w"].source is ValueSource.CONSTANT
    assert values["w"].shape == (3,)
    assert values["y"].source is ValueSource.NODE


def test_a_package_keeps_it(chain_model, tmp_path):
    program = intarsia.compile(chain_model, target="onnxruntime")
    program.save(tmp_path / "m.intarsia")
    assert read_package(tmp_path / "m.intarsia").explain().wiring == program.explain().wiring


def test_a_plan_of_an_older_version_has_none(chain_model):
    program = intarsia.compile(chain_model, target="onnxruntime")
    program.plan = replace(program.plan, wiring=b"")
    assert program.explain().wiring is None


@pytest.mark.parametrize(
    "text",
    [
        b"[1]",
        b'{"values": [], "nodes": [{"name": "n"}], "outputs": []}',
        b"\xff",
        msgspec.json.encode(Wiring((), (WiredNode("n", (0,), ()),), ())),
        msgspec.json.encode(Wiring((), (), (-1,))),
    ],
)
def test_what_is_malformed_is_an_error_of_ours(text):
    with pytest.raises(PackageError, match="wiring"):
        read_wiring(text)


def test_a_body_reads_values_from_outside(parse_model):
    text = """
    m (bool c, float[2] x) => (float[2] y) {
        y = If (c) <
            then_branch = g () => (float[2] t) { t = Neg(x) },
            else_branch = h () => (float[2] e) { e = Identity(x) }
        >
    }
    """
    graph = Graph.from_model(ir.from_proto(parse_model(text)))
    wiring = json.loads(describe_wiring(graph.nodes, graph.values, graph.outputs))
    (node,) = wiring["nodes"]
    assert node["outputs"] == wiring["outputs"]
    assert {wiring["values"][end]["name"] for end in node["inputs"]} == {"c", "x"}


def test_free_dimensions_are_text(parse_model):
    model = parse_model("m (float[N,3] x) => (float[N,3] y) { y = Relu(x) }")
    program = intarsia.compile(model, target="llvm")
    (x, _) = program.explain().wiring.values
    assert x.shape in (("N", 3), (1, 3))
