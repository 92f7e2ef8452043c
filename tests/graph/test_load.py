# SPDX-License-Identifier: Apache-2.0
"""Loading: every form of a model, and one clear error for everything that can be wrong."""

import contextlib
import logging
import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import intarsia
from intarsia.errors import ModelError, PlacementError
from intarsia.files import ModelFile
from intarsia.graph.annotate import on_device
from intarsia.graph.load import load, parse
from intarsia.graph.metadata import DEVICE_KEY
from intarsia.graph.snapshot import snapshot


def test_maps_of_classifiers_say_how_to_export_without_them():
    tensor = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    maps = onnx.helper.make_map_type_proto(onnx.TensorProto.INT64, tensor)
    zipped = onnx.helper.make_node(
        "ZipMap", ["x"], ["y"], "zip", domain="ai.onnx.ml", classlabels_int64s=[0, 1]
    )
    graph = onnx.helper.make_graph(
        [zipped],
        "classifier",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2])],
        [onnx.helper.make_value_info("y", onnx.helper.make_sequence_type_proto(maps))],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(ModelError, match="'y' holds maps") as caught:
        load(model)
    assert caught.value.node == "zip"
    assert "zipmap=False" in caught.value.hint


def model(body, ends="float[2] x) => (float[2] y", opset='"" : 21', ir_version=10):
    text = f"<ir_version: {ir_version}, opset_import: [{opset}]> f ({ends}) {{ {body} }}"
    return onnx.parser.parse_model(text)


GOOD = "[one] a = Relu(x) [two] y = Neg(a)"


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """A bad model is one error, and nothing in the log."""
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def refuse(given, *parts, shapes=None):
    with pytest.raises(ModelError) as caught:
        load(given, shapes)
    text = str(caught.value)
    assert caught.value.hint
    assert "Traceback" not in text
    for part in parts:
        assert part in text
    return caught.value


def test_every_form_gives_the_same_model(tmp_path):
    proto = model(GOOD)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    forms = [path, str(path), proto.SerializeToString(), proto, ir.from_proto(proto)]
    texts = {str(snapshot(load(form))) for form in forms}
    assert len(texts) == 1
    refuse(42, "of type int is not a model")


def test_the_callers_model_is_never_changed():
    proto = model("y = Neg(a) a = Relu(x)", ends="float[N] x) => (float[N] y")
    before = proto.SerializeToString(deterministic=True)
    load(proto, {"x": (2,)})
    assert proto.SerializeToString(deterministic=True) == before
    given = ir.from_proto(model(GOOD, ends="float[N] x) => (float[N] y"))
    before = str(given)
    load(given, {"x": (2,)})
    on_device(given, {"one": "cpu"})
    assert str(given) == before


def test_nodes_are_sorted_and_get_unique_names():
    proto = model("[same] y = Neg(b) b = Relu(a) [same] a = Abs(x)")
    graph = snapshot(load(proto))
    assert [node.op_type for node in graph.nodes] == ["Abs", "Relu", "Neg"]
    assert [node.name for node in graph.nodes] == ["same", "b", "same_1"]


def test_inputs_with_initializers_become_constants():
    proto = model("y = Add(x, w)", ends="float[2] x, float[2] w) => (float[2] y", ir_version=3)
    proto.graph.initializer.append(numpy_helper.from_array(np.float32([1, 2]), "w"))
    graph = snapshot(load(proto))
    assert [graph.values[value].name for value in graph.inputs] == ["x"]
    assert graph.value_named("w").constant is not None


def test_missing_file(tmp_path):
    refuse(tmp_path / "no.onnx", "no.onnx", "does not exist")
    refuse(tmp_path, "cannot be read")


@pytest.mark.parametrize("data", [b"", b"hello, I am text\n", b"\x89PNG\r\n\x1a\n" + bytes(64)])
def test_files_that_are_not_onnx(tmp_path, data):
    path = tmp_path / "picture.onnx"
    path.write_bytes(data)
    refuse(path, "picture.onnx", "not an ONNX model")
    refuse(data, "not an ONNX model")


