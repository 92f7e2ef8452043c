# SPDX-License-Identifier: Apache-2.0
"""What a library lacks or misreads is said otherwise, and then comes out right."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import intarsia
from intarsia.backends.rewriting import has_definition
from intarsia.errors import UnsupportedError
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

NEWEST = 28


def model_of(nodes, feeds, outputs, opset=NEWEST, constants=None):
    """Return a model; outputs are names with element types, their shapes are inferred."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    results = [
        onnx.ValueInfoProto(name=name, type=helper.make_tensor_type_proto(kind, None))
        for name, kind in outputs.items()
    ]
    arrays = [onnx.numpy_helper.from_array(x, name) for name, x in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, results, arrays)
    imports = [helper.make_opsetid("", opset)]
    version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    return helper.make_model(graph, opset_imports=imports, ir_version=version)


def check(model, feeds, target, backends, *, alone=True):
    """Compare with onnx's evaluator; the target runs every node, if it is to."""
    exe = intarsia.compile(model, target, num_threads=1, backends=backends, strict=alone)
    found = exe.run(feeds)
    names = [output.name for output in model.graph.output]
    for name, array in zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True):
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name], array, 1e-5, 1e-5, err_msg=name)


def draw(*shape, dtype=np.float32):
    return (np.random.default_rng(len(shape)).standard_normal(shape) * 9).astype(dtype)


RECURRENT = [
    (op, states, initial, direction)
    for op, states in (("RNN", 1), ("GRU", 1), ("LSTM", 2))
    for initial in (False, True)
    for direction in ("forward", "bidirectional")
]


@pytest.mark.parametrize("target", ["onnxruntime", "openvino, reference"])
@pytest.mark.parametrize(("op", "states", "initial", "direction"), RECURRENT)
def test_recurrent_layers_may_have_the_batch_first(
    target, op, states, initial, direction, backends
):
    batch, steps, width, hidden = 2, 3, 4, 5
    directions = 2 if direction == "bidirectional" else 1
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    small = {"dtype": np.float32}
    feeds = {"x": draw(batch, steps, width, **small) / 9}
    constants = {
        "w": draw(directions, gates * hidden, width, **small) / 9,
        "r": draw(directions, gates * hidden, hidden, **small) / 9,
    }
    given = [f"i{state}" for state in range(states)] if initial else []
    for name in given:
        feeds[name] = draw(batch, directions, hidden, **small) / 9
    names = ["y", "h", "c"][: states + 1]
    attributes = {"hidden_size": hidden, "direction": direction}
    reads = ["x", "w", "r", "", "", *given][: 5 + len(given)] if given else ["x", "w", "r"]
    layer = helper.make_node(op, reads, names, layout=1, **attributes)
    outputs = dict.fromkeys(names, TensorProto.FLOAT)
    model = model_of([layer], feeds, outputs, 14, constants)
    exe = intarsia.compile(model, target, num_threads=1, backends=backends, strict=True)
    found = exe.run(feeds)
    # onnx's evaluator has no batch first in some versions: the same with the sequence first.
    plain = helper.make_node(op, reads, names, **attributes)
    turned = {name: np.ascontiguousarray(x.swapaxes(0, 1)) for name, x in feeds.items()}
    peer = intarsia.compile(
        model_of([plain], turned, outputs, 14, constants), "onnxruntime", backends=backends
    ).run(turned)
    wanted = {name: peer[name].swapaxes(0, 1) for name in names[1:]}
    wanted["y"] = peer["y"].transpose(2, 0, 1, 3)
    for name in names:
        np.testing.assert_allclose(found[name], wanted[name], 1e-5, 1e-6, err_msg=name)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino, reference"])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_goes_to_channels_in_either_order(target, mode, backends):
    feeds = {"x": draw(2, 3, 4, 6)}
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode=mode)
    check(model_of([node], feeds, {"y": TensorProto.FLOAT}), feeds, target, backends)


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_short_integers_are_compared(op, dtype, backends):
    limits = np.iinfo(dtype)
    feeds = {
        "a": np.array([limits.min, 3, limits.max], dtype),
        "b": np.array([limits.max, 3, 1], dtype),
    }
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node(op, ["a", "b"], ["y"])
    check(model_of([node], feeds, {"y": kind}, 13), feeds, "onnxruntime", backends)


def test_powers_may_be_unsigned(backends):
    feeds = {"x": draw(5), "p": np.arange(5, dtype=np.uint32)}
    node = helper.make_node("Pow", ["x", "p"], ["y"])
    check(model_of([node], feeds, {"y": TensorProto.FLOAT}, 15), feeds, "onnxruntime", backends)


