# SPDX-License-Identifier: Apache-2.0
"""What differs from ONNX's references is what the rules of a backend say, and nothing else.

All operators of a kind are in one model, so that each target compiles once.
"""

import contextlib
import itertools
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import intarsia
from intarsia.backends.corrections import corrections
from intarsia.backends.native_defects import native_defects
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

TARGETS = (
    "llvm, onnxruntime",
    "dnnl, onnxruntime",
    "openvino, onnxruntime",
    "dnnl -special_values=exact, onnxruntime",
    "openvino -special_values=exact, onnxruntime",
    "xnnpack, onnxruntime",
    "ncnn, onnxruntime",
    "onnxruntime",
)
OPSET = 20

UNARY = (
    *("Abs", "Asinh", "Atan", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu"),
    *("HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal"),
    *("Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign"),
    *("Sqrt", "Tan", "Tanh", "ThresholdedRelu", "IsNaN", "IsInf"),
)
WITH_ATTRIBUTES = (
    *(("HardSigmoid", {"beta": 0.0}), ("HardSigmoid", {"alpha": 0.0}), ("Selu", {"alpha": 0.0})),
    *(("Selu", {"gamma": 0.0}), ("LeakyRelu", {"alpha": 0.0}), ("Elu", {"alpha": 0.0})),
    *(("Celu", {"alpha": 0.0}), ("ThresholdedRelu", {"alpha": 0.0}), ("Shrink", {"bias": 0.25})),
    *(("Gelu", {"approximate": "tanh"}), ("Celu", {"alpha": 0.5}), ("Elu", {"alpha": 2.0})),
)
BINARY = (
    *("Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min"),
    *("Mod", "Mul", "Pow", "PRelu", "Sub"),
)
TRUTHS = ("Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual")
ROWS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "ReduceSumSquare", "Softmax", "LogSoftmax", "Hardmax"),
    *("LpNormalization", "ArgMax", "ArgMin", "CumSum"),
)


def special(dtype):
    """Return NaN of both signs, infinities, zeros, subnormal, huge and plain numbers."""
    limits = np.finfo(dtype)
    tiny, most = limits.smallest_subnormal * 3, limits.max
    values = [np.nan, np.inf, -np.inf, -0.0, 0.0, tiny, -tiny, most, -most, limits.tiny * 4]
    plain = [1, -1, 0.5, -0.5, 2.5, -2.5, 3, -3, 100, -100]
    return np.array([*values, *plain, -np.float32(np.nan)], dtype)


def elementwise(dtype):
    """Return nodes, feeds and constants that put special values into elementwise operators."""
    one = special(dtype)
    left, right = (np.ascontiguousarray(side.ravel()) for side in np.meshgrid(one, one))
    nodes = [(op, ["x"], {}) for op in UNARY if dtype == "float32" or op != "Celu"]
    for op, attributes in WITH_ATTRIBUTES:
        if dtype == "float32" or op != "Celu":
            nodes.append((op, ["x"], attributes))
    for op in BINARY:
        attributes = {"fmod": 1} if op == "Mod" else {}
        nodes += [(op, pair, attributes) for pair in (["a", "b"], ["x", "half"], ["x", "zero"])]
    nodes += [("Clip", ["x", *bounds], {}) for bounds in (("zero", "six"), ("", "six"), ("zero",))]
    constants = {"half": 0.5, "zero": 0.0, "six": 6.0}
    arrays = {name: np.array(value, dtype) for name, value in constants.items()}
    return nodes, {"x": one, "a": left, "b": right}, arrays


