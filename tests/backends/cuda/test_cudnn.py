# SPDX-License-Identifier: Apache-2.0
"""The kind `cudnn` without a GPU: its table, the numbers of its graphs on a stand-in, and what the
library itself says where its wheel is: of descriptors, and of engines for GPUs that are not here.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.cuda import cudnn_stand_in
from tests.backends.cuda.test_cuda import has_driver
from tests.c_compiler import compile_c

from intarsia.backends.cuda.cudnn import library as module
from intarsia.backends.cuda.cudnn.backend import BACKEND, program_of
from intarsia.backends.cuda.cudnn.descriptors import engines
from intarsia.backends.cuda.cudnn.execution import plan_of, queued
from intarsia.backends.cuda.cudnn.graphs import EngineRules
from intarsia.backends.cuda.cudnn.library import Cudnn, DnnDescriptor
from intarsia.backends.cuda.cudnn.table import TABLE
from intarsia.backends.cuda.library_program import LibraryPlace
from intarsia.backends.patterns import pattern_rules
from intarsia.errors import BackendError
from intarsia.graph.load import load
from intarsia.graph.pattern import match_region
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.place.machine import make_contexts
from intarsia.target import CompilationConfig

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
WIDE = EngineRules("tensor_op")
HEADER = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>'
MODELS = {
    "conv": "(float[2,3,9,8] x, float[4,3,3,3] w) => (float[2,4,5,4] y) "
    "{ y = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w) }",
    "conv, row, relu": "(float[1,4,6,6] x, float[6,4,3,3] w, float[6] b) => (float[1,6,4,4] y) "
    "{ a = Conv(x, w, b) y = Relu(a) }",
    "conv, row behind, relu": "(float[1,4,6,6] x, float[6,4,3,3] w, float[6,1,1] b) "
    "=> (float[1,6,4,4] y) { a = Conv(x, w) c = Add(b, a) y = Relu(c) }",
    "conv, row, sum, relu": "(float16[1,4,6,6] x, float16[4,4,3,3] w, float16[4] b) "
    "=> (float16[1,4,6,6] y) { a = Conv<pads=[1,1,1,1]>(x, w, b) c = Add(a, x) y = Relu(c) }",
    "conv, relu": "(float[1,4,6,6] x, float[6,4,1,1] w) => (float[1,6,6,6] y) "
    "{ a = Conv(x, w) y = Relu(a) }",
    "conv, sum": "(float[1,4,6,6] x, float[4,4,1,1] w) => (float[1,4,6,6] y) "
    "{ a = Conv(x, w) y = Add(x, a) }",
    "grouped": "(float[2,6,7,7] x, float[4,3,2,2] w) => (float[2,4,6,6] y) "
    "{ y = Conv<group=2>(x, w) }",
    "depthwise": "(float[2,6,7,7] x, float[12,1,3,3] w, float[12] b) => (float[2,12,5,5] y) "
    "{ y = Conv<group=6>(x, w, b) }",
    "one dimension": "(float[2,3,9] x, float[4,3,3] w) => (float[2,4,9] y) "
    '{ y = Conv<auto_pad="SAME_UPPER">(x, w) }',
    "three dimensions, gaps": "(float[1,2,6,7,5] x, float[3,2,2,2,2] w) => (float[1,3,4,5,3] y) "
    "{ y = Conv<dilations=[2,2,2]>(x, w) }",
    "uneven pads": "(bfloat16[1,2,6,7] x, bfloat16[4,2,2,2] w) => (bfloat16[1,4,7,7] y) "
    "{ y = Conv<pads=[0,1,2,0]>(x, w) }",
    "transposed": "(float[2,4,5,6] x, float[4,3,3,2] w) => (float[2,6,10,12] y) "
    "{ y = ConvTranspose<group=2, strides=[2,2], pads=[1,0,1,0], output_padding=[1,0]>(x, w) }",
    "maximum": "(float[2,3,9,8] x) => (float[2,3,5,4] y) "
    "{ y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,0]>(x) }",
    "maximum beyond the end": "(float[2,3,8,7] x) => (float[2,3,4,3] y) "
    "{ y = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x) }",
    "average": "(float[2,3,9,8] x) => (float[2,3,5,4] y) "
    "{ y = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,0]>(x) }",
    "average with padding": "(float16[2,3,9] x) => (float16[2,3,5] y) "
    "{ y = AveragePool<kernel_shape=[3], strides=[2], pads=[1,1], count_include_pad=1>(x) }",
    "average of all": "(float[2,3,9,8] x) => (float[2,3,1,1] y) { y = GlobalAveragePool(x) }",
    "layer norm": "(float[2,5,8] x, float[8] s, float[8] b) => (float[2,5,8] y) "
    "{ y = LayerNormalization<epsilon=0.01>(x, s, b) }",
    "layer norm without a row": "(float16[3,4,6] x, float16[4,6] s) => (float16[3,4,6] y) "
    "{ y = LayerNormalization<axis=1>(x, s) }",
    "layer norm with factors of one item": "(float[2,5,8] x, float[1,1,8] s, float[1,8] b) "
    "=> (float[2,5,8] y) { y = LayerNormalization(x, s, b) }",
    "instance norm": "(float[2,3,4,5] x, float[3] s, float[3] b) => (float[2,3,4,5] y) "
    "{ y = InstanceNormalization(x, s, b) }",
    "batch norm, relu": "(float[2,3,4,5] x) => (float[2,3,4,5] y) "
    "<float[3] s = {1.0, -2.0, 0.5}, float[3] b = {0.5, 1.0, -1.0}, "
    "float[3] m = {0.1, 0.2, -0.3}, float[3] v = {1.5, 0.5, 2.0}> "
    "{ a = BatchNormalization(x, s, b, m, v) y = Relu(a) }",
    "product": "(float[3,4,7] x, float[7,5] w) => (float[3,4,5] y) { y = MatMul(x, w) }",
    "product, row, gelu": "(float16[4,8] x, float16[6,8] w, float16[6] b) => (float16[4,6] y) "
    '{ a = Gemm<transB=1>(x, w, b) y = Gelu<approximate="tanh">(a) }',
    "attention": "(float16[2,5,3,8] q, float16[2,6,3,8] k, float16[2,3,6,16] v) "
    "=> (float16[2,3,5,16] y) <float16 f = {14336}> { t = Transpose<perm=[0,2,1,3]>(q) "
    "u = Transpose<perm=[0,2,3,1]>(k) a = MatMul(t, u) c = Mul(a, f) s = Softmax(c) "
    "y = MatMul(s, v) }",
    "attention of one head": "(float16[2,5,8] q, float16[2,6,8] k, float16[2,6,8] v) "
    "=> (float16[2,5,8] y) { u = Transpose<perm=[0,2,1]>(k) a = MatMul(q, u) s = Softmax(a) "
    "y = MatMul(s, v) }",
    "attention's operator": "(float16[2,5,32] q, float16[2,6,16] k, float16[2,6,32] v) "
    "=> (float16[2,5,64] y) { y = Attention<q_num_heads=4, kv_num_heads=2, scale=0.3>(q, k, v) }",
    "two convs": "(float[1,3,6,6] x, float[4,3,3,3] w, float[2,4,1,1] v) => (float[1,2,4,4] y) "
    "{ a = Conv(x, w) b = Relu(a) y = Conv(b, v) }",
}
REFUSED = {
    "cuDNN is given no float64": "(double[1,3,6,6] x, double[4,3,3,3] w) => (double[1,4,4,4] y) "
    "{ y = Conv(x, w) }",
    "a size is not known": "(float[N,3,6,6] x, float[4,3,3,3] w) => (float[N,4,4,4] y) "
    "{ y = Conv(x, w) }",
    "a pad is negative": "(float[1,3,6,6] x, float[4,3,3,3] w) => (float[1,4,3,4] y) "
    "{ y = Conv<pads=[-1,0,0,0]>(x, w) }",
    "no engine that adds a row behind it": "(float[1,3,6,6] x, float[3,4,3,3] w, float[4] b) "
    "=> (float[1,4,8,8] y) { y = ConvTranspose(x, w, b) }",
    "its window has gaps": "(float[1,3,6,6] x) => (float[1,3,2,2] y) "
    "{ y = MaxPool<kernel_shape=[3,3], dilations=[2,2]>(x) }",
    "where its maxima are is an output": "(float[1,3,6,6] x) => "
    "(float[1,3,4,4] y, int64[1,3,4,4] i) { y, i = MaxPool<kernel_shape=[3,3]>(x) }",
    "it counts padding, and its last window reaches": "(float[1,3,8,8] x) => (float[1,3,4,4] y) "
    "{ y = AveragePool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1, count_include_pad=1>(x) }",
    "its statistics are not constant": "(float[1,3,6,6] x, float[3] s) => (float[1,3,6,6] y) "
    "{ y = BatchNormalization(x, s, s, s, s) }",
    "no engine for a softmax outside of attention": "(float[4,8] x) => (float[4,8] y) "
    "{ y = Softmax(x) }",
    "numbers of 16 bits come in pairs": "(float16[4,7] x, float16[7,6] w) => (float16[4,6] y) "
    "{ y = MatMul(x, w) }",
    "it is multiplied by a factor": "(float[4,7] x, float[7,6] w) => (float[4,6] y) "
    "{ y = Gemm<alpha=2.0>(x, w) }",
    "its factors are repeated": "(float[3,4,6] x, float[6] s) => (float[3,4,6] y) "
    "{ y = LayerNormalization<axis=1>(x, s) }",
    "of one number of dimensions": "(float16[3,3,5,8] q, float16[3,6,8] k) => "
    "(float16[3,3,5,8] y) { y = Attention<q_num_heads=3, kv_num_heads=3>(q, k, k) }",
    "how many heads it has is not said": "(float16[2,5,8] q) => (float16[2,5,8] y) "
    "{ y = Attention(q, q, q) }",
    "it has a mask or a cache": "(float16[1,2,4,8] q, float16[4,4] m) => (float16[1,2,4,8] y) "
    "{ y = Attention(q, q, q, m) }",
    "cuDNN's attention is of 16-bit": "(float[1,2,4,8] q) => (float[1,2,4,8] y) "
    "{ y = Attention(q, q, q) }",
    "are no multiple of 8": "(float16[1,2,4,6] q) => (float16[1,2,4,6] y) "
    "{ y = Attention(q, q, q) }",
    "some keys are left out": "(float16[1,2,4,8] q) => (float16[1,2,4,8] y) "
    "{ y = Attention<is_causal=1>(q, q, q) }",
    "no pattern matches it": "(float[4] x) => (float[4] y) { y = Relu(x) }",
}


def parse(text):
    return onnx.parser.parse_model(f"{HEADER} g {text}")


def graph_of(proto):
    return snapshot(load(proto, stays_free=True))


@cache
def context(text="cudnn"):
    contexts = make_contexts(CompilationConfig.resolve(f"{text}, cuda -arch=sm_80, llvm"), 1)
    return next(one for target, one in contexts.items() if target.target.kind.name == "cudnn")


def whole(graph):
    return Region.of(graph, range(len(graph.nodes)))


def nodes_of(graph, ids):
    return {graph.nodes[one].op_type for one in ids}


def of_table(graph):
    """A region of what the table takes, less what only moves: a transposition of queries."""
    taken = sorted(node for match in match_region(whole(graph), TABLE) for node in match.members)
    return Region.of(graph, taken)


def aligned(nbytes):
    """Memory as a GPU has it, whose contents are not defined."""
    room = np.full(nbytes + 256, 0xA5, np.uint8)
    start = -room.ctypes.data % 256
    return room[start : start + nbytes]


def computed(proto, region, feeds, rules=WIDE):
    """What the table has of a model, by the stand-in; what it lacks, by the reference."""
    graph = region.graph
    program, constants = program_of(region, context())
    names = [graph.values[one].name for one in region.inputs]
    missing = [name for name in names if name not in feeds]
    if missing:
        more = onnx.ModelProto()
        more.CopyFrom(proto)
        del more.graph.output[:]
        more.graph.output.extend(onnx.ValueInfoProto(name=name) for name in missing)
        found = onnx.reference.ReferenceEvaluator(more).run(None, feeds)
        feeds = feeds | dict(zip(missing, found, strict=True))
    outputs = [graph.values[one] for one in region.outputs]
    results = [aligned(int(np.prod(one.shape)) * dtype_of(one.dtype).itemsize) for one in outputs]
    lists = {
        LibraryPlace.INPUT: [held(feeds[name]) for name in names],
        LibraryPlace.OUTPUT: results,
        LibraryPlace.CONSTANT: [held(one) for one in constants.values()],
    }
    scratch = aligned(max(program.scratch_bytes, 1))
    addresses = [
        scratch.ctypes.data + one.index
        if one.place is LibraryPlace.SCRATCH
        else lists[one.place][one.index].ctypes.data
        for one in program.tensors
    ]
    stand_in = cudnn_stand_in.StandIn()
    dnn = Cudnn(stand_in)
    handle = module.c_void_p()
    dnn.call("cudnnCreate", module.byref(handle))
    properties = DnnDescriptor(dnn, "DEVICEPROP", DEVICEPROP_DEVICE_ID=0)
    for drawn in program.graphs:
        best = next(engines(dnn, drawn, rules, properties))[0]
        queued(dnn, handle, drawn, plan_of(dnn, handle, best), addresses, 256)()
    wanted = peer_of(proto)([one.name for one in outputs], feeds)
    pairs = zip(outputs, results, wanted, strict=True)
    return [(room.view(dtype_of(one.dtype)).reshape(one.shape), peer) for one, room, peer in pairs]


def peer_of(proto):
    """ONNX's reference; it does not divide channels of transposed convolutions into groups."""
    if any(node.op_type == "ConvTranspose" for node in proto.graph.node):
        return onnxruntime.InferenceSession(proto.SerializeToString()).run
    return onnx.reference.ReferenceEvaluator(proto).run


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def held(array):
    room = aligned(array.nbytes)
    room[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return room


def feeds_of(proto, seed=0):
    rng = np.random.default_rng(seed)
    feeds = {}
    for one in proto.graph.input:
        kind = one.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [dim.dim_value for dim in kind.shape.dim]
        feeds[one.name] = rng.uniform(-1, 1, shape).astype(dtype)
    return feeds


def compare(pairs):
    for found, wanted in pairs:
        assert found.shape == wanted.shape
        loose = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}[found.dtype.name]
        np.testing.assert_allclose(
            found.astype("float64"), wanted.astype("float64"), rtol=loose, atol=loose
        )


