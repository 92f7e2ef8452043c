# SPDX-License-Identifier: Apache-2.0
"""Layers for Model Explorer: each node has its target, by the id that Model Explorer gives it."""

import onnx

import intarsia
from intarsia.__main__ import main
from intarsia.decoding import decode_json
from intarsia.report.overlay import ABSENT, SEVERAL, explorer_ids, placement_overlay

TOWERS = """towers (float[4] x) => (float[4] y) <float[4] c = {1, 2, 3, 4}> {
    a = Relu(x)
    [one] b = Tanh(a)
    d = Exp(c)
    [two] y = Add(b, d)
}"""


def test_every_node_of_the_model_has_its_target(parse_model):
    model = parse_model(TOWERS)
    exe = intarsia.compile(model, "fake -ops=Tanh, onnxruntime")
    ids = explorer_ids(model, model.graph.node)
    assert ids == {"a": "<node_0>", "one": "one", "d": "<node_2>", "two": "two"}
    overlay = placement_overlay(exe.placement, ids)
    values = {key: one["value"] for key, one in overlay["results"].items()}
    assert values == {
        "<node_0>": "onnxruntime",
        "one": "fake -ops=Tanh",
        "<node_2>": ABSENT,
        "two": "onnxruntime",
    }
    colours = {one["value"]: one["bgColor"] for one in overlay["results"].values()}
    assert len(set(colours.values())) == len(colours)


def test_without_the_model_names_are_ids(parse_model):
    exe = intarsia.compile(parse_model(TOWERS), "fake -ops=Tanh, onnxruntime")
    results = placement_overlay(exe.placement)["results"]
    assert results.keys() == {"a", "one", "two"}


def test_a_node_on_several_targets_names_all(parse_model):
    text = """<ir_version: 9, opset_import: ["" : 20, "own" : 1]>
    g (float[4] x) => (float[4] y) { [call] y = own.both(x) }
    <opset_import: ["" : 20], domain: "own"> both (a) => (c) { b = Tanh(a) c = Relu(b) }"""
    exe = intarsia.compile(onnx.parser.parse_model(text), "fake -ops=Tanh, onnxruntime")
    (result,) = placement_overlay(exe.placement)["results"].values()
    assert result == {"value": "fake -ops=Tanh and onnxruntime", "bgColor": SEVERAL}


def test_explain_writes_an_overlay(tmp_path, parse_model, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(parse_model(TOWERS), "m.onnx")
    assert main(["explain", "m.onnx", "-t", "onnxruntime", "--overlay", "o.json", "--json"]) == 0
    shown = capsys.readouterr()
    assert decode_json(shown.out, dict)["placement"]
    overlay = decode_json((tmp_path / "o.json").read_text(), dict)
    assert set(overlay["results"]) == {"<node_0>", "one", "<node_2>", "two"}
    assert main(["compile", "m.onnx", "-t", "onnxruntime"]) == 0
    assert main(["explain", "m.intarsia", "--overlay", "p.json"]) == 0
    overlay = decode_json((tmp_path / "p.json").read_text(), dict)
    assert set(overlay["results"]) == {"a", "one", "two"}
    assert main(["explain", "m.onnx", "-t", "onnxruntime", "--overlay", "no/o.json"]) == 2
