# SPDX-License-Identifier: Apache-2.0
"""Regions of integers as TFLite networks: LiteRT computes of them what ONNX says, to one step."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from intarsia.backends.tflite.network import write_network
from intarsia.backends.tflite.operators import TABLE, write_region
from intarsia.graph.graph import Graph
from intarsia.testing.integers import LAYERS, draw_codes, draw_layer, with_scales

interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
pytest.importorskip("tflite", reason="the package tflite is not installed")

MOVING = ("global max pool", "max pool", "pad", "reshape", "slice", "transpose")
DIFFERING = 0.2
"""At most this part of the codes of a layer's seeds is one step off: those that are requantised
round halves otherwise, and average pools round twice where TFLite does."""


def graph_of(model):
    return Graph.from_model(ir.serde.deserialize_model(model))


def run_litert(data, feeds):
    """Run a network by TFLite's reference kernels; feeds in the order of its inputs."""
    reference = interpreter.OpResolverType.BUILTIN_REF
    run = interpreter.Interpreter(model_content=data, experimental_op_resolver_type=reference)
    run.allocate_tensors()
    for detail, feed in zip(run.get_input_details(), feeds, strict=True):
        run.set_tensor(detail["index"], feed)
    run.invoke()
    return [run.get_tensor(detail["index"]) for detail in run.get_output_details()]


def run_onnx(model, feeds):
    """Run a model as it is written: Q, DQ and floats between."""
    if model.graph.node[0].op_type in ("QLinearConv", "QLinearMatMul"):
        # ONNX Runtime's sums of products of uint8 and int8 saturate on CPUs without VNNI.
        return ReferenceEvaluator(model).run(None, feeds)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, feeds)


def steps(model, seed):
    """Return by how many steps each code that LiteRT computes is off."""
    graph, feeds = graph_of(model), draw_codes(model, seed)
    written = write_region(graph.whole)
    assert written.network is not None, written.reasons
    data = write_network(written.network)
    assert data == write_network(write_region(graph.whole).network)
    (got,) = run_litert(data, [feeds[graph.values[value].name] for value in graph.inputs])
    (expected,) = run_onnx(model, feeds)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    return np.abs(got.astype(int) - expected.astype(int)).reshape(-1)


def differing(name, seeds, convert=lambda model: model):
    """Return which part of the codes is off; none may be by more than one step."""
    found = []
    for seed in seeds:
        model = convert(draw_layer(name, seed, ("int8", "uint8")[seed % 2]))
        if model is not None:
            found.append(steps(model, seed))
    if not found:
        return 0.0
    every = np.concatenate(found)
    assert every.max() <= 1
    return float((every > 0).mean())


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_what_onnx_says_to_one_step(name):
    assert differing(name, range(2)) <= (0 if name in MOVING else DIFFERING * 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LAYERS)
def test_many_layers_are_what_onnx_says_to_one_step(name):
    part = differing(name, range(2, 18))
    print(f"{name}: {part:.2%} of the codes are one step off")
    assert part <= (0 if name in MOVING else DIFFERING)


@pytest.mark.parametrize("name", LAYERS)
def test_operators_that_have_scales_are_the_same(name):
    assert differing(name, range(2), with_scales) <= DIFFERING * 2


def test_every_row_of_the_table_is_drawn():
    drawn = {node.op_type for name in LAYERS for seed in range(6)
             for node in draw_layer(name, seed).graph.node}  # fmt: skip
    for row in TABLE:
        assert drawn & {*row.types, "Identity"} or row.types == ("Identity",), row.name


NETWORK = """<ir_version: 9, opset_import: ["": 17]>
net (uint8[1, 3, 8, 8] x) => (uint8[1, 5] y, int8[1, 4, 4, 4] side)
<float s = {0.05}, uint8 z = {120}, int8 zero = {0}, float third = {0.00390625}, uint8 low = {0},
 float high = {6}, float none = {0}> {
 xf = DequantizeLinear(x, s, z)
 wf = DequantizeLinear(w, ws, wz)
 c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(xf, wf)
 r = Clip(c, none, high)
 a = QuantizeLinear(r, s, zero)
 af = DequantizeLinear(a, s, zero)
 p = MaxPool<kernel_shape = [2, 2], pads = [0, 0, 1, 1]>(a)
 pf = DequantizeLinear(p, s, zero)
 sum = Add(af, pf)
 side = QuantizeLinear(sum, s, zero)
 sidef = DequantizeLinear(side, s, zero)
 g = GlobalAveragePool(sidef)
 gq = QuantizeLinear(g, s, zero)
 flat = Flatten(gq)
 flatf = DequantizeLinear(flat, s, zero)
 vf = DequantizeLinear(v, ws0, wz0)
 dense = Gemm(flatf, vf)
 denseq = QuantizeLinear(dense, s, zero)
 densef = DequantizeLinear(denseq, s, zero)
 soft = Softmax(densef)
 y = QuantizeLinear(soft, third, low) }"""


