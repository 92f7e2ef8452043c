# SPDX-License-Identifier: Apache-2.0
"""Regions as models: valid, complete, and equal in sum to the whole."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tests.quotients import is_acyclic_quotient, order_quotient

from intarsia.errors import ModelError
from intarsia.graph.extract import CONSTANTS_LOCATION, constant_array, extract
from intarsia.graph.graph import Graph
from intarsia.graph.infer import infer_shapes
from intarsia.graph.load import load, parse
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot

BODIES = """<ir_version: 10, opset_import: ["" : 21]>
bodies (float[3] x, bool cond, float[3] unused) => (float[3] y, float[3] last, float[2, 3] all)
<float[3] w = {1, 2, 3}, int64 trips = {2}, bool always = {1}>
{
    [outer] a = Add(x, w)
    [branch] b = If(cond) <
        then_branch = yes () => (float[3] t) {
            t = If(cond) <
                then_branch = deep () => (float[3] u) { u = Mul(a, w) },
                else_branch = other () => (float[3] v) { v = Identity(x) }
            >
        },
        else_branch = no () => (float[3] n) { n = Neg(a) }
    >
    [repeat] last, all = Loop(trips, always, b) <
        body = step (int64 i, bool go, float[3] carried)
            => (bool go_out, float[3] next, float[3] seen) {
            go_out = Identity(go)
            next = Add(carried, a)
            seen = Mul(next, w)
        }
    >
    [end] y = Relu(last)
}"""


def run(model: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ReferenceEvaluator(onnx.load_from_string(model)).run(None, feeds)


def run_regions(graph: Graph, regions, feeds):
    values = dict(feeds)
    for position in order_quotient(graph, regions):
        part = extract(regions[position])
        onnx.checker.check_model(part.model)
        names = [graph.values[value].name for value in part.inputs]
        results = run(part.model, {name: values[name] for name in names})
        values.update(
            zip((graph.values[value].name for value in part.outputs), results, strict=True)
        )
    return [values[graph.values[value].name] for value in graph.outputs]


def test_extracted_bodies_get_what_they_capture():
    graph = snapshot(load(onnx.parser.parse_model(BODIES)))
    names = [value.name for value in graph.values]
    branch, loop = graph.node_named("branch"), graph.node_named("repeat")
    assert [names[value] for value in branch.captured] == ["x", "cond", "w", "a"]
    assert [names[value] for value in loop.captured] == ["w", "a"]
    part = extract(Region.of(graph, [branch.id]))
    onnx.checker.check_model(part.model, full_check=True)
    proto = onnx.load_from_string(part.model)
    assert [info.name for info in proto.graph.input] == ["x", "cond", "a"]
    assert [tensor.name for tensor in proto.graph.initializer] == ["w"]


@pytest.mark.parametrize("cond", [True, False])
def test_control_flow_in_regions_equals_the_whole(cond):
    graph = snapshot(load(onnx.parser.parse_model(BODIES)))
    feeds = {"x": np.float32([1, -2, 3]), "cond": np.array(cond), "unused": np.zeros(3, "f")}
    regions = [Region.of(graph, [node.id]) for node in graph.nodes]
    whole = {name: feeds[name] for name in ("x", "cond")}
    part = extract(graph.whole)
    assert [graph.values[value].name for value in part.inputs] == ["x", "cond"]
    made = dict(
        zip([graph.values[v].name for v in part.outputs], run(part.model, whole), strict=True)
    )
    expected = [made[graph.values[value].name] for value in graph.outputs]
    for got, want in zip(run_regions(graph, regions, feeds), expected, strict=True):
        np.testing.assert_array_equal(got, want)


SCAN = """<ir_version: 10, opset_import: ["" : 21]>
scanning (float[2] start, float[4, 2] rows) => (float[2] total, float[4, 2] sums)
{
    [bias] bias = Neg(start)
    [scan] total, sums = Scan <num_scan_inputs = 1, body = add (float[2] old, float[2] row)
        => (float[2] new, float[2] copy) {
            sum = Add(old, row)
            new = Add(sum, bias)
            copy = Identity(new)
        }> (start, rows)
}"""


def test_a_scan_reads_what_it_captures_across_regions():
    graph = snapshot(load(onnx.parser.parse_model(SCAN)))
    feeds = {"start": np.float32([1, 2]), "rows": np.arange(8, dtype=np.float32).reshape(4, 2)}
    regions = [Region.of(graph, [1]), Region.of(graph, [0])]
    whole = run(extract(graph.whole).model, feeds)
    for got, want in zip(run_regions(graph, regions, feeds), whole, strict=True):
        np.testing.assert_array_equal(got, want)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_regions_in_quotient_order_equal_the_whole(data):
    count = data.draw(st.integers(2, 8))
    nodes = []
    for index in range(count):
        operator = data.draw(st.sampled_from(["Add", "Mul", "Sub"]))
        reads = [data.draw(st.integers(-2, index - 1)) for _ in range(2)]
        names = [{-1: "x", -2: "w"}.get(read, f"v{read}") for read in reads]
        nodes.append(helper.make_node(operator, names, [f"v{index}"]))
    infos = [helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, [3]) for i in range(count)]
    outputs = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    graph_proto = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [infos[i] for i in outputs],
        [numpy_helper.from_array(np.float32([0.5, 2, -1]), "w")],
    )
    opsets = [helper.make_opsetid("", 21)]
    proto = helper.make_model(graph_proto, opset_imports=opsets, ir_version=10)
    graph = snapshot(load(proto))
    owner = [data.draw(st.integers(0, 2)) for _ in range(count)]
    regions = [Region.of(graph, [n for n in range(count) if owner[n] == p]) for p in range(3)]
    regions = [region for region in regions if region]
    if not is_acyclic_quotient(graph, regions):
        regions = [Region.of(graph, [node]) for node in range(count)]
    feeds = {"x": np.float32([1, 2, 3])}
    expected = ReferenceEvaluator(proto).run(None, feeds)
    for got, want in zip(run_regions(graph, regions, feeds), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def weights_model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    arrays = {
        "big": rng.standard_normal((16, 8)).astype(np.float32),
        "small": rng.standard_normal(8).astype(np.float32),
        "indices": np.arange(100, dtype=np.int64) % 2,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "big"], ["m"], name="m"),
        helper.make_node("Add", ["m", "small"], ["s"], name="s"),
        helper.make_node("Gather", ["s", "indices"], ["y"], name="y"),
    ]
    graph = helper.make_graph(
        nodes,
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [100, 8])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_external_constants_leave_their_data_out():
    graph = snapshot(load(weights_model()))
    part = extract(graph.whole, constants="external")
    assert [graph.values[value].name for value in part.constants] == ["big"]
    tensors = {t.name: t for t in onnx.load_from_string(part.model).graph.initializer}
    assert set(tensors) == {"big", "small", "indices"}
    entries = {entry.key: entry.value for entry in tensors["big"].external_data}
    assert entries == {"location": CONSTANTS_LOCATION, "offset": "0", "length": str(16 * 8 * 4)}
    assert not tensors["big"].raw_data


def test_constants_can_become_inputs_after_the_others():
    graph = snapshot(load(weights_model()))
    part = extract(graph.whole, constants="inputs")
    proto = onnx.load_from_string(part.model)
    onnx.checker.check_model(proto, full_check=True)
    assert [info.name for info in proto.graph.input] == ["x", "big"]
    x = np.ones((2, 16), np.float32)
    big = constant_array(graph.values[part.constants[0]])
    with_input = run(part.model, {"x": x, "big": big})
    np.testing.assert_array_equal(with_input[0], run(extract(graph.whole).model, {"x": x})[0])


def test_extraction_leaves_the_model_as_it_was():
    model = load(weights_model())
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    extract(snapshot(model).whole, constants="external")
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_called_functions_come_along_and_others_do_not():
    text = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    f (float[2] x) => (float[2] y) { [a] a = local.twice(x)  [b] y = Relu(a) }
    <domain: "local", opset_import: ["" : 21]>
    add (p, q) => (r) { r = Add(p, q) }
    <domain: "local", opset_import: ["" : 21, "local" : 1]>
    twice (v) => (r) { r = local.add(v, v) }
    <domain: "local", opset_import: ["" : 21]>
    idle (p) => (r) { r = Neg(p) }"""
    model = parse(onnx.parser.parse_model(text))  # loading would inline them
    infer_shapes(model)
    graph = snapshot(model)
    part = extract(Region.of(graph, [0]))
    onnx.checker.check_model(part.model)
    proto = onnx.load_from_string(part.model)
    assert [function.name for function in proto.functions] == ["add", "twice"]
    np.testing.assert_array_equal(run(part.model, {"x": np.float32([1, 2])})[0], [2, 4])
    assert not onnx.load_from_string(extract(Region.of(graph, [1])).model).functions


