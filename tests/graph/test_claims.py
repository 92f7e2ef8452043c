# SPDX-License-Identifier: Apache-2.0
"""Declared shapes of outputs that are wrong: derived, or found while running, with a warning."""

import numpy as np
import pytest
from onnx import helper

import intarsia


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
