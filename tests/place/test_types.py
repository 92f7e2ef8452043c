# SPDX-License-Identifier: Apache-2.0
"""Operators that ONNX does not know: who knows their types is asked, and no cut falls elsewhere."""

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.quotients import is_acyclic_quotient, is_convex

import intarsia
from intarsia.backends.onnxruntime import OnnxRuntimeBackend
from intarsia.backends.onnxruntime_types import read_type
from intarsia.backends.registry import load_backends
from intarsia.errors import BackendError
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.place.decide import cut_regions
from intarsia.settings import Settings

HEADER = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
FUSED = """
g (float[2,4,8] x) => (float[2,4,8] y) <float[8,8] w, float[8] b, float[8] s> {
    [product] p = MatMul(x, w)
    [gelu] q = com.microsoft.FastGelu(p, b)
    [second] r = MatMul(q, w)
    [norm] t, u, v, both = com.microsoft.SkipLayerNormalization(r, x, s, b)
    [relu] z = Relu(both)
    [sum] o = Add(t, z)
    [bias] y = com.microsoft.BiasGelu(o, b) }"""
QUANTISED = """
g (float[1,4,8] x) => (float[1,4,8] y)
<float sx = {0.05}, uint8 zx = {128}, float so = {0.1}, uint8 zo = {100}> {
    [relu] r = Relu(x)
    [quantise] a = QuantizeLinear(r, sx, zx)
    [add] c = com.microsoft.QLinearAdd(a, sx, zx, a, sx, zx, so, zo)
    [sigmoid] d = com.microsoft.QLinearSigmoid(c, so, zo, so, zo)
    [back] e = DequantizeLinear(d, so, zo)
    [exp] y = Exp(e) }"""
ATTENTION = """
g (float[1,4,8] x) => (float[1,4,8] y) <float[8,24] w, float[24] b> {
    [relu] r = Relu(x)
    [attention] a = com.microsoft.Attention <num_heads = 2> (r, w, b)
    [exp] e = Neg(a)
    [last] y = Sigmoid(e) }"""
MODELS = {"fused": FUSED, "quantised": QUANTISED, "attention": ATTENTION}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    found = onnx.parser.parse_model(HEADER + MODELS[request.param])
    rng = np.random.default_rng(0)
    for info in found.graph.value_info:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape).astype(np.float32)
        found.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
    del found.graph.value_info[:]
    return found


def feeds_of(model):
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}