@pytest.mark.parametrize("name", MODELS)
def test_graphs_compute_what_onnx_says(name):
    """Each of the table's operators, with what follows it, is in one graph."""
    proto = parse(MODELS[name])
    graph = graph_of(proto)
    left = set(range(len(graph.nodes))) - set(of_table(graph).nodes)
    assert nodes_of(graph, left) <= {"Transpose"}
    count = len(match_region(whole(graph), TABLE))
    assert count == (2 if name == "two convs" else 1)
    compare(computed(proto, of_table(graph), feeds_of(proto)))


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    graph = graph_of(parse(REFUSED[reason]))
    refused = [rule.refuse(graph, context()) for rule in pattern_rules(TABLE)]
    (node,) = graph.nodes
    assert any(reason in one[node.id].reason for one in refused), refused
    with pytest.raises(BackendError, match="is no operation of cuDNN's"):
        program_of(whole(graph), context())


@pytest.mark.parametrize(
    "text",
    [
        "(float[8,8] x, float[8,1] s) => (float[8,8] y) { y = LayerNormalization(x, s) }",
        "(float[8,8] x, float[8] s, float[8,1] b) => (float[8,8] y) "
        "{ y = LayerNormalization(x, s, b) }",
        "(float[24,4,6] x, float[24,1,1] s) => (float[24,4,6] y) "
        "{ y = LayerNormalization<axis=1>(x, s) }",
    ],
)
def test_factors_of_a_layer_norm_that_lie_along_other_axes_are_refused(text):
    """As many as there are entries, but not one for each."""
    graph = graph_of(parse(text))
    assert not match_region(whole(graph), TABLE)
    refused = [rule.refuse(graph, context()) for rule in pattern_rules(TABLE)]
    assert any("its factors are repeated" in one[0].reason for one in refused), refused


