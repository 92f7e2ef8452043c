# SPDX-License-Identifier: Apache-2.0
"""Regions with free dimensions: compiled once, run at every size."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from intarsia.backends.device import HostDevice, ThreadOptions
from intarsia.backends.values import BuildContext, Candidate
from intarsia.errors import ExecutionError
from intarsia.extents import evaluate_all
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.passes.free_shapes import prepare_free
from intarsia.target import CompilationConfig
from intarsia.zoo import free
from intarsia.zoo.transformers import Encoder

TARGETS = ("onnxruntime", "openvino")
NOMINAL = {"batch": 2, "seq": 16, "rows": 12, "columns": 9}
SIZES = [
    {"batch": 2, "seq": 16, "rows": 12, "columns": 9},
    {"batch": 1, "seq": 1, "rows": 5, "columns": 5},
    {"batch": 5, "seq": 7, "rows": 31, "columns": 6},
    {"batch": 1, "seq": 100, "rows": 8, "columns": 40},
    {"batch": 3, "seq": 2, "rows": 6, "columns": 17},
    {"batch": 2, "seq": 16, "rows": 12, "columns": 9},
]
MODELS = {
    "rows": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch,seq,4] x, float[4] w) => (float[batch,seq,4] y, float[batch,4] first) {
            a = Softmax<axis=-1>(x)
            y = Mul(a, w)
            zero = Constant<value = int64 {0}>()
            first = Gather<axis=1>(y, zero)
        }""",
    "joined": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch,seq,4] x) => (float[batch,twice,4] y, float[batch,four] flat) {
            r = Relu(x)
            y = Concat<axis=1>(r, x)
            flat = Flatten<axis=1>(r)
        }""",
    "images": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch,2,rows,columns] x, float[3,2,3,3] k)
        => (float[batch,3,h,w] y, float[batch,3,1,1] m) {
            c = Conv<strides=[2,1], pads=[1,1,1,1]>(x, k)
            y = MaxPool<kernel_shape=[2,2], strides=[1,1]>(c)
            m = GlobalAveragePool(y)
        }""",
}


def compiled(model, text, backends):
    """Return the whole model as one region on a target: its graph, artifact and executable."""
    prepared, shapes = prepare_free(load(model, stays_free=True), NOMINAL)
    assert not shapes.problems
    graph = prepared.graph
    config = CompilationConfig.resolve(f"{text}, reference" if text == "openvino" else text)
    placed = config.targets[0]
    context = BuildContext(placed, config.refined(placed) or placed.target, config, 1)
    backend = backends.by_name[text]
    assert backend.takes_free
    (rule,) = backend.rules(context)
    refusals = rule.refuse(graph, context)
    nodes = tuple(node.id for node in graph.nodes if node.id not in refusals)
    region = Region.of(graph, nodes)
    artifact = backend.compile(Candidate.plain(region, placed), context)
    return graph, region, refusals, backend.load(artifact, HostDevice(ThreadOptions(1)))


def draw(values, sizes, rng):
    arrays = []
    for value in values:
        shape = evaluate_all(value.extents or value.shape, sizes)
        if value.dtype == "float32":
            arrays.append(rng.standard_normal(shape).astype(np.float32))
        else:
            arrays.append(rng.integers(0, 2, shape).astype(value.dtype))
    return arrays