def expected_of(model, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


def targets_of(exe):
    return {node.name: r.target.split()[0] for r in exe.placement.regions for node in r.nodes}


@pytest.mark.parametrize(
    "target", [None, "llvm", "dnnl, onnxruntime", "fake -ops=Relu,Exp,MatMul,Sigmoid,Neg"]
)
def test_operators_of_a_runtime_stand_between_those_of_others(target, model, backends):
    exe = intarsia.compile(model, target, backends=backends)
    feeds = feeds_of(model)
    np.testing.assert_allclose(exe.run(feeds)["y"], expected_of(model, feeds), rtol=1e-3, atol=1e-4)
    found = targets_of(exe)
    if target is not None:
        own = {name for name, text in found.items() if text != "onnxruntime"}
        assert own & {"relu", "product"}
        assert own & {"second", "exp", "last"}  # behind what only ONNX Runtime knows


def forget_types(monkeypatch):
    """Let nobody know the types of ONNX Runtime's operators."""
    monkeypatch.setattr(OnnxRuntimeBackend, "infer_types", lambda *_: {})
    monkeypatch.setattr("intarsia.graph.contributed.CONTRIBUTED", {})


def test_what_stays_unknown_is_inside_of_a_region(model, monkeypatch):
    forget_types(monkeypatch)
    backends = load_backends(Settings.from_environment())
    exe = intarsia.compile(model, "llvm, onnxruntime", backends=backends)
    feeds = feeds_of(model)
    np.testing.assert_allclose(exe.run(feeds)["y"], expected_of(model, feeds), rtol=1e-3, atol=1e-4)
    for step in exe.plan.tensors:
        assert step.dtype, f"{step.name} crosses a border and has no type"
    names = {"fused": ("gelu", "bias"), "quantised": ("add", "back"), "attention": ("attention",)}
    found = targets_of(exe)
    for each in names.values():
        assert {found[name] for name in each if name in found} <= {"onnxruntime"}


def test_a_backend_that_cannot_tell_types_costs_no_more_than_a_line(model, monkeypatch, caplog):
    def fail(*_):
        raise BackendError("it is ill", backend="onnxruntime")

    monkeypatch.setattr("intarsia.graph.contributed.CONTRIBUTED", {})  # or nobody is asked
    monkeypatch.setattr(OnnxRuntimeBackend, "infer_types", fail)
    backends = load_backends(Settings.from_environment())
    with caplog.at_level(logging.INFO, "intarsia"):
        exe = intarsia.compile(model, "llvm, onnxruntime", backends=backends)
    feeds = feeds_of(model)
    np.testing.assert_allclose(exe.run(feeds)["y"], expected_of(model, feeds), rtol=1e-3, atol=1e-4)
    assert "onnxruntime reports no types: it is ill" in caplog.messages


def test_the_fallback_swallows_the_neighbours_of_unknown_types(monkeypatch):
    forget_types(monkeypatch)
    backends = load_backends(Settings.from_environment())
    text = """g (float[4] x) => (float[4] y) {
        [one] a = com.microsoft.Gelu(x) [two] b = Relu(a) [three] y = com.microsoft.Gelu(b) }"""
    model = onnx.parser.parse_model(HEADER + text)
    exe = intarsia.compile(model, "llvm, onnxruntime", backends=backends)
    assert targets_of(exe) == dict.fromkeys(["one", "two", "three"], "onnxruntime")


def random_model(rng, size):
    """Return a model of operators that nobody knows, some of whose values have a type."""
    nodes, known = [], ["x0"]
    typed = []
    for index in range(size):
        reads = list(dict.fromkeys(rng.choice(known, size=min(len(known), 2))))
        made = [f"v{index}_{i}" for i in range(rng.integers(1, 3))]
        nodes.append(helper.make_node("Own", reads, made, f"n{index}", domain="test.own"))
        typed += [name for name in made if rng.random() < 0.6]
        known += made
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in typed]
    ends = [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [4])]
    last = helper.make_node("Own", [known[-1]], ["y"], "last", domain="test.own")
    graph = helper.make_graph(
        [*nodes, last],
        "g",
        ends,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        value_info=info,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("test.own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_no_region_of_any_graph_begins_or_ends_at_an_unknown_type():
    rng = np.random.default_rng(0)
    tied = 0
    for _ in range(100):
        graph = snapshot(load(random_model(rng, int(rng.integers(2, 14)))))
        choices = [int(choice) for choice in rng.integers(0, 3, len(graph.nodes))]
        for nodes in graph.tied:
            tied += 1
            for node in nodes:  # what placing does
                choices[node] = choices[nodes[0]]
        cut = cut_regions(graph, choices)
        regions = [Region.of(graph, nodes) for _, nodes in cut]
        assert sorted(node for _, nodes in cut for node in nodes) == list(range(len(graph.nodes)))
        assert is_acyclic_quotient(graph, regions)
        for (choice, nodes), region in zip(cut, regions, strict=True):
            assert {choices[node] for node in nodes} == {choice}
            assert is_convex(region)
            border = (*region.inputs, *region.outputs)
            assert all(graph.values[value].ir.type is not None for value in border)
    assert tied > 50


@pytest.mark.parametrize(
    ("text", "shape", "expected"),
    [
        ("tensor(float)", [2, "n", None], "float32[2,?,?]"),
        ("tensor(bfloat16)", [], "bfloat16"),
        ("seq(tensor(int64))", [], "seq int64"),
        ("optional(tensor(bool))", [], "optional bool"),
        ("map(int64,tensor(float))", [], None),
        ("opaque(x)", [], None),
    ],
)
def test_types_of_onnx_runtime_are_read(text, shape, expected):
    found = read_type(text, shape)
    if expected is None:
        assert found is None
        return
    prefix = ""
    for field, word in (("sequence_type", "seq "), ("optional_type", "optional ")):
        if found.HasField(field):
            prefix, found = word, getattr(found, field).elem_type
    tensor = found.tensor_type
    dims = ",".join(
        str(dim.dim_value) if dim.HasField("dim_value") else "?" for dim in tensor.shape.dim
    )
    name = TensorProto.DataType.Name(tensor.elem_type).lower()
    name = {"float": "float32"}.get(name, name)
    assert f"{prefix}{name}{f'[{dims}]' if dims else ''}" == expected