def test_a_convolution_that_is_added_to_itself():
    """The sum is no follower: not one of its operands is another tensor."""
    text = "(float[1,3,6,6] x, float[1,3,3,3] w) => (float[1,1,4,4] y) "
    graph = graph_of(parse(text + "{ a = Conv(x, w) y = Add(a, a) }"))
    (match,) = match_region(whole(graph), TABLE)
    assert nodes_of(graph, match.members) == {"Conv"}


def test_a_scale_of_zero_is_no_scale_that_is_missing():
    text = "(float16[1,2,4,8] q, float16[1,2,6,8] k) => (float16[1,2,4,8] y) "
    proto = parse(text + "{ y = Attention<scale=0.0>(q, k, k) }")
    feeds = feeds_of(proto)
    ((found, _),) = computed(proto, whole(graph_of(proto)), feeds)
    mean = feeds["k"].astype("float32").mean(axis=2, keepdims=True)
    np.testing.assert_allclose(
        found.astype("float32"), np.broadcast_to(mean, found.shape), atol=2e-3
    )


MIXED = "{ u = Transpose<perm=[0,2,1]>(k) a = MatMul(q, u) s = Softmax(a) y = MatMul(s, v) }"


@pytest.mark.parametrize(
    "text",
    [
        "(float16[3,3,5,8] q, float16[3,6,8] k, float16[3,6,16] v) => (float16[3,3,5,16] y) "
        + MIXED,
        "(float16[2,5,8] q, float16[2,1,6,8] k, float16[2,1,6,16] v) => (float16[2,2,5,16] y) "
        + MIXED.replace("[0,2,1]", "[0,1,3,2]"),
        "(float16[2,5,8] q, float16[2,6,8] k, float16[2,6,8] v) => (float16[1,2,5,8] y) "
        "<float16[1,1,1,1] f = {14336}> { u = Transpose<perm=[0,2,1]>(k) a = MatMul(q, u) "
        "c = Mul(a, f) s = Softmax(c) y = MatMul(s, v) }",
        "(float16[2,5,8] q, float16[2,6,8] k, float16[2,6,8] v) => (float16[2,5,8] y) "
        "<float16 f = {0}> { u = Transpose<perm=[0,2,1]>(k) a = MatMul(q, u) "
        "c = Div(a, f) s = Softmax(c) y = MatMul(s, v) }",
    ],
)
def test_attention_of_mixed_ranks_is_refused(text):
    """What is an item of a tensor of three dimensions is a head of one of four."""
    graph = graph_of(parse(text))
    taken = {node for match in match_region(whole(graph), TABLE) for node in match.members}
    assert "Softmax" not in nodes_of(graph, taken)


