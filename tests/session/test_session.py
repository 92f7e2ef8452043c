# SPDX-License-Identifier: Apache-2.0
"""A program written for ONNX Runtime moves over by changing one import."""

import queue
from concurrent.futures import ThreadPoolExecutor

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
    ours = intarsia.InferenceSession(model, targets="onnxruntime")
    assert [arg.type for arg in ours.get_inputs()] == [arg.type for arg in theirs.get_inputs()]


def test_an_output_that_the_model_lacks_is_an_error(chain_model, random_feeds):
    session = intarsia.InferenceSession(chain_model, targets="reference")
    with pytest.raises(InputError, match="no output 'z'") as caught:
        session.run(["z"], random_feeds(chain_model))
    assert "y, mid" in caught.value.hint


def test_one_name_of_an_output_is_no_list_of_them(chain_model, random_feeds):
    session = intarsia.InferenceSession(chain_model, targets="llvm, onnxruntime")
    with pytest.raises(InputError, match="is not a list of names"):
        session.run(session.get_outputs()[0].name, random_feeds(chain_model))


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


def test_an_output_list_without_names_means_all(chain_model, random_feeds):
    session = intarsia.InferenceSession(chain_model, targets="llvm, onnxruntime")
    assert len(session.run([], random_feeds(chain_model))) == 2


def test_lists_are_read_as_the_models_type(chain_model, random_feeds):
    session = intarsia.InferenceSession(chain_model, targets="llvm, onnxruntime")
    feeds = random_feeds(chain_model)
    expected = session.run(None, feeds)
    actual = session.run(None, {name: array.tolist() for name, array in feeds.items()})
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    "given",
    [
        np.array([["ab", "c"], ["Olá", "你好"]]),
        np.array([["ab", "c"], ["Olá", "你好"]], object),
        [["ab", "c"], ["Olá", "你好"]],
        np.array([[b"ab", b"c"], [b"hello", b""]]),
        np.array([b"abcd", b"efgh", b"ijkl", b"mnop"], np.void).reshape(2, 2),
    ],
    ids=["str", "object", "list", "bytes", "void"],
)
def test_strings_are_taken_in_every_form_that_onnx_runtime_takes(given, parse_model):
    model = parse_model("g (string[2, 2] x) => (string[2, 2] y) { y = Identity(x) }")
    theirs = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    ours = intarsia.InferenceSession(model, targets="onnxruntime")
    expected = theirs.run(None, {"x": given})[0]
    np.testing.assert_array_equal(ours.run(None, {"x": given})[0], expected)


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("float", [[1, 2], [3]]),
        ("float", [["a", "b"], ["c", "d"]]),
        ("float", [[None, {}], [1, 2]]),
        ("uint8", [[300, 1], [1, 1]]),
        ("uint8", [[-1, 1], [1, 1]]),
        ("string", np.array([[b"a", b"\xff"], [b"c", b"d"]])),
    ],
    ids=["ragged", "text", "objects", "large", "negative", "not UTF-8"],
)
def test_a_list_that_cannot_be_read_is_an_error_on_both(dtype, given, parse_model):
    model = parse_model(f"g ({dtype}[2, 2] x) => ({dtype}[2, 2] y) {{ y = Identity(x) }}")
    theirs = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    with pytest.raises((RuntimeError, ValueError)):
        theirs.run(None, {"x": given})
    ours = intarsia.InferenceSession(model, targets="onnxruntime")
    with pytest.raises(InputError, match="'x' cannot be read as an array"):
        ours.run(None, {"x": given})
    with pytest.raises(InputError, match="'x' cannot be read as an array"):
        ours.io_binding().bind_cpu_input("x", given)