def test_truncated_file(tmp_path):
    data = model(GOOD).SerializeToString()
    for length in (3, len(data) // 2, len(data) - 3):
        path = tmp_path / "cut.onnx"
        path.write_bytes(data[:length])
        assert "truncated" in str(refuse(path, "cut.onnx"))


def test_cycles_name_their_nodes():
    error = refuse(model("[p] a = Add(x, c) [q] b = Relu(a) [r] c = Neg(b) [s] y = Abs(a)"))
    assert "'s'" not in error.message
    assert "cycle" in error.message
    assert all(name in error.message for name in ("p", "q", "r"))


def test_cycles_through_a_body_are_found():
    body = """[i] a = If(c) <then_branch = t () => (float[2] u) { u = Neg(b) },
                             else_branch = e () => (float[2] v) { v = Neg(x) }>
    [j] b = Relu(a) [k] y = Neg(b)"""
    refuse(model(body, ends="float[2] x, bool c) => (float[2] y"), "cycle", "i", "j")


def test_operator_sets():
    newest = onnx.defs.onnx_opset_version()
    proto = model(GOOD)
    proto.opset_import[0].version = newest + 7
    refuse(proto, str(newest + 7), str(newest))
    del proto.opset_import[:]
    refuse(proto, "no operator set")
    refuse(model("y = vendor.Thing(x)"), "'vendor'", "does not import")


def test_unknown_operators():
    error = refuse(model("[bad] y = Reluu(x)"), "'bad'", "Reluu", "21", "Relu")
    assert error.node == "bad"
    refuse(model("y = Gelu(x)", opset='"" : 18'), "'Gelu'", "18")
    load(model("y = com.microsoft.Anything(x)", opset='"" : 21, "com.microsoft" : 1'))


def test_dangling_inputs_and_outputs():
    refuse(model("[bad] y = Add(x, weigth)"), "'bad'", "'weigth'", "nothing produces")
    refuse(model("z = Relu(x)"), "'y'", "nothing in it produces")
    body = """y = If(c) <then_branch = t () => (float[2] u) { [deep] u = Neg(nowhere) },
                         else_branch = e () => (float[2] v) { v = Neg(x) }>"""
    refuse(model(body, ends="float[2] x, bool c) => (float[2] y"), "'deep'", "'nowhere'")


def test_values_made_twice():
    refuse(model("[p] y = Relu(x) [q] y = Neg(x)"), "'y'", "'p'", "'q'")
    refuse(model("[p] x = Relu(x) [q] y = Neg(x)"), "'x'", "a graph input", "'p'")
    proto = model(GOOD)
    proto.graph.input.append(proto.graph.input[0])
    refuse(proto, "'x'", "made twice")


def test_a_graph_without_outputs():
    proto = model(GOOD)
    del proto.graph.output[:]
    refuse(proto, "no outputs")


def test_wrong_attributes_are_one_line():
    error = refuse(model('y = Softmax <axis = "one"> (x)'), "not valid ONNX", "axis")
    assert "\n" not in error.message
    refuse(model("y = Conv <foo = 1> (x, x)"), "foo")


def test_shapes_that_do_not_fit():
    proto = model("y = MatMul(x, x)", ends="float[2, 3] x) => (float[2, 3] y")
    refuse(proto, "do not fit")


def test_stated_shapes_that_contradict_are_dropped():
    proto = model(GOOD, ends="float[N] x) => (float[N] y")
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [7]))
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 5
    graph = snapshot(load(proto, {"x": (2,)}))
    assert [value.shape for value in graph.values] == [(2,), (2,), (2,)]


def test_inline_data_that_is_cut_short():
    proto = model("y = Add(x, w)")
    proto.graph.initializer.append(numpy_helper.from_array(np.float32([1, 2]), "w"))
    proto.graph.initializer[0].raw_data = b"1234"
    refuse(proto, "'w'", "8 bytes", "4")


def test_element_types_that_do_not_exist():
    proto = model("y = Add(x, w)")
    proto.graph.initializer.add(name="w", data_type=99, dims=[2], raw_data=bytes(8))
    refuse(proto, "'w'", "99")
    proto = model("y = Neg(x)")
    proto.graph.input[0].type.tensor_type.elem_type = 99
    refuse(proto, "'x'", "99")
    proto = model("y = Add(x, w)")
    proto.graph.initializer.add(name="w", dims=[2], raw_data=bytes(8))
    refuse(proto, "'w'", "no element type")