@st.composite
def attentions(draw):
    """Attention of tensors of three or four dimensions, whose items and heads may be repeated."""
    rows, keys = (draw(st.integers(1, 3)) for _ in range(2))
    items, heads = (draw(st.sampled_from([2, 1])) for _ in range(2))
    shapes = []
    for sizes in ((rows, 8), (keys, 8), (keys, 16)):
        outer = [draw(st.sampled_from([size, size, 1])) for size in (items, heads)]
        shapes.append([*outer[draw(st.integers(0, 1)) :], *sizes])
    if draw(st.booleans()):  # else few are taken
        outer = shapes[0][draw(st.integers(0, len(shapes[0]) - 3)) : -2]
        shapes[1:] = [[*outer, keys, width] for width in (8, 16)]
    k = shapes[1]
    outer = list(np.broadcast_shapes(*(shape[:-2] for shape in shapes)))
    scale = draw(st.sampled_from(["", "Mul", "Div"]))
    form = draw(st.sampled_from([[], [1], [1, 1, 1], [1, 1, 1, 1]])) if scale else []
    outer = [1] * (len(form) - 2 - len(outer)) + outer
    perm = [*range(len(k) - 2), len(k) - 1, len(k) - 2]
    steps = [f"u = Transpose<perm={perm}>(k)", "a = MatMul(q, u)"]
    steps += [f"c = {scale}(a, f)"] if scale else []
    steps += [f"s = Softmax({'c' if scale else 'a'})", "y = MatMul(s, v)"]
    inputs = ", ".join(f"float16{shape} {name}" for shape, name in zip(shapes, "qkv", strict=True))
    constant = f"<float16{form or ''} f = {{14336}}>" if scale else ""
    return f"({inputs}) => (float16{[*outer, rows, 16]} y) {constant} {{ {' '.join(steps)} }}"


