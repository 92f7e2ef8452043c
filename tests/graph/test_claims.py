# SPDX-License-Identifier: Apache-2.0
"""Declared shapes of outputs that are wrong: derived, or found while running, with a warning."""

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import intarsia
from intarsia.graph.infer import data_dependent_shapes
from intarsia.graph.load import load


def classifier(label, scores):
    """A tree as LightGBM's converter writes it."""
    node = helper.make_node(
        *("TreeEnsembleClassifier", ["x"], ["label", "scores"]),
        domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_values=[0.5, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        class_treeids=[0, 0],
        class_nodeids=[1, 2],
        class_ids=[0, 0],
        class_weights=[-1.0, 1.0],
        classlabels_int64s=[0, 1],
        post_transform="LOGISTIC",
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        *([node], "trees", [value("x", 1, ["N", 4])]),
        [value("label", 7, label), value("scores", 1, scores)],
    )
    imports = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=imports)


@pytest.mark.parametrize("target", [None, "onnxruntime", "reference"])
def test_a_wrong_batch_of_labels_runs_with_one_warning(backends, caplog, target, tmp_path):
    x = np.float32([[0.1] * 4, [0.9] * 4, [0.2] * 4])
    exe = intarsia.compile(
        classifier([1], ["N", 2]), target, shapes={"x": (3, 4)}, backends=backends
    )
    for _ in range(2):
        outputs = exe.run({"x": x})
    np.testing.assert_array_equal(outputs["label"], [0, 1, 0])
    assert outputs["scores"].shape == (3, 2)
    wanted = "output 'label' is of shape [3], where the model declares [1]"
    assert [text for text in caplog.messages if "declares" in text] == [wanted]
    exe.save(tmp_path / "trees.intarsia")
    caplog.clear()
    intarsia.load(tmp_path / "trees.intarsia", backends=backends).run({"x": x})
    assert caplog.messages == [wanted]


def test_a_right_batch_of_labels_warns_of_nothing(backends, caplog):
    model = classifier([3], [3, 2])
    exe = intarsia.compile(model, "onnxruntime", shapes={"x": (3, 4)}, backends=backends)
    exe.run({"x": np.zeros((3, 4), np.float32)})
    assert not caplog.messages


@pytest.mark.parametrize("target", ["llvm", "onnxruntime"])
def test_a_wrong_shape_that_follows_from_the_nodes_is_derived(backends, caplog, target):
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        *([helper.make_node("Relu", ["x"], ["y"])], "g"),
        *([value("x", 1, [5, 3])], [value("y", 1, [1, 3])]),
    )
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, ir_version=8, opset_imports=imports)
    exe = intarsia.compile(model, target, backends=backends)
    assert exe.outputs[0].shape == (5, 3)
    assert exe.run({"x": np.ones((5, 3), np.float32)})["y"].shape == (5, 3)
    assert [text for text in caplog.messages if "declares" in text] == [
        "output 'y' is of shape [5, 3], where the model declares [1, 3]"
    ]


DEPENDENT = {
    "NonZero": ("y = NonZero(x)", "int64[1,3] y"),
    "Compress": ("c = Cast<to=9>(x) y = Compress(x, c)", "float[3] y"),
    "Unique": ("y = Unique(x)", "float[4] y"),
    "NonMaxSuppression": (
        """two = Concat<axis=0>(x, x) s = Constant<value = int64[3] {1, 2, 4}>()
        b = Reshape(two, s) c = Constant<value = int64[3] {1, 1, 2}>()
        h = Slice(x, i, k) p = Reshape(h, c) m = Constant<value = int64[1] {5}>()
        f = Constant<value = float[1] {0.5}>() y = NonMaxSuppression(b, p, m, f, f)""",
        "int64[7,3] y",
    ),
    "after others": ("z = NonZero(x) f = Cast<to=1>(z) y = Relu(f)", "float[1,3] y"),
    "of numbers, by way of a size": (
        """z = NonZero(x) a = Size(z) s = Constant<value = int64[1] {1}>() m = Reshape(a, s)
        y = Tile(x, m)""",
        "float[9] y",
    ),
    "in a body": (
        """t = Constant<value = bool {1}>()
        y = If(t) <then_branch = a () => (int64[1,3] r) { r = NonZero(x) },
                   else_branch = b () => (int64[1,3] q) { q = NonZero(x) }>""",
        "int64[1,3] y",
    ),
}


@pytest.mark.parametrize("target", [None, "onnxruntime", "reference"])
@pytest.mark.parametrize("case", DEPENDENT)
def test_a_wrong_shape_of_what_is_counted_runs_with_a_warning(
    case, target, backends, caplog, parse_model
):
    """What ONNX Runtime gives with a warning, whatever the operator."""
    text, declared = DEPENDENT[case]
    model = parse_model(f"g (float[4] x, int64[1] k, int64[1] i) => ({declared}) {{ {text} }}")
    feeds = {"x": np.float32([0, 1, 0, 2]), "k": np.int64([2]), "i": np.int64([0])}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    used = {value.name for value in session.get_inputs()}
    (wanted,) = session.run(None, {name: array for name, array in feeds.items() if name in used})
    got = intarsia.compile(model, target, backends=backends).run(feeds)["y"]
    np.testing.assert_array_equal(got, wanted)
    said = [text for text in caplog.messages if "declares" in text]
    assert len(said) == 1
    assert said[0].startswith(f"output 'y' is of shape {list(wanted.shape)}, where the model ")


def test_inner_shapes_that_depend_on_what_is_fed_are_not_believed(backends, parse_model):
    model = parse_model("""
        g (float[4] x) => (float y) <int64[1,3] z, float[1,3] f, float s> {
            z = NonZero(x) f = Cast<to=1>(z) s = ReduceSum<keepdims=0>(f) y = Exp(s)
        }""")
    exe = intarsia.compile(model, backends=backends)
    assert exe.outputs[0].shape == ()
    got = exe.run({"x": np.float32([0, 1, 0, 2])})["y"]
    np.testing.assert_allclose(got, np.exp(np.float32(4)), rtol=1e-6)


@pytest.mark.parametrize("target", ["llvm", "onnxruntime", "reference"])
def test_a_declared_shape_that_an_operand_says_is_believed(target, backends, parse_model):
    """It is what lets a device that wants to know it beforehand take the node."""
    model = parse_model("g (float[6] x, int64[2] n) => (float[2,3] y) { y = Reshape(x, n) }")
    exe = intarsia.compile(model, target, backends=backends)
    assert exe.outputs[0].shape == (2, 3)
    x = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(exe.run({"x": x, "n": [2, 3]})["y"], x.reshape(2, 3))


def test_shapes_that_are_read_off_shapes_are_believed(parse_model):
    """What is fed has a size, whatever its numbers are."""
    loaded = load(
        parse_model("""
        g (float[4,2] x, float[8] u) => (float[2,4] y) {
            s = Shape(x) b = Constant<value = int64[2] {1, 0}>() r = Gather(s, b)
            y = Reshape(u, r)
        }""")
    )
    assert data_dependent_shapes(loaded.graph) == set()