def test_types_that_cannot_be_held_are_one_error():
    proto = model("y = Neg(x)")
    proto.graph.input[0].type.map_type.key_type = TensorProto.INT64
    refuse(proto, "holds maps", "zipmap=False")
    proto.graph.input[0].type.sequence_type.elem_type.SetInParent()
    refuse(proto, "'x'", "without a type")


def test_attributes_without_a_type_name_their_node():
    proto = model("[bad] y = Softmax <axis = 0> (x)")
    proto.graph.node[0].attribute[0].ClearField("type")
    assert refuse(proto, "'bad'", "'axis'", "without a type").node == "bad"


@pytest.mark.parametrize(
    "text", [b"name", b"Softmax", b"axis", b"inner", b"other", b"free", b"whole"]
)
def test_texts_that_are_not_utf8_are_one_error(text):
    ends = "float[free] x) => (float[free] other"
    proto = model("[name] inner = Softmax <axis = 0> (x) other = Neg(inner)", ends=ends)
    proto.graph.name = "whole"
    data = proto.SerializeToString()
    assert text in data
    damaged = data.replace(text, text[:-2] + b"\xff\xfe")
    refuse(damaged, "the model is damaged", repr(text[:-2] + b"\xff\xfe"))


def test_what_a_program_does_not_need_may_be_other_than_utf8(tmp_path):
    """Remarks of anything: the model, graphs and bodies, nodes, attributes, values, tensors."""
    proto = model(GOOD)
    inner = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (bool c) => (float[1] z) { z = If(c) <'
        "then_branch = t () => (float[1] u) { u = Constant<value_floats = [1.0]>() }, "
        "else_branch = e () => (float[1] v) { v = Constant<value_floats = [2.0]>() }> }"
    ).graph
    proto.graph.node.extend(inner.node)
    proto.graph.input.extend(inner.input)
    proto.graph.output.extend(inner.output)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "unused"))
    body = proto.graph.node[-1].attribute[0].g
    parts = [proto, proto.graph, body, body.node[0], *proto.graph.node, *proto.graph.initializer]
    parts += [*proto.graph.input, *proto.graph.output]
    for part in parts:
        part.doc_string = "caf?"
        part.metadata_props.add(key="auth?", value="Jos?")
    for attribute in proto.graph.node[-1].attribute:
        attribute.doc_string = "caf?"
    data = proto.SerializeToString()
    for text in (b"Jos?", b"caf?", b"auth?"):
        data = data.replace(text, text[:-1] + b"\xe9")
    assert data.count(b"caf\xe9") == len(parts) + 2
    intarsia.compile(data, "llvm", num_threads=1).save(tmp_path / "latin.intarsia")
    feeds = {"x": np.float32([-1, 2]), "c": np.array(True)}
    result = intarsia.load(tmp_path / "latin.intarsia").run(feeds)
    np.testing.assert_array_equal(result["y"], [0, -2])
    np.testing.assert_array_equal(result["z"], [1])


def test_a_value_inside_may_be_declared_as_a_sequence_of_something_without_a_type():
    """Other runtimes take such a declaration; what the values are is inferred."""
    proto = model(
        "s = SequenceConstruct(x, x) i = Constant<value = int64 {1}>() y = SequenceAt(s, i)"
    )
    declared = proto.graph.value_info.add(name="s").type
    declared.sequence_type.SetInParent()
    assert declared.sequence_type.elem_type.WhichOneof("value") is None
    x = np.float32([1, 2])
    result = intarsia.compile(proto, "reference").run({"x": x})["y"]
    np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes_give_a_model_or_one_error(seed):
    dice = random.Random(seed)
    data = model(GOOD).SerializeToString()
    for _ in range(100):
        damaged = bytearray(data)
        for _ in range(dice.choice([1, 2, 4])):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        with contextlib.suppress(ModelError):
            snapshot(load(bytes(damaged)))


def test_sparse_initializers_are_refused():
    proto = model("y = Add(x, w)")
    sparse = proto.graph.sparse_initializer.add(dims=[2])
    sparse.values.CopyFrom(numpy_helper.from_array(np.float32([1]), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.int64([0]), ""))
    refuse(proto, "'w'", "sparse")


