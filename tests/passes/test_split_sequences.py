# SPDX-License-Identifier: Apache-2.0
"""SplitToSequence with SequenceAt of constants behind it is a Split, with the same numbers."""

import numpy as np
import onnx
import onnxruntime
import pytest

import intarsia
from intarsia.graph.load import load
from intarsia.passes.prepare import prepare

HEAD = """<ir_version: 10, opset_import: ["" : {opset}]>
g (float[2,7] x, int64 at) => ({outputs})
<int64[3] parts = {{2, 4, 1}}, int64[3] wrong = {{2, 2, 2}}, int32 three = {{3}},
 int64 one = {{1}}, int64 last = {{-1}}, int64 far = {{5}}> {{"""
PLAIN = """[s] s = SplitToSequence<axis=1>(x, parts)
    [a] a = SequenceAt(s, one) [b] b = SequenceAt(s, last) [y] y = Relu(a) [z] z = Mul(b, b)"""
BOTH = "float[2,n] y, float[2,m] z"
SPLIT = ["Mul", "Relu", "Split"]
SEQUENCE = ["Mul", "Relu", "SequenceAt", "SequenceAt", "SplitToSequence"]


def model_of(body, outputs=BOTH, opset=18):
    return onnx.parser.parse_model(HEAD.format(outputs=outputs, opset=opset) + body + "}")


def operators_of(model):
    return sorted(node.op_type for node in prepare(load(model)).graph.nodes)


def kinds_after(model, at=0):
    """Run a model, compare it with ONNX Runtime, and return the operators that are left."""
    program = intarsia.compile(model, "llvm, onnxruntime", num_threads=1, cache=False)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 7)).astype(np.float32)}
    feeds["at"] = np.array(at, np.int64)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    for name, expected in zip(
        [output.name for output in model.graph.output], session.run(None, feeds), strict=True
    ):
        np.testing.assert_array_equal(program.run(feeds)[name], expected)
    return operators_of(model)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (PLAIN, SPLIT),
        (PLAIN.replace("parts", "three"), SPLIT),  # 3, 3 and 1
        (PLAIN.replace("axis=1", "axis=-1, keepdims=0"), SPLIT),
        (PLAIN.replace("last", "one"), SPLIT),
        (PLAIN.replace("last", "at"), SEQUENCE),
    ],
)
def test_parts_at_known_places_are_those_of_a_split(body, left):
    assert kinds_after(model_of(body)) == left


def test_names_that_are_there_are_not_given_again():
    model = model_of(PLAIN.replace("(b, b)", "(other, other)").replace("b = Seq", "other = Seq"))
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("other", "s/part0") for name in names]
    assert kinds_after(model) == SPLIT


def test_parts_may_be_outputs():
    body = PLAIN.replace("[y] y = Relu(a) [z] z = Mul(b, b)", "")
    body = body.replace("a = Seq", "y = Seq").replace("b = Seq", "z = Seq")
    assert kinds_after(model_of(body)) == ["Split"]


@pytest.mark.parametrize(
    "body", [PLAIN.replace("last", "far"), PLAIN.replace("parts", "wrong")], ids=["place", "sizes"]
)
def test_what_fails_still_fails(body):
    with pytest.raises(intarsia.IntarsiaError):
        intarsia.compile(model_of(body), "llvm, onnxruntime", cache=False).run(
            {"x": np.zeros((2, 7), np.float32), "at": np.array(0)}
        )


def test_a_free_extent_may_not_be_the_sum_of_the_sizes():
    model = model_of(PLAIN)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    prepared = prepare(load(model, stays_free=True))
    assert sorted(node.op_type for node in prepared.graph.nodes) == SEQUENCE


def test_before_split_read_its_sizes_it_stays():
    assert kinds_after(model_of(PLAIN, opset=12)) == SEQUENCE


def test_a_sequence_that_is_read_otherwise_stays():
    assert operators_of(model_of(PLAIN + "[n] n = SequenceLength(s)", BOTH + ", int64 n")) == [
        *SEQUENCE[:2],
        "SequenceAt",
        "SequenceAt",
        "SequenceLength",
        "SplitToSequence",
    ]


def test_parts_of_one_that_may_lose_their_dimension_stay():
    body = PLAIN.replace("parts", "one").replace("axis=1", "axis=1, keepdims=0")
    assert operators_of(model_of(body)) == SEQUENCE