@settings(max_examples=40, deadline=None)
@given(attentions())
def test_random_attention_is_right_or_refused(text):
    proto = parse(text)
    region = of_table(graph_of(proto))
    if "Softmax" in nodes_of(region.graph, region.nodes):
        compare(computed(proto, region, feeds_of(proto)))


@st.composite
def convolutions(draw):
    """A convolution of random sizes, with what may follow it."""
    rank = draw(st.integers(1, 3))
    small = st.integers(1, 3)
    group = draw(small)
    channels, filters = group * draw(small), group * draw(small)
    kernel = [draw(small) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    spans = [(taps - 1) * step + 1 for taps, step in zip(kernel, dilations, strict=True)]
    sizes = [draw(st.integers(span, span + 4)) for span in spans]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    strides = [draw(small) for _ in range(rank)]
    items = draw(st.integers(1, 2))
    is_transposed = draw(st.integers(0, 4)) == 0
    padding = [draw(st.integers(0, stride - 1)) for stride in strides] if is_transposed else []
    tail = "" if is_transposed else draw(st.sampled_from(["", "b", "r", "br", "s", "bs", "bsr"]))
    out = [
        (size - 1) * stride + span + more - before - after
        if is_transposed
        else (size + before + after - span) // stride + 1
        for size, stride, span, before, after, more in zip(
            sizes, strides, spans, pads[:rank], pads[rank:], padding or [0] * rank, strict=True
        )
    ]
    # What is padded behind may be less than nothing with `output_padding`: that is refused.
    if is_transposed and any(
        after < more for after, more in zip(pads[rank:], padding, strict=True)
    ):
        padding = [0] * rank
        out = [
            (size - 1) * stride + span - before - after
            for size, stride, span, before, after in zip(
                sizes, strides, spans, pads[:rank], pads[rank:], strict=True
            )
        ]
    if min(out) < 1:
        pads = [0] * (2 * rank)
        out = [
            (size - 1) * stride + span if is_transposed else (size - span) // stride + 1
            for size, stride, span in zip(sizes, strides, spans, strict=True)
        ]
        padding = [0] * len(padding)
    weights = (
        [channels, filters // group, *kernel]
        if is_transposed
        else [filters, channels // group, *kernel]
    )
    name = "ConvTranspose" if is_transposed else "Conv"
    said = f"group={group}, strides={strides}, pads={pads}, dilations={dilations}"
    said += f", output_padding={padding}" if padding else ""
    result = [items, filters, *out]
    inputs = [f"float{[items, channels, *sizes]} x", f"float{weights} w"]
    inputs += [f"float[{filters}] b"] if "b" in tail else []
    inputs += [f"float{result} z"] if "s" in tail else []
    steps = [f"a = {name}<{said}>(x, w{', b' if 'b' in tail else ''})"]
    steps += ["c = Add(z, a)"] if "s" in tail else []
    steps += [f"d = Relu({'c' if 's' in tail else 'a'})"] if "r" in tail else []
    last = steps[-1][0]
    return f"({', '.join(inputs)}) => (float{result} {last}) {{ {' '.join(steps)} }}"


def check_convolution(text):
    proto = parse(text)
    graph = graph_of(proto)
    (match,) = match_region(whole(graph), TABLE)
    assert len(match.members) == len(graph.nodes)
    compare(computed(proto, whole(graph), feeds_of(proto), EngineRules()))


@settings(max_examples=30, deadline=None)
@given(convolutions())
def test_random_convolutions(text):
    check_convolution(text)


@pytest.mark.exhaustive
@settings(max_examples=1000, deadline=None)
@given(convolutions())
def test_a_thousand_random_convolutions(text):
    check_convolution(text)


def test_negative_results_and_nan_of_a_relu():
    proto = parse(MODELS["conv, relu"])
    feeds = feeds_of(proto)
    feeds["x"][0, 1, 2, 3] = np.nan
    ((found, wanted),) = computed(proto, whole(graph_of(proto)), feeds)
    assert np.isnan(found).any()
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def proposed(name, text, stand_in):
    """The engines that each way to ask has, with the stand-in's numbers."""
    graph = graph_of(parse(MODELS[name]))
    program, _ = program_of(of_table(graph), context(text))
    dnn = Cudnn(stand_in)
    properties = DnnDescriptor(dnn, "DEVICEPROP", DEVICEPROP_DEVICE_ID=0)
    return [
        [stand_in.made[one.value.value].values["engine"] for one in found]
        for found in engines(dnn, program.graphs[0], program.rules, properties)
    ]


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("conv", "cudnn", [0, 2, 3]),  # float32 is not computed in TF32 unless that is asked for
        ("conv", "cudnn -math_type=tensor_op", [1, 0, 2, 3]),
        ("conv", "cudnn -deterministic=1", [0, 2]),
        ("conv", "cudnn -conv_algorithm=winograd", [2]),
        ("conv", "cudnn -conv_algorithm=fft_tiling", [3]),
        ("conv", "cudnn -conv_algorithm=implicit_gemm", [0]),
        ("conv, row, sum, relu", "cudnn", [1, 0, 2, 3]),
        ("conv, row, sum, relu", "cudnn -math_type=fma", [0, 2, 3]),
        ("product", "cudnn", []),
        ("product", "cudnn -math_type=tensor_op", [1]),
        ("product, row, gelu", "cudnn", [1]),
        ("maximum", "cudnn -math_type=fma", [0, 4]),
    ],
)
def test_attributes_decide_which_engines_are_tried(name, text, wanted):
    found = proposed(name, text, cudnn_stand_in.StandIn())
    assert (found or [[]])[0] == wanted


def test_every_way_to_ask_is_there_for_whoever_can_use_none_of_the_others():
    stand_in = cudnn_stand_in.StandIn()
    assert proposed("conv", "cudnn", stand_in) == [[0, 2, 3], [0, 2, 3], [0, 4]]
    stand_in.refused_modes = {1, 3}
    assert proposed("conv", "cudnn", stand_in) == [[0, 4]]
    stand_in.refused_modes = {1, 2, 3}
    with pytest.raises(module.CudnnError, match="BAD_PARAM"):
        proposed("conv", "cudnn", stand_in)


def test_what_is_missing_of_a_descriptor_is_an_error_with_its_name():
    dnn = Cudnn(cudnn_stand_in.StandIn())
    with pytest.raises(module.CudnnError, match="cudnnBackendFinalize: BAD_PARAM"):
        DnnDescriptor(dnn, "TENSOR", TENSOR_UNIQUE_ID=1)


@pytest.mark.skipif(has_driver(), reason="NVIDIA's driver is here")
def test_without_a_driver_or_the_library_the_reason_is_said():
    found = BACKEND.detect()
    assert found.targets == ()
    try:
        module.library()
    except BackendError:
        assert "cuDNN cannot be loaded: it is not installed" in found.reason
        assert found.hint == "pip install 'intarsia[cudnn]'"
    else:
        assert "driver is not installed" in found.reason
    with pytest.raises(BackendError):
        BACKEND.rules(context())


# What the library itself says


@pytest.fixture
def dnn():
    try:
        return module.library()
    except BackendError as error:
        pytest.skip(f"{error.message}: {error.hint}")


def test_numbers_are_those_of_the_header(dnn):
    header = next(
        Path(str(one.locate()))
        for name in ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
        if (files := files_of(name))
        for one in files
        if one.name == "cudnn_graph_v9.h"
    )
    said = enumerated(header.read_text(encoding="utf-8"))
    for kind, number in module.KINDS.items():
        assert said[f"BACKEND_{kind}_DESCRIPTOR"] == number
    for attribute, (number, _) in module.ATTRIBUTES.items():
        assert said[f"ATTR_{attribute}"] == number
    for name, (number, _) in module.TYPES.items():
        assert said[f"TYPE_{name}"] == number
    for words in module.WORDS.values():
        for word, number in words.items():
            assert said[word] == number


def enumerated(text):
    """The numbers of a header's enumerations, by their names without `CUDNN_`."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    said = {}
    for body in re.findall(r"typedef enum \w*\s*\{(.*?)\}", text, flags=re.DOTALL):
        last = -1
        for name, value in re.findall(
            r"CUDNN_(\w+)(?: CUDNN_DEPRECATED_ENUM)?\s*(?:=([^,]+))?", body
        ):
            number = re.fullmatch(r"\s*(-?\d+)\s*", value)
            last = int(number[1]) if number else said.get(value.strip()[6:], last + 1)
            said[name] = last
    return said


def files_of(name):
    try:
        return distribution(name).files or ()
    except PackageNotFoundError:
        return ()


@pytest.mark.skipif(has_driver(), reason="NVIDIA's driver is here")
def test_without_a_driver_the_library_has_no_handle(dnn):
    with pytest.raises(module.CudnnError, match="cudnnCreate: CUDNN_STATUS_"):
        dnn.call("cudnnCreate", module.byref(module.c_void_p()))


def properties_of(capability, units, shared):
    """What cuDNN writes of a GPU's properties, from NVIDIA's tables of compute capabilities."""
    return {
        "maxGridSize": [2**31 - 1, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": units,
        "smCountOrigin": 0,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": shared,
        "reservedSharedMemoryPerBlock": 1024,
        "oversizedSharedMemoryPerBlock": 0,
        "maxRegistersPerSM": 65536,
        "maxCtasPerSM": 32,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": 40 << 30,
        "smClockRateKHz": 1410000,
        "memClockRateKHz": 1215000,
        "memoryBusWidth": 5120,
        "l2CacheSize": 40 << 20,
        "cudaDeviceId": 0,
        "deviceVer": 10 * capability,
        "driverVer": 12090,
        "deviceName": "a GPU that is not here",
    }


def ask_for_engines():
    """Print by model how many engines cuDNN has for what the table makes of it, per capability."""
    library = module.library()
    counts = {}
    for capability, units, shared in ((80, 108, 166912), (90, 132, 232448)):
        text = json.dumps(properties_of(capability, units, shared)).encode() + b"\0"
        letters = [bytes([letter]) for letter in text]
        properties = DnnDescriptor(library, "DEVICEPROP", DEVICEPROP_JSON_REPRESENTATION=letters)
        for name, model in MODELS.items():
            graph = graph_of(parse(model))
            program, _ = program_of(of_table(graph), context())
            for rules in (EngineRules(), WIDE):
                found = [
                    len(next(engines(library, one, rules, properties), []))
                    for one in program.graphs
                ]
                counts[f"{capability} {name} {rules.math_type}"] = min(found)
    print(json.dumps(counts))


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux" or has_driver(), reason="it wants a driver of its own")
def test_the_library_has_engines_for_what_the_table_takes(dnn, tmp_path):
    """Of GPUs that are not here: cuDNN proposes engines for properties that it is told.

    It takes descriptors where it finds a driver; one whose functions all fail will do.
    """
    source = tmp_path / "driver.c"
    names = [name for name in DRIVER.split() if name != "cuDriverGetVersion"]
    lines = [f"int {name}(void) {{ return 100; }}" for name in names]
    lines.append("int cuDriverGetVersion(int *number) { *number = 12090; return 0; }")
    source.write_text("\n".join(lines), encoding="utf-8")
    compile_c("-shared", "-fPIC", source, "-o", tmp_path / "libcuda.so.1")
    command = [sys.executable, "-c", f"from {__name__} import ask_for_engines; ask_for_engines()"]
    paths = {
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    done = subprocess.run(
        command,
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    only = {one for one, count in counts.items() if not count}
    # Products of float32 are TF32 in all engines: they are refused unless a target asks for that.
    assert only == {"80 product default", "90 product default"}


DRIVER = """
    cuGetErrorString cuGetErrorName cuModuleGetFunction cuModuleLoadData cuModuleUnload
    cuTensorMapEncodeIm2col cuTensorMapEncodeTiled cuCtxGetCurrent cuCtxGetLimit cuCtxPopCurrent
    cuCtxPushCurrent cuDeviceGet cuDeviceGetCount cuDriverGetVersion cuKernelGetAttribute
    cuKernelGetFunction cuKernelSetAttribute cuLaunchCooperativeKernel cuLaunchKernel
    cuLaunchKernelEx cuLibraryGetKernel cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload
    cuLinkAddData cuLinkComplete cuLinkCreate cuLinkDestroy cuOccupancyMaxPotentialClusterSize
    cuStreamGetCtx cuFuncSetAttribute cuFuncGetAttribute cuCtxGetDevice cuDeviceGetAttribute
"""
"""Functions of the driver that cuDNN looks for."""