FREE = "float[batch, 3, H, W] x, float[batch, 3, 1, 1] s) => (float[batch, 3, H, W] y"


def test_shapes_fix_symbols_everywhere():
    graph = snapshot(load(model("y = Add(x, s)", ends=FREE), {"x": (2, 3, 8, 9)}))
    assert [value.shape for value in graph.values] == [(2, 3, 8, 9), (2, 3, 1, 1), (2, 3, 8, 9)]


def test_free_dimensions_name_the_option():
    proto = model("y = Add(x, s)", ends=FREE)
    refuse(proto, "'x'", "0 (batch)", "2 (H)", "--shape x=1x3x1x1")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    refuse(proto, "'x' has no shape", "--shape x=")


@pytest.mark.parametrize(
    ("shapes", "parts"),
    [
        ({"z": (1,)}, ["no input 'z'", "'x'"]),
        ({"x": (1, 3, 8)}, ["1x3x8", "3 dimensions", "the model has 4"]),
        ({"x": (1, 4, 8, 8)}, ["1x4x8x8", "dimension 1 is 3"]),
        ({"x": (1, 3, 8, 8), "s": (2, 3, 1, 1)}, ["'batch'", "1 in input 'x'", "2 in input 's'"]),
        ({"x": (-1, 3, 8, 8)}, ["-1x3x8x8", "not a list of sizes"]),
    ],
)
def test_shapes_that_contradict_the_model(shapes, parts):
    refuse(model("y = Add(x, s)", ends=FREE), *parts, shapes=shapes)


def external(tmp_path, location="weights.bin", data=bytes(8), **entries):
    proto = model("y = Add(x, w)")
    tensor = proto.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    if data is not None:
        (folder / "weights.bin").write_bytes(data)
    return folder / "m.onnx"


def test_external_data_beside_the_model_is_read(tmp_path, monkeypatch):
    data = b"skip" + np.float32([3, 4]).tobytes()
    path = external(tmp_path, data=data, offset=4, length=8)
    assert load(path).graph.initializers["w"].const_value.numpy().tolist() == [3, 4]
    monkeypatch.chdir(path.parent)
    assert load("m.onnx").graph.initializers["w"].const_value.numpy().tolist() == [3, 4]
    refuse(path.read_bytes(), "'w'", "without a folder")


def test_external_data_that_is_missing_or_truncated(tmp_path):
    path = external(tmp_path, data=None)
    refuse(path, "'w'", "weights.bin", "does not exist")
    (path.parent / "weights.bin").write_bytes(bytes(5))
    refuse(path, "'w'", "truncated", "8 bytes", "has 5")


@pytest.mark.parametrize("location", ["../weights.bin", "a/../../weights.bin", "/etc/passwd", ""])
def test_external_data_must_stay_in_the_folder(tmp_path, location):
    (tmp_path / "weights.bin").write_bytes(bytes(8))
    refuse(external(tmp_path, location=location), "'w'", "must lie in the model's folder")


def test_external_data_must_not_leave_through_a_link(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(8))
    path = external(tmp_path, data=None)
    (path.parent / "weights.bin").symlink_to(tmp_path / "secret")
    refuse(path, "'w'", "leaves the model's folder")


def test_external_data_may_lie_in_a_folder_that_the_user_vouches_for(tmp_path):
    data = b"skip" + np.float32([3, 4]).tobytes()
    path = external(tmp_path, location="../shared/w.bin", data=None, offset=4, length=8)
    store = tmp_path / "shared"
    refuse(ModelFile(path, store), "there is no folder", "shared")
    store.mkdir()
    refuse(ModelFile(path, store), "'w'", "does not exist")
    (store / "w.bin").write_bytes(data)
    refuse(path, "'w'", "--external-data-root")
    read = load(ModelFile(path, store)).graph.initializers["w"].const_value
    assert read.numpy().tolist() == [3, 4]
    other = tmp_path / "other"
    other.mkdir()
    refuse(ModelFile(path, other), "'w'", "leaves the model's folder", "external-data-root DIR")


