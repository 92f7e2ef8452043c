# SPDX-License-Identifier: Apache-2.0
"""The two hashes: blind to names and order, awake to everything else."""

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from intarsia.graph.graph import Graph
from intarsia.graph.hashes import content_hash, shape_hash
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.passes.free_shapes import prepare_free


def block(prefix="", *, seed=0, wide=8, stride=1, slope=0.1, swap=False, order=None, bias=1.0):
    """Two parallel branches of equal nodes that meet, so that colours alone do not tell."""
    n = lambda name: prefix + name  # noqa: E731
    rng = np.random.default_rng(seed)
    arrays = {
        "w": rng.standard_normal((wide, 4, 3, 3)).astype(np.float32),
        "b": np.full(wide, bias, np.float32),
    }
    nodes = [
        helper.make_node("Conv", [n("x"), n("w"), n("b")], [n("c")], strides=[stride, stride]),
        helper.make_node("LeakyRelu", [n("c")], [n("l")], alpha=slope),
        helper.make_node("LeakyRelu", [n("c")], [n("r")], alpha=slope),
        helper.make_node("Sigmoid", [n("l")], [n("ls")]),
        helper.make_node("Sigmoid", [n("r")], [n("rs")]),
        helper.make_node("Sub", [n("r"), n("ls")] if swap else [n("l"), n("ls")], [n("y")]),
        helper.make_node("Sub", [n("l"), n("rs")] if swap else [n("r"), n("rs")], [n("z")]),
    ]
    nodes = [nodes[i] for i in order or range(len(nodes))]
    infos = [helper.make_empty_tensor_value_info(n(name)) for name in "yz"]
    for info in infos:
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        prefix + "g",
        [helper.make_tensor_value_info(n("x"), TensorProto.FLOAT, [1, 4, 8, 8])],
        infos,
        [numpy_helper.from_array(array, n(name)) for name, array in arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return snapshot(load(proto)).whole


def test_hashes_do_not_see_names():
    assert shape_hash(block()) == shape_hash(block("other/"))
    assert content_hash(block()) == content_hash(block("other/"))
    assert len(shape_hash(block())) == 32


def test_shape_hash_does_not_see_the_order_of_nodes():
    dice = random.Random(0)
    expected = shape_hash(block())
    for _ in range(20):
        order = list(range(7))
        dice.shuffle(order)
        assert shape_hash(block(order=order)) == expected


@pytest.mark.parametrize(
    "change",
    [{"wide": 9}, {"stride": 2}, {"slope": 0.2}, {"swap": True}, {"bias": 2.0}],
    ids=lambda change: next(iter(change)),
)
def test_shape_hash_sees_shapes_attributes_wiring_and_small_constants(change):
    assert shape_hash(block()) != shape_hash(block(**change))


def test_only_content_hash_sees_big_weights():
    assert shape_hash(block(seed=0)) == shape_hash(block(seed=1))
    assert content_hash(block(seed=0)) != content_hash(block(seed=1))


def of(body, *, ends="float[4] x, float[4] y) => (float[4] a, float[4] b", opset=21):
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> f ({ends}) {{ {body} }}'
    return snapshot(load(onnx.parser.parse_model(text))).whole


def test_only_content_hash_sees_the_order_of_outputs():
    first, second = of("a = Relu(x) b = Neg(y)"), of("b = Neg(y) a = Relu(x)")
    assert shape_hash(first) == shape_hash(second)
    assert content_hash(first) != content_hash(second)


def test_one_input_twice_is_not_two_inputs():
    assert shape_hash(of("a = Add(x, y) b = Neg(a)")) != shape_hash(of("a = Add(x, x) b = Neg(a)"))


def test_operands_that_do_not_commute_are_told_apart():
    assert shape_hash(of("a = Relu(x) b = Sub(x, a)")) != shape_hash(
        of("a = Relu(x) b = Sub(a, x)")
    )


def test_the_operator_set_version_counts():
    assert shape_hash(of("a = Relu(x) b = Neg(y)")) != shape_hash(
        of("a = Relu(x) b = Neg(y)", opset=20)
    )


def test_what_leaves_the_region_counts():
    graph = of("a = Relu(x) b = Neg(a)").graph
    inner = of("c = Relu(x) b = Neg(c)", ends="float[4] x) => (float[4] b").graph
    assert shape_hash(graph.whole) != shape_hash(inner.whole)
    assert shape_hash(Region.of(graph, [0])) == shape_hash(Region.of(inner, [0]))


LOOP = """c = Relu(x)
b = If(flag) <then_branch = t () => (float[4] {0}) {{ {0} = {1}({2}, c) }},
              else_branch = e () => (float[4] q) {{ q = Identity(c) }}>"""
LOOP_ENDS = "float[4] x, bool flag) => (float[4] b"


def test_bodies_count_without_their_names():
    base = of(LOOP.format("r", "Add", "x"), ends=LOOP_ENDS)
    assert shape_hash(base) == shape_hash(of(LOOP.format("other", "Add", "x"), ends=LOOP_ENDS))
    assert shape_hash(base) != shape_hash(of(LOOP.format("r", "Mul", "x"), ends=LOOP_ENDS))
    assert shape_hash(base) != shape_hash(of(LOOP.format("r", "Add", "c"), ends=LOOP_ENDS))


def called(operator):
    text = f"""<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    f (float[2] x) => (float[2] y) {{ y = local.outer(x) }}
    <domain: "local", opset_import: ["" : 21, "local" : 1]> outer (v) => (r) {{ r = local.in(v) }}
    <domain: "local", opset_import: ["" : 21]> in (p) => (r) {{ r = {operator}(p) }}"""
    return snapshot(load(onnx.parser.parse_model(text))).whole


def test_called_functions_count():
    assert shape_hash(called("Relu")) == shape_hash(called("Relu"))
    assert shape_hash(called("Relu")) != shape_hash(called("Neg"))


def test_free_extents_count_beside_the_sizes_that_they_have():
    def graph(second: str) -> Graph:
        infos = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in (("x", ["n", 4]), ("z", [second, 4]), ("y", None), ("w", None))
        ]
        nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Exp", ["z"], ["w"])]
        made = helper.make_graph(nodes, "g", infos[:2], infos[2:])
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)])
        return prepare_free(load(model, stays_free=True), {"n": 8, "m": 8})[0].graph

    one, two = graph("n"), graph("m")
    for digest in (content_hash, shape_hash):
        assert digest(one.whole) != digest(two.whole)
        assert digest(Region.of(one, [0])) == digest(Region.of(two, [0]))
    assert one.structure != two.structure
    fixed = snapshot(load(one.model, {"x": (8, 4), "z": (8, 4)}))
    assert content_hash(fixed.whole) != content_hash(one.whole)
