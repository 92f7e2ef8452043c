# SPDX-License-Identifier: Apache-2.0
"""Made-up inputs are legal for the model, as far as its operators tell."""

import numpy as np
import onnx
import pytest
from onnx import helper

import intarsia
from intarsia.graph.legal import Legal, legal_inputs
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot
from intarsia.zoo import transformers

RNG = np.random.default_rng(0)
BERT = transformers.Encoder("small", layers=1, width=16, heads=2, words=50)
TRANSFORMERS = {
    "bert": (
        lambda: transformers.bert(BERT, RNG),
        {"input_ids": Legal(50), "token_type_ids": Legal(2), "attention_mask": None},
    ),
    "gpt2": (
        lambda: transformers.gpt2(transformers.Gpt2(1, 16, 2, 60, 8), RNG),
        {"input_ids": Legal(60)},
    ),
    "llama": (
        lambda: transformers.llama_decode(transformers.Llama(1, 16, 32, 2, 1, 70, 8), RNG),
        {"input_ids": Legal(70)},
    ),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_say_which_tokens_they_know(name, backends, tmp_path):
    make, wanted = TRANSFORMERS[name]
    model = make()
    legal = legal_inputs(snapshot(load(model)))
    assert {key: legal.get(key) for key in wanted} == wanted
    exe = intarsia.compile(model, "llvm, onnxruntime", num_threads=1, backends=backends)
    exe.save(tmp_path / "m.intarsia")
    feeds = intarsia.load(tmp_path / "m.intarsia", backends=backends).sample_feeds(3)
    assert len(set(feeds["input_ids"].ravel())) > 1 or feeds["input_ids"].size == 1
    if "attention_mask" in feeds:
        assert feeds["attention_mask"].all()
    for array in exe.run(feeds).values():
        assert np.isfinite(array).all()


OPERANDS = {
    "Reshape": ("y = Reshape(x, i)", (2, 6), (2,), (-1, 1)),
    "Expand": ("y = Expand(x, i)", (2, 1), (2,), (1, 1)),
    "Unsqueeze": ("y = Unsqueeze(x, i)", (2, 3), (2,), (0, 1)),
    "Scatter": ("y = ScatterElements(x, i, u)", (3, 2), (2, 2), None),
    "GatherND": ("y = GatherND(x, i)", (3, 2), (4, 2), None),
    "Slice": ("a = Slice(i, zero, one) y = Gather(x, a)", (3, 2), (4,), None),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_operands_that_are_fed_are_legal(name, backends):
    body, x, i, values = OPERANDS[name]
    extra = ", float[2,2] u" if " u)" in body else ""
    text = f"""net (float{list(x)} x, int64{list(i)} i{extra}) => (float y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}> {{ {body} }}"""
    exe = intarsia.compile(_parse(text), "onnxruntime", num_threads=1, backends=backends)
    feeds = exe.sample_feeds(1)
    if values:
        assert tuple(feeds["i"]) == values
    else:
        assert 0 <= feeds["i"].min() <= feeds["i"].max() < x[0]
    exe.run(feeds)


def _parse(text):
    header = '<ir_version: 8, opset_import: ["": 18]>'
    model = onnx.parser.parse_model(header + text.replace("(float y)", "(float[] y)"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def test_ids_of_an_operator_of_microsoft_are_legal():
    value = helper.make_tensor_value_info
    node = helper.make_node(
        "EmbedLayerNormalization",
        ["ids", "kinds", "words", "positions", "segments", "scale", "shift"],
        ["y", "mask"],
        domain="com.microsoft",
    )
    tables = {"words": (40, 8), "positions": (16, 8), "segments": (3, 8)}
    tables |= {"scale": (8,), "shift": (8,)}
    constants = [
        helper.make_tensor(name, 1, shape, np.ones(shape, np.float32).ravel())
        for name, shape in tables.items()
    ]
    graph = helper.make_graph(
        *([node], "g", [value("ids", 6, [1, 4]), value("kinds", 6, [1, 4])]),
        *([value("y", 1, [1, 4, 8])], constants),
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    loaded = load(helper.make_model(graph, ir_version=8, opset_imports=imports))
    assert legal_inputs(snapshot(loaded)) == {"ids": Legal(40), "kinds": Legal(3)}
