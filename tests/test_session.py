# SPDX-License-Identifier: Apache-2.0
"""A program written for ONNX Runtime moves over by changing one import."""

import numpy as np
import onnxruntime
import pytest

import intarsia
from intarsia.errors import InputError, SettingError


@pytest.fixture(params=["onnxruntime", "intarsia", "intarsia from a package"])
def session(request, chain_model, tmp_path):
    if request.param == "onnxruntime":
        return onnxruntime.InferenceSession(
            chain_model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
    if request.param == "intarsia":
        return intarsia.InferenceSession(
            chain_model.SerializeToString(), targets=["openvino", "onnxruntime"]
        )
    path = tmp_path / "m.intarsia"
    intarsia.compile(chain_model, "fake -ops=Relu, onnxruntime").save(path)
    return intarsia.InferenceSession(path)


def test_one_sequence_of_calls_works_on_both_classes(session, chain_model, evaluate, random_feeds):
    (given,) = session.get_inputs()
    assert (given.name, list(given.shape), given.type) == ("x", [2, 4], "tensor(float)")
    outputs = session.get_outputs()
    assert [(o.name, list(o.shape), o.type) for o in outputs] == [
        ("y", [2, 4], "tensor(float)"),
        ("mid", [2, 4], "tensor(float)"),
    ]
    assert session.get_providers()
    feeds = random_feeds(chain_model)
    expected = evaluate(chain_model, feeds)
    everything = session.run(None, {given.name: feeds["x"]})
    assert isinstance(everything, list)
    for actual, name in zip(everything, ("y", "mid"), strict=True):
        np.testing.assert_allclose(actual, expected[name], rtol=1e-5, atol=1e-6)
    turned = session.run(["mid", "y"], feeds)
    np.testing.assert_array_equal(turned[1], everything[0])
    np.testing.assert_array_equal(turned[0], everything[1])
    (alone,) = session.run([outputs[0].name], input_feed=feeds, run_options=None)
    np.testing.assert_array_equal(alone, everything[0])


@pytest.mark.parametrize(
    "dtype", ["bool", "float16", "double", "int8", "uint8", "int32", "int64", "string"]
)
def test_types_have_onnx_runtimes_names(dtype, parse_model):
    model = parse_model(f"g ({dtype}[2] x) => ({dtype}[2] y) {{ y = Identity(x) }}")
    theirs = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    ours = intarsia.InferenceSession(model, "onnxruntime")
    assert [arg.type for arg in ours.get_inputs()] == [arg.type for arg in theirs.get_inputs()]


def test_an_output_that_the_model_lacks_is_an_error(chain_model, random_feeds):
    session = intarsia.InferenceSession(chain_model, "reference")
    with pytest.raises(InputError, match="no output 'z'") as caught:
        session.run(["z"], random_feeds(chain_model))
    assert "y, mid" in caught.value.hint


def test_targets_stand_where_providers_did(chain_model):
    session = intarsia.InferenceSession(chain_model, targets=["fake", "reference"])
    assert session.get_providers() == ["fake", "reference"]


def test_a_package_is_compiled_already(tmp_path, parse_model, backends):
    model = parse_model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    path = tmp_path / "model.zip"  # told by its content
    intarsia.compile(model, "onnxruntime", backends=backends).save(path)
    session = intarsia.InferenceSession(path)
    assert session.run(None, {"x": np.array([-1, 1], np.float32)})[0].tolist() == [0, 1]
    with pytest.raises(SettingError, match="compiled already"):
        intarsia.InferenceSession(path, targets=["openvino", "onnxruntime"])
    with pytest.raises(SettingError, match="compiled already"):
        intarsia.InferenceSession(path, pins={"x": "onnxruntime"})


def test_providers_are_pointed_at_targets(parse_model):
    model = parse_model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(SettingError, match="providers") as caught:
        intarsia.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert "targets=" in caught.value.hint
