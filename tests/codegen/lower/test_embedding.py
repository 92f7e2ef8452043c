# SPDX-License-Identifier: Apache-2.0
"""EmbedLayerNormalization against onnxruntime."""

import numpy as np
import onnx
import pytest
from tests.codegen.lower.small_models import small_model

import intarsia
from intarsia.codegen.lower.region import refuse_node
from intarsia.errors import IntarsiaError
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

IDS = {
    "i": np.array([[3, 0, 10, 4, 4], [1, 2, 3, 9, 0]], np.int32),
    "t": np.array([[0, 0, 1, 1, 0], [1, 1, 0, 0, 0]], np.int32),
    "o": np.array([[6, 5, 4, 3, 2]], np.int32),
}
TABLES = {"w": (11, 40), "p": (7, 40), "s": (2, 40), "g": (40,), "b": (40,)}
NAME = "com.microsoft.EmbedLayerNormalization"
CASES = {
    "words and positions": (f"y, m = {NAME}(i, , w, p, , g, b) z = Neg(y)", "i"),
    "with segments": (f"y, m = {NAME}<epsilon = 0.01>(i, t, w, p, s, g, b) z = Neg(y)", "it"),
    "with positions": (f"y, m = {NAME}(i, t, w, p, s, g, b, , o) z = Neg(y)", "ito"),
    "with the sum": (f"y, m, e = {NAME}(i, t, w, p, s, g, b) z = Add(y, e)", "it"),
}


def model_of(case):
    text, names = CASES[case]
    weights = {name: shape for name, shape in TABLES.items() if f" {name}," in text or name in "gb"}
    feeds = {name: IDS[name] for name in names}
    return small_model("z", text, feeds, weights), feeds


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_onnxruntime(run_both, case):
    model, feeds = model_of(case)
    run_both(model, feeds, rtol=1e-5)


def test_a_word_outside_is_an_error(backends):
    model, feeds = model_of("with segments")
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    with pytest.raises(IntarsiaError, match="11"):
        exe.run(feeds | {"i": np.full((2, 5), 11, np.int32)})


REFUSED = {
    f"y, m = {NAME}(i, , w, p, , g, g) z = Cast<to = 1>(m)": "its mask index is asked for",
    f"y = {NAME}(i, , w, q, , g, g) z = Neg(y)": "its table of positions is too short",
    f"y = {NAME}(i, i, w, p, , g, g) z = Neg(y)": "segments or their table are missing",
    f"y = {NAME}(i, , w, p, , h, g) z = Neg(y)": "its tables are not as wide as its result",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text):
    inputs = "int32[2,5] i, float[9,8] w, float[9,8] p, float[3,8] q, float[8] g, float[4] h"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
        f" n ({inputs}) => (float z) {{ {text} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph = snapshot(load(model))
    assert refuse_node(graph, graph.nodes[0]) == ("op", REFUSED[text])