def rows(dtype):
    """Return nodes, feeds and constants that put special values into rows and windows."""
    x = np.tile(np.arange(1, 8, dtype=dtype), (16, 1))
    for row, value in enumerate(special(dtype)[:10]):
        x[row, row % 7] = value
    x[10:14] = np.array([-np.inf, np.inf, np.nan, -0.0], dtype)[:, None]
    nodes = []
    for op in ROWS:
        reads = ["x", "axes"] if op.startswith("Reduce") else ["x"]
        reads = ["x", "axis"] if op == "CumSum" else reads
        arguments = {"axis": 1} if op.startswith("Arg") else {}
        nodes.append((op, reads, arguments))
    for op, padded in itertools.product(("MaxPool", "AveragePool"), (0, 1)):
        shape = {"kernel_shape": [2, 2], "pads": [padded] * 4}
        nodes += [(op, [name], shape) for name in ("image", "deep")]
    nodes += [(op, ["deep"], {}) for op in ("GlobalMaxPool", "GlobalAveragePool")]
    image = x.reshape(1, 1, 16, 7)
    deep = np.ascontiguousarray(np.broadcast_to(image, (1, 20, 16, 7)))
    feeds = {"x": x, "image": image, "deep": deep}
    return nodes, feeds, {"axes": np.array([1]), "axis": np.array(1)}


def build(nodes, feeds, constants):
    """Return a model that has every node's result as an output."""
    made = [
        helper.make_node(op, reads, [f"{op}_{at}"], f"{op}_{at}", **attributes)
        for at, (op, reads, attributes) in enumerate(nodes)
    ]
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=node.output[0]) for node in made]
    arrays = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(made, "g", inputs, outputs, arrays)
    opset = helper.make_opsetid("", OPSET)
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[opset], ir_version=9), strict_mode=True
    )