@pytest.fixture(scope="module")
def network():
    """A network with a shared DequantizeLinear, operators of codes, two outputs of two dtypes."""
    model = onnx.parser.parse_model(NETWORK)
    rng = np.random.default_rng(0)
    for name, array in {
        "w": rng.integers(-99, 99, (4, 3, 3, 3)).astype(np.int8),
        "ws": rng.uniform(0.005, 0.01, 4).astype(np.float32),
        "wz": np.zeros(4, np.int8),
        "v": rng.integers(-99, 99, (4, 5)).astype(np.int8),
        "ws0": np.float32(0.02),
        "wz0": np.int8(0),
    }.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    for node in model.graph.node:
        node.name = node.output[0]
        if node.output[0] == "wf":
            node.attribute.append(onnx.helper.make_attribute("axis", 0))
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def test_a_network_is_written_as_one(network):
    graph = graph_of(network)
    written = write_region(graph.whole)
    assert not written.reasons
    assert [name for name, _ in written.layers] == [
        "convolution", "max pool", "elementwise", "mean", "reshape", "product", "softmax",
    ]  # fmt: skip
    assert {node for _, nodes in written.layers for node in nodes} == {*range(len(graph.nodes))}
    turned = [one.code for one in written.network.operators].count("TRANSPOSE")
    assert turned == 2  # at the borders alone
    feeds = draw_codes(network, 1)
    got = run_litert(write_network(written.network), [feeds["x"]])
    by_name = dict(zip(("y", "side"), run_onnx(network, feeds), strict=True))
    names = [graph.values[value].name for value in graph.whole.outputs]
    for name, one in zip(names, got, strict=True):
        other = by_name[name]
        assert np.abs(one.astype(int) - other.astype(int)).max() <= 2  # a step of each layer
        assert one.dtype == other.dtype


def test_what_is_not_written_has_its_reason(network):
    model = onnx.ModelProto()
    model.CopyFrom(network)
    for node in model.graph.node:
        if node.name == "c":
            node.attribute.append(onnx.helper.make_attribute("dilations", [1, 1]))
        if node.name == "side":
            node.input[1] = "other"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.06), "other"))
    graph = graph_of(model)
    written = write_region(graph.whole)
    assert written.network is None
    names = {graph.nodes[node].name: reason for node, reason in written.reasons.items()}
    assert "another scale" in names["gq"]
    assert "c" not in names


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"group": 2}, "2 groups"),
        ({"w_z": np.uint8(3)}, "zero point"),
        ({"low": np.float32(-3)}, "no activation from -3 to 6"),
    ],
)
def test_what_tflite_lacks_is_said(change, words):
    x = np.random.default_rng(0)
    weights = x.integers(-9, 9, (4, 4 // change.get("group", 1), 1, 1)).astype(np.int8)
    is_unsigned = "w_z" in change
    text = (
        '<ir_version: 9, opset_import: ["": 17]> net (int8[1, 4, 3, 3] x) => (int8[1, 4, 3, 3] y) {'
        " xf = DequantizeLinear(x, s, z) wf = DequantizeLinear(w, s, w_z)"
        f" c = Conv<group = {change.get('group', 1)}>(xf, wf) r = Clip(c, low, high)"
        " y = QuantizeLinear(r, s, z) }"
    )
    model = onnx.parser.parse_model(text)
    for name, array in {
        "s": np.float32(0.1), "z": np.int8(0), "w_z": np.int8(0), "low": np.float32(0),
        "high": np.float32(6), "w": weights.astype(np.uint8) if is_unsigned else weights, **change,
    }.items():  # fmt: skip
        if name != "group":
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    written = write_region(graph_of(onnx.shape_inference.infer_shapes(model)).whole)
    assert written.network is None
    assert any(words in reason for reason in written.reasons.values()), written.reasons