def test_types_of_sequences_and_optionals_are_told(parse_model, tmp_path):
    text = "g (seq(float[2]) x, optional(int64[1]) o, float[2] t) => (seq(float[2]) y, bool h)"
    model = parse_model(text + " { y = SequenceInsert(x, t) h = OptionalHasElement(o) }")
    theirs = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    ours = intarsia.InferenceSession(model, targets="onnxruntime")
    ours.executable.save(tmp_path / "m.intarsia")
    packaged = intarsia.InferenceSession(tmp_path / "m.intarsia")
    for session in (ours, packaged):
        assert [arg.type for arg in session.get_inputs()] == [
            arg.type for arg in theirs.get_inputs()
        ]
        assert [arg.type for arg in session.get_outputs()] == [
            arg.type for arg in theirs.get_outputs()
        ]
    feeds = {"x": [np.zeros(2, np.float32)], "o": None, "t": np.ones(2, np.float32)}
    for actual, expected in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_the_models_own_words_are_told(parse_model, tmp_path):
    model = parse_model("named (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.producer_name, model.domain, model.model_version = "tool", "org.example", 7
    model.doc_string, model.graph.doc_string = "what it is", "what it does"
    model.metadata_props.add(key="author", value="someone")
    theirs = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ).get_modelmeta()
    path = tmp_path / "m.intarsia"
    intarsia.compile(model, "llvm").save(path)
    for session in (intarsia.InferenceSession(model), intarsia.InferenceSession(path)):
        ours = session.get_modelmeta()
        for name in ("producer_name", "graph_name", "domain", "description", "version"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert ours.graph_description == theirs.graph_description
        assert dict(ours.custom_metadata_map) == theirs.custom_metadata_map


def test_an_asynchronous_run_tells_its_outputs_or_its_error(chain_model, random_feeds):
    session = intarsia.InferenceSession(chain_model, targets="llvm, onnxruntime")
    feeds, told = random_feeds(chain_model), queue.Queue()
    session.run_async(["y"], feeds, lambda *call: told.put(call), "mine")
    outputs, user_data, error = told.get(timeout=120)
    assert (user_data, error) == ("mine", "")
    np.testing.assert_array_equal(outputs[0], session.run(["y"], feeds)[0])
    session.run_async(["y"], {}, lambda *call: told.put(call), "mine")
    outputs, user_data, error = told.get(timeout=120)
    assert (outputs, user_data) == ([], "mine")
    assert "'x' is missing" in error


def test_one_session_is_run_from_many_threads(chain_model, random_feeds):
    session = intarsia.InferenceSession(chain_model, targets="llvm, onnxruntime")
    feeds = random_feeds(chain_model)
    expected = session.run(None, feeds)
    with ThreadPoolExecutor(4) as threads:
        for actual in threads.map(lambda _: session.run(None, feeds), range(16)):
            np.testing.assert_array_equal(actual, expected)


def test_an_output_is_never_the_callers_input(parse_model):
    model = parse_model("g (float[2] x) => (float[2] y, float[2] x) { y = Relu(x) }")
    session = intarsia.InferenceSession(model)
    kept = []
    for number in range(3):
        given = np.full(2, number, np.float32)
        outputs = session.run(None, {"x": given})
        assert not np.shares_memory(outputs[1], given)
        kept.append(outputs)
    for number, outputs in enumerate(kept):
        np.testing.assert_array_equal(outputs, np.full((2, 2), number))


def test_every_region_is_told_with_its_nodes(chain_model):
    session = intarsia.InferenceSession(chain_model, targets="fake -ops=Relu, reference")
    found = [
        (part.ep_name, [node.op_type for node in part.get_nodes()])
        for part in session.get_provider_graph_assignment_info()
    ]
    assert ("fake -ops=Relu", ["Relu"]) in found
    assert sum(len(nodes) for _, nodes in found) == len(chain_model.graph.node)


def test_a_missing_input_is_a_value_error_that_names_it(chain_model):
    session = intarsia.InferenceSession(chain_model, targets="reference")
    with pytest.raises(ValueError, match="'x' is missing"):
        session.run(None, {})


def test_targets_in_the_place_of_session_options_are_pointed_out(chain_model):
    with pytest.raises(SettingError, match="sess_options") as caught:
        intarsia.InferenceSession(chain_model, "onnxruntime")
    assert "targets='onnxruntime'" in caught.value.hint