@pytest.mark.parametrize("place", ["link", "absolute", "below"])
def test_external_data_below_the_users_folder_is_found_by_each_way_that_leads_there(
    tmp_path, place
):
    store = tmp_path / "store" / "inner"
    store.mkdir(parents=True)
    (store / "blob").write_bytes(np.float32([5, 6]).tobytes())
    location = {"link": "weights.bin", "absolute": str(store / "blob"), "below": "inner/blob"}
    path = external(tmp_path, location=location[place], data=None)
    if place == "link":
        (path.parent / "weights.bin").symlink_to(store / "blob")
    read = load(ModelFile(path, tmp_path / "store")).graph.initializers["w"].const_value
    assert read.numpy().tolist() == [5, 6]


def test_a_link_in_the_users_folder_must_not_leave_it(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(8))
    path = external(tmp_path, location="../shared/w.bin", data=None)
    store = tmp_path / "shared"
    store.mkdir()
    (store / "w.bin").symlink_to(tmp_path / "secret")
    refuse(ModelFile(path, store), "'w'", "leaves the model's folder")


def test_annotations_are_written_on_matching_nodes():
    annotated = on_device(model(GOOD), {"one": "cpu", "tw?": "gpu:1"})
    graph = snapshot(load(annotated))
    assert [node.device for node in graph.nodes] == ["cpu", "gpu:1"]
    assert "@gpu:1" in str(graph)
    assert parse(annotated).graph[0].metadata_props[DEVICE_KEY] == "cpu"


def test_patterns_that_contradict_are_an_error_naming_both():
    with pytest.raises(PlacementError, match=r"'two'.*'tw\?' says 'gpu:1', '\*' 'cpu'"):
        on_device(model(GOOD), {"*": "cpu", "tw?": "gpu:1"})


def test_a_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(PlacementError, match=r"'onne'.*'gpu'.*nearest: 'one'"):
        on_device(model(GOOD), {"onne": "gpu"})
    with pytest.raises(PlacementError):
        on_device(model(GOOD), {"ONE": "gpu"})


def test_a_node_in_a_body_can_be_annotated():
    branch = "() => (float[2] {0}) {{ [{0}] {0} = Neg(x) }}"
    body = f"y = If(c)<then_branch = t {branch.format('p')}, else_branch = e {branch.format('q')}>"
    ends = "bool c, float[2] x) => (float[2] y"
    annotated = on_device(model(f"[if] {body}", ends=ends), {"q": "gpu"})
    nodes = annotated.graph.all_nodes()
    devices = {node.name: node.metadata_props.get(DEVICE_KEY) for node in nodes}
    assert devices == {"if": None, "p": None, "q": "gpu"}


@pytest.mark.parametrize("device", [None, 1])
def test_a_device_that_is_no_text_is_an_error(device):
    with pytest.raises(PlacementError, match=f"'one' is {device}, neither text"):
        on_device(model(GOOD), {"one": device})


def test_inputs_too_small_for_a_window_are_an_error(parse_model):
    text = "g (float[1, 2, N, N] x) => (float[1, 2, A, B] y)"
    model = parse_model(text + " { y = AveragePool<kernel_shape = [7, 7]>(x) }")
    with pytest.raises(ModelError, match="too small for this model") as caught:
        snapshot(load(model, {"x": (1, 2, 2, 2)}))
    assert caught.value.node
    assert "--shape" in caught.value.hint


@pytest.mark.parametrize("equation", ["i.j->ij", "....i->i", "..i->i", "i->i."])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_dot_that_is_no_ellipsis_is_an_error(equation, is_inside):
    """The inference of shapes of onnx does not return from it."""
    node = f'[sum] y = Einsum<equation = "{equation}">(x)'
    if is_inside:
        node = f"""yes = Constant<value = bool {{1}}>() y = If(yes) <
            then_branch = t () => (float[2] p) {{ {node} p = Neg(y) }},
            else_branch = e () => (float[2] q) {{ q = Neg(x) }}>"""
        node = node.replace("y = Einsum", "s = Einsum").replace("Neg(y)", "Neg(s)")
    with pytest.raises(ModelError, match="a dot that is not one of the three") as caught:
        load(model(node))
    assert caught.value.node == "sum"


def test_an_ellipsis_may_have_spaces():
    load(model('y = Einsum<equation = "... -> ..." >(x)'))