def judge(model, feeds):
    """Return, by output, what ONNX Runtime without optimisations says, and what onnx does."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in model.graph.output]
    said = {name: [result] for name, result in zip(names, session.run(names, feeds), strict=True)}
    operators = corrections(OPSET)
    evaluator = ReferenceEvaluator(model, new_ops=operators)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in evaluator.rt_nodes_:
        arrays = [{"": None, **feeds, **constants}[name] for name in node.input]
        with np.errstate(all="ignore"), warnings.catch_warnings(), contextlib.suppress(ValueError):
            warnings.simplefilter("ignore")  # its poolings take NaN for padding
            said[node.output[0]].append(node.run(*arrays)[0])
    return said


def without_subnormals(array):
    """Return an array with zeros in the place of subnormal numbers."""
    if array.dtype.kind != "f":
        return array
    is_subnormal = (array != 0) & (np.abs(array) < np.finfo(array.dtype).tiny)
    return np.where(is_subnormal, np.copysign(array.dtype.type(0), array), array)


def is_same(found, wanted):
    """Tell elementwise whether numbers agree, the sign of zero included."""
    if found.shape != wanted.shape:
        return np.zeros(found.shape, bool)
    if found.dtype.kind != "f":
        return found == wanted
    rtol = 1e-2 if found.dtype == np.float16 else 1e-4
    with np.errstate(all="ignore"):
        close = np.isclose(found, wanted, rtol, 4 * np.finfo(found.dtype).tiny, equal_nan=True)
    is_other_zero = (found == 0) & (wanted == 0) & (np.signbit(found) != np.signbit(wanted))
    return close & ~is_other_zero


def is_within(bound, inputs, found, answers):
    """Tell elementwise whether a result is as far from a reference as a rule allows at most."""
    with np.errstate(all="ignore"):
        far = [np.abs(found.astype(float) - answer) <= bound(inputs, answer) for answer in answers]
    return np.any(far, axis=0)


def find_unexplained(exe, model, feeds, backends):
    """Return the nodes whose numbers neither reference has, and that no rule explains."""
    graph = snapshot(load(model))
    placed = {
        name: region.backend
        for region in exe.placement.regions
        for node in region.nodes
        for name in (node.name, *node.origins)
    }
    ours, theirs = exe.run(feeds), judge(model, feeds)
    flushed = judge(model, {name: without_subnormals(array) for name, array in feeds.items()})
    known = {name: numpy_helper.to_array(t) for t in model.graph.initializer for name in (t.name,)}
    wrong = []
    for node in graph.nodes:
        (name,) = (graph.values[value].name for value in node.outputs)
        right = np.any([is_same(ours[name], wanted) for wanted in theirs[name]], axis=0)
        if right.all():
            continue
        reads = [graph.values[value].name for value in node.inputs if value >= 0]
        arrays = [{**feeds, **known}[read] for read in reads] + [*theirs[name], ours[name]]
        if node.op_type not in ROWS:
            arrays = [a[~right] if a.shape == right.shape else a for a in arrays]
        backend = backends.named(placed[node.name])
        rules = [
            rule
            for rule in getattr(backend, "defects", ())
            if not rule.is_refused and rule.describes(graph, node, backend.version())
        ]
        if any(rule.flushes for rule in rules):
            zeros = [wanted + 0.0 for wanted in flushed[name]]  # what is flushed has any sign
            right |= np.any([is_same(ours[name] + 0.0, wanted) for wanted in zeros], axis=0)
            if right.all():
                continue
            arrays = [{**feeds, **known}[read] for read in reads] + [*theirs[name], ours[name]]
            if node.op_type not in ROWS:
                arrays = [a[~right] if a.shape == right.shape else a for a in arrays]
        inputs = [{**feeds, **known}[read] for read in reads]
        bounds = [rule.bound for rule in rules if rule.bound]
        near = [is_within(bound, inputs, ours[name], theirs[name]) for bound in bounds]
        is_bounded = bool(near) and bool((right | np.any(near, axis=0)).all())
        if not is_bounded and not any(
            rule.values and not rule.flushes and rule.explains(arrays) for rule in rules
        ):
            wrong.append((node.name, placed[node.name], ours[name][~right][:3]))
    return wrong


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("make", [elementwise, rows])
@pytest.mark.parametrize("target", TARGETS)
def test_what_special_values_become_is_as_the_rules_say(target, make, dtype, backends):
    nodes, feeds, constants = make(dtype)
    model = build(nodes, feeds, constants)
    exe = intarsia.compile(model, target, num_threads=1, backends=backends)
    assert find_unexplained(exe, model, feeds, backends) == []


@pytest.mark.parametrize("queries", [1, 3, 40])
@pytest.mark.parametrize("left_out", ["is_causal", "lengths", ""])
def test_what_keys_hold_that_attention_leaves_out_does_not_matter(queries, left_out):
    """ONNX's reference spreads a NaN there; ONNX Runtime, behind lengths, does not either."""
    keys, size = 40, 16
    operands = {"q": queries, "k": keys, "v": keys}
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal((1, 2, rows, size), np.float32) for name, rows in operands.items()
    }
    inputs = [*operands]
    if left_out == "lengths":
        inputs += ["", "", "", "n"]
        feeds["n"] = np.array([keys - 4])
    causal = {"is_causal": 1} if left_out == "is_causal" else {}
    node = helper.make_node("Attention", inputs, ["y"], **causal)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, feeds["q"].shape)
    graph = helper.make_graph([node], "g", infos, [output])
    imports = [helper.make_opsetid("", 24)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=11)
    wanted = intarsia.compile(model, "reference", num_threads=1).run(feeds)["y"]
    feeds["k"][:, :, -1] = np.nan
    found = intarsia.compile(model, "llvm", num_threads=1).run(feeds)["y"]
    sees = queries == keys if left_out == "is_causal" else not left_out
    rules = [rule for rule in native_defects("llvm") if "Attention" in rule.operators]
    graph = snapshot(load(model))
    describes = any(rule.describes(graph, graph.nodes[0], "1") for rule in rules)
    assert describes == bool(left_out)
    rows = queries - 1 if sees and left_out else 0 if sees else queries
    np.testing.assert_allclose(found[:, :, :rows], wanted[:, :, :rows], rtol=1e-4, atol=1e-5)
    assert np.isnan(found[:, :, rows:]).all()
