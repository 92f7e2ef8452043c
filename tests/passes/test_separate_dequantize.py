# SPDX-License-Identifier: Apache-2.0
"""Who reads dequantised numbers gets a DequantizeLinear of its own."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

import intarsia
from intarsia.graph.annotate import on_device
from intarsia.graph.load import load
from intarsia.passes.prepare import PASSES, prepare

HEAD = """<ir_version: 10, opset_import: ["" : 21]>
g (uint8[2,4] x, bool flag) => ({outputs})
<float s = {{0.05}}, uint8 z = {{128}}, uint8[4,4] w> {{"""
BOTH = ("separate-dequantize", "separate-weights")


def model_of(body, outputs="float[2,4] y"):
    model = onnx.parser.parse_model(HEAD.format(outputs=outputs) + body + "}")
    codes = np.random.default_rng(0).integers(0, 256, (4, 4)).astype(np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(codes, "w"))
    del model.graph.value_info[:]
    return model


def separated(model, names=BOTH[:1]):
    """Run passes, compare results, and return readers by what each DequantizeLinear makes."""
    prepared = prepare(load(model), [(name, PASSES[name]) for name in names])
    after = ir.to_proto(prepared.model)
    onnx.checker.check_model(after, full_check=True)
    rng = np.random.default_rng(1)
    feeds = {"x": rng.integers(0, 256, (2, 4)).astype(np.uint8), "flag": np.array(True)}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found = [
        onnxruntime.InferenceSession(each.SerializeToString(), options).run(None, feeds)
        for each in (model, after)
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    graph = prepared.graph
    readers = {
        node.name: [graph.nodes[i].name for i in graph.values[node.outputs[0]].consumers]
        for node in graph.nodes
        if node.op_type == "DequantizeLinear"
    }
    return graph, readers, {rewrite.name: rewrite.count for rewrite in prepared.rewrites}


SUM = """[d] a = DequantizeLinear(x, s, z) [v] b = DequantizeLinear(w, s, z)
    [m] c = MatMul(a, b) [n] e = MatMul(c, b) [t] t = Mul(a, a) [p] y = Add(e, t)"""


def test_each_reader_has_its_own_and_weights_stay():
    graph, readers, rewrites = separated(model_of(SUM))
    assert readers == {"d": ["m"], "d/2": ["t"], "v": ["m", "n"]}  # twice by one: one copy
    assert graph.node_named("d/2").origins == ("d",)
    assert rewrites == {"separate-dequantize": 1}
    _, readers, rewrites = separated(model_of(SUM), BOTH)
    assert readers == {"d": ["m"], "d/2": ["t"], "v": ["m"], "v/2": ["n"]}
    assert rewrites == {"separate-dequantize": 1, "separate-weights": 1}


def test_names_that_are_there_are_left_alone():
    body = """[d] a = DequantizeLinear(x, s, z) ["d/2"] b = Abs(a)
        [d3] "a/3" = Neg(a) [p] y = Add(b, "a/3")"""
    model = model_of(body.replace('"', "").replace("d/2", "d_2").replace("a/3", "a_3"))
    for node in model.graph.node:
        node.name = node.name.replace("_", "/")
        for names in (node.input, node.output):
            names[:] = [name.replace("_", "/") for name in names]
    _, readers, _ = separated(model)
    assert readers == {"d": ["d/2"], "d/4": ["d3"]}


@pytest.mark.parametrize("old", ["w", "t1"])
def test_names_of_weights_and_of_bodies_are_left_alone(old):
    body = """[d] a = DequantizeLinear(x, s, z) [v] b = DequantizeLinear(w, s, z)
        [m] e = MatMul(a, b)
        [i] c = If (flag) <
            then_branch = f () => (float[2,4] t) { t1 = Abs(e) t = Neg(t1) },
            else_branch = g () => (float[2,4] o) { o = Exp(e) }>
        [t] t2 = Mul(a, a) [p] y = Add(c, t2)"""
    model = model_of(body)
    graphs = [model.graph]
    graphs += [one.g for node in model.graph.node for one in node.attribute if one.HasField("g")]
    for graph in graphs:
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = ["a/2" if name == old else name for name in names]
        for tensor in graph.initializer:
            tensor.name = "a/2" if tensor.name == old else tensor.name
    graph, readers, _ = separated(model)
    assert readers["d/3"] == ["t"]
    assert "a/3" in {value.name for value in graph.values}


def test_numbers_that_others_see_stay_where_they_are():
    seen = "[d] o = DequantizeLinear(x, s, z) [n] b = Neg(o) [m] y = Abs(b)"
    _, readers, _ = separated(model_of(seen, "float[2,4] y, float[2,4] o"))
    assert readers == {"d": [], "d/2": ["n"]}
    body = """[d] a = DequantizeLinear(x, s, z) [n] b = Neg(a)
        [i] c = If (flag) <
            then_branch = t () => (float[2,4] t) { t = Abs(a) },
            else_branch = e () => (float[2,4] e) { e = Exp(a) }>
        [p] y = Add(b, c)"""
    _, readers, _ = separated(model_of(body))
    assert readers == {"d": ["i"], "d/2": ["n"]}


def test_copies_have_the_annotation():
    graph, _, _ = separated(ir.to_proto(on_device(model_of(SUM), {"d": "gpu"})))
    assert [graph.node_named(name).device for name in ("d", "d/2", "t")] == ["gpu", "gpu", None]


def test_every_target_gets_them_but_of_weights():
    program = intarsia.compile(model_of(SUM), "onnxruntime", num_threads=1)
    (region,) = program.placement.regions
    assert {"d", "d/2", "v"} == {n.name for n in region.nodes if n.op_type == "DequantizeLinear"}