def test_sequences_at_the_border_keep_their_type():
    text = """<ir_version: 10, opset_import: ["" : 21]>
    f (float[2] x, int64 at) => (float[2] y) {
        [make] s = SequenceConstruct(x, x)
        [take] y = SequenceAt(s, at)
    }"""
    graph = snapshot(load(onnx.parser.parse_model(text)))
    assert not graph.value_named("s").is_tensor
    assert not graph.value_named("s").is_static
    part = extract(Region.of(graph, [1]))
    onnx.checker.check_model(part.model)
    info = onnx.load_from_string(part.model).graph.input
    assert {i.name: i.type.WhichOneof("value") for i in info}["s"] == "sequence_type"


def test_a_border_without_a_type_is_refused():
    text = """<ir_version: 10, opset_import: ["" : 21, "vendor" : 1]>
    f (float[2] x) => (float[2] y) { [mystery] s = vendor.Thing(x)  [b] y = vendor.Other(s) }"""
    graph = snapshot(load(onnx.parser.parse_model(text)))
    assert extract(graph.whole).outputs == graph.outputs
    with pytest.raises(ModelError, match="'s' has no known type"):
        extract(Region.of(graph, [1]))


def test_constant_arrays_of_every_kind():
    tensors = [
        helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"\xc3\xa4"]),
        helper.make_tensor("b", TensorProto.BFLOAT16, [2], [1.0, 2.0]),
        helper.make_tensor("i", TensorProto.INT4, [3], [1, -2, 3]),
    ]
    nodes = [helper.make_node("Identity", [t.name], ["y" + t.name]) for t in tensors]
    outputs = [helper.make_tensor_value_info("y" + t.name, t.data_type, t.dims) for t in tensors]
    proto = helper.make_graph(nodes, "kinds", [], outputs, tensors)
    opsets = [helper.make_opsetid("", 21)]
    graph = snapshot(load(helper.make_model(proto, opset_imports=opsets, ir_version=10)))
    strings, brain, packed = (graph.value_named(name) for name in "tbi")
    assert constant_array(strings).tolist() == ["a", "ä"]
    assert constant_array(strings).dtype == object
    assert (strings.dtype, brain.dtype, packed.dtype) == ("string", "bfloat16", "int4")
    assert (strings.nbytes, brain.nbytes, packed.nbytes) == (0, 4, 3)
    assert constant_array(brain).astype(np.float32).tolist() == [1, 2]
    assert constant_array(packed).astype(np.int32).tolist() == [1, -2, 3]
    onnx.checker.check_model(extract(graph.whole).model)
    with pytest.raises(ModelError, match="'yt' is not a constant"):
        constant_array(graph.value_named("yt"))
