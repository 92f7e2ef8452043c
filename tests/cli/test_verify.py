# SPDX-License-Identifier: Apache-2.0
"""`intarsia verify` and `intarsia reduce`, through their workers."""

import numpy as np
import onnx
import pytest


@pytest.mark.exhaustive
def test_a_region_that_ends_the_process_is_named_and_cut_down(call, folder, model):
    target = "fake -ops=Relu -fault=later-segfault, onnxruntime"
    answer = call("verify", model, "-t", target, "--out", "small", "--json")
    assert answer.code == 1
    (fault,) = answer.json["faults"]
    assert (fault["fault"]["symptom"], fault["run"]) == ("crashed", 2)
    assert fault["target"].startswith("fake")
    small = answer.json["smallest"]
    assert small["operators"] == ["Relu"]
    assert "--runs 3" in small["command"]
    nodes = onnx.load(folder / "small" / "model.onnx").graph.node
    assert [node.op_type for node in nodes] == ["Relu"]


def test_what_cannot_be_asked_is_bad_input(call, folder, model):
    assert "--suspect" in call("verify", model, "--against", "openvino").err
    assert "nothing is doubted" in call("reduce", model).err
    answer = call("verify", model, "--inputs", "none.npz", "--suspect", "openvino")
    assert (answer.code, "no file" in answer.err) == (2, True)
    (folder / "text.npz").write_text("text")
    assert "not an .npz file" in call("reduce", model, "--inputs", "text.npz", "--suspect", "x").err
    np.savez(folder / "wrong.npz", other=np.ones(3))
    answer = call("verify", model, "--inputs", "wrong.npz", "--suspect", "openvino")
    assert (answer.code, "'other'" in answer.err) == (2, True)
