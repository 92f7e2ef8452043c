# SPDX-License-Identifier: Apache-2.0
"""`--layer` places nodes by their layers, and `--annotate` writes a placement into the model."""

import onnx
import pytest
from onnx import numpy_helper

from intarsia.cli.options import read_layers
from intarsia.errors import PlacementError, SettingError


def test_annotate_writes_the_model_with_its_placement(call, model, folder):
    answer = call("compile", model, "-t", "onnxruntime", "--annotate", "out/marked.onnx")
    assert answer.code == 0
    assert "wrote out/marked.onnx" in answer.out
    marked = onnx.load(folder / "out" / "marked.onnx")
    facts = [
        {entry.key: entry.value for entry in node.metadata_props} for node in marked.graph.node
    ]
    assert {fact["intarsia.device"] for fact in facts} == {"onnxruntime"}
    assert call("run", "out/marked.onnx", "-t", "onnxruntime", "--placement", "manual").code == 0


def test_external_data_is_read_into_the_annotated_model(call, folder, chain_model):
    model = onnx.ModelProto()
    model.CopyFrom(chain_model)
    (weights,) = model.graph.initializer
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights), weights.name))
    onnx.save_model(
        model, "apart.onnx", save_as_external_data=True, size_threshold=0, location="w.bin"
    )
    assert call("compile", "apart.onnx", "-t", "reference", "--annotate", "o/a.onnx").code == 0
    (folder / "w.bin").unlink()
    assert call("run", "o/a.onnx", "-t", "reference").code == 0


def test_external_data_elsewhere_needs_the_users_word(call, folder, chain_model):
    model = onnx.ModelProto()
    model.CopyFrom(chain_model)
    (weights,) = model.graph.initializer
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights), weights.name))
    onnx.save_model(
        model, "apart.onnx", save_as_external_data=True, size_threshold=0, location="w.bin"
    )
    (folder / "models").mkdir()
    (folder / "apart.onnx").rename(folder / "models" / "apart.onnx")
    stored = folder / "store" / "w.bin"
    stored.parent.mkdir()
    (folder / "w.bin").rename(stored)
    (folder / "models" / "w.bin").symlink_to(stored)
    options = ("models/apart.onnx", "-t", "reference")
    root = ("--external-data-root", "store")
    answer = call("compile", *options)
    assert answer.code == 2
    assert "--external-data-root" in answer.err
    assert call("compile", *options, *root, "--annotate", "o/a.onnx").code == 0
    refused = call("run", *options)  # what was kept is not for those who do not vouch
    assert refused.code == 2
    assert call("run", *options, *root).code == 0
    verified = call("verify", *options, *root, "--runs", "1")
    assert verified.code == 0, verified.err
    given = call("run", "apart.intarsia", *root)
    assert "is compiled already" in given.err
    stored.unlink()
    assert call("run", "o/a.onnx", "-t", "reference").code == 0


def test_a_place_that_cannot_be_written_is_an_error(call, model, folder):
    (folder / "file").write_text("x")
    answer = call("compile", model, "-t", "reference", "--annotate", "file/a.onnx")
    assert answer.code == 2
    assert "cannot write" in answer.err


def test_layers_are_given_by_name(call, folder, chain_model):
    model = onnx.ModelProto()
    model.CopyFrom(chain_model)
    model.ir_version = 10
    model.graph.node[0].metadata_props.add(key="layer_ann", value="encoder/0")
    onnx.save(model, "layered.onnx")
    target = ("-t", "fake, reference", "--placement", "manual")
    answer = call("explain", "layered.onnx", *target, "--layer", "encoder=fake", "--json")
    assert answer.code == 0
    regions = answer.json["placement"]["regions"]
    on_fake = [node["name"] for r in regions if r["target"] == "fake" for node in r["nodes"]]
    assert on_fake == ["first"]


def test_an_exact_layer_begins_with_the_sign():
    assert read_layers(["=enc=fake -ops=Relu", "dec=fake:1"]) == {
        "=enc": "fake -ops=Relu",
        "dec": "fake:1",
    }


@pytest.mark.parametrize("text", ["enc", "=enc", "enc=", "=", "==x"])
def test_a_layer_without_a_name_or_target_is_an_error(text):
    with pytest.raises(SettingError, match="NAME=TARGET"):
        read_layers([text])


def test_a_layer_with_two_targets_is_an_error():
    with pytest.raises(PlacementError, match="both"):
        read_layers(["enc=fake", "enc=reference"])