def peer(model):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_one_executable_runs_at_every_size(target, name, backends):
    model = parser.parse_model(MODELS[name])
    graph, region, refusals, executable = compiled(model, target, backends)
    assert not refusals
    session, rng = peer(model), np.random.default_rng(0)
    for sizes in SIZES:
        inputs = draw([graph.values[i] for i in region.inputs], sizes, rng)
        outputs = [
            np.full(evaluate_all(value.extents or value.shape, sizes), np.nan, np.float32)
            for value in (graph.values[i] for i in region.outputs)
        ]
        step = executable.bind(inputs, outputs, None)
        for _ in range(2):
            for array in outputs:
                array[:] = np.nan
            step()
        feeds = dict(zip((graph.values[i].name for i in region.inputs), inputs, strict=True))
        wanted = dict(
            zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True)
        )
        for value, array in zip(region.outputs, outputs, strict=True):
            expected = wanted[graph.values[value].name]
            np.testing.assert_allclose(array, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_an_encoder_is_one_region_at_every_length(target, backends):
    model = free.bert(Encoder("tiny", 2, 64, 4, 100), np.random.default_rng(0))
    graph, region, refusals, executable = compiled(model, target, backends)
    refused = {graph.nodes[node].op_type for node in refusals}
    assert refused <= {"Shape", "Slice", "Gather", "Cast", "Unsqueeze"}, refused
    names = [graph.values[i].name for i in region.outputs]
    # What the region reads of refused nodes is taken from the peer, as all that it makes is.
    shown = onnx.ModelProto()
    shown.CopyFrom(graph.model and onnx_of(graph))
    known = {value.name for value in shown.graph.output}
    for name in (*names, *(graph.values[i].name for i in region.inputs)):
        if name not in known and graph.values[value_of(graph, name)].producer >= 0:
            shown.graph.output.append(onnx.ValueInfoProto(name=name))
            known.add(name)
    session = peer(shown)
    rng = np.random.default_rng(1)
    for sizes in SIZES:
        feeds = {
            graph.values[i].name: array
            for i, array in zip(
                graph.inputs, draw([graph.values[i] for i in graph.inputs], sizes, rng), strict=True
            )
        }
        every = dict(
            zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True)
        )
        every |= feeds
        inputs = [
            np.array(every[value.name].tolist(), value.dtype)
            for value in (graph.values[i] for i in region.inputs)
        ]
        outputs = [np.zeros_like(every[name]) for name in names]
        executable.bind(inputs, outputs, None)()
        for name, array in zip(names, outputs, strict=True):
            np.testing.assert_allclose(array, every[name], 1e-3, 1e-4, err_msg=name)


def onnx_of(graph):
    import onnx_ir

    return onnx_ir.to_proto(graph.model)


def value_of(graph, name):
    return next(value.id for value in graph.values if value.name == name)


def test_a_buffer_of_another_shape_is_an_error_and_not_written(backends):
    model = parser.parse_model(MODELS["rows"])
    graph, region, _, executable = compiled(model, "openvino", backends)
    inputs = draw([graph.values[i] for i in region.inputs], SIZES[0], np.random.default_rng(0))
    memory = np.full(4000, 7, np.float32)
    for batch in (1, 3):  # too small, and too large
        outputs = []
        for position, value in enumerate(graph.values[i] for i in region.outputs):
            shape = evaluate_all(value.extents, {**SIZES[0], "batch": batch})
            start = 1000 * position + 500
            outputs.append(memory[start : start + int(np.prod(shape))].reshape(shape))
        with pytest.raises(ExecutionError):
            executable.bind(inputs, outputs, None)()
        last = outputs[-1].size + 1500
        assert (memory[:500] == 7).all()
        assert (memory[last:] == 7).all()


def test_indices_of_a_free_dimension_are_left_to_what_looks_at_them(backends):
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch,seq,4] x, int64[2] i) => (float[batch,2,4] y) { y = Gather<axis=1>(x, i) }
    """)
    prepared, _ = prepare_free(load(model, stays_free=True), NOMINAL)
    config = CompilationConfig.resolve("openvino, reference")
    placed = config.targets[0]
    context = BuildContext(placed, config.refined(placed) or placed.target, config, 1)
    (rule,) = backends.by_name["openvino"].rules(context)
    (refusal,) = rule.refuse(prepared.graph, context).values()
    assert "free" in refusal.reason


@pytest.mark.parametrize("op", ["Conv<strides=[2]>(x, k)", "MaxPool<kernel_shape=[3]>(x)"])
def test_openvino_is_not_run_where_a_window_does_not_fit(op, backends):
    """It would make an empty result, and end the process in a later call of some other model."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[batch,2,seq] x, float[4,2,3] k) => (float[batch,c] y) {{
            b = {op}
            y = ReduceMax<axes=[-1], keepdims=0>(b)
        }}"""
    model = parser.parse_model(text)
    weights = np.ones((4, 2, 3), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "k"))
    del model.graph.input[1:]
    _, _, refusals, executable = compiled(model, "openvino", backends)
    assert not refusals
    channels = 4 if op.startswith("Conv") else 2

    def bound(batch, length):
        x = np.ones((batch, 2, length), np.float32)
        y = np.full((batch, channels), 7, np.float32)
        return executable.bind([x], [y], None), y

    for length in (8, 3, 8):
        step, y = bound(2, length)
        step()
        assert (y == (6 if channels == 4 else 1)).all()
    with pytest.raises(
        ExecutionError, match=r"a window does not fit these sizes: .*3.* larger than"
    ):
        bound(2, 2)
    bound(0, 3)[0]()  # of an empty batch nothing is computed