def test_a_range_may_be_given_vectors(backends):
    """As the body that ONNX declares for AffineGrid does, where a condition hides it from onnx."""
    unknown = onnx.ValueInfoProto(name="e", type=helper.make_tensor_type_proto(7, None))
    then = helper.make_graph([helper.make_node("Neg", ["v"], ["e"])], "then", [], [unknown])
    other = helper.make_node("ReduceSum", ["v"], ["e"], keepdims=0)
    nodes = [
        helper.make_node(
            "If",
            ["is_vector"],
            ["end"],
            then_branch=then,
            else_branch=helper.make_graph([other], "else", [], [unknown]),
        ),
        helper.make_node("Range", ["start", "end", "step"], ["y"]),
    ]
    constants = {"start": np.array(0), "step": np.array(-2), "is_vector": np.array(True)}
    feeds = {"v": np.array([5])}
    model = model_of(nodes, feeds, {"y": TensorProto.INT64}, 13, constants)
    exe = intarsia.compile(model, "onnxruntime", backends=backends)
    np.testing.assert_array_equal(exe.run(feeds)["y"], [0, -2, -4])


NEW = [
    ("Mod", {"fmod": 0}, "int32", "int32"),
    ("Celu", {"alpha": 0.5}, "float32", "float32"),
    ("BitShift", {"direction": "LEFT"}, "uint8", "uint8"),
]


@pytest.mark.parametrize(("op", "attributes", "dtype", "result"), NEW)
def test_a_newer_operator_set_is_lowered_where_the_older_says_the_same(
    op, attributes, dtype, result, backends
):
    feeds = {"x": np.arange(1, 7).astype(dtype)}
    if op != "Celu":
        feeds["p"] = np.array([2, 3, 1, 2, 3, 1], dtype)
    node = helper.make_node(op, list(feeds), ["y"], **attributes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(result))
    check(model_of([node], feeds, {"y": kind}), feeds, "onnxruntime", backends)


def test_what_only_the_newer_operator_set_has_is_refused_with_a_reason(backends):
    feeds = {"x": np.arange(4, dtype=np.int32), "p": np.ones(4, np.int32)}
    node = helper.make_node("BitShift", ["x", "p"], ["y"], direction="LEFT")
    model = model_of([node], feeds, {"y": TensorProto.INT32})
    with pytest.raises(UnsupportedError, match="operator sets up to 26"):
        intarsia.compile(model, "onnxruntime", backends=backends, strict=True)


@pytest.mark.parametrize(
    ("op", "dtype", "attributes", "expected"),
    [
        ("BitShift", "uint8", {"direction": "LEFT"}, True),
        ("BitShift", "int8", {"direction": "LEFT"}, False),
        ("Mod", "int32", {}, True),
        ("Add", "float32", {}, True),
    ],
)
def test_definitions_are_compared_by_types_and_attributes(op, dtype, attributes, expected):
    feeds = {"x": np.ones(4, dtype), "p": np.ones(4, dtype)}
    node = helper.make_node(op, ["x", "p"], ["y"], **attributes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = snapshot(load(model_of([node], feeds, {"y": kind})))
    assert has_definition(graph, graph.nodes[0], 26) is expected


def test_attributes_that_the_older_operator_set_lacks_count():
    feeds = {"x": draw(1, 4, 4, 4)}
    for mode, expected in (("DCR", True), ("CRD", False), (None, True)):
        given = {} if mode is None else {"mode": mode}
        node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, **given)
        graph = snapshot(load(model_of([node], feeds, {"y": TensorProto.FLOAT})))
        assert has_definition(graph, graph.nodes[0], 26) is expected


def test_a_cast_like_keeps_what_it_says_of_overflow(backends):
    """The library that folds constants makes a Cast of it that says nothing."""
    feeds = {"x": np.array([1, 1e4, -np.inf], np.float32)}
    like = onnx.helper.make_tensor("like", TensorProto.FLOAT8E4M3FN, [1], [1.0])
    node = helper.make_node("CastLike", ["x", "like"], ["y"], saturate=0)
    model = model_of([node], feeds, {"y": TensorProto.FLOAT8E4M3FN}, 19)
    model.graph.initializer.append(like)
    exe = intarsia.compile(model, "onnxruntime", backends=backends)
    np.testing.assert_array_equal(
        exe.run(feeds)["y"].astype(np.float32), np.array([1, np.nan, np.nan], np.float32)
    )


def test_short_transforms_have_half_of_the_frequencies():
    """onnx's inference takes the default of `onesided` to be 0."""
    feeds = {"x": draw(1, 32, 1)}
    constants = {"step": np.array(8), "length": np.array(16)}
    node = helper.make_node("STFT", ["x", "step", "", "length"], ["y"])
    model = model_of([node], feeds, {"y": TensorProto.FLOAT}, 17, constants)
    graph = snapshot(intarsia.graph.load.load(model))
    assert graph.values[graph.nodes[0].outputs[0]].shape == (1, 3, 9, 2)
